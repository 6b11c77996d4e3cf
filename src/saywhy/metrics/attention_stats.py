"""Statistics of attention α and gate β over decoded captions.

With α (T, [heads,] L) the attention of a caption's T words, for each head and then averaged:

- entropy H(α) = −Σ α log α, in nats, and its share of log L, which is 1 for uniform attention;
- change ½ Σ |α_t − α_{t+1}|, the total variation distance between consecutive words: 0 if α does not change, 1 if
  the two do not overlap;
- the largest α.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np

LISTED = 10


class HasAttention(Protocol):
    """A caption with the attention of each word, such as `saywhy.decoding.Caption`."""

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
    """A word, the mean of its β, and its number of occurrences."""

    word: str
    beta: float
    count: int


@dataclass(frozen=True)
class Gate:
    """Statistics of β: over all words, and for the frequent words.

    Attributes:
        mean: mean β over all words.
        least: the number of occurrences from which a word is listed.
        lowest: up to ten words with the lowest mean β, the lowest first.
        highest: up to ten words with the highest mean β, the highest first.
        commonest: up to ten most frequent words.
    """

    mean: float
    least: int
    lowest: tuple[GatedWord, ...]
    highest: tuple[GatedWord, ...]
    commonest: tuple[GatedWord, ...]


@dataclass(frozen=True)
class AttentionStats:
    """Statistics of α and β over decoded captions; None for the mean of an empty set.

    Attributes:
        words: number of words.
        heads: number of attention heads.
        features: mean number of features L per caption.
        entropy: mean entropy of α over all words, in nats.
        share: mean of entropy / log L, over words with more than one feature.
        change: mean total variation distance between the α of a word and of the next one.
        largest: mean of the largest α.
        gate: statistics of β, if the captioner has a gate.
    """

    words: int
    heads: int
    features: float | None
    entropy: float | None
    share: float | None
    change: float | None
    largest: float | None
    gate: Gate | None

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, ready for JSON."""
        return asdict(self)


def attention_stats(captions: Iterable[HasAttention], least: int = 10) -> AttentionStats:
    """Statistics of these captions; words with fewer than `least` occurrences are not listed for β."""
    captions = [caption for caption in captions if len(caption.words)]
    alphas = [
        _with_heads(caption.alpha) for caption in captions if caption.alpha.shape[-1]
    ]  # an image may have no regions
    entropies = [_entropy(alpha) for alpha in alphas]
    sizes = [alpha.shape[-1] for alpha in alphas]
    shares = [entropy / np.log(count) for entropy, count in zip(entropies, sizes, strict=True) if count > 1]
    return AttentionStats(
        words=sum(len(caption.words) for caption in captions),
        heads=alphas[0].shape[1] if alphas else 0,
        features=float(np.mean(sizes)) if sizes else None,
        entropy=_mean(entropies),
        share=_mean(shares),
        change=_mean([_change(alpha) for alpha in alphas]),
        largest=_mean([alpha.max(-1) for alpha in alphas]),
        gate=_gate(captions, least),
    )


def _with_heads(alpha: np.ndarray) -> np.ndarray:
    """α (T, L) or (T, heads, L) as (T, heads, L) in float64."""
    return np.asarray(alpha, np.float64).reshape(len(alpha), -1, alpha.shape[-1])


def _entropy(alpha: np.ndarray) -> np.ndarray:
    logs = np.log(alpha, where=alpha > 0, out=np.zeros_like(alpha))  # 0 log 0 is 0
    return -(alpha * logs).sum(-1)  # (T, heads)


def _change(alpha: np.ndarray) -> np.ndarray:
    return np.abs(np.diff(alpha, axis=0)).sum(-1) / 2  # (T − 1, heads)


def _mean(parts: list[np.ndarray]) -> float | None:
    values = np.concatenate([part.ravel() for part in parts]) if parts else np.empty(0)
    return float(values.mean()) if len(values) else None


def _gate(captions: Sequence[HasAttention], least: int) -> Gate | None:
    betas: dict[str, list[float]] = defaultdict(list)
    for caption in captions:
        if caption.beta is not None:
            for word, beta in zip(caption.words, caption.beta, strict=True):
                betas[word].append(float(beta))
    if not betas:
        return None
    words = [GatedWord(word, float(np.mean(values)), len(values)) for word, values in betas.items()]
    frequent = [word for word in words if word.count >= least]
    lowest = sorted(frequent, key=lambda word: (word.beta, word.word))[:LISTED]
    highest = sorted(frequent, key=lambda word: (-word.beta, word.word))[:LISTED]
    commonest = sorted(frequent, key=lambda word: (-word.count, word.word))[:LISTED]
    mean = float(np.mean([beta for values in betas.values() for beta in values]))
    return Gate(mean, least, tuple(lowest), tuple(highest), tuple(commonest))
