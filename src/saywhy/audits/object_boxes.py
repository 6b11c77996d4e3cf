"""The boxes of the object words of a caption, and how much of a map lies inside them.

An object word has boxes if a phrase with boxes is about that object, that is, if the last object that the phrase names
is the word's: "dog" has the boxes of "a brown dog" and of "two puppies", but not those of "the dog's mouth". The boxes
of all references are taken together. The share of a map E inside the boxes is, for either sign (eqs. 23–24 of the LRP
paper, https://arxiv.org/abs/2001.01037),

    positive = Σ_{ij ∈ boxes} max(E_ij, 0) / Σ_ij max(E_ij, 0)        negative: the same for −E
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from saywhy.audits.context import AuditContext, NotApplicable
from saywhy.audits.evidence import ImageEvidence
from saywhy.data.datasets import CaptionedImage
from saywhy.data.images import upright_size
from saywhy.data.phrases import Phrases
from saywhy.data.preprocess import Preprocessing


def require_phrases(context: AuditContext) -> Phrases:
    """The phrases with boxes; raises `NotApplicable` where the data set has none."""
    if context.phrases is None:
        raise NotApplicable(
            f"{context.data.name} has no boxes: put boxes.jsonl.gz in the folder of its captions, or give --boxes"
        )
    return context.phrases


def no_boxes(phrases: Phrases, captions: int) -> NotApplicable:
    """That no object word of so many captions has boxes."""
    return NotApplicable(f"{phrases.path}: no phrase with boxes names an object word of the {captions} captions")


class Box(NamedTuple):
    """Where the object of a word is.

    Attributes:
        mask: the pixels of the encoder's input inside the boxes, (S, S) bool.
        kind: the kind of object, such as "people".
    """

    mask: np.ndarray
    kind: str


def object_boxes(context: AuditContext, image: CaptionedImage, caption: ImageEvidence) -> dict[int, Box]:
    """By the index j of an object word, its boxes."""
    assert context.phrases is not None
    object_words, boxes = context.object_words, {}
    phrases = [(object_words.mentions(phrase.words), phrase) for phrase in context.phrases.of(image.name)]
    heads = [(mentions[-1].lemma, phrase) for mentions, phrase in phrases if mentions]
    size = upright_size(image.path)
    for j, lemma in enumerate(caption.lemmas):
        kinds = object_words.synonyms_and_kinds(str(lemma))
        matching = [phrase for head, phrase in heads if head in kinds]
        if matching:
            corners = np.concatenate([phrase.boxes for phrase in matching])
            mask = box_mask(corners, size, context.model.preprocessing, context.input_size)
            if mask.any():  # the crop may exclude the boxes
                boxes[j] = Box(mask, Counter(phrase.kind for phrase in matching).most_common(1)[0][0])
    return boxes


def box_mask(boxes: np.ndarray, size: tuple[int, int], preprocessing: Preprocessing, side: int) -> np.ndarray:
    """The pixels whose centres lie in one of the boxes: (side, side) bool.

    Args:
        boxes: (n, 4) left, top, right, bottom, as shares 0–1 of the image.
        size: the image's width and height.
        preprocessing: determines the crop of the image that the encoder gets.
        side: the number of pixels along each side of that crop.

    >>> left_half = np.array([[0, 0, 0.5, 1]])
    >>> box_mask(left_half, (200, 100), Preprocessing(fit="crop", margin=1), 4).astype(int).tolist()[0]
    [1, 1, 0, 0]
    """
    crop = np.array(preprocessing.crop(*size)).reshape(2, 2) / size  # (top left, bottom right) × (x, y), as shares
    centres = crop[0] + (np.arange(side)[:, None] + 0.5) / side * (crop[1] - crop[0])  # (side, 2)
    top_left, bottom_right = np.asarray(boxes, float).reshape(-1, 2, 2).swapaxes(0, 1)[:, :, None]  # (n, 1, 2) each
    columns, rows = np.moveaxis((top_left <= centres) & (centres < bottom_right), -1, 0)  # (n, side) each
    return (rows[:, :, None] & columns[:, None, :]).any(axis=0)


class Shares(NamedTuple):
    """The shares of a map's positive and negative values inside a mask; (…) each."""

    positive: np.ndarray
    negative: np.ndarray


def shares(maps: np.ndarray, mask: np.ndarray) -> Shares:
    """The shares of maps (…, side, side) inside a mask (side, side), or one per map; NaN if that sign is absent.

    >>> inside = shares(np.array([[3.0, -2.0], [1.0, 0.0]]), np.array([[True, True], [False, False]]))
    >>> float(inside.positive), float(inside.negative)
    (0.75, 1.0)
    """
    maps = np.asarray(maps, float)
    return Shares(_share(np.maximum(maps, 0), mask), _share(np.maximum(-maps, 0), mask))


def _share(amounts: np.ndarray, mask: np.ndarray) -> np.ndarray:
    inside, total = (values.sum(axis=(-2, -1)) for values in (amounts * mask, amounts))
    return np.divide(inside, total, out=np.full(np.shape(inside), np.nan), where=total > 0)


def points(maps: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Whether the highest pixel of maps (…, side, side) lies in the mask, the first if there are several: (…) bool.

    >>> points(np.array([[[3, 2], [1, 0]], [[0, 1], [2, 3]]]), np.array([[True, True], [False, False]])).tolist()
    [True, False]
    """
    maps, mask = np.broadcast_arrays(maps, mask)
    flat = (*maps.shape[:-2], -1)
    highest = maps.reshape(flat).argmax(axis=-1)
    return np.take_along_axis(mask.reshape(flat), highest[..., None], axis=-1)[..., 0]
