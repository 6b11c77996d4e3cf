"""`saywhy audit`: test whether explanations are faithful."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saywhy.cli.common import (
    Failures,
    check_writable,
    import_plugins,
    json_line,
    output_console,
    plain_table,
    print_error,
    printable,
    progress_of_stages,
)
from saywhy.cli.options import (
    FLAG,
    OUTPUT,
    AutoBatchSize,
    Data,
    Device,
    ImageFolder,
    JsonLines,
    Limit,
    Map,
    Model,
    Plugins,
    Reader,
    Regions,
    Score,
    Split,
    Style,
    Workers,
    examples,
)
from saywhy.errors import UserError

if TYPE_CHECKING:
    from saywhy.audits.context import AuditContext
    from saywhy.data.datasets import Dataset

RISK = "Hallucination risk (audit risk)"
FAMILIARITY = "Familiarity (audit familiarity)"
EPILOG = examples(
    "saywhy audit all --data flickr8k --out audits",
    "saywhy audit localisation --data flickr8k --limit 100 --out audits",
    "saywhy audit risk --data flickr8k --model runs/soft --save-risk --out audits",
    "saywhy audit risk --data coco --fit-risk coco --fit-risk flickr8k --out audits",
    "saywhy audit familiarity --data coco --fit-familiarity coco --save-familiarity --out audits",
)


def audit(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="One of the audits above, one of your own, or all.", show_default=False),
    ],
    data: Data,
    out: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Write results (audit-MODEL-NAME.json) and pages here.", show_default=False),
    ],
    model: Model = None,
    plugins: Plugins = None,
    split: Split = "test",
    limit: Limit = None,
    boxes: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Phrases with boxes: boxes.jsonl.gz, or COCO's instances JSON.",
            show_default="in the dataset's folder",
        ),
    ] = None,
    object_words: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Table of object words.", show_default="the model's, or the shipped one"),
    ] = None,
    composite: Annotated[str, typer.Option(metavar="NAME", help="LRP rules, as for saywhy explain.")] = "by-stride",
    score: Score = None,
    map: Map = None,
    occlusion: Annotated[
        bool,
        typer.Option("--occlusion", metavar=FLAG, help="Audit specificity: measure occlusion too, which is slow."),
    ] = False,
    reader: Reader = None,
    image_folder: ImageFolder = None,
    regions: Regions = None,
    style: Style = None,
    fit: Annotated[
        str | None,
        typer.Option(
            metavar="train|dev|test",
            help="Fit the risk model on this split.",
            show_default="dev, if the model has no risk model",
            rich_help_panel=RISK,
        ),
    ] = None,
    fit_risk: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="PATH",
            help="Fit the risk model on this data set, its dev split or that of --fit; once per data set. Captions "
            "are in the data set's style, if the model has one of its name.",
            rich_help_panel=RISK,
        ),
    ] = None,
    save_risk: Annotated[
        bool,
        typer.Option(
            "--save-risk",
            metavar=FLAG,
            help="Save the fitted risk model in the model's folder, for caption --risk and explain.",
            rich_help_panel=RISK,
        ),
    ] = False,
    save_to: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Save the fitted risk model here, with the model or a reference to it; load this folder to use it.",
            show_default=False,
            rich_help_panel=RISK,
        ),
    ] = None,
    unfamiliar: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Images that are not like the training photographs, one sub-folder per kind.",
            rich_help_panel=FAMILIARITY,
        ),
    ] = None,
    fit_familiarity: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="PATH",
            help="Fit the familiarity on train and dev of this data set; once per data set.",
            show_default="the model's own is tested",
            rich_help_panel=FAMILIARITY,
        ),
    ] = None,
    fit_images: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            help="Photographs per data set to fit on, for --fit-risk and --fit-familiarity.",
            rich_help_panel=FAMILIARITY,
        ),
    ] = 3000,
    save_familiarity: Annotated[
        bool,
        typer.Option(
            "--save-familiarity",
            metavar=FLAG,
            help="Save the fitted familiarity in the model's folder, for caption and explain.",
            rich_help_panel=FAMILIARITY,
        ),
    ] = False,
    as_json: JsonLines = False,
    cache: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Cache the results of each image here; an interrupted audit continues from it.",
            show_default="OUT/cache",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    batch_size: AutoBatchSize = None,
    workers: Workers = None,
    device: Device = "auto",
) -> None:
    """Test whether a model's explanations are faithful.

    image-ablation, word-ablation: does the word disappear without the pixels or words that support it?
    localisation: do relevance maps lie on the objects?
    hallucination, risk: do explanations tell hallucinated object words from correct ones?
    specificity: do relevance maps tell the words of a caption apart?
    sanity: do relevance maps depend on the trained weights?
    familiarity: are images unlike the training photographs noticed?
    """
    check_writable("--out", out, folder=True)
    check_writable("--cache", cache, folder=True)
    import_plugins(plugins)
    save_risk = save_risk or save_to is not None
    names = _select(name, fit, fit_risk, save_risk)
    _check_familiarity(name, names, unfamiliar, fit_familiarity, save_familiarity)
    if occlusion and "specificity" not in names:
        raise UserError(f"--occlusion belongs to the audit specificity, not to {name}")
    failures = Failures()
    options = Options(
        model, data, reader, image_folder, split, limit, boxes, object_words,
        (composite, score, map), occlusion, regions, style, fit,
        fit_risk or (), fit_images, batch_size, workers, device, unfamiliar, save_to,
    )  # fmt: skip
    if save_risk:
        check_writable("--save-to" if save_to else "--save-risk", save_to or _own_folder(model), folder=True)
    if save_familiarity:
        _check_own_familiarity(model)
    context = _context(names, options, cache or out / "cache", failures)
    if save_risk and not context.fit_contexts:
        raise UserError(
            "--save-risk: nothing is fitted, because the model has a risk model or the data has no dev split; "
            "give --fit SPLIT or --fit-risk DATA"
        )
    if fit_familiarity:
        _fit_familiarity(context, fit_familiarity, fit_images, _model_folder(model) if save_familiarity else None)
    for result, path in _run(names, context, out):
        for note in _notes(result):
            print_error(note)
        if save_risk and result["audit"] == "risk":
            _save_risk(result, options, context, failures)
        if as_json:
            typer.echo(json_line(result))
        else:
            _show(result, path)
    _write_pages(out)
    raise typer.Exit(failures.exit_code)


@dataclass(frozen=True)
class Options:
    """The options that choose the model, the images and the rules."""

    model: str | None
    data: Path
    reader: str | None
    image_folder: Path | None
    split: str
    limit: int | None
    boxes: Path | None
    object_words: Path | None
    composite: tuple[str, str | None, str | None]
    occlusion: bool
    regions: Path | None
    style: str | None
    fit: str | None
    fit_risk: Sequence[Path]
    fit_images: int
    batch_size: int | None
    workers: int | None
    device: str
    unfamiliar: Path | None
    save_to: Path | None


def _select(name: str, fit: str | None, fit_risk: Sequence[Path] | None, save_risk: bool) -> tuple[str, ...]:
    """The audits to run."""
    from saywhy.audits.runner import select

    names = select(name)
    if "risk" not in names and (fit or fit_risk or save_risk):
        raise UserError(f"--fit, --fit-risk and --save-risk belong to the audit risk, not to {name}")
    return names


def _check_familiarity(
    name: str, names: Sequence[str], unfamiliar: Path | None, fit: Sequence[Path] | None, save: bool
) -> None:
    """Refuse options of the audit familiarity that do not fit together, before anything is computed."""
    from saywhy.audits.familiarity import images_by_kind

    if "familiarity" not in names and (unfamiliar or fit or save):
        raise UserError(
            f"--unfamiliar, --fit-familiarity and --save-familiarity belong to the audit familiarity, not to {name}"
        )
    if save and not fit:
        raise UserError("--save-familiarity: nothing is fitted; give --fit-familiarity DATA")
    if unfamiliar:
        images_by_kind(unfamiliar)


def _fit_familiarity(context: AuditContext, paths: Sequence[Path], count: int, folder: Path | None) -> None:
    """Fit the familiarity of the context's model, and save it in the model's folder if that is given."""
    from saywhy.audits import familiarity
    from saywhy.data.datasets import read
    from saywhy.inference.familiarity_model import FAMILIARITY_FILE

    if folder:
        check_writable("--save-familiarity", folder, folder=True)
    data = [read(path) for path in paths]
    with progress_of_stages() as report:
        context.on_progress = lambda event: report(event.stage, event.done, event.total, event.finished)
        fitted = familiarity.fit(context, data, count)
    context.model.familiarity = fitted
    if folder:
        try:
            fitted.save(folder)
        except OSError as error:
            problem = f"cannot write {FAMILIARITY_FILE} ({error.strerror})"
            raise UserError(f"{folder}: {problem}; copy the model first") from None
        print_error(f"the familiarity is saved in {folder / FAMILIARITY_FILE}")


def _context(names: Sequence[str], options: Options, cache: Path, failures: Failures) -> AuditContext:
    """The model, the images and their annotations. Everything that can be wrong is read before the model."""
    from saywhy.audits.context import AuditContext
    from saywhy.data.datasets import read, split_name
    from saywhy.data.object_words import ObjectWords
    from saywhy.data.phrases import find_phrases
    from saywhy.explain.composites import composite
    from saywhy.inference.model import load

    name, score, map = options.composite
    rules = composite(name, score=score, map=map)
    data = read(options.data, reader=options.reader, image_folder=options.image_folder)
    split = split_name(options.split)
    images = data.split(split)
    fit = split_name(options.fit or "dev")
    same_data = not options.fit_risk or any(path.resolve() == options.data.resolve() for path in options.fit_risk)
    if fit == split and same_data and (options.fit or options.fit_risk):
        raise UserError(
            f"--fit {fit}: a risk model is tested on other images than those it was fitted on; give another split"
        )
    fit_data = _fit_data(options, fit)
    phrases = find_phrases(images.root, options.boxes)
    object_words = None if options.object_words is None else ObjectWords.read(options.object_words)
    model = load(options.model, options.device)
    if options.style is not None:
        model.decoding = model.decoding_with(style=options.style)
    context = AuditContext(
        model,
        images.evenly_spaced(options.limit),
        cache,
        object_words=object_words or model.objects,
        phrases=phrases,
        regions=model.region_source(options.regions, data.root),
        composite=rules,
        occlusion=options.occlusion,
        batch_size=options.batch_size,
        workers=options.workers,
        on_unreadable=failures,
        unfamiliar=options.unfamiliar,
        split_images=len(images),
    )
    if "risk" in names:
        wants_dev = model.risk is None and data.splits.get("dev") and split != "dev"
        own = [data.split(fit)] if options.fit or (wants_dev and not fit_data) else []
        context.fit_contexts = tuple(_fit_context(context, part, options) for part in fit_data or own)
    return context


def _fit_data(options: Options, split: str) -> list[Dataset]:
    """The images of the data sets that `--fit-risk` names."""
    from saywhy.data.datasets import read

    data = [read(path).split(split).evenly_spaced(options.fit_images) for path in options.fit_risk]
    names = [part.name for part in data]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise UserError(f"--fit-risk: two data sets have the name {repeated[0]!r}; name their folders differently")
    return data


def _fit_context(context: AuditContext, data: Dataset, options: Options) -> AuditContext:
    """The context of images to fit a risk on: their own boxes and, if the model has it, their own style."""
    from saywhy.data.phrases import find_phrases

    context = replace(context, data=data, unreadable=set(), split_images=None)
    if not options.fit_risk:
        return context
    model = context.model.in_style(data.name) if data.name in context.model.vocabulary.styles else context.model
    regions = model.region_source(options.regions, data.root)
    return replace(context, model=model, phrases=find_phrases(data.root), regions=regions)


def _run(names: Sequence[str], context: AuditContext, out: Path) -> Iterator[tuple[dict[str, Any], Path]]:
    """Run audits and write their results, with progress per stage."""
    from saywhy.audits import runner

    with progress_of_stages() as report:
        for progressing in (context, *context.fit_contexts):
            progressing.on_progress = lambda event: report(event.stage, event.done, event.total, event.finished)
        for result in runner.run(names, context):
            yield result, runner.save(out, result)


def _model_folder(model: str | None) -> Path:
    from saywhy.inference.model import locate
    from saywhy.pretrained import HUB

    return locate(model.removeprefix(HUB) if model is not None else None)


def _own_folder(model: str | None) -> Path:
    """The folder of a model that can hold its risk model."""
    from saywhy.pretrained import HUB, is_hub_name

    folder = _model_folder(model)
    if not folder.is_dir() and model is not None and (model.startswith(HUB) or is_hub_name(model)):
        raise UserError(f"--save-risk: {model} has no folder of its own on this machine; add --save-to DIR")
    return folder


def _check_own_familiarity(model: str | None) -> None:
    """Refuse to save a familiarity for a model of transformers, whose files it could not be checked against."""
    from saywhy.pretrained import is_hub_name, is_transformers_model

    if model is not None and (is_hub_name(model) or is_transformers_model(model)):
        raise UserError(
            f"--save-familiarity: {model} is not a model folder of saywhy, so no familiarity can be saved in it"
        )


def _save_risk(result: dict[str, Any], options: Options, context: AuditContext, failures: Failures) -> None:
    """Save a fitted risk model in the model's folder, with the table of object words it was fitted with."""
    from saywhy.hallucination.risk_model import OBJECTS_FILE, RISK_FILE, Risk

    if result["not_applicable"]:
        failures("no risk model was fitted, so none is saved")
        return
    folder = options.save_to or _model_folder(options.model)
    table = options.object_words
    try:
        if options.save_to is not None:
            context.model.save_pretrained(folder)
        if table is not None and table.resolve() != (folder / OBJECTS_FILE).resolve():
            shutil.copyfile(table, folder / OBJECTS_FILE)
        Risk.from_dict(result["fitted_risk"]).save(folder)
    except OSError as error:
        raise UserError(f"{folder}: cannot write {RISK_FILE} ({error.strerror}); copy the model first") from None
    print_error(f"the risk model is saved in {folder / RISK_FILE}")


def _write_pages(out: Path) -> None:
    """Write pages with tables and plots of all results in the folder; a missing matplotlib is one line."""
    from saywhy.reports.audit_pages import write_pages

    try:
        write_pages(out, out)
    except UserError as error:
        print_error(error)


def _notes(result: dict[str, Any]) -> list[str]:
    """Remarks to print beside the numbers."""
    if result["not_applicable"]:
        return [f"{result['audit']} does not apply: {result['not_applicable']}"]
    return [f"{result['audit']}: {note}" for note in result.get("notes", ())]


def _show(result: dict[str, Any], path: Path) -> None:
    """Print the main numbers of an audit."""
    from saywhy.audits.audit import audits

    if result["not_applicable"]:
        return
    console = output_console()
    title = f"{result['audit']}: {result['model']} on {result['data']} {result['split']}"
    console.print(printable(title), soft_wrap=True)
    summary = audits[result["audit"]]().summary(result)
    console.print(plain_table(summary.head, summary.rows, summary.text_columns))
    console.print(printable(path), soft_wrap=True)
    console.print()
