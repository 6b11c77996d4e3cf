"""`saywhy train`: train a captioner by a recipe."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from saywhy.cli.common import check_writable, print_error
from saywhy.cli.options import FLAG, MACHINE, Data, Device, ImageFolder, Reader, Regions, Workers, examples
from saywhy.errors import UserError

CHANGES = "In place of what the recipe says"
EPILOG = examples(
    "saywhy train recipes/flickr8k-soft.toml --data flickr8k --out runs/soft",
    "saywhy train recipes/flickr8k-soft.toml --data flickr8k --out runs/soft --resume",
    "torchrun --nproc-per-node 2 -m saywhy train recipes/flickr8k-soft.toml --data flickr8k --out runs/soft",
)


def train(
    recipe: Annotated[
        Path, typer.Argument(metavar="RECIPE", help="A TOML file, as those in recipes/.", show_default=False)
    ],
    data: Data,
    out: Annotated[
        Path,
        typer.Option(metavar="DIR", help="The run's folder: best model, checkpoint, log, curves.", show_default=False),
    ],
    resume: Annotated[
        bool, typer.Option("--resume", metavar=FLAG, help="Go on after a crash or an interruption.")
    ] = False,
    reader: Reader = None,
    image_folder: ImageFolder = None,
    regions: Regions = None,
    teacher: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DIR", help="A model to learn from, where the recipe distils; repeatable.", show_default=False
        ),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(metavar="FILE|imagenet|none", help="Weights the encoder starts from.", rich_help_panel=CHANGES),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="How many epochs.", rich_help_panel=CHANGES)
    ] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Seed of all randomness.", rich_help_panel=CHANGES)
    ] = None,
    device: Device = "auto",
    workers: Workers = None,
    cache: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Keep decoded images and frozen features here.", rich_help_panel=MACHINE),
    ] = None,
) -> None:
    """Train a captioner by a recipe.

    The best epoch on freely decoded dev captions is kept.
    Stop it with Ctrl-C if you must, and go on with --resume.
    """
    from saywhy.cli.progress import TrainingDisplay
    from saywhy.data.datasets import read
    from saywhy.inference.model import choose_device
    from saywhy.training.recipe import read_recipe
    from saywhy.training.trainer import train as run

    check_writable("--out", out, folder=True)
    check_writable("--cache", cache, folder=True)
    if ":" in device:
        raise UserError(f"--device {device}: say cuda, and which by CUDA_VISIBLE_DEVICES")
    choose_device(device)
    changes: dict[str, Any] = {}
    if seed is not None:
        changes["seed"] = seed
    if weights is not None:
        changes["encoder"] = {"weights": weights}
    if epochs is not None:
        changes["training"] = {"epochs": epochs}
    chosen = read_recipe(recipe, **changes)
    captioned = read(data, reader=reader, image_folder=image_folder)
    with _saying_how_to_go_on(), TrainingDisplay() as display:
        progress = run(
            chosen,
            captioned,
            out,
            resume=resume,
            device=device,
            workers=workers,
            cache=cache,
            teachers=teacher or (),
            regions=regions,
            on_event=display,
        )
    if display.speaks:
        typer.echo(
            f"{out}: best {chosen.training.select} on dev {progress.best:.1f} at epoch {progress.best_epoch + 1}, "
            f"{progress.step} steps in {progress.seconds:.0f} s"
        )


@contextmanager
def _saying_how_to_go_on() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        print_error("stopped; go on from the last checkpoint with --resume")
        raise
