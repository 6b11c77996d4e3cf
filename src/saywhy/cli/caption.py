"""`saywhy caption`: say what is in images."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from saywhy.cli.common import Failures, check_writable, readable_images
from saywhy.cli.options import (
    FLAG,
    OUTPUT,
    Attend,
    Batch,
    Beam,
    Device,
    Images,
    JsonLines,
    Length,
    Model,
    NoRepeat,
    Regions,
    examples,
)
from saywhy.errors import UserError

SAMPLING = "Sampling, in place of a beam"
EPILOG = examples(
    "saywhy caption photo.jpg holiday/",
    "saywhy caption holiday/ --json > captions.jsonl",
    "saywhy caption photo.jpg --risk",
    "saywhy caption photo.jpg --figures looked-at/",
    "saywhy caption photo.jpg --sample --top-p 0.9 --seed 7",
)


def caption(
    images: Images,
    model: Model = None,
    regions: Regions = None,
    beam: Beam = None,
    length: Length = None,
    no_repeat: NoRepeat = None,
    attend: Attend = None,
    sample: Annotated[
        bool, typer.Option("--sample", metavar=FLAG, help="Draw words at random.", rich_help_panel=SAMPLING)
    ] = False,
    temperature: Annotated[
        float, typer.Option(metavar="T", help="Below 1 plays safe, above 1 dares.", rich_help_panel=SAMPLING)
    ] = 1.0,
    top_k: Annotated[
        int, typer.Option(metavar="K", min=0, help="Draw from the K likeliest; 0 for all.", rich_help_panel=SAMPLING)
    ] = 0,
    top_p: Annotated[
        float, typer.Option(metavar="P", help="Draw from the likeliest that make up P.", rich_help_panel=SAMPLING)
    ] = 1.0,
    seed: Annotated[
        int, typer.Option(metavar="N", min=0, help="Another seed, another draw.", rich_help_panel=SAMPLING)
    ] = 0,
    risk: Annotated[
        bool,
        typer.Option(
            "--risk", metavar=FLAG, help="Tell how likely each object word is made up.", rich_help_panel=OUTPUT
        ),
    ] = False,
    as_json: JsonLines = False,
    figures: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Draw what the model looked at, a PNG an image.", rich_help_panel=OUTPUT),
    ] = None,
    batch: Batch = 16,
    device: Device = "auto",
) -> None:
    """Say what is in images.

    An image that cannot be read is named on stderr and skipped; the exit code is then 2.
    """
    if sample and (beam is not None or length is not None):
        raise UserError("--beam and --length search, --sample draws: give one or the other")
    if not sample and (temperature, top_k, top_p, seed) != (1.0, 0, 1.0, 0):
        raise UserError("--temperature, --top-k, --top-p and --seed are of sampling: add --sample")
    check_writable("--figures", figures, folder=True)
    faults = Failures()
    if found := list(readable_images(images, faults)):
        asked: dict[str, Any] = {"beam": beam, "length": length, "no_repeat": no_repeat, "attend": attend}
        if sample:
            asked |= {"method": "sample", "temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
        asked = {name: value for name, value in asked.items() if value is not None}
        _caption(found, model, regions, device, batch, asked, risk, as_json, figures, faults)
    raise typer.Exit(faults.exit_code)


def _caption(
    found: list[Path],
    model: str | None,
    regions: Path | None,
    device: str,
    batch: int,
    asked: dict[str, Any],
    risk: bool,
    as_json: bool,
    figures: Path | None,
    skip: Callable[[UserError], None],
) -> None:
    from saywhy.cli.common import Figures
    from saywhy.data.region_inputs import find_regions
    from saywhy.decoding import Decoding
    from saywhy.inference.model import load

    Decoding(**asked)  # out of range is told before a model is loaded
    drawn = Figures(figures, found) if figures else None
    loaded = load(model, device)
    given = find_regions(loaded.regions, regions, f"model {loaded.name}")
    if given:
        given.table.require(path.name for path in found)
    table = given.table if given else None
    for said in loaded.captions(found, batch=batch, on_unreadable=skip, regions=table, risk=risk, **asked):
        text = said.text_with_risks if risk else said.text
        typer.echo(json.dumps(said.as_dict(), ensure_ascii=False) if as_json else f"{said.source}: {text}")
        if drawn:
            drawn.add(said)
