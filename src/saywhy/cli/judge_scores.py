"""Scores of a judge, for `saywhy evaluate --judge`: captions beside those that people wrote of the same images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from saywhy.cli.common import output_console, plain_table, printable, progress_of
from saywhy.errors import UserError

if TYPE_CHECKING:
    from saywhy.data.datasets import Dataset
    from saywhy.judges.judging import CaptionMatch, Judge, Judgement


@dataclass(frozen=True)
class JudgeScores:
    """What the judge says; None where there is no judge."""

    judgement: Judgement | None = None

    def as_dict(self) -> dict[str, Any]:
        """The field of JSON and results files."""
        return {"judge": self.judgement.as_dict()} if self.judgement else {}

    def show(self) -> None:
        """Print a table."""
        if self.judgement is None:
            return
        result = self.judgement
        head = ("", "R@1", "R@5", "R@10", "median rank", "similarity")
        human = f"human captions, mean of {result.positions}"
        rows = [_row("these captions", result.captions), _row(human, result.human)]
        output_console().print(plain_table(head, rows))
        line = (
            f"judged by {result.judge} ({result.encoder}): caption to image among {result.images:,} images; its "
            "similarity is the mean cosine, not CLIPScore"
        )
        output_console().print(printable(line), soft_wrap=True)


@dataclass(frozen=True)
class JudgeScorer:
    """A judge that is loaded before captions are generated, so that a mistake is found early."""

    data: Dataset
    judge: Judge | None = None

    @classmethod
    def read(cls, folder: Path | None, data: Dataset, device: str, batch_size: int, workers: int | None) -> JudgeScorer:
        """Load the judge of `--judge`, if it is given, for the images of a split."""
        if folder is None:
            return cls(data)
        from saywhy.inference.model import choose_device
        from saywhy.judges.judging import Judge

        if len(data) < 2:
            raise UserError(f"--judge ranks images, and {data.root} has {len(data)}: give at least two")
        return cls(data, Judge.load(folder, choose_device(device), batch_size, workers))

    def once(self) -> JudgeScorer:
        """The same for many sets of captions of the same images: each image and reference is embedded once."""
        from saywhy.metrics.retrieval import EmbedOnce

        return self if self.judge is None else replace(self, judge=cast("Judge", EmbedOnce(self.judge)))

    def require_other_encoder(self, model: str | None) -> None:
        """Raise a `UserError` where the captioner has the judge's image network: they would share its mistakes."""
        from saywhy.captioners.model_folder import CONFIG, read_config
        from saywhy.inference.model import locate
        from saywhy.pretrained import is_hub_name, is_transformers_model

        if model is not None and (is_hub_name(model) or is_transformers_model(model)):
            return  # a judge is over one of saywhy's own networks
        folder = locate(model)
        try:
            encoder = read_config(folder)["encoder"]["name"]
        except (KeyError, TypeError):
            raise UserError(f"{folder / CONFIG}: not a configuration of a saywhy model (no encoder)") from None
        if self.judge is not None and self.judge.encoder == encoder:
            raise UserError(
                f"--judge {self.judge.name}: its image network is {encoder}, and so is that of the captioner "
                f"{folder.name}; a judge must not share it: train one over another encoder"
            )

    def score(self, words: Mapping[str, Sequence[str]]) -> JudgeScores:
        """Judge the captions, which are those of the images that could be read."""
        if self.judge is None:
            return JudgeScores()
        from saywhy.data.tokenizer import as_text
        from saywhy.judges.judging import judge_captions

        images = [image for image in self.data.images if image.name in words]
        with progress_of("judging") as report:
            judgement = judge_captions(
                self.judge,
                [image.path for image in images],
                [as_text(words[image.name]) for image in images],
                [image.captions for image in images],
                report,
            )
        return JudgeScores(judgement)


def _row(name: str, match: CaptionMatch) -> tuple[str, ...]:
    recall = (f"{100 * value:.1f}" for value in match.recall)
    return name, *recall, f"{match.median_rank:g}", f"{match.similarity:.3f}"
