"""`saywhy models`: list models, captioners, encoders and adapters."""

from __future__ import annotations

import inspect
from typing import Any

import typer

from saywhy.cli.common import import_plugins, json_line, output_console, plain_table
from saywhy.cli.options import Json, Plugins, examples

Rows = list[dict[str, Any]]

EPILOG = examples("saywhy models", "saywhy models --import my_captioner.py --json")
TITLES = {
    "models": "Shipped models, for --model",
    "captioners": "Captioners, for a recipe",
    "encoders": "Encoders, for a recipe; also timm:NAME for any network of timm",
    "adapters": "Adapters: kinds of models of Hugging Face, for --model hf:NAME",
}


def models(plugins: Plugins = None, as_json: Json = False) -> None:
    """List shipped models, captioners, encoders, and adapters of Hugging Face's captioners."""
    import_plugins(plugins)
    tables = {"models": _models(), "captioners": _captioners(), "encoders": _encoders(), "adapters": _adapters()}
    if as_json:
        typer.echo(json_line(tables))
    else:
        _show(tables)


def _models() -> Rows:
    from saywhy.captioners.model_folder import VOCABULARY, read_config
    from saywhy.data.tokenizer import Vocabulary
    from saywhy.inference.model import locate, shipped

    configs = [(name, read_config(locate(name))) for name in shipped()]
    return [
        {
            "name": name,
            "captioner": config["captioner"]["name"],
            "encoder": config["encoder"]["name"],
            "size": config["preprocessing"]["size"],
            "styles": list(Vocabulary.load(locate(name) / VOCABULARY).styles),
        }
        for name, config in configs
    ]


def _captioners() -> Rows:
    from saywhy.captioners import captioners

    docstrings = {name: inspect.getdoc(inspect.getmodule(captioners[name])) or "" for name in captioners}
    return [{"name": name, "about": text.partition("\n")[0]} for name, text in docstrings.items()]


def _encoders() -> Rows:
    from saywhy.encoders.registry import registered

    return [
        {"name": spec.name, "size": spec.size, "features": [*spec.grid, spec.width], "weights": spec.source}
        for spec in registered()
    ]


def _adapters() -> Rows:
    from saywhy.adapters.base import adapters

    docstrings = {name: inspect.getdoc(inspect.getmodule(adapters[name])) or "" for name in adapters}
    return [
        {"name": name, "example": adapters[name].example, "about": text.partition("\n")[0]}
        for name, text in docstrings.items()
    ]


def _show(tables: dict[str, Rows]) -> None:
    console = output_console()
    for kind, rows in tables.items():
        console.print(f"\n{TITLES[kind]}", style="bold")
        head = tuple(rows[0]) if rows else ()
        console.print(plain_table(head, [[_cell(value) for value in row.values()] for row in rows], range(len(head))))


def _cell(value: Any) -> str:
    if not isinstance(value, list):
        return str(value)
    return (", " if all(isinstance(part, str) for part in value) else " × ").join(map(str, value))
