"""The constraints that every decoding method applies, and `decode`, which runs a method."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from saywhy.captioners.base import Captioner, Step
from saywhy.data.tokenizer import END, MARKERS, PAD, START, UNK
from saywhy.decoding.settings import Decoding, Hypothesis, decoding_methods
from saywhy.encoders.base import Features
from saywhy.errors import UserError

if TYPE_CHECKING:
    from saywhy.decoding.watching import Watch
    from saywhy.language_models.word_scorer import WordScorer

__all__ = ["Decoding", "Hypothesis", "decode", "decoding_methods", "log_probabilities", "without_markers"]


@torch.inference_mode()
def decode(
    captioner: Captioner,
    features: Features,
    decoding: Decoding,
    indices: Sequence[int] | None = None,
    start: int = START,
    lm: WordScorer | None = None,
    watch: Watch | None = None,
) -> list[Hypothesis]:
    """One caption per image, as token numbers. The captioner should be in evaluation mode.

    `indices` are the positions of the B images among all images of the call, 0 … B − 1 if not given. Sampling seeds
    an image's random numbers by its index, so that its caption does not depend on the other images of its batch.
    `start` is the token that captions begin with: `Vocabulary.start` of the style, for a captioner with styles.
    `lm` is the language model that `decoding.lm` names. `watch` is told the unfinished captions after each word.
    """
    indices = range(len(features)) if indices is None else indices
    if len(indices) != len(features):
        raise ValueError(f"{len(indices)} indices for features of {len(features)} images")
    if start not in (range(len(MARKERS), len(MARKERS) + captioner.styles) if captioner.styles else (START,)):
        raise ValueError(f"a captioner with {captioner.styles} styles cannot begin a caption with token {start}")
    if bool(decoding.lm) != (lm is not None):
        raise ValueError(f"decoding.lm is {decoding.lm!r}, and the language model {lm}")
    with captioner.using_attention(decoding.attention):
        decoded = _guided(captioner, decoding, lm) if decoding.is_guided else captioner
        if watch is not None:
            from saywhy.decoding.watching import WatchedCaptioner  # captioning without a watcher need not load it

            decoded = WatchedCaptioner(decoded, watch)
        return decoding_methods[decoding.method](decoded, features, decoding, indices, start)


def _guided(captioner: Captioner, decoding: Decoding, lm: WordScorer | None) -> Captioner:
    from saywhy.decoding.guidance import GuidedCaptioner, Weights  # captioning without guidance need not load it

    if decoding.lm_weight is not None:
        return GuidedCaptioner(captioner, Weights.language_model(*decoding.lm_weight), lm)
    form = Weights.mutual_information if lm is not None else Weights.classifier_free
    return GuidedCaptioner(captioner, form(decoding.guidance), lm)


def log_probabilities(logits: Tensor, styles: int = 0) -> Tensor:
    """log p over the words a caption may contain, (…, V).

    The softmax leaves out `<unk>`, `<pad>`, `<start>` and the markers of a captioner's `styles`.
    """
    return without_markers(logits.float(), styles).log_softmax(dim=-1)


def without_markers(logits: Tensor, styles: int = 0) -> Tensor:
    """A copy of logits (…, V), −∞ at `<unk>`, `<pad>`, `<start>` and the markers of a captioner's `styles`."""
    logits = logits.clone()
    logits[..., [PAD, START, UNK]] = -torch.inf
    logits[..., len(MARKERS) : len(MARKERS) + styles] = -torch.inf
    return logits


def finite_log_probabilities(logits: Tensor, styles: int = 0) -> Tensor:
    """`log_probabilities` of logits (R, V); a `UserError` where the model's logits are NaN or infinite."""
    log_p = log_probabilities(logits, styles)
    if log_p[:, END].isnan().any():  # the softmax spreads a NaN over its whole row
        raise UserError(
            "the model's logits are not finite (NaN or infinity): its weights are damaged or overflow; load another "
            "checkpoint"
        )
    return log_p


def next_word_log_probabilities(step: Step, styles: int = 0) -> tuple[Tensor, Tensor]:
    """Of one step, the model's own log p (R, V), and the log p by which words are chosen: the same without guidance."""
    log_p = finite_log_probabilities(step.logits, styles)
    return log_p, log_p if step.scores is None else finite_log_probabilities(step.scores, styles)


def constrained(log_p: Tensor, tokens: Tensor, decoding: Decoding) -> Tensor:
    """`log_p` (R, V) with −∞ for every word that may not follow `tokens` (R, t)."""
    words = tokens.shape[1]
    end = log_p[:, END]
    log_p = log_p.clone()
    if words < decoding.min_words:
        log_p[:, END] = -torch.inf
    if words >= decoding.max_words:
        log_p[:, :END] = log_p[:, END + 1 :] = -torch.inf
    elif decoding.no_repeat and words >= 3:
        _forbid_repeated_trigrams(log_p, tokens)
        no_word_left = log_p.isneginf().all(dim=-1)  # then the caption ends, even below min_words
        log_p[:, END] = torch.where(no_word_left, end, log_p[:, END])
    return log_p


def _forbid_repeated_trigrams(log_p: Tensor, tokens: Tensor) -> None:
    """Set `log_p` to −∞ for each word that followed an earlier occurrence of the last two words."""
    repeats = (tokens[:, :-2] == tokens[:, -2:-1]) & (tokens[:, 1:-1] == tokens[:, -1:])  # (R, t-2)
    rows, positions = repeats.nonzero(as_tuple=True)
    log_p[rows, tokens[rows, positions + 2]] = -torch.inf
