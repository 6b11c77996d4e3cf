"""What `saywhy evaluate` does: captions of a split, their scores, and a results file."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from saywhy.cli.progress import counting
from saywhy.data.datasets import Dataset
from saywhy.data.tokenizer import tokenize
from saywhy.errors import UserError
from saywhy.files import write_text
from saywhy.metrics.attention_stats import attentions
from saywhy.metrics.score import Scores, score
from saywhy.metrics.signature import Signature

if TYPE_CHECKING:
    from saywhy.captioners.base import Captioner
    from saywhy.decoding import Caption


ORACLE = "oracle regions, drawn by people for these very captions: no scores of a captioner on unseen images"


@dataclass(frozen=True)
class Said:
    """Captions of a split, and how they came about.

    Attributes:
        source: the model's own name, or the file's.
        decoding: as signatures write it.
        words: each image's caption.
        broken: a line for each image that could not be read.
        about: the machine, where the model looked, and how it was trained.
    """

    source: str
    decoding: str
    words: dict[str, Sequence[str]]
    broken: tuple[str, ...] = ()
    about: dict[str, Any] = field(default_factory=dict)


def from_model(
    model: str | None,
    device: str,
    data: Dataset,
    asked: dict[str, Any],
    batch: int,
    workers: int | None,
    regions: Path | None = None,
) -> Said:
    """Freely decoded captions of one split, `data`; a model of regions finds them in `regions` or beside the data."""
    from saywhy.data.region_inputs import find_regions
    from saywhy.inference.evaluation import caption_split
    from saywhy.inference.model import load, locate
    from saywhy.provenance import machine

    loaded = load(model, device)
    decoding = replace(loaded.decoding, **asked)
    given = find_regions(loaded.regions, regions, f"model {loaded.name}", data.root)
    began = time.monotonic()
    with counting("captioning") as progress:
        said = caption_split(
            loaded.captioner, loaded.vocabulary, loaded.preprocessing, data.images, decoding,
            batch=batch, workers=workers, regions=given, progress=progress,
        )  # fmt: skip
    about = {
        "captions_per_second": len(said.captions) / (time.monotonic() - began),
        **machine(loaded.captioner.device),
        "attentions": _glances(loaded.captioner, said.captions.values()),
        **({"regions": given.describe()} if given else {}),
        **_training(locate(model)),
    }
    words: dict[str, Sequence[str]] = {name: caption.words for name, caption in said.captions.items()}
    broken = tuple(line.removeprefix(f"{data.root}{os.sep}") for line in said.broken)
    return Said(loaded.name, str(decoding), words, broken, about)


def _glances(captioner: Captioner, captions: Iterable[Caption]) -> dict[str, Any]:
    """Where the captioner looked, and what its gate lets in, if it has one."""
    found = attentions(captions)
    return {**found.as_dict(), "gate_admits": captioner.gate_admits if found.gate else None}


def from_file(path: Path, data: Dataset) -> Said:
    """Captions of a file, one JSON object a line with `image` and `caption` (or `words`); every image must have one.

    This is what `saywhy caption --json` prints, too: an image is found by the end of its path, whatever
    folder it is in.
    """
    names = {image.name for image in data.images}
    words: dict[str, Sequence[str]] = {}
    for image, spoken in _read(path):
        tails = ("/".join(PurePosixPath(image).parts[start:]) for start in range(len(PurePosixPath(image).parts)))
        name = next((tail for tail in tails if tail in names), None)
        if name in words:
            raise UserError(f"{path}: two captions for {name}; leave one")
        if name is not None:
            words[name] = spoken
    if missing := [name for name in names if name not in words]:
        raise UserError(f"{path}: no caption for {len(missing)} of {len(names)} images, such as {min(missing)}")
    return Said(path.name, "given", {image.name: words[image.name] for image in data.images})


def _read(path: Path) -> Iterator[tuple[str, Sequence[str]]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({getattr(error, 'strerror', error)})") from None
    for number, line in enumerate(lines, start=1):
        try:
            if line.strip():
                yield _caption(json.loads(line))
        except (ValueError, KeyError, TypeError):
            raise UserError(f'{path}, line {number}: not a JSON object with "image" and "caption"') from None


def _caption(row: dict[str, Any]) -> tuple[str, Sequence[str]]:
    """An image's name and the words said of it: as they are where they are given, else cut from the caption."""
    image, spoken = row["image"], row.get("words") or [row["caption"]]
    words = [each["word"] if isinstance(each, dict) else each for each in spoken]
    if not all(isinstance(each, str) for each in (image, *words)):
        raise TypeError
    return image, words if row.get("words") else tokenize(words[0])


def scores(said: Said, data: Dataset, meteor: bool) -> Scores:
    """Score the captions against all references."""
    images = [image for image in data.images if image.name in said.words]
    result = score(
        [said.words[image.name] for image in images],
        [image.captions for image in images],
        meteor="auto" if meteor else False,
        signature=Signature(tok="ptb", split=f"{data.name}/{images[0].split}", decode=said.decoding),
    )
    skipped = [f"skipped {len(said.broken)} broken images, the first: {said.broken[0]}"] if said.broken else []
    oracle = [ORACLE] if said.about.get("regions", {}).get("oracle") else []
    return replace(result, notes=(*oracle, *skipped, *result.notes))


def save_captions(path: Path, said: Said) -> None:
    """Write the captions as `from_file` reads them."""
    lines = [json.dumps({"image": name, "words": list(words)}) for name, words in said.words.items()]
    write_text(path, "\n".join(lines) + "\n")


def save_results(path: Path, said: Said, data: Dataset, result: Scores) -> None:
    """Write a results file: the scores and all they depend on. Notes speak of this machine and stay here."""
    split = data.images[0].split
    table = {"model": said.source, "data": data.name, "split": split, "decoding": said.decoding}
    write_text(path, json.dumps({**table, "scores": measured(result), **said.about}, indent=2) + "\n")


def measured(result: Scores) -> dict[str, Any]:
    """The scores as a results file has them."""
    return {name: value for name, value in result.as_dict().items() if name != "notes"}


def show(said: Said, data: Dataset, result: Scores) -> None:
    """Print a table."""
    console = Console(highlight=False)
    where = f"{data.name} {data.images[0].split}, {result.n:,} images"
    console.print(f"{said.source} on {where}", markup=False, soft_wrap=True)
    names = ("", "BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "METEOR", "ROUGE-L", "CIDEr", "SPICE")
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    for name in names:
        table.add_column(name, justify="right")
    percent = result.as_dict()
    values = [*percent["bleu"], *(percent[name] for name in ("meteor", "rouge_l", "cider", "spice"))]
    table.add_row("", *("–" if value is None else f"{value:.1f}" for value in values))
    table.add_row("no penalty", *(f"{value:.1f}" for value in percent["bleu_no_penalty"]))
    console.print(table)
    console.print(str(result.signature), markup=False, soft_wrap=True)


def _training(folder: Path) -> dict[str, Any]:
    """What run.json says of how the model was trained, where there is one; files by their names alone."""
    path = folder / "run.json"
    if not path.is_file():
        return {}
    try:
        run = json.loads(path.read_text(encoding="utf-8"))
        encoder = run["recipe"]["encoder"]
        encoder["weights"] = Path(encoder["weights"]).name
        run["broken"] = [Path(line).name for line in run["broken"]]  # "folder/name: what is wrong"
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: not what `saywhy train` wrote ({error!r}); take it away or mend it") from None
    return {"training": run}
