"""`saywhy compare`: two models, or files of captions, side by side on the same images."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saywhy.cli.common import (
    check_writable,
    import_plugins,
    json_line,
    output_console,
    plain_table,
    print_error,
    printable,
    progress_of,
)
from saywhy.cli.options import (
    FLAG,
    OUTPUT,
    Attention,
    BatchSize,
    Beam,
    Data,
    Device,
    ImageFolder,
    Json,
    LengthPenalty,
    Limit,
    Plugins,
    Reader,
    Regions,
    Split,
    Style,
    Workers,
    examples,
)
from saywhy.errors import UserError

if TYPE_CHECKING:
    from saywhy.data.datasets import Dataset
    from saywhy.hallucination.chair import ImageObjects
    from saywhy.reports.comparison import CaptionSet, Comparison, ImageChange, WordChange

EPILOG = examples(
    "saywhy compare runs/before runs/after --data coco --out comparison",
    "saywhy compare before.jsonl after.jsonl --data flickr8k --split dev --json",
    "saywhy compare ada-lstm-coco-flickr8k runs/mine --data flickr8k --style flickr8k --limit 200",
)
JSON_FILE, PAGE_FILE = "comparison.json", "comparison.html"
SHOWN_WORDS, SHOWN_IMAGES = 8, 3  # on the terminal; the files have more

SIDE = "name or folder of a model, or a file of captions."


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help=f"One side: {SIDE}", show_default=False)],
    b: Annotated[str, typer.Argument(metavar="B", help=f"The other side: {SIDE}", show_default=False)],
    data: Data,
    reader: Reader = None,
    image_folder: ImageFolder = None,
    split: Split = "test",
    limit: Limit = None,
    any_vocabulary: Annotated[
        bool, typer.Option("--any-vocabulary", metavar=FLAG, help="Allow models of different vocabularies.")
    ] = False,
    no_meteor: Annotated[
        bool, typer.Option("--no-meteor", metavar=FLAG, help="Skip METEOR, which needs Java.")
    ] = False,
    samples: Annotated[int, typer.Option(metavar="N", min=100, max=100_000, help="Samples of the bootstrap.")] = 1000,
    plugins: Plugins = None,
    regions: Regions = None,
    beam: Beam = None,
    length_penalty: LengthPenalty = None,
    attention: Attention = None,
    style: Style = None,
    as_json: Json = False,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help=f"Write {JSON_FILE} and {PAGE_FILE}, a page with the images, into this folder.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    top: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            help="Images in the files: N that are better in B, and N that are worse, by CIDEr.",
            rich_help_panel=OUTPUT,
        ),
    ] = 12,
    batch_size: BatchSize = 32,
    workers: Workers = None,
    device: Device = "auto",
) -> None:
    """Compare two models, or files of captions, on a split of a dataset.

    Every metric of both, and the difference B − A with a 95 % interval: a paired bootstrap that resamples images.
    Also the images that changed most by CIDEr, the words gained and lost, and how many captions stayed the same.
    Each model decodes with its own settings unless an option changes them.
    """
    import_plugins(plugins)
    check_writable("--out", out, folder=True)
    changes = {"beam": beam, "length_penalty": length_penalty, "attention": attention, "style": style}
    decoding = {name: value for name, value in changes.items() if value is not None}
    sources = [_locate(argument) for argument in (a, b)]
    _check_decoding(sources, decoding, regions)
    _check_vocabularies(sources, any_vocabulary)

    from saywhy.data.datasets import read, split_name
    from saywhy.reports.comparison import compare as compare_captions

    dataset = read(data, reader=reader, image_folder=image_folder)
    images = dataset.split(split_name(split)).evenly_spaced(limit)
    given = [_read(source, images) if source.is_file else None for source in sources]
    objects = _Objects.of(dataset, images)  # a mistake in the boxes is found before captioning
    notes = [*_same_source_note(sources), *objects.notes]
    generating = _Generating(decoding, regions, batch_size, workers, device)
    first = given[0] or generating.caption(sources[0], images)
    second = first if sources[0].path == sources[1].path else given[1] or generating.caption(sources[1], images)
    common, skipped = _with_both_captions(images, first, second)
    comparison = compare_captions(
        *_with_distinct_names(first, second, sources),
        common,
        objects.select(images, common),
        person_boxes=objects.persons(common),
        training_counts=objects.training_counts,
        word_counts=objects.word_counts,
        with_meteor=not no_meteor,
        images=top,
        samples=samples,
    )
    comparison = replace(comparison, notes=(*notes, *skipped, *comparison.notes))
    for note in comparison.notes:
        print_error(note)
    if out:
        _write(out, comparison, common)
    if as_json:
        typer.echo(json_line(comparison.as_dict()))
    else:
        _show(comparison)
        if out:
            console = output_console()
            console.print()
            console.print(printable(out / PAGE_FILE), soft_wrap=True)


@dataclass(frozen=True)
class _Source:
    """Where captions come from: a file of captions, or a model folder; `argument` as the user wrote it."""

    argument: str
    path: Path
    is_file: bool


def _locate(argument: str) -> _Source:
    from saywhy.inference.model import locate

    path = locate(argument)
    if not path.exists():
        raise UserError(
            f"{argument}: no such model and no such file of captions; give a folder that `saywhy train` wrote, a name "
            "from `saywhy models`, or a file from `saywhy caption --json`"
        )
    return _Source(argument, path.resolve(), path.is_file())


def _check_decoding(sources: Sequence[_Source], decoding: dict[str, Any], regions: Path | None) -> None:
    """Refuse decoding options if no model is compared, and values out of range, before anything is read."""
    from saywhy.decoding import Decoding

    if (decoding or regions) and all(source.is_file for source in sources):
        raise UserError(
            "--beam, --length-penalty, --attention, --style and --regions generate captions, and both sides are files "
            "of captions: leave them out, or compare a model"
        )
    Decoding(**decoding)


def _check_vocabularies(sources: Sequence[_Source], any_vocabulary: bool) -> None:
    """Refuse two models of different vocabularies, of which one can never write some words of the other."""
    from saywhy.captioners.model_folder import VOCABULARY, read_config
    from saywhy.data.tokenizer import Vocabulary

    models = [source for source in sources if not source.is_file]
    for model in models:
        read_config(model.path)
    if any_vocabulary or len(models) < 2:
        return
    first, second = (Vocabulary.load(model.path / VOCABULARY) for model in models)
    only = [set(one.words[one.markers :]) - set(other.words) for one, other in ((first, second), (second, first))]
    if only[0] or only[1]:
        counts = " and ".join(
            f"{len(words):,} only in {source.argument}" + (f" (such as {min(words)!r})" if words else "")
            for source, words in zip(models, only, strict=True)
        )
        raise UserError(
            f"the models have different vocabularies, {counts}: words are gained or lost by that alone; "
            "add --any-vocabulary to compare their captions all the same"
        )


def _read(source: _Source, data: Dataset) -> CaptionSet:
    """The captions of a file; every image must have one."""
    from saywhy.cli.caption_files import read_captions
    from saywhy.reports.comparison import CaptionSet

    return CaptionSet(source.path.name, "given", read_captions(source.path, data))


@dataclass(frozen=True)
class _Generating:
    """How captions are generated: decoding settings that replace the models' own, regions, machine."""

    decoding: dict[str, Any]
    regions: Path | None
    batch_size: int
    workers: int | None
    device: str

    def caption(self, source: _Source, data: Dataset) -> CaptionSet:
        """The captions of a model."""
        from saywhy.inference.evaluation import caption_split
        from saywhy.inference.model import load
        from saywhy.reports.comparison import CaptionSet

        model = load(source.path, self.device)
        settings = model.decoding_with(**self.decoding)
        with progress_of(f"captioning with {model.name}") as report:
            result = caption_split(
                model.captioner, model.vocabulary, model.preprocessing, data.images, settings,
                batch_size=self.batch_size, workers=self.workers,
                regions=model.region_source(self.regions, data.root), progress=report,
            )  # fmt: skip
        words = {name: caption.words for name, caption in result.captions.items()}
        unreadable = tuple(line.removeprefix(f"{data.root}{os.sep}") for line in result.unreadable)
        return CaptionSet(model.name, str(settings), words, unreadable)


@dataclass(frozen=True)
class _Objects:
    """What is known of the objects of images.

    Attributes:
        objects: those of each image.
        with_person: names of the images with a person's box; None without boxes.
        training_counts: mentions of objects in the training captions; None if there are none.
        word_counts: how often each word is in the training captions; None if there are none.
        notes: what could not be read.
    """

    objects: ImageObjects
    with_person: frozenset[str] | None
    training_counts: Mapping[str, int] | None
    word_counts: Mapping[str, int] | None
    notes: tuple[str, ...]

    @classmethod
    def of(cls, dataset: Dataset, data: Dataset) -> _Objects:
        """The objects of `data`, a split of the data set; from references only, with a note, without boxes."""
        from saywhy.data.phrases import find_phrases
        from saywhy.hallucination.chair import image_objects
        from saywhy.hallucination.measures import training_counts
        from saywhy.metrics.rarity import count_words

        counts = training_counts(dataset)
        training = () if counts is None else dataset.split("train").images
        words = count_words(caption for image in training for caption in image.captions) or None
        no_words = f"mAP and rarity left out: {dataset.root} has no train split, whose words they count"
        notes = () if counts is not None else (no_words,)
        phrases = find_phrases(data.root)
        with_person = None
        if phrases is not None:
            named = ((image.name, phrases.of(image.name)) for image in data.images)
            with_person = frozenset(name for name, of in named if any(phrase.kind == "people" for phrase in of))
        try:
            return cls(image_objects(data, phrases=phrases), with_person, counts, words, notes)
        except UserError as error:
            note = f"CHAIR by references only, where objects that they omit count as hallucinated ({error})"
            return cls(image_objects(data, references_only=True), with_person, counts, words, (note, *notes))

    def select(self, data: Dataset, part: Dataset) -> ImageObjects:
        """The objects of a part of the images."""
        names = {image.name for image in part.images}
        return self.objects.select(index for index, image in enumerate(data.images) if image.name in names)

    def persons(self, data: Dataset) -> list[bool] | None:
        """Whether each image has a person's box."""
        return None if self.with_person is None else [image.name in self.with_person for image in data.images]


def _same_source_note(sources: Sequence[_Source]) -> list[str]:
    same = sources[0].path == sources[1].path
    return [f"A and B are both {sources[0].argument}: every difference is 0"] if same else []


def _with_both_captions(data: Dataset, a: CaptionSet, b: CaptionSet) -> tuple[Dataset, list[str]]:
    """The images that have both captions, and a note about those that could not be read."""
    images = tuple(image for image in data.images if image.name in a.words and image.name in b.words)
    if not images:
        raise UserError(
            f"{data.root}: no image has a caption of both A and B; check the images and the files of captions"
        )
    unreadable = a.unreadable or b.unreadable
    skipped = len(data) - len(images)
    notes = [f"skipped {skipped} unreadable images, the first: {unreadable[0]}"] if skipped and unreadable else []
    return replace(data, images=images), notes


def _with_distinct_names(a: CaptionSet, b: CaptionSet, sources: Sequence[_Source]) -> tuple[CaptionSet, CaptionSet]:
    """Captions of two models of one name are called by their folders."""
    if a.name != b.name:
        return a, b
    return replace(a, name=sources[0].argument), replace(b, name=sources[1].argument)


def _write(folder: Path, comparison: Comparison, data: Dataset) -> None:
    from saywhy.files import write_text
    from saywhy.reports.comparison_page import comparison_page

    write_text(folder / JSON_FILE, json.dumps(comparison.as_dict(), indent=2, ensure_ascii=False) + "\n")
    write_text(folder / PAGE_FILE, comparison_page(comparison, {image.name: image.path for image in data.images}))


def _show(comparison: Comparison) -> None:
    from saywhy.reports.comparison_page import rarity_text, signed

    console = output_console()
    for side, name, decoding in zip("AB", comparison.names, comparison.decoding, strict=True):
        settings = "" if decoding == "given" else f", {decoding}"
        console.print(printable(f"{side}  {name}{settings}"), soft_wrap=True)
    console.print(printable(f"on {comparison.data} {comparison.split}, {comparison.n:,} images"), soft_wrap=True)
    rows = [
        (
            *(score.name, f"{score.a:.1f}", f"{score.b:.1f}", signed(score.difference.value)),
            *(f"{signed(score.difference.low)} … {signed(score.difference.high)}", score.verdict or "–"),
        )
        for score in comparison.scores
    ]
    console.print()
    console.print(plain_table(("", "A", "B", "B − A", "95 % interval", ""), rows, text_columns=(0, 5)))
    share = 100 * comparison.unchanged / comparison.n
    console.print(f"\nsame caption: {comparison.unchanged:,} of {comparison.n:,} images ({share:.1f} %)")
    console.print(f"distinct words: {comparison.vocabulary[0]:,} in A, {comparison.vocabulary[1]:,} in B")
    if comparison.rarity:
        console.print(
            "training count of the rarest reference word, better and worse images: " + rarity_text(comparison.rarity)
        )
    for title, words in (("words gained", comparison.gained), ("words lost", comparison.lost)):
        _show_words(title, words)
    _show_images("better in B", comparison.better)
    _show_images("worse in B", comparison.worse)


def _show_words(title: str, words: Sequence[WordChange]) -> None:
    """Words with the number of captions that have them in A and B: objects, then others."""
    console = output_console()
    for kind, is_object in (("objects", True), ("others", False)):
        chosen = [change for change in words if change.is_object == is_object][:SHOWN_WORDS]
        if chosen:
            counts = ", ".join(f"{change.word} {change.a}→{change.b}" for change in chosen)
            console.print(printable(f"{title}, {kind}: {counts}"), soft_wrap=True)


def _show_images(title: str, changes: Sequence[ImageChange]) -> None:
    from saywhy.data.tokenizer import as_text
    from saywhy.reports.comparison_page import signed

    console = output_console()
    for change in changes[:SHOWN_IMAGES]:
        console.print()
        console.print(printable(f"{title}, CIDEr {signed(change.difference, 0)}: {change.name}"), soft_wrap=True)
        console.print(printable(f"  A  {as_text(change.a.words)}"), soft_wrap=True)
        console.print(printable(f"  B  {as_text(change.b.words)}"), soft_wrap=True)
