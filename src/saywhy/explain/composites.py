"""What LRP explains, by which rules, and how it is shown: the named composites, and the maps.

A composite names the rule of each kind of layer, the score at which relevance starts, and how relevance is shown on
pixels:

| name | score | linear layers | sums of two signals | convolutions | first convolution | map |
| --- | --- | --- | --- | --- | --- | --- |
| `by-stride` | logit | ε = 0.01 | by magnitude | by stride: see below | box (z^B) | why |
| `relative-epsilon` | log p | relative ε = 0.1 | the same | relative ε = 0.1 | the same | why |
| `epsilon-plus` | logit | ε = 0.01 | the same | α1β0, biases take their share (z⁺) | the same | seen |
| `paper` | logit | ε = 0.01 | the same | α1β0, biases get nothing, as in the LRP paper's code | the same | seen |
| `epsilon-plus-flat` | logit | ε = 0.01 | the same | α1β0, biases take their share | flat | seen |
| `epsilon-plus-box` | logit | ε = 0.01 | the same | α1β0, biases take their share | box (z^B) | seen |
| `epsilon-gamma-box` | logit | ε = 0.01 | the same | γ = 0.25 | box (z^B) | seen |
| `alpha2-beta1` | logit | ε = 0.01 | the same | α2β1, biases take their share | the same | seen |
| `epsilon` | logit | ε = 0.01 | the same | ε = 0.01 | the same | seen |

`by-stride` uses γ = 1 where the output of a convolution has a stride of 2 or 4 pixels, γ = 0.25 at 8, and relative
ε = 0.1 from 16 on. It and `relative-epsilon` propagate through attention weights by AttnLRP's rules. For the others,
attention weights are constants, as in the LRP paper, except in transformers. `passes.Targets.scores` defines the
scores, and the maps are below.

The maps show the relevance of a word. With R (S, S) the relevance of pixels, C (L,) that of the features, Ĉ (S, S)
its bilinear enlargement to the encoder's input, and (·)⁺, (·)⁻ the positive and negative parts:

    seen       R                                      what the encoder's filters respond to
    features   C                                      which features: coarse, and its sum is the image's share
    why        a R⁺ Ĉ⁺ − b R⁻ Ĉ⁻                      where the two agree
    apart      R − the mean R of the caption's other words
    centred    why − the mean `why` of the caption's other words

a and b are such that the positive part of `why` adds up to Σ C⁺ and its negative part to Σ C⁻. `why` therefore adds up
to the image's share of the evidence budget, though most of R is absorbed by the encoder. `centred` adds up to that
share less the mean share of the other words.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from saywhy.data.preprocess import boxes_on_image, upsample_grid
from saywhy.encoders.base import Features
from saywhy.errors import UserError, did_you_mean

SCORES = ("logp", "logit")
MAPS = ("why", "seen", "features", "apart", "centred")
CHOICES = {
    "convolution": ("epsilon", "alpha-beta", "gamma"),
    "first": (None, "flat", "box"),
    "attention": (None, "constant", "attnlrp"),
    "sums": ("epsilon", "magnitude"),
    "score": SCORES,
    "map": MAPS,
}
RANGES = {"epsilon": (0, 1e6), "gamma": (0, 1e6), "alpha": (1, 1e6)}


@dataclass(frozen=True)
class Composite:
    """A choice of rules.

    Attributes:
        epsilon: ε of linear layers and sums.
        relative_epsilon: multiply ε by the layer's mean |z|.
        convolution: "epsilon", "alpha-beta" or "gamma".
        alpha: α of the αβ-rule; β = α − 1.
        gamma: γ of the γ-rule.
        conv_bias: biases of convolutions take their share, as in zennit; without, as in the LRP paper's code, all
            relevance goes to the inputs (the ε-rule always gives biases their share).
        first: the rule of the first convolution: None for that of the others, "flat", or "box".
        attention: "constant" or "attnlrp" for every model; None chooses by architecture (see above).
        sums: the rule of sums of two signals, such as residual connections: "epsilon" or "magnitude".
        by_stride: pairs of a stride and a composite, whose rule convolutions with an output of at most this stride get;
            in increasing order. Other convolutions get the rule of this composite.
        score: what is explained: "logit", or "logp". A contrast of two words is always one of logits.
        map: how relevance is shown on pixels, of `MAPS`.
    """

    epsilon: float = 0.01
    relative_epsilon: bool = False
    convolution: str = "alpha-beta"
    alpha: float = 1.0
    gamma: float = 0.25
    conv_bias: bool = False
    first: str | None = None
    attention: str | None = None
    sums: str = "epsilon"
    by_stride: tuple[tuple[int, Composite], ...] = ()
    score: str = "logit"
    map: str = "seen"

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if (value := getattr(self, name)) not in choices:
                raise UserError(f"unknown {name} {value!r}: {did_you_mean(str(value), filter(None, choices))}")
        for name, (lowest, highest) in RANGES.items():
            if not lowest <= getattr(self, name) <= highest:
                raise UserError(f"{name} = {getattr(self, name):g} is out of range: use {lowest} to {highest:g}")

    def at_stride(self, stride: float) -> Composite:
        """The composite of convolutions whose output has this stride, in pixels of the input, to the next power of 2.

        >>> [composite("by-stride").at_stride(stride).gamma for stride in (2, 4, 288 / 36)]
        [1.0, 1.0, 0.25]
        """
        power = 2 ** round(math.log2(max(stride, 1)))
        return next((rules for largest, rules in self.by_stride if power <= largest), self)

    def __str__(self) -> str:
        """The composite's name, followed by what is changed; `explanation.json` stores this.

        >>> print(composite("paper"))
        paper
        >>> print(composite("paper", epsilon=0.1, relative_epsilon=True, score="logp"))
        paper, ε 0.1 relative, score logp
        """
        for name, named in composites.items():
            same = {field: getattr(named, field) for field in ("epsilon", "relative_epsilon", "score", "map")}
            if replace(self, **same) == named:
                return ", ".join([name, *self._changes(named)])
        return "custom"

    def _changes(self, named: Composite) -> list[str]:
        """What differs from the named composite with the same rules."""
        changes = []
        if (self.epsilon, self.relative_epsilon) != (named.epsilon, named.relative_epsilon):
            changes.append(f"ε {self.epsilon:g}{' relative' if self.relative_epsilon else ''}")
        fields = [name for name in ("score", "map") if getattr(self, name) != getattr(named, name)]
        return changes + [f"{name} {getattr(self, name)}" for name in fields]


DEFAULT = "by-stride"

_GAMMA_BY_STRIDE = (
    (4, Composite(convolution="gamma", gamma=1.0, conv_bias=True)),
    (8, Composite(convolution="gamma", gamma=0.25, conv_bias=True)),
    (2**30, Composite(convolution="epsilon", epsilon=0.1, relative_epsilon=True)),
)

composites: dict[str, Composite] = {
    "by-stride": Composite(first="box", sums="magnitude", attention="attnlrp", by_stride=_GAMMA_BY_STRIDE, map="why"),
    "relative-epsilon": Composite(
        epsilon=0.1, relative_epsilon=True, convolution="epsilon", attention="attnlrp", score="logp", map="why"
    ),
    "epsilon-plus": Composite(conv_bias=True),
    "paper": Composite(),
    "epsilon-plus-flat": Composite(conv_bias=True, first="flat"),
    "epsilon-plus-box": Composite(conv_bias=True, first="box"),
    "epsilon-gamma-box": Composite(convolution="gamma", conv_bias=True, first="box"),
    "alpha2-beta1": Composite(alpha=2.0, conv_bias=True),
    "epsilon": Composite(convolution="epsilon"),
}


def composite(
    name: str,
    epsilon: float | None = None,
    relative_epsilon: bool = False,
    score: str | None = None,
    map: str | None = None,
) -> Composite:
    """A named composite, optionally with another ε, score or map."""
    if name not in composites:
        raise UserError(f"unknown composite {name!r}: {did_you_mean(name, composites)}")
    named = composites[name]
    changes: dict[str, Any] = {
        "epsilon": epsilon,
        "relative_epsilon": relative_epsilon or None,
        "score": score,
        "map": map,
    }
    return replace(named, **{field: value for field, value in changes.items() if value is not None})


COMPARING = ("apart", "centred")
"""Maps that compare a word with the others of its caption."""


def lrp_map(kind: str, pixels: Tensor | None, relevance: Tensor, features: Features) -> Tensor:
    """A map of K words of B images, (K, B, S, S); (K, B, L) for "features" and for precomputed features.

    `pixels` and `relevance` are those of pixels (K, B, S, S) and of features (K, B, L).
    For the maps in `COMPARING`, this is what `less_others` compares.
    """
    relevance = relevance[..., features.unplaced :] if features.unplaced else relevance
    if pixels is None or kind == "features":
        return relevance
    if kind in ("seen", "apart"):
        return pixels
    return why(pixels, relevance, over_pixels(relevance, features, pixels))


def why(pixels: Tensor, features: Tensor, enlarged: Tensor) -> Tensor:
    """`why` of relevance R (…, S, S), C (…, L) and Ĉ (…, S, S): (…, S, S)."""
    positive, negative = (
        _scaled((sign * pixels).clamp(min=0), (sign * enlarged).clamp(min=0), (sign * features).clamp(min=0))
        for sign in (1, -1)
    )
    return positive - negative


def _scaled(fine: Tensor, coarse: Tensor, features: Tensor) -> Tensor:
    """The product of two parts that are not negative, scaled to add up to Σ features.

    Where the product is 0 everywhere, the coarse part alone is scaled; where that is 0 too, a constant.
    """
    total = features.double().sum(dim=-1)[..., None, None]
    scaled = torch.zeros_like(fine)
    is_missing = torch.ones_like(total, dtype=torch.bool)
    for candidate in (_unit(fine) * _unit(coarse), coarse, torch.ones_like(fine)):
        sums = candidate.double().sum(dim=(-2, -1), keepdim=True)
        usable = is_missing & (sums > 0)
        scaled = torch.where(usable, candidate.double() * (total / torch.where(usable, sums, 1)), scaled)
        is_missing = is_missing & ~usable
    return scaled.to(fine)


def _unit(values: Tensor) -> Tensor:
    """Values divided by their maximum, so that products neither vanish nor overflow."""
    highest = values.amax(dim=(-2, -1), keepdim=True)
    return values / torch.where(highest > 0, highest, 1)


def less_others(values: Tensor, positions: Tensor, caption: Tensor, lengths: Sequence[int]) -> Tensor:
    """Maps of words less the mean map of the other words of their captions; unchanged where there is no other.

    Args:
        values: of K words of each of B images, (K, B, …).
        positions: of these words in their captions, (B, K).
        caption: the maps of all words of the captions, (T, B, …).
        lengths: the number of words of each caption.
    """
    images = []
    for row, length in enumerate(lengths):
        words = caption[:length, row]
        others = (words.sum(dim=0) - words) / max(length - 1, 1)  # of each position, (T, …)
        images.append(values[:, row] - others[positions[row].clamp(max=length - 1)])  # positions are padded
    return torch.stack(images, dim=1)


def over_pixels(values: Tensor, features: Features, pixels: Tensor) -> Tensor:
    """Values of features (K, B, L), enlarged to the encoder's input: (K, B, S, S), like `pixels`."""
    S = pixels.shape[-1]
    if features.grid is not None:
        return torch.from_numpy(upsample_grid(values.unflatten(-1, features.grid).cpu().numpy(), S)).to(pixels)
    assert features.boxes is not None
    boxes = features.boxes.float().cpu().numpy()  # (B, L, 4)
    size, crop = (S, S), (0, 0, S, S)
    maps = [
        [torch.from_numpy(boxes_on_image(row, image, size, crop)) for row, image in zip(word, boxes, strict=True)]
        for word in values.cpu().numpy()
    ]
    return torch.stack([torch.stack(word) for word in maps]).to(pixels)
