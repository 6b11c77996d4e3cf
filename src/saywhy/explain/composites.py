"""Which rule goes where: named choices of rules that were published.

| name | linear layers and sums | convolutions | first convolution |
| --- | --- | --- | --- |
| `epsilon-plus` | ε = 0.01 | α1β0, biases take their share (z⁺) | the same |
| `paper` | ε = 0.01 | α1β0, biases get nothing, as in the LRP paper's code | the same |
| `epsilon-plus-flat` | ε = 0.01 | α1β0, biases take their share | flat |
| `epsilon-plus-box` | ε = 0.01 | α1β0, biases take their share | box (z^B) |
| `epsilon-gamma-box` | ε = 0.01 | γ = 0.25 | box (z^B) |
| `alpha2-beta1` | ε = 0.01 | α2β1, biases take their share | the same |
| `epsilon` | ε = 0.01 | ε = 0.01 | the same |

Attention weights are constants, as the LRP paper has it, but in transformers, where AttnLRP's rules follow them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from saywhy.errors import UserError, closest

CHOICES = {
    "convolution": ("epsilon", "alpha-beta", "gamma"),
    "first": (None, "flat", "box"),
    "attention": (None, "constant", "attnlrp"),
}


@dataclass(frozen=True)
class Composite:
    """A choice of rules.

    Attributes:
        epsilon: ε of linear layers and sums.
        relative: ε is a share of a layer's mean |z|, not a number of its own.
        convolution: "epsilon", "alpha-beta" or "gamma".
        alpha: α of the αβ-rule; β = α − 1.
        gamma: γ of the γ-rule.
        conv_bias: biases of convolutions take their share, as in zennit; without, as in the LRP paper's code, the
            whole relevance goes to the inputs that there are (the ε-rule always gives biases theirs).
        first: the rule of the first convolution: None for that of the others, "flat", or "box".
        attention: "constant" or "attnlrp" for every model; None decides by the model, as said above.
    """

    epsilon: float = 0.01
    relative: bool = False
    convolution: str = "alpha-beta"
    alpha: float = 1.0
    gamma: float = 0.25
    conv_bias: bool = False
    first: str | None = None
    attention: str | None = None

    def __post_init__(self) -> None:
        for name, known in CHOICES.items():
            if (value := getattr(self, name)) not in known:
                raise UserError(f"unknown {name} {value!r}: {closest(str(value), filter(None, known))}")
        for name, lowest in (("epsilon", 0), ("gamma", 0), ("alpha", 1)):
            if not lowest <= getattr(self, name) < math.inf:
                raise UserError(f"{name} = {getattr(self, name):g} is out of range: it is {lowest} or more")

    def __str__(self) -> str:
        """As `explanation.json` writes it: a name from above, with ε where that is another.

        >>> print(composite("paper"))
        paper
        >>> print(composite("paper", epsilon=0.1, relative=True))
        paper, ε 0.1 relative
        """
        for name, named in composites.items():
            if replace(self, epsilon=named.epsilon, relative=named.relative) == named:
                how = f", ε {self.epsilon:g}{' relative' if self.relative else ''}"
                return name if self == named else f"{name}{how}"
        return "custom"


DEFAULT = "epsilon-plus"

composites: dict[str, Composite] = {
    "epsilon-plus": Composite(conv_bias=True),
    "paper": Composite(),
    "epsilon-plus-flat": Composite(conv_bias=True, first="flat"),
    "epsilon-plus-box": Composite(conv_bias=True, first="box"),
    "epsilon-gamma-box": Composite(convolution="gamma", conv_bias=True, first="box"),
    "alpha2-beta1": Composite(alpha=2.0, conv_bias=True),
    "epsilon": Composite(convolution="epsilon"),
}


def composite(name: str, epsilon: float | None = None, relative: bool = False) -> Composite:
    """A named composite, with another ε if one is given."""
    if name not in composites:
        raise UserError(f"unknown composite {name!r}: {closest(name, composites)}")
    chosen = replace(composites[name], relative=relative)
    return chosen if epsilon is None else replace(chosen, epsilon=epsilon)
