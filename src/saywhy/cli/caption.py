"""`saywhy caption`: say what is in pictures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer


def caption(
    pictures: Annotated[list[str], typer.Argument(help="Pictures, or folders of them.", show_default=False)],
    model: Annotated[str | None, typer.Option(help="A model's folder or name; the shipped one if not given.")] = None,
    beam: Annotated[int | None, typer.Option(help="Width of the beam; 1 is greedy.", show_default="model's")] = None,
    length: Annotated[float | None, typer.Option(help="Exponent of the length rule.", show_default="model's")] = None,
    sample: Annotated[bool, typer.Option("--sample", help="Draw words at random instead.")] = False,
    temperature: Annotated[float, typer.Option(help="Of sampling.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Draw from this many words, 0 for all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Draw from the likeliest words with this mass.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of sampling.")] = 0,
    no_repeat: Annotated[bool, typer.Option("--no-repeat", help="Say no three words in a row twice.")] = False,
    figures: Annotated[Path | None, typer.Option(help="Write a picture of what the model looked at here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    batch: Annotated[int, typer.Option(help="Pictures at a time.")] = 16,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or mps.", show_default="by itself")] = None,
) -> None:
    """Caption pictures: what the model sees, in words.

    A picture that cannot be read is named on stderr and skipped; the exit code is then 2.
    """
    from saywhy.data.pictures import find_pictures
    from saywhy.errors import BrokenPicture
    from saywhy.model import load

    asked: dict[str, Any] = {"no_repeat": True} if no_repeat else {}
    asked |= {name: value for name, value in (("beam", beam), ("length", length)) if value is not None}
    if sample:
        asked |= {
            "method": "sample",
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "seed": seed,
        }
    found = find_pictures(pictures)
    captioner = load(model, device)
    broken: list[BrokenPicture] = []

    def name(error: BrokenPicture) -> None:
        broken.append(error)
        typer.echo(f"saywhy: {error}", err=True)

    for said in captioner.captions(found, batch=batch, on_broken=name, **asked):
        typer.echo(json.dumps(said.as_dict(), ensure_ascii=False) if as_json else f"{said.image}: {said.text}")
        if figures:
            figures.mkdir(parents=True, exist_ok=True)
            said.show().save(figures / f"{Path(said.image).stem}.png")
    raise typer.Exit(2 if broken else 0)
