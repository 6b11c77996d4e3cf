"""`saywhy caption`: describe images."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saywhy.cli.common import (
    Failures,
    OutputPaths,
    check_writable,
    guidance_settings,
    import_plugins,
    json_line,
    print_error,
    printable,
    readable_images,
    region_table,
    warn_if_guidance_is_untrained,
    warn_if_unfamiliar,
)
from saywhy.cli.many_images import ManyImages
from saywhy.cli.options import (
    FLAG,
    MANY,
    OUTPUT,
    Attention,
    BatchSize,
    Beam,
    CaptionEngine,
    Device,
    Guidance,
    ImageColumn,
    Images,
    Inputs,
    JsonLines,
    LanguageModel,
    LanguageModelPrompt,
    LanguageModelWeight,
    LengthPenalty,
    Model,
    NoRepeat,
    PartSize,
    Plugins,
    Regions,
    Style,
    Workers,
    examples,
)
from saywhy.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from saywhy.decoding.caption import Caption
    from saywhy.viz.caption_sheet import CaptionedImage

SHEET_FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG"}
SHEET_IMAGES = 200  # more would not fit into one picture
SAMPLING = "Sampling, instead of beam search"
EPILOG = examples(
    "saywhy caption photo.jpg holiday/",
    "saywhy caption holiday/ --json > captions.jsonl",
    "saywhy caption photo.jpg --risk",
    "saywhy caption photo.jpg --guidance 1.5",
    "saywhy caption photo.jpg --figures attention/",
    "saywhy caption holiday/ --risk --sheet holiday.jpg",
    "saywhy caption photo.jpg --sample --top-p 0.9 --seed 7",
    "saywhy caption --in photos/ --out captions.parquet",
    'saywhy caption --in "shards/*.tar" --out captions/ --engine ray',
    "saywhy caption photo.jpg --engine onnx",
)


def caption(
    images: Images = None,
    model: Model = None,
    plugins: Plugins = None,
    regions: Regions = None,
    beam: Beam = None,
    length_penalty: LengthPenalty = None,
    no_repeat: NoRepeat = None,
    attention: Attention = None,
    style: Style = None,
    guidance: Guidance = None,
    lm: LanguageModel = None,
    lm_weight: LanguageModelWeight = None,
    lm_prompt: LanguageModelPrompt = None,
    sample: Annotated[
        bool,
        typer.Option(
            "--sample", metavar=FLAG, help="Sample words instead of searching for the best.", rich_help_panel=SAMPLING
        ),
    ] = False,
    temperature: Annotated[
        float,
        typer.Option(metavar="T", help="Sampling temperature; below 1 is more conservative.", rich_help_panel=SAMPLING),
    ] = 1.0,
    top_k: Annotated[
        int,
        typer.Option(
            metavar="K", min=0, help="Sample from the K most likely words; 0 for all.", rich_help_panel=SAMPLING
        ),
    ] = 0,
    top_p: Annotated[
        float,
        typer.Option(
            metavar="P",
            help="Nucleus sampling: sample from the most likely words with total probability P.",
            rich_help_panel=SAMPLING,
        ),
    ] = 1.0,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Random seed.", rich_help_panel=SAMPLING)] = 0,
    risk: Annotated[
        bool,
        typer.Option(
            "--risk", metavar=FLAG, help="Show how likely each object word is made up.", rich_help_panel=OUTPUT
        ),
    ] = False,
    as_json: JsonLines = False,
    figures: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write a figure of the attention, one PNG per image.", rich_help_panel=OUTPUT),
    ] = None,
    sheet: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Draw all images with their captions, as one PNG or JPEG.", rich_help_panel=OUTPUT
        ),
    ] = None,
    inputs: Inputs = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE|DIR",
            help="Output of --in: a .parquet or .jsonl file, or a folder of Parquet files. The same command resumes.",
            show_default=False,
            rich_help_panel=MANY,
        ),
    ] = None,
    column: ImageColumn = None,
    part_size: PartSize = None,
    batch_size: BatchSize = 16,
    workers: Workers = None,
    device: Device = "auto",
    engine: CaptionEngine = "torch",
) -> None:
    """Describe images, one caption per image.

    Images that cannot be read are named on stderr and skipped; the exit code is then 2.
    With --in, images may be many: each gets a row, also if it cannot be read (docs/many-images.md).
    """
    if engine not in (*ENGINES, "ray"):
        raise UserError(f"unknown engine {engine!r}: {did_you_mean(engine, (*ENGINES, 'ray'))}")
    if inputs and engine == "onnx":
        raise UserError("--engine onnx is for images as arguments: with --in use torch or ray")
    is_plain = bool(images) and engine != "ray" and (inputs, out, column, part_size, workers) == (None,) * 5
    many = None if is_plain else ManyImages.parse(images, inputs, out, engine, column, part_size, batch_size, workers)
    if sample and (beam is not None or length_penalty is not None):
        raise UserError("--beam and --length-penalty are for beam search, --sample replaces it: give one or the other")
    if not sample and (temperature, top_k, top_p, seed) != (1.0, 0, 1.0, 0):
        raise UserError("--temperature, --top-k, --top-p and --seed are for sampling: add --sample")
    decoding: dict[str, Any] = {
        "beam": beam,
        "length_penalty": length_penalty,
        "no_repeat": no_repeat,
        "attention": attention,
        "style": style,
        **guidance_settings(guidance, lm, lm_weight, lm_prompt),
    }
    if sample:
        decoding |= {"method": "sample", "temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    decoding = {name: value for name, value in decoding.items() if value is not None}
    check_writable("--figures", figures, folder=True)
    check_writable("--sheet", sheet)
    if many:
        if as_json or figures or sheet:
            raise UserError("--json, --figures and --sheet are for IMAGE arguments; --in writes rows to --out")
        raise typer.Exit(_caption_many(many, model, plugins, regions, device, decoding, risk))
    import_plugins(plugins)
    failures = Failures()
    assert images is not None
    if paths := list(readable_images(images, failures)):
        _check_sheet(sheet, paths)
        options = {"batch_size": batch_size, "on_unreadable": failures, **decoding}
        captions = ENGINES[engine](paths, model, regions, device, risk, decoding, options)
        _print_captions(captions, paths, risk, as_json, figures, sheet)
    raise typer.Exit(failures.exit_code)


def _caption_many(
    many: ManyImages,
    model: str | None,
    plugins: list[str] | None,
    regions: Path | None,
    device: str,
    decoding: dict[str, Any],
    risk: bool,
) -> int:
    """Caption the images of --in; the exit code."""
    from saywhy.bulk.caption_task import CaptionTask
    from saywhy.bulk.tasks import ModelChoice
    from saywhy.decoding.settings import Decoding

    Decoding(**decoding)
    choice = ModelChoice(model, device, tuple(plugins or ()), regions, decoding)
    return many.run(CaptionTask(choice, risk), many.out)


def _torch_captions(
    paths: list[Path],
    model: str | None,
    regions: Path | None,
    device: str,
    risk: bool,
    decoding: dict[str, Any],
    options: dict[str, Any],
) -> Iterator[Caption]:
    from saywhy.decoding.settings import Decoding
    from saywhy.inference.model import load

    Decoding(**decoding)  # values out of range are refused before a model is loaded
    loaded = load(model, device)
    if loaded.familiarity_error:
        print_error(f"familiarity is left out: {loaded.familiarity_error}")
    warn_if_guidance_is_untrained(loaded, loaded.decoding_with(**decoding))
    return loaded.captions(paths, regions=region_table(loaded, regions, paths), risk=risk, **options)


def _onnx_captions(
    paths: list[Path],
    model: str | None,
    regions: Path | None,
    device: str,
    risk: bool,
    decoding: dict[str, Any],
    options: dict[str, Any],
) -> Iterator[Caption]:
    from saywhy.decoding.settings import Decoding
    from saywhy.onnx_engine.export_cache import load_exported

    Decoding(**decoding)
    if risk or regions or device not in ("auto", "cpu"):
        option = "--risk" if risk else "--regions" if regions else f"--device {device}"
        raise UserError(f"--engine onnx has no {option}: use --engine torch")
    return load_exported(model, print_error).captions(paths, **options)


ENGINES = {"torch": _torch_captions, "onnx": _onnx_captions}


def _print_captions(
    captions: Iterator[Caption],
    paths: list[Path],
    risk: bool,
    as_json: bool,
    figures: Path | None,
    sheet: Path | None,
) -> None:
    figure_path = OutputPaths(figures, paths, suffix=".png") if figures else None
    drawn: list[CaptionedImage] = []
    for result in captions:
        text = result.text_with_risks if risk else result.text
        typer.echo(json_line(result.as_dict()) if as_json else f"{printable(result.source)}: {printable(text)}")
        warn_if_unfamiliar(result)
        if figure_path:
            _save_figure(result, figure_path(result.source))
        if sheet:
            drawn.append(_captioned_image(result))
    if sheet and drawn:
        _save_sheet(drawn, sheet)


def _save_figure(result: Any, path: Path) -> None:
    from saywhy.files import whole_file

    with whole_file(path) as part:
        result.show().save(part, format="PNG")


def _check_sheet(sheet: Path | None, images: list[Path]) -> None:
    if sheet is None:
        return
    if sheet.suffix.lower() not in SHEET_FORMATS:
        raise UserError(f"--sheet {sheet}: not a name of a picture; let it end in .png or .jpg")
    if len(images) > SHEET_IMAGES:
        raise UserError(f"--sheet draws at most {SHEET_IMAGES} images, not {len(images)}: give fewer")
    check_writable("--sheet", sheet, other_than=images)


def _captioned_image(result: Any) -> CaptionedImage:
    """A small copy of the image with its caption."""
    from saywhy.viz.caption_sheet import CaptionedImage

    small = result.image.copy()
    small.thumbnail((1024, 640))
    return CaptionedImage(small, result.words_with_risks)


def _save_sheet(items: list[CaptionedImage], path: Path) -> None:
    from saywhy.files import whole_file
    from saywhy.viz.caption_sheet import caption_sheet

    with whole_file(path) as part:
        caption_sheet(items).save(part, format=SHEET_FORMATS[path.suffix.lower()], quality=88)
