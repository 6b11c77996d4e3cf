"""What LRP explains and by which rules: the named composites.

A composite names the rule of each kind of layer, the score at which relevance starts, and how relevance is shown on
pixels:

| name | score | linear layers | sums of two signals | convolutions | first convolution | map |
| --- | --- | --- | --- | --- | --- | --- |
| `by-stride` | log p | ε = 0.01 | by magnitude | by stride: see below | box (z^B) | why |
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
scores, `maps` the maps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

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
    "by-stride": Composite(
        first="box", sums="magnitude", attention="attnlrp", by_stride=_GAMMA_BY_STRIDE, score="logp", map="why"
    ),
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
