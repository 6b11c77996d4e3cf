"""What the commands share: messages, image arguments, output paths, JSON output, plugins and progress."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saywhy.errors import UserError
from saywhy.files import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from saywhy.data.region_files import RegionTable
    from saywhy.decoding import Decoding
    from saywhy.inference.model import Model

LONGEST_NAME = 180  # bytes of an output name; file systems allow 255, a temporary name adds some 20
LOG_INTERVAL = 30.0  # seconds between lines of progress where stderr is not a terminal
CONTROL = re.compile(r"[\x7f-\x9f]")  # what json.dumps leaves unescaped of the control characters


def print_error(message: object) -> None:
    """Print one line on stderr, prefixed with the program's name; control characters are escaped."""
    print("saywhy:", printable(" ".join(str(message).splitlines())), file=sys.stderr)


def warn_if_unfamiliar(result: Any) -> None:
    """Print one line about a caption or an explanation whose image is unlike the training photographs."""
    if result.familiar is False:
        print_error(
            f"{result.source}: unlike the photographs this model was trained on "
            f"(familiarity {result.familiarity:.2g}); its caption may be wrong"
        )


def json_line(value: Any) -> str:
    """One line of JSON that is safe to print in a terminal: all control characters are escaped.

    >>> print(json_line({"image": "caf\\u00e9\\x1b\\x9b.jpg"}))
    {"image": "café\\u001b\\u009b.jpg"}
    """
    return CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(value, ensure_ascii=False))


def output_console() -> Console:
    """stdout for tables: no markup, and wide enough where it is not a terminal, which has no edge to wrap at."""
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = 120
    return console


def plain_table(head: Sequence[str], rows: Iterable[Sequence[object]], text_columns: Collection[int] = (0,)) -> Table:
    """A table without borders: numbers on the right, control characters escaped; long text after them is wrapped."""
    from rich.table import Table

    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    for column, name in enumerate(head):
        is_text = column in text_columns
        table.add_column(printable(name), justify="left" if is_text else "right", no_wrap=column == 0 or not is_text)
    for row in rows:
        table.add_row(*map(printable, row))
    return table


class Failures:
    """Prints and counts what failed. The command continues with the rest; its exit code reports the failures."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, failure: object) -> None:
        """Print and count one failure."""
        self.count += 1
        print_error(failure)

    @property
    def exit_code(self) -> int:
        """0, or 2 after a failure."""
        return 2 if self.count else 0


def guidance_settings(
    guidance: float | None, lm: str | None, lm_weight: str | None, lm_prompt: Path | None = None
) -> dict[str, Any]:
    """The decoding settings of --guidance and the --lm options; a `UserError` where they do not fit together."""
    if lm_prompt is not None and lm is None:
        raise UserError("--lm-prompt is read by a language model: add --lm PATH")
    if lm_weight is not None and lm is None:
        raise UserError("--lm-weight is the weight of a language model: add --lm PATH")
    if lm_weight is not None and guidance is not None:
        raise UserError("--guidance and --lm-weight are two kinds of guidance: give one or the other")
    if lm is not None and lm_weight is None and guidance in (None, 1):
        raise UserError("--lm has no effect alone: add --guidance G other than 1, or --lm-weight A,B")
    weights = None if lm_weight is None else number_pair(lm_weight)
    prompt = None if lm_prompt is None else str(lm_prompt)
    settings = {"guidance": guidance, "lm": lm, "lm_weight": weights, "lm_prompt": prompt}
    return {name: value for name, value in settings.items() if value is not None}


def number_pair(text: str) -> tuple[float, ...]:
    """The weights of --lm-weight; `Decoding` checks how many there are, and their range."""
    try:
        return tuple(float(number) for number in text.split(","))
    except ValueError:
        raise UserError(f"--lm-weight {text}: give two numbers, such as 5,2.5") from None


def warn_if_guidance_is_untrained(model: Model, decoding: Decoding) -> None:
    """Print one line if guidance needs conditioning dropout, and nothing says whether the model was trained with it."""
    if decoding.needs_no_image and model.conditioning_dropout is None:
        print_error(
            f"model {model.name} does not say whether it was trained with conditioning dropout; without it, guidance "
            "makes captions worse"
        )


def import_plugins(modules: Iterable[str] | None) -> None:
    """Import the modules of --import, which register captioners, encoders and audits."""
    from saywhy.registry import import_plugin

    for module in modules or ():
        import_plugin(module)


def readable_images(arguments: Iterable[str], on_failure: Callable[[UserError], None]) -> Iterator[Path]:
    """The images of the command line whose headers can be read; others are reported before a model is loaded."""
    from saywhy.data.images import find_images, image_header

    for argument in arguments:
        try:
            paths = find_images([argument])
        except UserError as error:
            on_failure(error)
            continue
        for path in paths:
            try:
                image_header(path)
                yield path
            except UserError as error:
                on_failure(error)


def region_table(model: Model, regions: Path | None, images: Iterable[Path]) -> RegionTable | None:
    """The regions of these images, for a region-based model; a `UserError` names an image that has none."""
    source = model.region_source(regions)
    if source is None:
        return None
    source.table.require(image.name for image in images)
    return source.table


class OutputPaths:
    """One output path per image, named after it; a second `dog.jpg`, from another folder, becomes `dog-2`.

    Args:
        folder: the folder of all outputs.
        images: the input images; none of them is ever overwritten.
        suffix: the suffix of output files; empty for output folders.
        contents: the files in each output folder.
    """

    def __init__(self, folder: Path, images: Iterable[Path], suffix: str = "", contents: Sequence[str] = ()) -> None:
        self.folder, self.suffix, self.contents = folder, suffix, contents
        self.taken = {_path_key(path) for path in images}

    def __call__(self, image: str) -> Path:
        """The output path of an image; no other image gets the same."""
        stem = _output_stem(image)
        names = chain([stem], (f"{stem}-{number}" for number in count(2)))
        output = next(path for name in names if self._is_free(path := self.folder / f"{name}{self.suffix}"))
        self.taken.add(_path_key(output))
        return output

    def _is_free(self, path: Path) -> bool:
        written = {_path_key(file) for file in (path, *(path / name for name in self.contents))}
        return not (self.taken & written or (self.contents and path.is_file()))


def _output_stem(image: str) -> str:
    stem = Path(image).stem
    if not stem.strip("."):
        return "image"  # "...jpg" would lead out of the folder
    encoded = os.fsencode(stem)
    if len(encoded) <= LONGEST_NAME:
        return stem
    digest = hashlib.blake2b(encoded, digest_size=4).hexdigest()
    return f"{encoded[: LONGEST_NAME - 9].decode('utf-8', 'ignore')}-{digest}"


def _path_key(path: Path) -> str:
    return os.path.realpath(path).casefold()  # some file systems treat Dog.png and dog.png as one file


def check_writable(
    option: str, path: Path | None, *, folder: bool = False, other_than: Iterable[Path | None] = ()
) -> None:
    """Raise a `UserError` if no file (or folder) can be written at `path`; nothing is created yet.

    `other_than` are files that it would overwrite: inputs, and other outputs.
    """
    if path is None:
        return
    if path.exists() and path.is_dir() != folder:
        actual, expected = ("a folder", "a file") if path.is_dir() else ("a file", "a folder")
        raise UserError(f"{option} {path}: is {actual}, and should be {expected}; choose another name")
    if os.path.realpath(path) in {os.path.realpath(other) for other in other_than if other is not None}:
        raise UserError(f"{option} {path}: would overwrite an input or another output; choose another name")
    parent = path if folder else path.parent
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        reason = "permission denied" if parent.is_dir() else "not a folder"
        raise UserError(f"{option} {path}: cannot be written ({parent}: {reason}); choose another folder")


@contextmanager
def progress_of_stages() -> Iterator[Callable[[str, int, int, bool], None]]:
    """Report stages as (name, done, total, finished): a bar each on a terminal, else a line at the start and end."""
    bar = progress_bar(transient=True)
    if bar.disable:
        yield _ProgressLines(start_and_end=True)
        return
    with bar:
        tasks: dict[str, Any] = {}

        def report(stage: str, done: int, total: int, finished: bool = False) -> None:
            if stage not in tasks:
                tasks[stage] = bar.add_task(stage, total=total)
            bar.update(tasks[stage], completed=done, total=total)

        yield report


@contextmanager
def progress_of(task: str) -> Iterator[Callable[[int, int], None]]:
    """Report one task as (done, total): a bar on a terminal, else a line every 30 seconds."""
    with progress_of_stages() as report:
        if isinstance(report, _ProgressLines):
            report.start_and_end = False
        yield lambda done, total: report(task, done, total, False)


def progress_bar(*columns: Any, transient: bool = False) -> Any:
    """A bar on stderr, with more columns after the count; it is disabled where stderr is not a terminal."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        *columns,
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        transient=transient,
        disable=not console.is_terminal,
    )


class _ProgressLines:
    """Progress in a log file: a line every `LOG_INTERVAL` seconds, and at the start and end of stages."""

    def __init__(self, start_and_end: bool) -> None:
        self.start_and_end = start_and_end
        self.started: dict[str, tuple[float, int]] = {}  # per running stage: when, and how many were done already
        self.last = time.monotonic()

    def __call__(self, stage: str, done: int, total: int, finished: bool = False) -> None:
        now = time.monotonic()
        if stage not in self.started:
            self.started[stage], self.last = (now, done), now
            if self.start_and_end:
                self._line(f"{stage}: {total:,} images" + (f", {done:,} of them cached" if done else ""))
        began, cached = self.started[stage]
        if finished:
            del self.started[stage]
            if self.start_and_end and cached < total:
                self._line(f"{stage}: finished in {duration(now - began)}")
        elif now - self.last >= LOG_INTERVAL and cached < done < total:
            self.last = now
            left = duration((now - began) * (total - done) / (done - cached))
            self._line(f"{stage}: {done:,} of {total:,} images ({done / total:.0%}), {left} left")

    @staticmethod
    def _line(text: str) -> None:
        print(text, file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    """Seconds as people write them.

    >>> duration(7.4), duration(600), duration(9000)
    ('7 s', '10 min', '2 h 30 min')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
