"""Where a captioner looked while it spoke freely: how widely, how much that changed, and what the gate let in.

With α (T, [heads,] L) the attention of a caption's T words, each head by itself and then averaged:

- entropy H(α) = −Σ α log α, in nats, and its share of log L, which is 1 where all places are looked at alike;
- change ½ Σ |α_t − α_{t+1}|, the total variation from one word to the next: 0 for the same look, 1 for another;
- the largest α.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np

SHOWN = 10


class HasAttention(Protocol):
    """What is needed of a caption; `saywhy.decoding.Caption` has it."""

    @property
    def words(self) -> Sequence[str]:
        """The T words."""

    @property
    def alpha(self) -> np.ndarray:
        """Attention at each word, (T, [heads,] L)."""

    @property
    def beta(self) -> np.ndarray | None:
        """The gate at each word, (T,), or None."""


@dataclass(frozen=True)
class GatedWord:
    """A word, how often it was said, and the mean of β when it was."""

    word: str
    beta: float
    count: int


@dataclass(frozen=True)
class Gate:
    """What β was: over all words, and for the words that occur often enough, from both ends.

    Attributes:
        mean: over all words.
        least: how often a word must occur to be listed.
        lowest: up to ten words with the lowest mean β, the lowest first.
        highest: up to ten words with the highest mean β, the highest first.
        commonest: up to ten words that were said most often.
    """

    mean: float
    least: int
    lowest: tuple[GatedWord, ...]
    highest: tuple[GatedWord, ...]
    commonest: tuple[GatedWord, ...]


@dataclass(frozen=True)
class AttentionStats:
    """Statistics of α and β over freely decoded captions; None where there is nothing to take a mean of.

    Attributes:
        words: how many words they are over.
        heads: heads of attention.
        places: mean number of places L a caption's image has.
        entropy: mean entropy of α over all words, in nats.
        share: mean of that entropy's share of log L, over words with more than one place to look at.
        change: mean total variation between the α of a word and of the next one.
        largest: mean of the largest α.
        gate: β, where the captioner has a gate.
    """

    words: int
    heads: int
    places: float | None
    entropy: float | None
    share: float | None
    change: float | None
    largest: float | None
    gate: Gate | None

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, ready for JSON."""
        return asdict(self)


def attentions(captions: Iterable[HasAttention], least: int = 10) -> AttentionStats:
    """What these captions were looking at; words that occur fewer than `least` times are not listed for β."""
    spoken = [caption for caption in captions if len(caption.words)]
    alphas = [_headed(caption.alpha) for caption in spoken if caption.alpha.shape[-1]]  # an image may have no region
    entropies = [_entropy(alpha) for alpha in alphas]
    places = [alpha.shape[-1] for alpha in alphas]
    shares = [entropy / np.log(count) for entropy, count in zip(entropies, places, strict=True) if count > 1]
    return AttentionStats(
        words=sum(len(caption.words) for caption in spoken),
        heads=alphas[0].shape[1] if alphas else 0,
        places=float(np.mean(places)) if places else None,
        entropy=_mean(entropies),
        share=_mean(shares),
        change=_mean([_change(alpha) for alpha in alphas]),
        largest=_mean([alpha.max(-1) for alpha in alphas]),
        gate=_gate(spoken, least),
    )


def _headed(alpha: np.ndarray) -> np.ndarray:
    """(T, L) or (T, heads, L) as (T, heads, L), in numbers fine enough to take logarithms of."""
    return np.asarray(alpha, np.float64).reshape(len(alpha), -1, alpha.shape[-1])


def _entropy(alpha: np.ndarray) -> np.ndarray:
    logs = np.log(alpha, where=alpha > 0, out=np.zeros_like(alpha))  # 0 log 0 is 0
    return -(alpha * logs).sum(-1)  # (T, heads)


def _change(alpha: np.ndarray) -> np.ndarray:
    return np.abs(np.diff(alpha, axis=0)).sum(-1) / 2  # (T − 1, heads)


def _mean(parts: list[np.ndarray]) -> float | None:
    values = np.concatenate([part.ravel() for part in parts]) if parts else np.empty(0)
    return float(values.mean()) if len(values) else None


def _gate(spoken: list[HasAttention], least: int) -> Gate | None:
    of_word: dict[str, list[float]] = defaultdict(list)
    for caption in spoken:
        if caption.beta is not None:
            for word, beta in zip(caption.words, caption.beta, strict=True):
                of_word[word].append(float(beta))
    if not of_word:
        return None
    often = [GatedWord(word, float(np.mean(all_)), len(all_)) for word, all_ in of_word.items() if len(all_) >= least]
    lowest = sorted(often, key=lambda each: (each.beta, each.word))[:SHOWN]
    highest = sorted(often, key=lambda each: (-each.beta, each.word))[:SHOWN]
    commonest = sorted(often, key=lambda each: (-each.count, each.word))[:SHOWN]
    everything = [beta for betas in of_word.values() for beta in betas]
    return Gate(float(np.mean(everything)), least, tuple(lowest), tuple(highest), tuple(commonest))
