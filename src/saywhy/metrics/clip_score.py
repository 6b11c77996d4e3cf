"""CLIPScore and RefCLIPScore (Hessel et al. 2021, https://arxiv.org/abs/2104.08718): does a caption fit its image?

With unit vectors c of the caption, v of the image and r of its references, from a CLIP model,

    CLIPScore    = 2.5 · max(cos(c, v), 0)                                                  equation 1
    RefCLIPScore = H(CLIPScore, max(max_r cos(c, r), 0))          H is the harmonic mean    section 3

Every text gets the prefix "A photo depicts ", as in the authors' code. The paper's model is ViT-B/32 of OpenAI; scores
by different models cannot be compared. Where all references speak against a caption, the authors' code does not clip,
and divides by nearly 0; this follows the paper.

`CLIPScore` of torchmetrics is another number: max(100 · mean of the cosines, 0), by default with ViT-L/14, without the
factor 2.5 and without the prefix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from saywhy.data.tokenizer import as_text
from saywhy.errors import UserError
from saywhy.metrics.base import Floats, TextOrWords
from saywhy.metrics.retrieval import EmbeddingModel, Progress, unit_vectors

PREFIX = "A photo depicts "
_WEIGHT = 2.5


@dataclass(frozen=True)
class ClipScore:
    """Means, and the scores of each caption; those with references are None where there are none.

    Papers print the means as they are: 0.77, not 77 %.
    """

    clip_score: float
    ref_clip_score: float | None
    per_caption: Floats = field(repr=False, compare=False)  # (n,)
    ref_per_caption: Floats | None = field(repr=False, compare=False, default=None)  # (n,)

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {"clip_score": self.clip_score, "ref_clip_score": self.ref_clip_score}


def clip_score(captions: ArrayLike, images: ArrayLike, references: Sequence[ArrayLike] | None = None) -> ClipScore:
    """Score captions by their embeddings.

    Args:
        captions: (N, D) embeddings of the captions; their length does not matter.
        images: (N, D) embeddings of their images.
        references: for each image, the embeddings (R, D) of its references; None leaves RefCLIPScore out.

    >>> score = clip_score([[1, 0]], [[0.6, 0.8]], [[[0, 1], [0.6, 0.8]]])
    >>> round(score.clip_score, 3), round(score.ref_clip_score, 3)
    (1.5, 0.857)
    """
    c, v = unit_vectors(captions, "captions"), unit_vectors(images, "images")
    if c.shape != v.shape:
        raise UserError(f"captions of shape {c.shape} and images of shape {v.shape}: give one caption per image")
    score = _WEIGHT * np.maximum((c * v).sum(1), 0)
    if references is None:
        return ClipScore(float(score.mean()), None, score)
    similarity = np.maximum(_most_similar(c, references), 0)
    total = score + similarity
    with_references = np.divide(2 * score * similarity, total, out=np.zeros_like(total), where=total > 0)
    return ClipScore(float(score.mean()), float(with_references.mean()), score, with_references)


def _most_similar(captions: Floats, references: Sequence[ArrayLike]) -> Floats:
    """max_r cos(c, r) for each caption."""
    groups = [np.asarray(group, dtype=np.float64) for group in references]
    if len(groups) != len(captions):
        raise UserError(f"{len(captions)} captions but references for {len(groups)} images: give one caption per image")
    sizes = [len(group) for group in groups]
    if 0 in sizes:
        raise UserError(f"image {sizes.index(0)} (counted from 0) has no reference caption: give at least one")
    r = unit_vectors(np.concatenate(groups), "references")
    similarity = (np.repeat(captions, sizes, axis=0) * r).sum(1)
    best: Floats = np.maximum.reduceat(similarity, np.cumsum([0, *sizes[:-1]]))
    return best


class ClipScorer:
    """CLIPScore and RefCLIPScore of texts and image files, updated batch by batch; keeps the embeddings.

    Args:
        model: usually of `saywhy.metrics.clip_models.load_clip`.
        prefix: of every text.
    """

    def __init__(self, model: EmbeddingModel, prefix: str = PREFIX) -> None:
        self.model, self.prefix = model, prefix
        self.reset()

    def reset(self) -> None:
        """Remove all captions."""
        self._captions: list[Floats] = []
        self._images: list[Floats] = []
        self._references: list[Floats] = []

    def update(
        self,
        captions: Sequence[TextOrWords],
        images: Sequence[Path],
        references: Sequence[Sequence[TextOrWords]],
        progress: Progress = lambda done, total: None,
    ) -> None:
        """Add captions, their images and the references of each image."""
        if not len(captions) == len(images) == len(references):
            raise UserError(
                f"{len(captions)} captions, {len(images)} images, references for {len(references)}: give one of each"
            )
        texts = [text for group in references for text in group]
        embedded = self._embed([*captions, *texts])
        of_captions, of_references = np.split(embedded, [len(captions)])
        self._captions.append(of_captions)
        self._references += np.split(of_references, np.cumsum([len(group) for group in references])[:-1])
        self._images.append(unit_vectors(self.model.embed_images(images, progress), "images"))

    def _embed(self, texts: Sequence[TextOrWords]) -> Floats:
        lines = [self.prefix + (text if isinstance(text, str) else as_text(text)).strip() for text in texts]
        return unit_vectors(self.model.embed_texts(lines), "captions")

    @property
    def captions(self) -> Floats:
        """Embeddings (N, D) of all captions since the last `reset`."""
        return np.concatenate(self._captions)

    @property
    def images(self) -> Floats:
        """Embeddings (N, D) of their images."""
        return np.concatenate(self._images)

    def compute(self) -> ClipScore:
        """The scores of all captions since the last `reset`."""
        return clip_score(self.captions, self.images, self._references)
