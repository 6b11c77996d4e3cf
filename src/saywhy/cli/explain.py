"""`saywhy explain`: show what supports each word of a caption."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saywhy.cli.common import (
    Failures,
    OutputPaths,
    check_writable,
    import_plugins,
    json_line,
    output_console,
    plain_table,
    print_error,
    printable,
    progress_of,
    readable_images,
    region_table,
    warn_if_unfamiliar,
)
from saywhy.cli.many_images import ManyImages
from saywhy.cli.options import (
    FLAG,
    METHOD,
    Attention,
    AutoBatchSize,
    Beam,
    Device,
    Engine,
    ImageColumn,
    Images,
    Inputs,
    JsonLines,
    LengthPenalty,
    Map,
    Model,
    NoRepeat,
    PartSize,
    Plugins,
    Regions,
    Score,
    Style,
    Workers,
    examples,
)
from saywhy.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from saywhy.explain import Explanation, WordExplanation

TARGET = "What to explain"
EPILOG = examples(
    "saywhy explain photo.jpg --out why/",
    "saywhy explain holiday/ --out why/ --method lrp,attention",
    "saywhy explain photo.jpg --out why/ --word dog --contrast cat",
    "saywhy explain photo.jpg --out why/ --method lrp --map apart",
    'saywhy explain photo.jpg --out why/ --caption "a dog on a bench"',
    "saywhy explain --in photos/ --out explanations.parquet",
)
INDEX = "index.html"


def explain(
    out: Annotated[
        Path,
        typer.Option(
            metavar="DIR",
            help="Write the explanation here; several images, or a folder, get one folder each and an index.html. "
            "With --in also a .parquet or .jsonl file.",
            show_default=False,
        ),
    ],
    images: Images = None,
    model: Model = None,
    plugins: Plugins = None,
    regions: Regions = None,
    caption: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", help="Explain this caption.", show_default="the model's own", rich_help_panel=TARGET
        ),
    ] = None,
    word: Annotated[
        str | None,
        typer.Option(
            metavar="WORD",
            help="Explain this word only: where the caption has it, else where it is most probable.",
            show_default="all words",
            rich_help_panel=TARGET,
        ),
    ] = None,
    position: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Explain the Nth word only; with --word, explain that word at this position.",
            show_default=False,
            rich_help_panel=TARGET,
        ),
    ] = None,
    contrast: Annotated[
        str | None,
        typer.Option(
            metavar="WORD",
            help="Explain why not this word: the difference of the two logits.",
            show_default=False,
            rich_help_panel=TARGET,
        ),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME,…",
            help="Any of lrp, gradcam, guided-gradcam, guided-backprop, gradient-input, attention; "
            "and occlusion, which is slow.",
            show_default="the first six",
            rich_help_panel=METHOD,
        ),
    ] = None,
    composite: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="LRP rules: by-stride, relative-epsilon, epsilon-plus, paper, epsilon-plus-flat, epsilon-plus-box, "
            "epsilon-gamma-box, alpha2-beta1 or epsilon.",
            rich_help_panel=METHOD,
        ),
    ] = "by-stride",
    score: Score = None,
    map: Map = None,
    epsilon: Annotated[
        float | None,
        typer.Option(
            metavar="E", min=0, help="ε of LRP's epsilon rule.", show_default="the composite's", rich_help_panel=METHOD
        ),
    ] = None,
    relative_epsilon: Annotated[
        bool,
        typer.Option(
            "--relative-epsilon",
            metavar=FLAG,
            help="Scale ε by each layer's mean absolute output.",
            rich_help_panel=METHOD,
        ),
    ] = False,
    beam: Beam = None,
    length_penalty: LengthPenalty = None,
    no_repeat: NoRepeat = None,
    attention: Attention = None,
    style: Style = None,
    as_json: JsonLines = False,
    inputs: Inputs = None,
    column: ImageColumn = None,
    part_size: PartSize = None,
    batch_size: AutoBatchSize = None,
    workers: Workers = None,
    device: Device = "auto",
    engine: Engine = "torch",
) -> None:
    """Show which pixels and earlier words support each word.

    Writes report.html, words.png, explanation.json and maps.npz.
    Images that cannot be read are named on stderr and skipped; the exit code is then 2.
    With --in, images may be many: each gets a row, also if it cannot be read (docs/many-images.md).
    """
    is_plain = bool(images) and engine == "torch" and (inputs, column, part_size, workers) == (None,) * 4
    many = None if is_plain else ManyImages.parse(images, inputs, out, engine, column, part_size, batch_size, workers)
    if caption is not None and (beam, length_penalty, no_repeat) != (None, None, None):
        raise UserError(
            "--beam, --length-penalty and --no-repeat search for a caption, --caption gives one: use one or the other"
        )
    target: dict[str, Any] = {"caption": caption, "word": word, "position": position, "contrast": contrast}
    search = {"beam": beam, "length_penalty": length_penalty, "no_repeat": no_repeat}
    settings = {**search, "attention": attention, "style": style}
    if many:
        if as_json:
            raise UserError("--json is for IMAGE arguments; --in writes rows to --out")
        options = {**target, "methods": method, "composite": (composite, epsilon, relative_epsilon, score, map)}
        raise typer.Exit(_explain_many(many, model, plugins, regions, device, settings, options))
    check_writable("--out", out, folder=True)
    import_plugins(plugins)
    failures = Failures()
    assert images is not None
    if paths := list(readable_images(images, failures)):
        is_single = len(images) == 1 and not Path(images[0]).is_dir()
        output_folder = _output_folders(out, paths, is_single)
        rules = _composite(composite, epsilon, relative_epsilon, score, map)
        options = {**target, "methods": _method_names(method), "composite": rules}
        decoding = _decoding(**settings)
        _check_request(model, style or "", options)
        saved: list[SavedExplanation] = []
        try:
            options |= {"batch_size": batch_size, **decoding}
            _explain(paths, output_folder, model, regions, device, failures, saved, options)
        finally:  # an interrupted run gets an index of what it has finished
            if not is_single and saved:
                _save_index(out, saved)
        if as_json:
            for entry in saved:
                typer.echo(json_line(entry.explanation.as_dict()))
        else:
            _show_all(saved)
    raise typer.Exit(failures.exit_code)


def _explain_many(
    many: ManyImages,
    model: str | None,
    plugins: list[str] | None,
    regions: Path | None,
    device: str,
    settings: dict[str, Any],
    options: dict[str, Any],
) -> int:
    """Explain the images of --in; the exit code."""
    from saywhy.bulk.explain_task import ROWS_FILE, ExplainTask
    from saywhy.bulk.row_files import FORMATS
    from saywhy.bulk.tasks import ModelChoice

    import_plugins(plugins)
    options |= {"methods": _method_names(options["methods"]), "composite": _composite(*options["composite"])}
    _check_request(model, settings["style"] or "", options)
    choice = ModelChoice(model, device, tuple(plugins or ()), regions, _decoding(**settings))
    in_rows = many.out.suffix in FORMATS
    task = ExplainTask(choice, options, None if in_rows else many.out)
    return many.run(task, many.out if in_rows else many.out / ROWS_FILE, part_size=64)


@dataclass(frozen=True)
class SavedExplanation:
    """An explanation that has been written: without its maps, and its folder."""

    explanation: Explanation
    folder: Path


def _output_folders(out: Path, images: Sequence[Path], is_single: bool) -> Callable[[str], Path]:
    """The folder of each image's explanation: `out` itself for one image, else a folder within it."""
    if not is_single:
        return OutputPaths(out, [*images, out / INDEX], contents=_file_names())
    if os.path.realpath(images[0]) in {os.path.realpath(out / name) for name in _file_names()}:
        raise UserError(f"--out {out}: would overwrite the image {images[0].name} in it; choose another folder")
    return lambda _: out


def _file_names() -> tuple[str, ...]:
    """The files of an explanation, the report first."""
    from saywhy.explain.explanation import FIGURE, JSON, MAPS, PAGE

    return PAGE, FIGURE, JSON, MAPS


def _method_names(arguments: Sequence[str] | None) -> tuple[str, ...]:
    """The methods of --method: separated by commas, or given one by one."""
    from saywhy.explain.methods import REPORT_METHODS

    names = [name.strip().lower() for argument in arguments or REPORT_METHODS for name in argument.split(",")]
    return tuple(filter(None, names))


def _composite(*settings: Any) -> Any:
    from saywhy.explain.composites import composite

    return composite(*settings)


def _decoding(**settings: Any) -> dict[str, Any]:
    """The decoding settings that were given; values out of range are refused before a model is loaded."""
    from saywhy.decoding import Decoding

    settings = {name: value for name, value in settings.items() if value is not None}
    Decoding(**settings)
    return settings


def _check_request(model: str | None, style: str, options: dict[str, Any]) -> None:
    """Raise a `UserError` for a request that this model cannot answer; only its vocabulary is loaded.

    Models of transformers and of the Hub are asked when they are loaded.
    """
    from saywhy.captioners.model_folder import VOCABULARY, read_config
    from saywhy.data.tokenizer import Vocabulary
    from saywhy.decoding import Decoding
    from saywhy.explain.request import ExplanationRequest
    from saywhy.inference.model import locate
    from saywhy.pretrained import is_hub_name, is_transformers_model

    if model is not None and (is_hub_name(model) or is_transformers_model(model)):
        return
    folder = locate(model)
    try:
        max_words = Decoding(**read_config(folder).get("decoding", {})).max_words
    except TypeError:
        max_words = Decoding.max_words  # unknown settings are reported when the model is loaded
    vocabulary = Vocabulary.load(folder / VOCABULARY)
    vocabulary.start(style)
    ExplanationRequest.parse(vocabulary, max_words, **options)


def _explain(
    images: Sequence[Path],
    output_folder: Callable[[str], Path],
    model: str | None,
    regions: Path | None,
    device: str,
    failures: Failures,
    saved: list[SavedExplanation],
    options: dict[str, Any],
) -> None:
    """Explain images and write the explanations; `saved` grows by one entry per image."""
    from saywhy.hallucination.risk_model import RISK_FILE
    from saywhy.inference.model import load
    from saywhy.viz.explanation_page import thumbnail

    loaded = load(model, device)
    if loaded.folder and (loaded.folder / RISK_FILE).is_file() and loaded.risk_error:
        print_error(f"risks are left out: {loaded.risk_error}")
    if loaded.familiarity_error:
        print_error(f"familiarity is left out: {loaded.familiarity_error}")
    table = region_table(loaded, regions, images)
    earlier_failures = failures.count
    with progress_of("explaining") as report:
        report(0, len(images))
        for explanation in loaded.explanations(images, regions=table, on_unreadable=failures, **options):
            folder = output_folder(explanation.source)
            explanation.save(folder)
            warn_if_unfamiliar(explanation)
            saved.append(SavedExplanation(replace(explanation, maps={}, image=thumbnail(explanation)), folder))
            report(len(saved) + failures.count - earlier_failures, len(images))


def _save_index(out: Path, saved: Sequence[SavedExplanation]) -> None:
    """Write a page that links to all reports."""
    from saywhy.files import write_text
    from saywhy.viz.explanation_page import index_page

    report = _file_names()[0]
    pages = [(f"{entry.folder.name}/{report}", entry.explanation) for entry in saved]
    write_text(out / INDEX, index_page(pages))


def _show_all(saved: Sequence[SavedExplanation]) -> None:
    """Print captions, a table of their words, and where the files are."""
    console = output_console()
    for number, entry in enumerate(saved):
        if number:
            console.print()
        _show(entry, console)


def _show(saved: SavedExplanation, console: Console) -> None:
    explanation = saved.explanation
    words = explanation.words
    console.print(printable(f"{explanation.source}: {explanation.caption}"), soft_wrap=True)
    method = next((method for method in explanation.methods if method in words[0].earlier_words), "lrp")
    has_risk = any(word.risk is not None for word in words)
    risk_head = ["made up"] if has_risk else []
    head = ("word", "probability", "from image", *risk_head, f"strongest earlier word ({method})")
    rows = []
    for word in words:
        probability = f"{word.probability:.1%}" if word.probability >= 0.001 else "< 0.1%"
        risk = [] if not has_risk else [""] if word.risk is None else [f"{word.risk:.0%}"]
        strongest = _strongest_earlier_word(word, explanation.tokens, method)
        rows.append((_label(word), probability, f"{word.budget.image_share:.0%}", *risk, strongest))
    console.print(plain_table(head, rows, text_columns=(0, len(head) - 1)))
    report, *others = _file_names()
    console.print(printable(f"{saved.folder / report}, and {', '.join(others)} beside it"), soft_wrap=True)


def _label(word: WordExplanation) -> str:
    """The explained word, its contrast, and the caption's own word where that is another."""
    from saywhy.viz.explanation_figure import word_with_contrast

    label = word_with_contrast(word)
    return label if word.word == word.caption_word else f"{label} (caption: {word.caption_word})"


def _strongest_earlier_word(word: WordExplanation, tokens: Sequence[str], method: str) -> str:
    """The earlier word with the largest absolute weight."""
    weights = word.earlier_words[method]
    if not weights:
        return ""
    strongest = max(range(len(weights)), key=lambda index: abs(weights[index]))
    return f"{tokens[strongest]} {weights[strongest]:+.2f}"
