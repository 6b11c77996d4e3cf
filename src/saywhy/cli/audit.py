"""`saywhy audit`: test whether explanations are faithful."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saywhy.cli import audit_fitting
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
        fit_risk or (), fit_images, batch_size, workers, device, unfamiliar,
    )  # fmt: skip
    risk_folder = (save_to or audit_fitting.own_folder(model)) if save_risk else None
    check_writable("--save-to" if save_to else "--save-risk", risk_folder, folder=True)
    if save_familiarity:
        audit_fitting.check_own_familiarity(model)
    context = _context(names, options, cache or out / "cache", failures)
    if save_risk and not context.fit_contexts:
        raise UserError(
            "--save-risk: nothing is fitted, because the model has a risk model or the data has no dev split; "
            "give --fit SPLIT or --fit-risk DATA"
        )
    if fit_familiarity:
        own = audit_fitting.model_folder(model) if save_familiarity else None
        audit_fitting.fit_familiarity(context, fit_familiarity, fit_images, own)
    for result, path in _run(names, context, out):
        for note in _notes(result):
            print_error(note)
        if risk_folder and result["audit"] == "risk":
            audit_fitting.save_risk(result, context.model, risk_folder, save_to is not None, object_words, failures)
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
    fit_data = audit_fitting.fit_data(options.fit_risk, fit, options.fit_images) if options.fit_risk else []
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
        others = [audit_fitting.fit_context_of_other_data(context, part, options.regions) for part in fit_data]
        context.fit_contexts = tuple(others or [audit_fitting.fit_context(context, part) for part in own])
    return context


def _run(names: Sequence[str], context: AuditContext, out: Path) -> Iterator[tuple[dict[str, Any], Path]]:
    """Run audits and write their results, with progress per stage."""
    from saywhy.audits import runner

    with progress_of_stages() as report:
        for progressing in (context, *context.fit_contexts):
            progressing.on_progress = lambda event: report(event.stage, event.done, event.total, event.finished)
        for result in runner.run(names, context):
            yield result, runner.save(out, result)


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
