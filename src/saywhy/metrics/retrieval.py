"""Caption → image retrieval: does a caption find its own image among all images of a split?

With unit vectors t_i of the captions and v_j of the images, of a model that embeds both in one space (a dual encoder,
such as CLIP: Radford et al. 2021, https://arxiv.org/abs/2103.00020),

    s_ij = t_i · v_j
    rank_i = 1 + #{j : s_ij > s_ik} + ½ #{j ≠ k : s_ij = s_ik}          k is the image of caption i
    recall@K = mean over the captions of [rank_i ≤ K]

Ties get their mean rank, so that a model that embeds everything alike ranks an image (N + 1) / 2 and not first.
Similarities that differ by less than 1e-6 are ties: embeddings in single precision are not more exact. The numbers
depend on N: compare them only between captions of the same images.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from saywhy.errors import UserError
from saywhy.metrics.base import Floats, Ints

#: Unit vectors (N, D) in single or double precision.
Embeddings: TypeAlias = NDArray[np.floating[Any]]
#: Called with the number of images that are done, and of all.
Progress: TypeAlias = Callable[[int, int], None]

RECALL_AT = (1, 5, 10)
_TIE = 1e-6
_BLOCK = 512  # captions whose similarities to all images are in memory at once


class EmbeddingModel(Protocol):
    """A dual encoder: texts and images as vectors of one space, whose cosine says how well they match."""

    @property
    def name(self) -> str:
        """The model, as the scores that it gives name it; no path."""

    def embed_texts(self, texts: Sequence[str]) -> Embeddings:
        """Unit vectors (N, D) of texts, in their order; a text that is too long is cut."""

    def embed_images(self, images: Sequence[Path], progress: Progress = ...) -> Embeddings:
        """Unit vectors (N, D) of image files, in their order; raises `UnreadableImage` for a file that is none."""


class EmbedOnce:
    """An `EmbeddingModel` that embeds each text and each image once, for many sets of captions of the same images.

    All other attributes are those of the model.
    """

    def __init__(self, model: EmbeddingModel) -> None:
        self.model = model
        self._texts: dict[str, Floats] = {}
        self._images: dict[Path, Floats] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def embed_texts(self, texts: Sequence[str]) -> Embeddings:
        """Unit vectors (N, D) of texts, in their order."""
        new = [text for text in dict.fromkeys(texts) if text not in self._texts]
        if new:
            self._texts.update(zip(new, self.model.embed_texts(new), strict=True))
        return np.stack([self._texts[text] for text in texts])

    def embed_images(self, images: Sequence[Path], progress: Progress = lambda done, total: None) -> Embeddings:
        """Unit vectors (N, D) of image files, in their order."""
        new = [path for path in dict.fromkeys(images) if path not in self._images]
        if new:
            self._images.update(zip(new, self.model.embed_images(new, progress), strict=True))
        return np.stack([self._images[path] for path in images])


@dataclass(frozen=True)
class Retrieval:
    """How well captions find their images.

    Attributes:
        recall: the share of captions whose image is among the first 1, 5 and 10.
        median_rank: of the images; 1 is best.
        images: the number of images that were ranked.
        ranks: (captions,) of each caption's image.
    """

    recall: tuple[float, float, float]
    median_rank: float
    images: int
    ranks: Floats = field(repr=False, compare=False)

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON, recall in percent."""
        recall = {f"recall_at_{k}": 100 * value for k, value in zip(RECALL_AT, self.recall, strict=True)}
        return {**recall, "median_rank": self.median_rank, "images": self.images}


def retrieval(captions: ArrayLike, images: ArrayLike, image_of: ArrayLike | None = None) -> Retrieval:
    """Rank all images for each caption.

    Args:
        captions: embeddings (M, D) of the captions; their length does not matter.
        images: embeddings (N, D) of the images.
        image_of: (M,) the number of each caption's image; by default caption i belongs to image i, and M = N.

    >>> retrieval([[1, 0], [0.6, 0.8], [0, 1]], [[1, 0], [0, 1], [0.8, 0.6]])
    Retrieval(recall=(0.3333333333333333, 1.0, 1.0), median_rank=2.0, images=3)
    """
    ranks = image_ranks(captions, images, image_of)
    first, fifth, tenth = (float((ranks <= k).mean()) for k in RECALL_AT)
    return Retrieval((first, fifth, tenth), float(np.median(ranks)), len(np.asarray(images)), ranks)


def image_ranks(captions: ArrayLike, images: ArrayLike, image_of: ArrayLike | None = None) -> Floats:
    """The rank (M,) of each caption's image among all images, 1 for the most similar; ties get their mean rank."""
    texts, pictures = unit_vectors(captions, "captions"), unit_vectors(images, "images")
    if texts.shape[1] != pictures.shape[1]:
        raise UserError(f"captions have {texts.shape[1]} dimensions and images {pictures.shape[1]}: use one model")
    target = _targets(image_of, len(texts), len(pictures))
    ranks = np.empty(len(texts))
    for start in range(0, len(texts), _BLOCK):
        block = slice(start, start + _BLOCK)
        similarity = texts[block] @ pictures.T  # (block, N)
        own = np.take_along_axis(similarity, target[block, None], axis=1)
        better, not_worse = (similarity > own + _TIE).sum(1), (similarity >= own - _TIE).sum(1)
        ranks[block] = (better + not_worse + 1) / 2  # `not_worse` includes the image itself
    return ranks


def unit_vectors(vectors: ArrayLike, what: str = "embeddings") -> Floats:
    """Embeddings (N, D) divided by their lengths, in double precision; NaN and vectors of length 0 are refused.

    >>> unit_vectors([[3, 4], [0, 2]]).tolist()
    [[0.6, 0.8], [0.0, 1.0]]
    """
    array = np.asarray(vectors, dtype=np.float64)
    if array.ndim != 2 or not array.size:
        raise UserError(f"{what} of shape {array.shape}: give one embedding per row, (N, D)")
    length = np.linalg.norm(array, axis=1, keepdims=True)
    if wrong := np.flatnonzero(~(np.isfinite(length) & (length > 0))).tolist():
        raise UserError(
            f"{what}: {len(wrong)} of {len(array)} embeddings are zero or not finite, the first in row {wrong[0]} "
            "(counted from 0); is the model damaged?"
        )
    unit: Floats = array / length
    return unit


def _targets(image_of: ArrayLike | None, captions: int, images: int) -> Ints:
    if image_of is None:
        if captions != images:
            raise UserError(f"{captions} captions but {images} images: give one caption per image, or `image_of`")
        return np.arange(images)
    target: Ints = np.asarray(image_of, dtype=np.int64)
    if target.shape != (captions,) or target.min() < 0 or target.max() >= images:
        raise UserError(f"`image_of` must have the number of an image, below {images}, for each of {captions} captions")
    return target
