"""`saywhy train-judge`: train a dual encoder that judges captions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from saywhy.cli.common import check_writable, duration, import_plugins, printable
from saywhy.cli.options import (
    CHANGES,
    MACHINE,
    Device,
    Epochs,
    Exclude,
    ImageFolder,
    InputSource,
    Plugins,
    Reader,
    RecipeChanges,
    Seed,
    TrainingData,
    Workers,
    examples,
)
from saywhy.cli.train import TrainingDisplay, changes_of, check_training_device, read_training_data

EPILOG = examples(
    "saywhy train-judge recipes/judge.toml --data coco --weights resnet50_keras.safetensors --out runs/judge",
    "saywhy evaluate --data coco --judge runs/judge",
)


def train_judge(
    recipe: Annotated[
        Path, typer.Argument(metavar="RECIPE", help="A TOML file, such as recipes/judge.toml.", show_default=False)
    ],
    data: TrainingData,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="The run's folder: judge, log, run.json.", show_default=False)
    ],
    reader: Reader = None,
    image_folder: ImageFolder = None,
    exclude: Exclude = None,
    plugins: Plugins = None,
    weights: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|DIR|imagenet|none",
            help="Initial weights of the image network: a file, or a model folder, whose encoder is used.",
            rich_help_panel=CHANGES,
        ),
    ] = None,
    epochs: Epochs = None,
    seed: Seed = None,
    settings: RecipeChanges = None,
    device: Device = "auto",
    workers: Workers = None,
    cache: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Cache decoded images here.", rich_help_panel=MACHINE)
    ] = None,
    inputs: InputSource = "auto",
) -> None:
    """Train a judge: a dual encoder that says how well captions fit their images.

    It embeds images and captions in one space, and never writes captions.
    The epoch with the best recall on the dev split is kept: the share of captions that find their own image first.
    """
    import_plugins(plugins)
    from saywhy.training.checkpoint import require_no_model
    from saywhy.training.judge_recipe import read_judge_recipe
    from saywhy.training.judge_trainer import train_judge as run

    check_writable("--out", out, folder=True)
    check_writable("--cache", cache, folder=True)
    check_training_device(device)
    experiment = read_judge_recipe(recipe, **changes_of(seed, weights, epochs, settings or ()))
    require_no_model(out)
    captioned = read_training_data(data, bool(experiment.data), reader, image_folder, exclude or ())
    with JudgeDisplay() as display:
        progress = run(
            experiment,
            captioned,
            out,
            device=device,
            workers=workers,
            cache=cache,
            inputs=inputs,
            on_event=display,
        )
    typer.echo(
        f"{printable(out)}: best recall@1 on dev {progress.best:.1f} at epoch {progress.best_epoch}, "
        f"{progress.step:,} steps in {progress.seconds:.0f} s"
    )


class JudgeDisplay(TrainingDisplay):
    """Shows the events of `saywhy.training.judge_trainer` on stderr."""

    def _start(self, event: dict[str, Any]) -> None:
        self._line(
            f"training: judge over {event['encoder']}, {event['parameters']:,} parameters "
            f"({event['trained_parameters']:,} trained); {event['images']:,} images, {event['captions']:,} captions, "
            f"{event['dev_images']:,} dev images, {event['epochs']} epochs, {event['steps']:,} steps; "
            f"device {event['device']}; folder {event['out']}"
        )

    def _step(self, event: dict[str, Any]) -> None:
        note = f"loss {event['loss']:.3f}  {event['images_per_second']:,.0f} images/s"
        self._update("train", event["steps"], event["step"], note)

    def _epoch(self, event: dict[str, Any]) -> None:
        self._line(
            f"epoch {event['epoch']}/{event['epochs']}  loss {event['loss']:.3f}  "
            f"{event['images_per_second']:.1f} images/s  {duration(event['seconds_left'])} left  "
            f"dev recall@1 {event['recall_at_1']:.1f}  @5 {event['recall_at_5']:.1f}  @10 {event['recall_at_10']:.1f}  "
            f"median rank {event['median_rank']:g}" + ("  best so far" if event["is_best"] else "")
        )
