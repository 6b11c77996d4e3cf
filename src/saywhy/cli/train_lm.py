"""`saywhy train-lm`: train a language model on captions, with the vocabulary of a captioner."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saywhy.cli.common import check_writable, duration, print_error, printable
from saywhy.cli.options import Device, Epochs, Reader, RecipeChanges, Seed, examples
from saywhy.cli.train import TrainingDisplay, changes_of, check_training_device

if TYPE_CHECKING:
    from saywhy.data.datasets import Dataset

EPILOG = examples(
    "saywhy train-lm recipes/lm-lstm.toml --text flickr30k_captions.tsv.gz --data flickr8k --out runs/lm-lstm",
    "saywhy train-lm recipes/lm-transformer.toml --text flickr30k_captions.tsv.gz --text coco --data flickr8k "
    "--vocabulary runs/soft --out runs/lm",
)


def train_lm(
    recipe: Annotated[
        Path, typer.Argument(metavar="RECIPE", help="A TOML file, such as recipes/lm-lstm.toml.", show_default=False)
    ],
    text: Annotated[
        list[Path],
        typer.Option(
            metavar="FILE|DIR",
            help="Captions to train on: .txt (one per line), .tsv (the image first, the caption last), both also .gz, "
            "COCO's captions JSON, or a dataset, of which the train split is used. Repeatable.",
            show_default=False,
        ),
    ],
    data: Annotated[
        Path,
        typer.Option(
            metavar="DIR|FILE",
            help="Dataset whose dev captions select the best epoch. Captions of its dev and test images are left out "
            "of the text.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="The run's folder: model, log, run.json.", show_default=False)
    ],
    vocabulary: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|DIR", help="The captioner whose vocabulary is used.", show_default="the shipped model"
        ),
    ] = None,
    exclude: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE|DIR",
            help="Images whose captions are left out: names, one per line, or a dataset (its dev and test images). "
            "Repeatable.",
            show_default=False,
        ),
    ] = None,
    reader: Reader = None,
    epochs: Epochs = None,
    seed: Seed = None,
    settings: RecipeChanges = None,
    device: Device = "auto",
) -> None:
    """Train a language model of captions, for language-model guidance.

    The epoch with the lowest perplexity per word on the dev captions is kept.
    """
    from saywhy.captioners.model_folder import VOCABULARY, read_config
    from saywhy.data.datasets import read
    from saywhy.data.tokenizer import Vocabulary, tokenize
    from saywhy.inference.model import locate
    from saywhy.training.checkpoint import require_no_model
    from saywhy.training.language_model_recipe import read_language_model_recipe
    from saywhy.training.language_model_trainer import train_language_model

    check_writable("--out", out, folder=True)
    check_training_device(device)
    experiment = read_language_model_recipe(recipe, **changes_of(seed, None, epochs, settings or ()))
    require_no_model(out)
    captioner = locate(vocabulary)
    read_config(captioner)  # a UserError where it is no captioner
    words = Vocabulary.load(captioner / VOCABULARY)
    dataset = read(data, reader=reader)
    captions, sources = _captions(text, dataset, exclude or ())
    dev = [tokenize(caption) for image in dataset.split("dev").images for caption in image.captions]
    with LanguageModelDisplay() as display:
        progress = train_language_model(
            experiment,
            [tokenize(caption) for caption in captions],
            dev,
            words,
            out,
            sources={"text": sources, "vocabulary": captioner.name, "dev": f"{dataset.name} dev"},
            device=device,
            on_event=display,
        )
    typer.echo(
        f"{printable(out)}: perplexity {progress.best:.2f} per word on {printable(dataset.name)} dev at epoch "
        f"{progress.best_epoch}, {progress.step:,} steps in {progress.seconds:.0f} s"
    )


def _captions(
    paths: Sequence[Path], dataset: Dataset, exclude: Sequence[Path]
) -> tuple[list[str], list[dict[str, Any]]]:
    """The training captions of all sources, and how many each has and leaves out."""
    from saywhy.data.caption_texts import evaluation_images, read_caption_texts, read_exclusions, without_images
    from saywhy.data.overlap import read_names

    keys = evaluation_images(dataset)
    for path in exclude:
        keys |= read_exclusions(path, read_names)
    captions, sources = [], []
    for path in paths:
        texts = read_caption_texts(path)
        kept = without_images(texts, keys)
        source = {
            "name": path.resolve().name,
            "captions": len(kept),
            "left_out": len(texts) - len(kept),
            "without_image": sum(not text.image for text in kept),
        }
        if source["without_image"]:
            print_error(
                f"{path}: {source['without_image']:,} captions do not name their image; make sure that none is of an "
                "evaluation image"
            )
        captions += [text.caption for text in kept]
        sources.append(source)
    return captions, sources


class LanguageModelDisplay(TrainingDisplay):
    """Shows the events of `saywhy.training.language_model_trainer` on stderr."""

    def _start(self, event: dict[str, Any]) -> None:
        self._line(
            f"training: {event['language_model']} language model, {event['parameters']:,} parameters; "
            f"{event['captions']:,} captions ({event['unknown']:.1%} of the words unknown), "
            f"{event['dev_captions']:,} dev captions, up to {event['epochs']} epochs, {event['steps']:,} steps; "
            f"device {event['device']}; folder {event['out']}"
        )

    def _step(self, event: dict[str, Any]) -> None:
        note = f"loss {event['loss']:.3f}  {event['captions_per_second']:,.0f} captions/s"
        self._update("train", event["steps"], event["step"], note)

    def _epoch(self, event: dict[str, Any]) -> None:
        self._line(
            f"epoch {event['epoch']}/{event['epochs']}  loss {event['loss']:.3f}  "
            f"{event['captions_per_second']:,.0f} captions/s  {duration(event['seconds_left'])} left  "
            f"dev perplexity {event['perplexity']:.2f}" + ("  best so far" if event["is_best"] else "")
        )
