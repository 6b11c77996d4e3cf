"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DECODING, OUTPUT, MACHINE = "Decoding", "Output", "Machine"  # panels of the help text
FLAG = ""  # the metavar of a flag: newer versions of typer would print <bool>

Images = Annotated[list[str], typer.Argument(metavar="IMAGE", help="Images, or folders of them.", show_default=False)]
Model = Annotated[
    str | None,
    typer.Option(metavar="NAME|DIR", help="A model's name or folder.", show_default="the shipped one"),
]
Data = Annotated[
    Path,
    typer.Option(metavar="DIR", help="The captioned images: their folder, or the captions file.", show_default=False),
]
Reader = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The layout of the data.", show_default="recognised by itself"),
]
ImageFolder = Annotated[
    Path | None,
    typer.Option(
        "--images", metavar="DIR", help="The folder of images, if not in its usual place.", show_default=False
    ),
]
Regions = Annotated[
    Path | None,
    typer.Option(
        metavar="PATH",
        help="What a model of regions looks at: a folder of .npz or .npy, a bottom-up TSV, or boxes.jsonl.gz.",
        show_default=False,
    ),
]
Beam = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="Width of the beam.", show_default="model's", rich_help_panel=DECODING),
]
Length = Annotated[
    float | None,
    typer.Option(
        metavar="A",
        min=0,
        help="Rank captions by log p / length^A; more favours long ones.",
        show_default="model's",
        rich_help_panel=DECODING,
    ),
]
NoRepeat = Annotated[
    bool | None,
    typer.Option(
        "--no-repeat/--repeat",
        metavar=FLAG,
        help="Say no three words in a row twice.",
        show_default="model's",
        rich_help_panel=DECODING,
    ),
]
Attend = Annotated[
    str | None,
    typer.Option(
        metavar="expected|sampled|argmax",
        help="What hard attention takes in.",
        show_default="model's",
        rich_help_panel=DECODING,
    ),
]
Json = Annotated[bool, typer.Option("--json", metavar=FLAG, help="Print one JSON object.", rich_help_panel=OUTPUT)]
JsonLines = Annotated[
    bool, typer.Option("--json", metavar=FLAG, help="Print one JSON object a line.", rich_help_panel=OUTPUT)
]
Device = Annotated[str, typer.Option(metavar="auto|cpu|cuda|mps", help="What to compute on.", rich_help_panel=MACHINE)]
Batch = Annotated[int, typer.Option(metavar="N", min=1, help="Images at a time.", rich_help_panel=MACHINE)]
OwnBatch = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="Images at a time.", show_default="by itself", rich_help_panel=MACHINE),
]
Workers = Annotated[
    int | None,
    typer.Option(
        metavar="N", min=0, help="Processes that read images.", show_default="by itself", rich_help_panel=MACHINE
    ),
]


def examples(*lines: str) -> str:
    """An epilog that shows commands, one a line."""
    return "\n".join(("[dim]Examples[/dim]", *lines))
