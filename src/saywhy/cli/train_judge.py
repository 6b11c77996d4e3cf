"""`saywhy train-judge`: train a dual encoder that judges captions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from saywhy.cli.common import check_writable, duration, import_plugins, printable
from saywhy.cli.options import MACHINE, Device, ImageFolder, Plugins, Reader, Workers, examples
from saywhy.cli.train import CHANGES, TrainingDisplay, changes_of, without_images
from saywhy.errors import UserError

EPILOG = examples(
    "saywhy train-judge recipes/judge.toml --data coco --weights resnet50_keras.safetensors --out runs/judge",
    "saywhy evaluate --data coco --judge runs/judge",
)


def train_judge(
    recipe: Annotated[
        Path, typer.Argument(metavar="RECIPE", help="A TOML file, such as recipes/judge.toml.", show_default=False)
    ],
    data: Annotated[
        list[str],
        typer.Option(
            metavar="DIR|NAME=DIR",
            help="Captioned images. Each data set as NAME=DIR, if the recipe names several.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="The run's folder: judge, log, run.json.", show_default=False)
    ],
    reader: Reader = None,
    image_folder: ImageFolder = None,
    exclude: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Names of training images to leave out, one per line, as `saywhy data overlap --out` writes them. "
            "Repeatable.",
            show_default=False,
        ),
    ] = None,
    plugins: Plugins = None,
    weights: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|DIR|imagenet|none",
            help="Initial weights of the image network: a file, or a model folder, whose encoder is used.",
            rich_help_panel=CHANGES,
        ),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Number of epochs.", rich_help_panel=CHANGES)
    ] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Seed of all random numbers.", rich_help_panel=CHANGES)
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="TABLE.KEY=VALUE",
            help="Another value for a key of the recipe, such as training.batch=256. Repeatable.",
            show_default=False,
            rich_help_panel=CHANGES,
        ),
    ] = None,
    device: Device = "auto",
    workers: Workers = None,
    cache: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Cache decoded images here.", rich_help_panel=MACHINE)
    ] = None,
    inputs: Annotated[
        str,
        typer.Option(
            metavar="auto|files|memory",
            help="Read images for every batch, or all of them once into the device's memory (auto: on a GPU, if they "
            "fit).",
            rich_help_panel=MACHINE,
        ),
    ] = "auto",
) -> None:
    """Train a judge: a dual encoder that says how well captions fit their images.

    It embeds images and captions in one space, and never writes captions.
    The epoch with the best recall on the dev split is kept: the share of captions that find their own image first.
    """
    import_plugins(plugins)
    from saywhy.data.datasets import read
    from saywhy.data.mixture import parse_data
    from saywhy.inference.model import choose_device
    from saywhy.training.checkpoint import require_no_model
    from saywhy.training.judge_recipe import read_judge_recipe
    from saywhy.training.judge_trainer import train_judge as run

    check_writable("--out", out, folder=True)
    check_writable("--cache", cache, folder=True)
    if ":" in device:
        raise UserError(f"--device {device}: use cuda, and select the GPU with CUDA_VISIBLE_DEVICES")
    if device != "auto":
        choose_device(device)
    experiment = read_judge_recipe(recipe, **changes_of(seed, weights, epochs, settings or ()))
    require_no_model(out)
    folders = parse_data(data, named=bool(experiment.data))
    captioned = {name: read(folder, reader=reader, image_folder=image_folder) for name, folder in folders.items()}
    if exclude:
        captioned = without_images(captioned, exclude)
    with JudgeDisplay() as display:
        progress = run(
            experiment,
            captioned.get("", captioned),
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
