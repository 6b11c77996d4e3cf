"""`saywhy evaluate`: caption a split and score it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer


def evaluate(
    data: Annotated[Path, typer.Option(help="The captioned pictures.", show_default=False)],
    model: Annotated[str | None, typer.Option(help="A model's folder or name; the shipped one if not given.")] = None,
    split: Annotated[str, typer.Option(help="train, dev or test.")] = "test",
    beam: Annotated[int | None, typer.Option(help="Width of the beam.", show_default="model's")] = None,
    length: Annotated[float | None, typer.Option(help="Exponent of the length rule.", show_default="model's")] = None,
    captions: Annotated[Path | None, typer.Option(help="Score the captions of this file instead of a model's.")] = None,
    save_captions: Annotated[Path | None, typer.Option(help="Write the captions here, one JSON object a line.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write scores and all they depend on here, as in results/.")] = None,
    meteor: Annotated[
        bool, typer.Option(help="METEOR needs Java; it is left out with a line where that is missing.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    batch: Annotated[int, typer.Option(help="Pictures at a time.")] = 32,
    workers: Annotated[int | None, typer.Option(help="Processes that read pictures.", show_default="by itself")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or mps.", show_default="by itself")] = None,
) -> None:
    """Caption a split and score it: BLEU with and without brevity penalty, METEOR, ROUGE-L, CIDEr, SPICE.

    Percent throughout. Captions are freely decoded; a signature says how.
    """
    from saywhy.cli.evaluating import Evaluation

    changes: dict[str, Any] = {"beam": beam, "length": length}
    asked = {name: value for name, value in changes.items() if value is not None}
    evaluation = Evaluation(data, split, model, asked, captions, batch, workers, device)
    result = evaluation.run(meteor)
    if save_captions:
        evaluation.save_captions(save_captions)
    if out:
        evaluation.save(out, result)
    for line in result.notes:
        typer.echo(f"saywhy: {line}", err=True)
    if as_json:
        typer.echo(json.dumps(result.as_dict()))
    else:
        evaluation.show(result)
