"""`saywhy explain`: show why each word was said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from saywhy.cli.common import Failures, check_writable, readable_images
from saywhy.cli.options import (
    FLAG,
    Attend,
    Beam,
    Device,
    Images,
    JsonLines,
    Length,
    Model,
    NoRepeat,
    OwnBatch,
    Regions,
    examples,
)
from saywhy.errors import UserError

WHAT, HOW = "What is explained", "How it is explained"
EPILOG = examples(
    "saywhy explain photo.jpg --out why/",
    "saywhy explain holiday/ --out why/ --method lrp,attention",
    'saywhy explain photo.jpg --out why/ --caption "a dog on a bench" --word dog --instead cat',
)


def explain(
    images: Images,
    out: Annotated[
        Path,
        typer.Option(
            metavar="DIR",
            help="Write the explanation here; of several images or a folder, one folder each and an index.html.",
            show_default=False,
        ),
    ],
    model: Model = None,
    regions: Regions = None,
    caption: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", help="Explain this caption.", show_default="the model's own", rich_help_panel=WHAT
        ),
    ] = None,
    word: Annotated[
        str | None,
        typer.Option(
            metavar="WORD",
            help="Explain this word only: where the caption has it, or else where it fits best.",
            show_default="all words",
            rich_help_panel=WHAT,
        ),
    ] = None,
    at: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Explain the Nth word only; with --word, why that word might stand there.",
            show_default=False,
            rich_help_panel=WHAT,
        ),
    ] = None,
    instead: Annotated[
        str | None,
        typer.Option(
            metavar="WORD", help="Why not this word: explain the difference.", show_default=False, rich_help_panel=WHAT
        ),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME,…",
            help="Any of lrp, gradcam, guided-gradcam, guided-backprop, gradient-input, attention.",
            show_default="all six",
            rich_help_panel=HOW,
        ),
    ] = None,
    composite: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Rules of LRP: epsilon-plus, paper, epsilon-plus-flat, epsilon-plus-box, epsilon-gamma-box, "
            "alpha2-beta1 or epsilon.",
            rich_help_panel=HOW,
        ),
    ] = "epsilon-plus",
    epsilon: Annotated[
        float | None,
        typer.Option(metavar="E", min=0, help="Another ε for LRP.", show_default="composite's", rich_help_panel=HOW),
    ] = None,
    relative: Annotated[
        bool,
        typer.Option("--relative", metavar=FLAG, help="Take ε as a share of each layer's mean.", rich_help_panel=HOW),
    ] = False,
    beam: Beam = None,
    length: Length = None,
    no_repeat: NoRepeat = None,
    attend: Attend = None,
    as_json: JsonLines = False,
    batch: OwnBatch = None,
    device: Device = "auto",
) -> None:
    """Show why each word was said: which pixels and which earlier words spoke for it or against it.

    Writes report.html, words.png, explanation.json and maps.npz.
    An image that cannot be read is named on stderr and skipped; the exit code is then 2.
    """
    if caption is not None and (beam, length, no_repeat) != (None, None, None):
        raise UserError("--beam, --length and --no-repeat find a caption, --caption gives one: give one or the other")
    check_writable("--out", out, folder=True)
    faults = Failures()
    if found := list(readable_images(images, faults)):
        from saywhy.cli import explaining

        is_one = len(images) == 1 and not Path(images[0]).is_dir()
        folder_of = explaining.folders(out, found, is_one)
        asked: dict[str, Any] = {"caption": caption, "word": word, "at": at, "instead": instead}
        explaining.refuse_impossible(model, **asked)
        asked |= explaining.chosen(method, composite, epsilon, relative)
        asked |= explaining.decoding(beam=beam, length=length, no_repeat=no_repeat, attend=attend)
        done: list[explaining.Done] = []
        try:
            explaining.explain(found, folder_of, model, regions, device, faults, done, batch=batch, **asked)
        finally:  # of what an interrupted run has done, there is an index too
            if not is_one and done:
                explaining.save_index(out, done)
        if as_json:
            for each in done:
                typer.echo(json.dumps(each.explanation.as_dict(), ensure_ascii=False))
        else:
            explaining.show(done)
    raise typer.Exit(faults.exit_code)
