"""Judge captions: do they find their images among all images, and how similar are they to them?

For each caption of N images, a judge ranks all N (`saywhy.metrics.retrieval`), and gives the cosine of caption and
image. The numbers depend on the judge and on N. So the same numbers for captions that people wrote of the same images
stand beside them: they say how good the judge is. Of human captions there are several per image; one of each, the
first, then the second and so on, is judged like the captions of a captioner, and the results are averaged.

The mean cosine is called judge similarity. It is not CLIPScore, which is that of one certain model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from saywhy.data.tokenizer import PAD, Vocabulary, tokenize
from saywhy.errors import UserError
from saywhy.inference.batches import ImageBatches, default_workers
from saywhy.judges.dual_encoder import DualEncoder
from saywhy.judges.judge_folder import SavedJudge, load
from saywhy.metrics.retrieval import RECALL_AT, Embeddings, retrieval, unit_vectors

TEXTS_PER_BATCH = 256
MOST_WORDS = 100  # longer texts are cut


class Judge:
    """A trained judge that embeds texts and image files; an `EmbeddingModel` of `saywhy.metrics.retrieval`."""

    def __init__(self, saved: SavedJudge, batch_size: int = 64, workers: int | None = None) -> None:
        self.saved, self.batch_size, self.workers = saved, batch_size, workers

    @classmethod
    def load(
        cls, folder: str | Path, device: torch.device | str = "cpu", batch_size: int = 64, workers: int | None = None
    ) -> Judge:
        """Read a folder that `saywhy train-judge` wrote."""
        return cls(load(folder, device), batch_size, workers)

    @property
    def name(self) -> str:
        """The name of its recipe."""
        return self.saved.name

    @property
    def encoder(self) -> str:
        """The name of its image network."""
        return self.saved.encoder

    def embed_texts(self, texts: Sequence[str]) -> Embeddings:
        """Unit vectors (N, D) of texts, in their order; a text that is too long is cut."""
        words = [tokenize(text)[:MOST_WORDS] for text in texts]
        return embed_captions(self.saved.model, self.saved.vocabulary, words)

    def embed_images(
        self, images: Sequence[Path], progress: Callable[[int, int], None] = lambda done, total: None
    ) -> Embeddings:
        """Unit vectors (N, D) of image files, in their order; raises `UnreadableImage` for a file that is none."""
        workers = default_workers() if self.workers is None else self.workers
        batches = ImageBatches(self.saved.preprocessing, images, batch_size=self.batch_size, workers=workers)
        vectors = []
        for batch in batches:
            vectors.append(embed_pixels(self.saved.model, batch.pixels, self.batch_size))
            progress(batch.indices[-1] + 1, len(images))
        return np.concatenate(vectors) if vectors else self._none()

    def _none(self) -> Embeddings:
        return np.empty((0, self.saved.model.settings.embedding), np.float32)


@torch.inference_mode()
def embed_captions(model: DualEncoder, vocabulary: Vocabulary, captions: Sequence[Sequence[str]]) -> Embeddings:
    """Unit vectors (N, D) of tokenised captions, in their order."""
    vectors = np.empty((len(captions), model.settings.embedding), np.float32)
    encoded = [vocabulary.encode(words) for words in captions]
    by_length = sorted(range(len(encoded)), key=lambda index: len(encoded[index]))  # little padding
    for rows in _chunks(by_length, TEXTS_PER_BATCH):
        tokens = pad([encoded[row] for row in rows]).to(model.device)
        vectors[list(rows)] = model.embed_captions(tokens).float().cpu().numpy()
    return vectors


@torch.inference_mode()
def embed_pixels(model: DualEncoder, pixels: Tensor, batch_size: int) -> Embeddings:
    """Unit vectors (B, D) of images (B, 3, S, S) uint8."""
    parts = [model.embed_images(part.to(model.device)).float().cpu() for part in pixels.split(batch_size)]
    return torch.cat(parts).numpy()


def pad(captions: Sequence[Sequence[int]]) -> Tensor:
    """Token ids as one tensor (N, T)."""
    tokens = torch.full((len(captions), max(map(len, captions))), PAD)
    for row, ids in zip(tokens, captions, strict=True):
        row[: len(ids)] = torch.tensor(ids)
    return tokens


def _chunks(rows: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    return (rows[start : start + size] for start in range(0, len(rows), size))


@dataclass(frozen=True)
class CaptionMatch:
    """How well captions, one per image, fit their images.

    Attributes:
        recall: the share of captions whose image is among the first 1, 5 and 10.
        median_rank: of the images; 1 is best.
        similarity: the mean cosine of caption and image.
    """

    recall: tuple[float, float, float]
    median_rank: float
    similarity: float

    @classmethod
    def of(cls, captions: Embeddings, images: Embeddings) -> CaptionMatch:
        """Caption i belongs to image i."""
        result = retrieval(captions, images)
        cosine = (unit_vectors(captions, "captions") * unit_vectors(images, "images")).sum(axis=1)
        return cls(result.recall, result.median_rank, float(cosine.mean()))

    @classmethod
    def mean(cls, matches: Sequence[CaptionMatch]) -> CaptionMatch:
        """The mean of each number."""
        first, fifth, tenth = np.mean([match.recall for match in matches], axis=0).tolist()
        rank, similarity = np.mean([[match.median_rank, match.similarity] for match in matches], axis=0).tolist()
        return cls((first, fifth, tenth), rank, similarity)

    def as_dict(self) -> dict[str, float]:
        """Ready for JSON; recall in percent, the similarity a cosine."""
        recall = {f"recall_at_{k}": 100 * value for k, value in zip(RECALL_AT, self.recall, strict=True)}
        return {**recall, "median_rank": self.median_rank, "similarity": self.similarity}


@dataclass(frozen=True)
class Judgement:
    """What a judge says of captions, and of captions that people wrote of the same images.

    Attributes:
        judge: its name.
        encoder: the name of its image network.
        images: how many images were ranked.
        captions: the captions that were judged.
        human: the mean over the human captions in the same position.
        positions: how many human captions of each image were judged.
    """

    judge: str
    encoder: str
    images: int
    captions: CaptionMatch
    human: CaptionMatch
    positions: int

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "judge": self.judge,
            "encoder": self.encoder,
            "images": self.images,
            "captions": self.captions.as_dict(),
            "human": {**self.human.as_dict(), "captions_per_image": self.positions},
        }


def judge_captions(
    judge: Judge,
    images: Sequence[Path],
    captions: Sequence[str],
    references: Sequence[Sequence[str]],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Judgement:
    """Judge one caption of each image, and the human captions of the same images.

    Args:
        judge: a `Judge`.
        images: image files; at least two.
        captions: one text per image.
        references: human captions of each image; as many positions are judged as every image has.
        progress: called with the number of images embedded, and of all.
    """
    if len(images) < 2:
        raise UserError("a judge ranks images: give at least two")
    vectors = judge.embed_images(images, progress)
    positions = min(map(len, references))
    human = [
        CaptionMatch.of(judge.embed_texts([texts[position] for texts in references]), vectors)
        for position in range(positions)
    ]
    match = CaptionMatch.of(judge.embed_texts(captions), vectors)
    return Judgement(judge.name, judge.encoder, len(images), match, CaptionMatch.mean(human), positions)
