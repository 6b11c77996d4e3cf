"""Scores by models that embed captions and images, for `saywhy evaluate --clip` and `--bert-score`; `--diversity`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from saywhy.cli.common import output_console, plain_table, progress_of

if TYPE_CHECKING:
    from saywhy.data.datasets import CaptionedImage, Dataset
    from saywhy.metrics.bert_score import BertScore, TokenEncoder
    from saywhy.metrics.clip_score import ClipScore
    from saywhy.metrics.diversity import Diversity
    from saywhy.metrics.retrieval import EmbeddingModel, Retrieval


@dataclass(frozen=True)
class EmbeddingScores:
    """The scores that were requested, in the order of the output: for each, its fields and the row of its table."""

    fields: Mapping[str, dict[str, Any]]
    tables: Sequence[tuple[Sequence[str], Sequence[str]]]

    def as_dict(self) -> dict[str, Any]:
        """The fields of JSON and results files."""
        return dict(self.fields)

    def show(self) -> None:
        """Print a table for each score."""
        for head, row in self.tables:
            output_console().print(plain_table(head, [row]))


@dataclass(frozen=True)
class EmbeddingScorer:
    """The models that the user named, loaded before captioning so that a mistake in a name is found early.

    Attributes:
        clip: for CLIPScore, RefCLIPScore and retrieval.
        bert: for BERTScore.
        measure_diversity: whether `--diversity` was given.
    """

    clip: EmbeddingModel | None = None
    bert: TokenEncoder | None = None
    measure_diversity: bool = False

    @classmethod
    def load(cls, clip: str | None, bert: str | None, diversity: bool, device: str) -> EmbeddingScorer:
        """Load the models at these locations."""
        if clip is None and bert is None:
            return cls(measure_diversity=diversity)
        from saywhy.inference.model import choose_device
        from saywhy.metrics.bert_models import load_bert
        from saywhy.metrics.clip_models import load_clip

        place = choose_device(device)
        return cls(
            clip=None if clip is None else load_clip(clip, place),
            bert=None if bert is None else load_bert(bert, place),
            measure_diversity=diversity,
        )

    def once(self) -> EmbeddingScorer:
        """The same for many sets of captions of the same images: CLIP embeds each image and reference once."""
        from saywhy.metrics.retrieval import EmbedOnce

        return self if self.clip is None else replace(self, clip=EmbedOnce(self.clip))

    def score(self, data: Dataset, words: Mapping[str, Sequence[str]]) -> EmbeddingScores:
        """Score the captions, which are those of the images that could be read."""
        images = [image for image in data.images if image.name in words]
        captions = [words[image.name] for image in images]
        fields: dict[str, dict[str, Any]] = {}
        tables = []
        if self.clip:
            clip_score, retrieval = _clip_scores(self.clip, images, captions)
            fields["clip"] = {"model": self.clip.name, **clip_score.as_dict(), "retrieval": retrieval.as_dict()}
            tables.append(_clip_table(self.clip.name, clip_score, retrieval))
        if self.bert:
            bert_score = _bert_score(self.bert, images, captions)
            encoder = {"model": self.bert.name, "layer": self.bert.layer, "idf": True}
            fields["bert_score"] = {**encoder, **bert_score.as_dict()}
            tables.append(_bert_table(f"{self.bert.name}, layer {self.bert.layer}, idf", bert_score))
        if self.measure_diversity:
            from saywhy.metrics.diversity import diversity

            found = diversity(captions)
            fields["diversity"] = found.as_dict()
            tables.append(_diversity_table(found))
        return EmbeddingScores(fields, tables)


def _clip_scores(
    model: EmbeddingModel, images: Sequence[CaptionedImage], captions: Sequence[Sequence[str]]
) -> tuple[ClipScore, Retrieval]:
    from saywhy.metrics.clip_score import ClipScorer
    from saywhy.metrics.retrieval import retrieval

    scorer = ClipScorer(model)
    with progress_of("CLIPScore") as report:
        scorer.update(captions, [image.path for image in images], [image.captions for image in images], report)
    return scorer.compute(), retrieval(scorer.captions, scorer.images)


def _bert_score(
    encoder: TokenEncoder, images: Sequence[CaptionedImage], captions: Sequence[Sequence[str]]
) -> BertScore:
    from saywhy.metrics.bert_score import bert_score

    with progress_of("BERTScore") as report:
        return bert_score(captions, [image.captions for image in images], encoder, progress=report)


def retrieval_cells(retrieval: Retrieval) -> dict[str, str]:
    """The cells of a table by column, recall in percent."""
    from saywhy.metrics.retrieval import RECALL_AT

    recall = {f"R@{k}": f"{100 * value:.1f}" for k, value in zip(RECALL_AT, retrieval.recall, strict=True)}
    return {**recall, "median rank": f"{retrieval.median_rank:g}"}


def _clip_table(model: str, score: ClipScore, retrieval: Retrieval) -> tuple[Sequence[str], Sequence[str]]:
    assert score.ref_clip_score is not None  # every image of a data set has captions
    scores = {"CLIPScore": f"{score.clip_score:.3f}", "RefCLIPScore": f"{score.ref_clip_score:.3f}"}
    cells = {"CLIP": model, **scores, **retrieval_cells(retrieval)}
    return tuple(cells), tuple(cells.values())


def _bert_table(model: str, score: BertScore) -> tuple[Sequence[str], Sequence[str]]:
    return ("BERTScore", "P", "R", "F"), (model, *(f"{x:.3f}" for x in (score.precision, score.recall, score.f1)))


def _diversity_table(found: Diversity) -> tuple[Sequence[str], Sequence[str]]:
    scores = found.as_dict()
    self_bleu = "–" if scores["self_bleu"] is None else f"{scores['self_bleu']:.1f}"
    cells = (f"{found.distinct_words:,}", f"{found.unique.percent:.1f}", f"{found.mean_length:.1f}", self_bleu)
    return ("diversity", "distinct words", "unique captions, %", "words per caption", "self-BLEU"), ("", *cells)
