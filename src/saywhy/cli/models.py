"""`saywhy models`: what there is to choose from."""

from __future__ import annotations

import inspect
import json
from typing import Any

import typer

from saywhy.cli.options import Json

Rows = list[dict[str, Any]]


def models(as_json: Json = False) -> None:
    """List the models, captioners and encoders there are."""
    tables = {"models": _models(), "captioners": _captioners(), "encoders": _encoders()}
    if as_json:
        typer.echo(json.dumps(tables))
    else:
        _show(tables)


def _models() -> Rows:
    from saywhy.captioners.model_folder import read_config
    from saywhy.inference.model import locate, shipped

    configs = [(name, read_config(locate(name))) for name in shipped()]
    return [
        {
            "name": name,
            "captioner": config["captioner"]["name"],
            "encoder": config["encoder"]["name"],
            "size": config["preprocessing"]["size"],
        }
        for name, config in configs
    ]


def _captioners() -> Rows:
    from saywhy.captioners import captioners

    about = {name: inspect.getdoc(inspect.getmodule(captioners[name])) or "" for name in captioners}
    return [{"name": name, "about": text.partition("\n")[0]} for name, text in about.items()]


def _encoders() -> Rows:
    from saywhy.encoders import registered

    return [
        {"name": card.name, "size": card.size, "annotations": [*card.grid, card.width], "weights": card.source}
        for card in registered()
    ]


def _show(tables: dict[str, Rows]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    titles = {
        "models": "Shipped models, for --model",
        "captioners": "Captioners, for a recipe",
        "encoders": "Encoders, for a recipe; and timm:NAME for whatever timm knows",
    }
    for kind, rows in tables.items():
        console.print(f"\n[bold]{titles[kind]}[/bold]")
        table = Table(*(rows[0] if rows else ()), box=None, header_style="dim", padding=(0, 2, 0, 0))
        for row in rows:
            table.add_row(*map(_cell, row.values()))
        console.print(table)


def _cell(value: Any) -> str:
    return " × ".join(map(str, value)) if isinstance(value, list) else str(value)
