"""`saywhy models`: what there is to choose from."""

from __future__ import annotations

import json
from typing import Annotated

import typer


def models(as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False) -> None:
    """List the shipped models, and the captioners and encoders a recipe may name."""
    from rich.console import Console
    from rich.table import Table

    from saywhy.captioners import captioners
    from saywhy.captioners.saving import read_config
    from saywhy.encoders import registered
    from saywhy.model import locate, shipped

    rows = registered()
    if as_json:
        table = {"models": shipped(), "captioners": list(captioners), "encoders": [row.name for row in rows]}
        typer.echo(json.dumps(table))
        return
    console = Console()
    ready = Table("model", "captioner", "encoder", "size", title="Shipped models", title_justify="left")
    for name in shipped():
        config = read_config(locate(name))
        ready.add_row(
            name, config["captioner"]["name"], config["encoder"]["name"], str(config["preprocessing"]["size"])
        )
    console.print(ready)
    kinds = Table("captioner", "what it is", title="Captioners", title_justify="left")
    for name in captioners:
        kinds.add_row(name, (__import__("sys").modules[captioners[name].__module__].__doc__ or "").splitlines()[0])
    console.print(kinds)
    nets = Table("encoder", "size", "annotations", "weights", title="Encoders", title_justify="left")
    for row in rows:
        nets.add_row(row.name, str(row.size), f"{row.side} × {row.side} × {row.width}", row.source)
    console.print(nets)
