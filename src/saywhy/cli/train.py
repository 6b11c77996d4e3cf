"""`saywhy train`: train a captioner from a recipe, and show the progress of the run."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saywhy.cli.common import check_writable, duration, import_plugins, printable, progress_bar
from saywhy.cli.options import (
    CHANGES,
    FLAG,
    MACHINE,
    Device,
    Exclude,
    ImageFolder,
    InputSource,
    Plugins,
    Reader,
    RecipeChanges,
    Regions,
    Seed,
    TrainingData,
    Workers,
    examples,
)
from saywhy.errors import UserError

if TYPE_CHECKING:
    from saywhy.data.datasets import Dataset

EPILOG = examples(
    "saywhy train recipes/flickr8k-soft.toml --data flickr8k --out runs/soft",
    "saywhy train recipes/flickr8k-soft.toml --data flickr8k --out runs/soft --resume",
    "saywhy train recipes/flickr8k-soft.toml --data flickr8k --out runs/soft-lr --set training.lr=1e-3",
    "saywhy train recipes/flickr8k-soft.toml --data flickr8k --out runs/soft --processes 2",
)


def train(
    recipe: Annotated[
        Path, typer.Argument(metavar="RECIPE", help="A TOML file, such as those in recipes/.", show_default=False)
    ],
    data: TrainingData,
    out: Annotated[
        Path,
        typer.Option(metavar="DIR", help="The run's folder: best model, checkpoint, log, curves.", show_default=False),
    ],
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", metavar=FLAG, help="Continue an interrupted run, or a finished one with more --epochs."
        ),
    ] = False,
    reader: Reader = None,
    image_folder: ImageFolder = None,
    regions: Regions = None,
    exclude: Exclude = None,
    start: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="A model whose weights and vocabulary the run starts from.", show_default=False
        ),
    ] = None,
    teacher: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DIR", help="A model to distil from, if the recipe has distil. Repeatable.", show_default=False
        ),
    ] = None,
    plugins: Plugins = None,
    weights: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|DIR|imagenet|none",
            help="Initial weights of the encoder: a file, or a model folder, whose encoder is used.",
            rich_help_panel=CHANGES,
        ),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Number of epochs. It may grow with --resume: the learning-rate schedule is then recomputed.",
            rich_help_panel=CHANGES,
        ),
    ] = None,
    seed: Seed = None,
    settings: RecipeChanges = None,
    device: Device = "auto",
    processes: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            help="Processes on this machine that train together, one per GPU; over several machines, use torchrun.",
            rich_help_panel=MACHINE,
        ),
    ] = 1,
    workers: Workers = None,
    cache: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Cache decoded images and frozen features here.", rich_help_panel=MACHINE),
    ] = None,
    inputs: InputSource = "auto",
) -> None:
    """Train a captioner from a recipe.

    Dev captions are decoded freely; the epoch with the best score is kept.
    Stop the run with Ctrl-C and continue it with --resume.
    """
    if processes > 1:
        from saywhy.cli.train_processes import run_processes

        raise typer.Exit(run_processes(processes, out))
    import_plugins(plugins)
    from saywhy.training.recipe import read_recipe
    from saywhy.training.trainer import check_run_folder
    from saywhy.training.trainer import train as run

    check_writable("--out", out, folder=True)
    check_writable("--cache", cache, folder=True)
    check_training_device(device)
    experiment = read_recipe(recipe, **changes_of(seed, weights, epochs, settings or ()))
    check_run_folder(experiment, out, resume)
    captioned = read_training_data(data, bool(experiment.data), reader, image_folder, exclude or ())
    with _resume_hint(out), TrainingDisplay() as display:
        progress = run(
            experiment,
            captioned,
            out,
            resume=resume,
            device=device,
            workers=workers,
            cache=cache,
            inputs=inputs,
            start=start,
            teachers=teacher or (),
            regions=regions,
            on_event=display,
        )
    if display.enabled:
        typer.echo(
            f"{printable(out)}: best {experiment.training.select} on dev {progress.best:.1f} at epoch "
            f"{progress.best_epoch + 1}, {progress.step} steps in {progress.seconds:.0f} s"
        )


def read_training_data(
    data: Sequence[str], named: bool, reader: str | None, image_folder: Path | None, exclude: Sequence[Path]
) -> Dataset | dict[str, Dataset]:
    """The data set of --data, or by name those of NAME=DIR, without the training images of --exclude."""
    from saywhy.data.datasets import read
    from saywhy.data.mixture import parse_data

    folders = parse_data(data, named=named)
    captioned = {name: read(folder, reader=reader, image_folder=image_folder) for name, folder in folders.items()}
    if exclude:
        captioned = _without_images(captioned, exclude)
    return captioned.get("", captioned)


def _without_images(data: Mapping[str, Dataset], exclude: Sequence[Path]) -> dict[str, Dataset]:
    """The data sets without the training images that these files name."""
    from saywhy.data.overlap import read_names

    names = {name for path in exclude for name in read_names(path)}
    known = {image.name for dataset in data.values() for image in dataset.images}
    if names - known:
        raise UserError(f"--exclude: no data set has an image {min(names - known)}; check --data and the file")
    return {name: dataset.without({image.name for image in dataset.images} & names) for name, dataset in data.items()}


def check_training_device(device: str) -> None:
    """Raise a `UserError` for a device that is not available, or that a run cannot choose."""
    from saywhy.inference.model import choose_device

    if ":" in device:
        raise UserError(f"--device {device}: use cuda, and select the GPU with CUDA_VISIBLE_DEVICES")
    if device != "auto":
        choose_device(device)


def changes_of(seed: int | None, weights: str | None, epochs: int | None, settings: Sequence[str]) -> dict[str, Any]:
    """The values that replace those of the recipe, as nested tables."""
    changes: dict[str, Any] = {}
    values = [(_key_of(setting), _value_of(setting)) for setting in settings]
    values += [("seed", seed), ("encoder.weights", weights), ("training.epochs", epochs)]
    for path, value in values:
        *tables, key = path.split(".")
        table = changes
        for name in tables if value is not None else ():
            table = table.setdefault(name, {})
            if not isinstance(table, dict):
                raise UserError(f"--set {path}: {name} is given as a value, too")
        if value is not None:
            table[key] = value
    return changes


def _key_of(setting: str) -> str:
    key, equals, _ = setting.partition("=")
    if not equals or not all(part.isidentifier() for part in key.split(".")):
        raise UserError(f"--set {setting}: write TABLE.KEY=VALUE, such as training.lr=1e-4")
    return key


def _value_of(setting: str) -> Any:
    """The value as TOML reads it; what is not TOML is a string."""
    _, _, text = setting.partition("=")
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


@contextmanager
def _resume_hint(out: Path) -> Iterator[None]:
    """Tell how to continue a run that Ctrl-C or SIGTERM has stopped; of `--processes`, the first process tells it."""
    from saywhy.cli.train_processes import LAUNCHED, LOST
    from saywhy.training.checkpoint import CHECKPOINT
    from saywhy.training.lost_process import LostProcess

    try:
        yield
    except LostProcess:
        if LAUNCHED not in os.environ:
            raise
        raise typer.Exit(LOST) from None
    except KeyboardInterrupt:
        hint = "interrupted before the first checkpoint; start again without --resume"
        if (out / CHECKPOINT).exists():
            hint = "interrupted; continue from the last checkpoint with --resume"
        raise KeyboardInterrupt(hint) from None


class TrainingDisplay:
    """Shows the events of a run (see `saywhy.training.trainer`) on stderr, in the first of several processes.

    On a terminal there are progress bars; lines for the start, every epoch and unreadable images are printed always.
    """

    def __init__(self) -> None:
        from rich.progress import TextColumn

        self.enabled = int(os.environ.get("RANK", 0)) == 0
        self.bars = progress_bar(TextColumn("{task.fields[note]}"))
        self.tasks: dict[str, Any] = {}

    def __enter__(self) -> TrainingDisplay:
        if self.enabled:
            self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.enabled:
            self.bars.stop()

    def __call__(self, event: dict[str, Any]) -> None:
        """Show one event."""
        if self.enabled:
            getattr(self, f"_{event['kind']}")(event)

    def _line(self, text: str) -> None:
        self.bars.console.print(printable(text), markup=False, highlight=False, soft_wrap=True)

    def _update(self, name: str, total: int, completed: int, note: str = "") -> None:
        if name not in self.tasks:
            self.tasks[name] = self.bars.add_task(name, total=total, note="")
        self.bars.update(self.tasks[name], completed=completed, note=note)

    def _encode(self, event: dict[str, Any]) -> None:
        if "encode" not in self.tasks:
            self._line(f"encoding {event['total']:,} images with the frozen encoder, for the feature cache")
        self._update("encode", event["total"], event["done"])

    def _load(self, event: dict[str, Any]) -> None:
        if "load" not in self.tasks:
            self._line(f"reading {event['total']:,} images into the device's memory")
        self._update("load", event["total"], event["done"])

    def _start(self, event: dict[str, Any]) -> None:
        action = f"resuming at step {event['step']:,}" if event["step"] else "training"
        self._line(
            f"{action}: {event['captioner']} over {event['encoder']}, {event['parameters']:,} parameters "
            f"({event['trained_parameters']:,} trained); {event['images']:,} images, {event['captions']:,} captions, "
            f"{event['epochs']} epochs, {event['steps']:,} steps; device {event['device']}; folder {event['out']}"
        )

    def _step(self, event: dict[str, Any]) -> None:
        note = f"loss {event['loss']:.3f}  {event['images_per_second']:.0f} images/s"
        self._update("train", event["steps"], event["step"], note)

    def _epoch(self, event: dict[str, Any]) -> None:
        line = (
            f"epoch {event['epoch']}/{event['epochs']}  loss {event['loss']:.3f}  "
            f"{event['images_per_second']:.1f} images/s  {duration(event['seconds_left'])} left"
        )
        if "reward" in event:
            line += f"  reward {event['reward']:.1f}"
        if "cider" in event:
            line += f"  dev CIDEr {event['cider']:.1f}  BLEU-4 {event['bleu4']:.1f}"
            line += "  best so far" if event["is_best"] else ""
        self._line(line)

    def _unreadable(self, event: dict[str, Any]) -> None:
        self._line(f"skipped, {event['count']} so far: {event['line']}")
