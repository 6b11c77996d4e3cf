"""What `saywhy evaluate` does: captions of a split, their scores, and a results file."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from saywhy.cli.progress import counting
from saywhy.data.datasets import Picture, read
from saywhy.data.tokenise import tokenise
from saywhy.errors import UserError
from saywhy.files import write_text
from saywhy.metrics.score import Scores, score
from saywhy.metrics.signature import Signature


class Evaluation:
    """One split captioned and scored."""

    def __init__(
        self,
        data: Path,
        split: str,
        model: str | None,
        decoding: dict[str, Any],
        captions: Path | None,
        batch: int,
        workers: int | None,
        device: str | None,
    ) -> None:
        self.data = read(data)
        self.split = split
        self.pictures = self.data.split(split).pictures
        self.model = model
        self.about: dict[str, Any] = {}
        self.broken: tuple[str, ...] = ()
        if captions:
            self.source, self.decoding, self.words = (
                str(captions),
                "given",
                read_captions(captions, self.pictures),
            )
        else:
            self._caption(decoding, batch, workers, device)

    def _caption(self, asked: dict[str, Any], batch: int, workers: int | None, device: str | None) -> None:
        from saywhy.metrics.evaluation import caption_split
        from saywhy.model import load, locate
        from saywhy.training.machine import machine

        model = load(self.model, device)
        decoding = replace(model.decoding, **asked)
        began = time.monotonic()
        with counting(f"captioning {self.split}") as progress:
            said = caption_split(
                model.captioner, model.vocabulary, model.preprocessing, self.pictures, decoding,
                batch=batch, workers=workers, progress=progress,
            )  # fmt: skip
        self.source, self.decoding, self.broken = model.name, str(decoding), said.broken
        self.words = {name: caption.words for name, caption in said.captions.items()}
        self.about = {
            "captions_per_second": len(self.words) / (time.monotonic() - began),
            **machine(model.captioner.device),
            **_run(locate(self.model)),
        }

    def run(self, meteor: bool) -> Scores:
        """Score the captions against all references."""
        said = [picture for picture in self.pictures if picture.name in self.words]
        signature = Signature(tok="ptb", split=f"{self.data.name}/{self.split}", decode=self.decoding)
        scores = score(
            [self.words[picture.name] for picture in said],
            [picture.captions for picture in said],
            meteor="auto" if meteor else False,
            signature=signature,
        )
        skipped = [f"skipped {len(self.broken)} broken pictures, the first: {self.broken[0]}"] if self.broken else []
        return replace(scores, notes=(*skipped, *scores.notes))

    def save_captions(self, path: Path) -> None:
        """Write the captions as `read_captions` reads them."""
        lines = [json.dumps({"image": name, "words": list(words)}) for name, words in self.words.items()]
        write_text(path, "\n".join(lines) + "\n")

    def save(self, path: Path, scores: Scores) -> None:
        """Write a results file: the scores and all they depend on."""
        table = {"model": self.source, "data": self.data.name, "split": self.split, "decoding": self.decoding}
        write_text(path, json.dumps({**table, "scores": scores.as_dict(), **self.about}, indent=2) + "\n")

    def show(self, scores: Scores) -> None:
        """Print a table."""
        table = Table(
            title=f"{self.source} on {self.data.name} {self.split}, {scores.n:,} pictures",
            title_justify="left",
        )
        names = ["BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "METEOR", "ROUGE-L", "CIDEr", "SPICE"]
        percent = scores.as_dict()
        values = [*percent["bleu"], *(percent[name] for name in ("meteor", "rouge_l", "cider", "spice"))]
        for name in ("", *names):
            table.add_column(name, justify="right")
        table.add_row("", *("–" if value is None else f"{value:.1f}" for value in values))
        table.add_row("no penalty", *(f"{value:.1f}" for value in percent["bleu_no_penalty"]))
        console = Console()
        console.print(table)
        console.print(str(scores.signature), highlight=False, soft_wrap=True)


def read_captions(path: Path, pictures: Sequence[Picture]) -> dict[str, Sequence[str]]:
    """Captions of a file, one JSON object a line with `image` and `caption` (or `words`); every picture must have one.

    This is what `saywhy caption --json` prints, too: a picture is found by its name, whatever folder it is in.
    """
    names = {picture.name for picture in pictures} | {Path(picture.name).name for picture in pictures}
    words: dict[str, Sequence[str]] = {}
    number = 0
    try:
        for line in path.read_text(encoding="utf-8").splitlines():
            number += 1
            row = json.loads(line)
            name = row["image"] if row["image"] in names else Path(row["image"]).name
            spoken = row.get("words")
            plain = isinstance(spoken, list) and all(isinstance(word, str) for word in spoken)
            words[name] = spoken if plain else tokenise(row["caption"])
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f'{path}, line {number}: needs a JSON object with "image" and "caption" ({error!r})') from None
    missing = [picture.name for picture in pictures if picture.name not in words]
    if missing:
        raise UserError(f"{path}: no caption for {len(missing)} of the {len(pictures)} pictures, first {missing[0]}")
    return {picture.name: words[picture.name] for picture in pictures}


def _run(folder: Path) -> dict[str, Any]:
    """What run.json says of how the model was trained, where there is one."""
    path = folder / "run.json"
    return {"training": json.loads(path.read_text(encoding="utf-8"))} if path.is_file() else {}
