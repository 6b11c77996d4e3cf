"""`saywhy evaluate`: caption a split and score it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from saywhy.cli.common import check_writable, print_error
from saywhy.cli.options import (
    FLAG,
    OUTPUT,
    Attend,
    Batch,
    Beam,
    Data,
    Device,
    ImageFolder,
    Json,
    Length,
    Model,
    Reader,
    Regions,
    Workers,
    examples,
)
from saywhy.errors import UserError

EPILOG = examples(
    "saywhy evaluate --data flickr8k",
    "saywhy evaluate --data flickr8k --model runs/soft --split dev --beam 5 --json",
    "saywhy evaluate --data flickr8k --captions captions.jsonl",
    "saywhy evaluate --data flickr8k --captions captions.jsonl --rescore results/soft.json",
)


def evaluate(
    data: Data,
    reader: Reader = None,
    image_folder: ImageFolder = None,
    split: Annotated[str, typer.Option(metavar="train|dev|test", help="Which images.")] = "test",
    model: Model = None,
    regions: Regions = None,
    captions: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Score these captions, as caption --json prints them, and no model's."),
    ] = None,
    meteor: Annotated[
        bool, typer.Option(metavar=FLAG, help="METEOR needs Java; without it a line says so, and the rest is scored.")
    ] = True,
    beam: Beam = None,
    length: Length = None,
    attend: Attend = None,
    as_json: Json = False,
    save_captions: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the captions, one JSON object a line.", rich_help_panel=OUTPUT),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write the scores and all they depend on, as in results/.", rich_help_panel=OUTPUT
        ),
    ] = None,
    rescore: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Score --captions again, into the results file they come from.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    batch: Batch = 32,
    workers: Workers = None,
    device: Device = "auto",
) -> None:
    """Caption a split of a data set and score it.

    BLEU with and without brevity penalty, METEOR, ROUGE-L, CIDEr-D, SPICE, in percent.
    Captions are freely decoded; a signature says how.
    """
    if captions and (model or beam or length is not None or attend or regions):
        raise UserError(
            "--captions scores a file, and --model, --beam, --length, --attend and --regions make captions: "
            "give one or the other"
        )
    if rescore and (out or save_captions or not captions):
        raise UserError("--rescore goes with --captions FILE, and without --out and --save-captions")
    check_writable("--save-captions", save_captions)
    check_writable("--out", out)
    check_writable("--rescore", rescore)

    from saywhy.cli import evaluating, rescoring
    from saywhy.data.datasets import read
    from saywhy.data.splits import split_name

    chosen = read(data, reader=reader, image_folder=image_folder).split(split_name(split))
    if captions:
        said = evaluating.from_file(captions, chosen)
    else:
        asked = {
            name: value for name, value in (("beam", beam), ("length", length), ("attend", attend)) if value is not None
        }
        said = evaluating.from_model(model, device, chosen, asked, batch, workers, regions)
    if rescore:
        said, result = rescoring.rescore(rescore, said, chosen, meteor)
    else:
        result = evaluating.scores(said, chosen, meteor)
    if save_captions:
        evaluating.save_captions(save_captions, said)
    if out:
        evaluating.save_results(out, said, chosen, result)
    for line in result.notes:
        print_error(line)
    if as_json:
        typer.echo(json.dumps(result.as_dict()))
    else:
        evaluating.show(said, chosen, result)
