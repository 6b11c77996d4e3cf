"""LRP-inference fine-tuning: word distributions p̂ from terms weighted by their relevance.

Section V-C2 of Sun et al. 2021 (https://arxiv.org/abs/2001.01037). The output layer reads a sum of terms y_n, which are
c and h in the paper (`SummedOutputCaptioner`). At each time:

    p    = softmax fc(c + h)                                  (26)
    w    = argmax p                                           (27) the predicted word, not the target
    ω_c  = R(c) / max|R(c)| + 1,  ω_h likewise                (28), (29) R by LRP of w's logit through fc and the sum
    p̂    = softmax fc(ω_c ⊙ c + ω_h ⊙ h)                      (30)

ω is in [0, 2]: terms that support w are scaled up, those that speak against it down. If w is a stop word or a marker
such as `<end>`, ω = 1 and p̂ = p. The rules are those of the explanations (`LRPMode` with the default composite). ω is a
constant: no gradient flows through it.

Dropout before fc is that of training for p, from which w is chosen, and for p̂, each with its own mask. Relevance is
computed without dropout, as in an explanation.

The experiment's controls take ω from elsewhere:

| kind | ω − 1 of a term |
| --- | --- |
| `lrp` | R / max|R| |
| `random` | the magnitude of `lrp`, with a random sign for each dimension |
| `sharpened` | one factor of all terms, a temperature, with which w is as probable as with `lrp` |
| `gradient-input` | gradient × term of w's logit, divided by its largest magnitude; it is LRP without ε |
| `gradient` | the gradient of w's logit, divided by its largest magnitude |
| `attention` | 2g − 1 for the image's term and 1 − 2g for the others, g the share that the gate gives to the image |
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import reduce

import torch
from torch import Tensor, nn

from saywhy.captioners.base import Attention, Captioner, SummedOutputCaptioner, Terms
from saywhy.data.stop_words import STOP_WORDS
from saywhy.data.tokenizer import Vocabulary
from saywhy.errors import UserError
from saywhy.explain.composites import Composite, composites
from saywhy.explain.lrp import LRPMode
from saywhy.registry import Registry

Deviations = Callable[[SummedOutputCaptioner, Terms, Tensor, Attention], list[Tensor]]
"""From a captioner, its terms (…, d), the words (…) and the attention, ω − 1 of each term."""

relevance_weights: Registry[Deviations] = Registry("relevance.weights")

LARGEST_FACTOR, BISECTIONS = 8.0, 12
"""Of `sharpened`."""


def check_architecture(architecture: type[Captioner]) -> None:
    """Raise a `UserError` unless the output layer of these captioners reads a sum of terms."""
    if not issubclass(architecture, SummedOutputCaptioner):
        raise UserError(
            f"captioner {architecture.name} has no terms that relevance can weight before its output layer: "
            "use ada-lstm, mh-fc or soft-attention, or remove the table [relevance]"
        )


def require_terms(captioner: Captioner) -> SummedOutputCaptioner:
    """The captioner, whose output layer reads a sum of terms; else a `UserError`."""
    check_architecture(type(captioner))
    assert isinstance(captioner, SummedOutputCaptioner)
    return captioner


class RelevanceWeighting(nn.Module):
    """The logits of p̂, from the terms and the logits of p.

    Args:
        kind: where ω comes from, a name in `relevance_weights`.
        vocabulary: tells stop words and markers, whose ω is 1.

    To decode from p̂: `with captioner.reweighted(weighting): decode(…)`.
    """

    is_weighted: Tensor  # (V), false for stop words and markers

    def __init__(self, kind: str, vocabulary: Vocabulary) -> None:
        super().__init__()
        self.deviations = relevance_weights[kind]
        words = enumerate(vocabulary.words)
        is_weighted = [n >= vocabulary.markers and word not in STOP_WORDS for n, word in words]
        self.register_buffer("is_weighted", torch.tensor(is_weighted), persistent=False)

    def forward(self, captioner: SummedOutputCaptioner, terms: Terms, logits: Tensor, attention: Attention) -> Tensor:
        """Logits of p̂, (…, V), for terms (…, d) and logits of p, (…, V)."""
        omegas = self.weights(captioner, terms, logits, attention)
        return captioner.logits([omega * term for omega, term in zip(omegas, terms, strict=True)])

    @torch.no_grad()
    def weights(
        self, captioner: SummedOutputCaptioner, terms: Terms, logits: Tensor, attention: Attention
    ) -> list[Tensor]:
        """ω of each term, (…, d), or (…, 1) where it is the same for all dimensions; in float32 under autocast."""
        words = logits.argmax(dim=-1)  # (…)
        is_weighted = self.is_weighted[words].unsqueeze(-1)  # (…, 1)
        return [1 + is_weighted * deviation for deviation in self.deviations(captioner, terms, words, attention)]


@relevance_weights.register("lrp")
def lrp(captioner: SummedOutputCaptioner, terms: Terms, words: Tensor, attention: Attention) -> list[Tensor]:
    """Relevance of the words' logits, by the rules of the explanations."""
    return [_normalised(y * g) for y, g in _gradients(captioner, terms, words, composites["epsilon-plus"])]


@relevance_weights.register("random")
def random(captioner: SummedOutputCaptioner, terms: Terms, words: Tensor, attention: Attention) -> list[Tensor]:
    """LRP's magnitudes with random signs."""
    relevance = lrp(captioner, terms, words, attention)
    return [torch.where(torch.rand_like(R) < 0.5, -R, R) for R in relevance]


@relevance_weights.register("sharpened")
def sharpened(captioner: SummedOutputCaptioner, terms: Terms, words: Tensor, attention: Attention) -> list[Tensor]:
    """One factor for all terms, with which the words are as probable as with `lrp`; found by bisection."""
    layer, index = captioner.output_layer, words.unsqueeze(-1)

    def log_p(logits: Tensor) -> Tensor:
        return logits.log_softmax(dim=-1).gather(-1, index)  # (…, 1)

    omegas = [1 + deviation for deviation in lrp(captioner, terms, words, attention)]
    target = log_p(layer(_sum(omega * term for omega, term in zip(omegas, terms, strict=True))).float())
    bias = layer.bias.float()
    logits = layer(_sum(terms)).float() - bias
    low, high = torch.ones_like(target), torch.full_like(target, LARGEST_FACTOR)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        is_low = log_p(middle * logits + bias) < target
        low, high = torch.where(is_low, middle, low), torch.where(is_low, high, middle)
    return [low - 1] * len(terms)


@relevance_weights.register("gradient-input")
def gradient_input(captioner: SummedOutputCaptioner, terms: Terms, words: Tensor, attention: Attention) -> list[Tensor]:
    """Gradient of the words' logits times the terms."""
    return [_normalised(y * g) for y, g in _gradients(captioner, terms, words)]


@relevance_weights.register("gradient")
def gradient(captioner: SummedOutputCaptioner, terms: Terms, words: Tensor, attention: Attention) -> list[Tensor]:
    """Gradient of the words' logits."""
    return [_normalised(g) for _, g in _gradients(captioner, terms, words)]


@relevance_weights.register("attention")
def gate_shares(captioner: SummedOutputCaptioner, terms: Terms, words: Tensor, attention: Attention) -> list[Tensor]:
    """The gate's share of the image, against that of the words."""
    if attention.beta is None:
        raise UserError(f'captioner {captioner.name} has no gate β: relevance.weights = "attention" needs one')
    image = attention.beta if captioner.beta_admits == "image" else 1 - attention.beta  # (…)
    deviation = (2 * image.to(captioner.output_layer.weight.dtype) - 1).unsqueeze(-1)  # (…, 1)
    return [deviation if n == captioner.image_term else -deviation for n in range(len(terms))]


def _gradients(
    captioner: SummedOutputCaptioner, terms: Terms, words: Tensor, rules: Composite | None = None
) -> list[tuple[Tensor, Tensor]]:
    """Each term, and the gradient at it of the words' logits; with LRP rules, relevance divided by value.

    Rows are independent, so one backward pass of the sum of the logits gives the gradients of all of them.
    """
    layer = captioner.output_layer
    with torch.inference_mode(False), torch.enable_grad(), torch.autocast(words.device.type, enabled=False):
        leaves = [term.detach().to(layer.weight.dtype, copy=True).requires_grad_() for term in terms]
        words = words.clone()  # autograd does not take tensors of inference mode, in which decoding runs
        with LRPMode(rules, like=leaves[0]) if rules else nullcontext():
            logits = layer.logit(_sum(leaves), words)
        gradients = torch.autograd.grad(logits.sum(), leaves)
    return [(leaf.detach(), g) for leaf, g in zip(leaves, gradients, strict=True)]


def _sum(terms: Iterable[Tensor]) -> Tensor:
    return reduce(operator.add, terms)


def _normalised(scores: Tensor) -> Tensor:
    """Scores divided by the largest magnitude of their row, in [−1, 1]; 0 where all are 0."""
    largest = scores.abs().amax(dim=-1, keepdim=True)
    return scores / largest.clamp(min=torch.finfo(scores.dtype).tiny)
