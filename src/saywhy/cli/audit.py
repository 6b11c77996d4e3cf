"""`saywhy audit`: are the explanations true?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from saywhy.cli.common import Failures, check_writable, print_error
from saywhy.cli.options import (
    FLAG,
    OUTPUT,
    Data,
    Device,
    ImageFolder,
    JsonLines,
    Model,
    OwnBatch,
    Reader,
    Regions,
    Workers,
    examples,
)
from saywhy.errors import UserError

RISK = "The risk that a word is made up"
EPILOG = examples(
    "saywhy audit all --data flickr8k --out audits",
    "saywhy audit localisation --data flickr8k --model runs/ada-lstm --limit 100 --out audits",
    "saywhy audit risk --data flickr8k --model runs/ada-lstm --fit dev --save-risk --out audits",
)


def audit(
    name: Annotated[str, typer.Argument(metavar="NAME", help="One of those above, or all.", show_default=False)],
    data: Data,
    out: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Write audit-MODEL-NAME.json and pages there.", show_default=False),
    ],
    model: Model = None,
    split: Annotated[str, typer.Option(metavar="train|dev|test", help="Which images.")] = "test",
    limit: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="So many of them, evenly spread.", show_default="all"),
    ] = None,
    boxes: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Phrases with boxes: boxes.jsonl.gz, or COCO's instances.json.",
            show_default="beside the data",
        ),
    ] = None,
    objects: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A table of object words.", show_default="the model's, or the shipped one"),
    ] = None,
    composite: Annotated[
        str, typer.Option(metavar="NAME", help="The rules of LRP, as of saywhy explain.")
    ] = "epsilon-plus",
    reader: Reader = None,
    image_folder: ImageFolder = None,
    regions: Regions = None,
    fit: Annotated[
        str | None,
        typer.Option(
            metavar="train|dev|test",
            help="Fit it on this split.",
            show_default="dev, if the model has none",
            rich_help_panel=RISK,
        ),
    ] = None,
    save_risk: Annotated[
        bool,
        typer.Option(
            "--save-risk",
            metavar=FLAG,
            help="Keep what was fitted in the model's folder, for caption --risk and explain.",
            rich_help_panel=RISK,
        ),
    ] = False,
    as_json: JsonLines = False,
    cache: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Keep what was found out of each image there; an interrupted audit goes on from it.",
            show_default="OUT/cache",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    batch: OwnBatch = None,
    workers: Workers = None,
    device: Device = "auto",
) -> None:
    """Test whether a model's explanations are true, on images that people described.

    image-ablation, word-ablation: is the word still said without what was relevant for it?
    localisation: do maps lie where the things are?
    hallucination, risk: can made-up words be told from true ones, and how surely?
    sanity: do maps depend on what was learnt?
    """
    check_writable("--out", out, folder=True)
    check_writable("--cache", cache, folder=True)

    from saywhy.cli import auditing

    names = auditing.chosen(name, fit, save_risk)
    faults = Failures()
    asked = auditing.Asked(
        model, data, reader, image_folder, split, limit, boxes, objects, composite, regions, fit, batch, workers, device
    )
    if save_risk:
        check_writable("--save-risk", auditing.folder_of(model), folder=True)
    bench = auditing.bench(names, asked, cache or out / "cache", faults)
    if save_risk and bench.fitting is None:
        raise UserError(
            "--save-risk has nothing to save: the model has a risk, or the data no dev split; give --fit SPLIT"
        )
    for result in auditing.run(names, bench):
        path = auditing.save(out, result)
        for line in auditing.notes(result):
            print_error(line)
        if save_risk and result["audit"] == "risk":
            auditing.save_risk(result, asked, faults)
        if as_json:
            typer.echo(json.dumps(result, ensure_ascii=False))
        else:
            auditing.show(result, path)
    auditing.write_pages(out)
    raise typer.Exit(faults.exit_code)
