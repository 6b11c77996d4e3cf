"""`saywhy train`: train a captioner by a recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer


def train(
    recipe: Annotated[Path, typer.Argument(help="A recipe, as those in recipes/.", show_default=False)],
    data: Annotated[Path, typer.Option(help="The captioned pictures.", show_default=False)],
    out: Annotated[
        Path,
        typer.Option(help="The run's folder: the best model, checkpoint, log and curves.", show_default=False),
    ],
    resume: Annotated[bool, typer.Option("--resume", help="Go on after a crash or an interruption.")] = False,
    seed: Annotated[int | None, typer.Option(help="In place of the recipe's seed.", show_default=False)] = None,
    weights: Annotated[
        str | None,
        typer.Option(help='The encoder\'s: a file, "imagenet" or "none".', show_default="recipe's"),
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="In place of the recipe's epochs.", show_default=False)] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    workers: Annotated[int | None, typer.Option(help="Processes that read pictures.", show_default="by itself")] = None,
    teacher: Annotated[
        list[str] | None,
        typer.Option(help="A model to learn from, where the recipe distils; may be repeated.", show_default=False),
    ] = None,
    cache: Annotated[
        Path | None, typer.Option(help="Keep decoded pictures and frozen features here.", show_default=False)
    ] = None,
) -> None:
    """Train a captioner by a recipe; the best epoch on freely decoded dev captions is kept.

    Several processes: torchrun --nproc-per-node 2 -m saywhy train …
    """
    from saywhy.cli.progress import TrainingDisplay
    from saywhy.data.datasets import read
    from saywhy.training.recipe import read_recipe
    from saywhy.training.run import train as run

    changes: dict[str, Any] = {}
    if seed is not None:
        changes["seed"] = seed
    if weights is not None:
        changes["encoder"] = {"weights": weights}
    if epochs is not None:
        changes["training"] = {"epochs": epochs}
    chosen = read_recipe(recipe, **changes)
    with TrainingDisplay() as display:
        progress = run(
            chosen,
            read(data),
            out,
            resume=resume,
            device=device,
            workers=workers,
            cache=cache,
            teachers=teacher or (),
            watch=display,
        )
    if display.speaks:
        typer.echo(
            f"{out}: best {chosen.training.select} on dev {progress.best:.1f} at epoch {progress.best_epoch + 1}, "
            f"{progress.step} steps in {progress.seconds:.0f} s"
        )
