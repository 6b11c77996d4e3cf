"""One forward pass and backward passes for all words at once.

A `Question` asks about K words of each of B images. The encoder and the decoder run forward once; what then goes
backward, gradients or relevance, has a further axis of words in front, (K, B, …), over which `torch.func.vmap` maps the
pass. All are taken in two halves: from logits to features and word embeddings, and from features to pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from saywhy.captioners.base import Attention, Captioner
from saywhy.encoders.features import Features
from saywhy.errors import UserError
from saywhy.explain.composites import Composite
from saywhy.explain.gradients import GradientMode, GuidedMode
from saywhy.explain.lrp import Pixels, Relevance
from saywhy.explain.tracing import now

TOLERANCE = 1e-2
"""How far books may be off, by max(1, |logit|), before an explanation is refused; rounding makes 1e-4 of it."""
UNUSED: Any = {"allow_unused": True, "materialize_grads": True}  # what an input had no part in has gradient 0


@dataclass(frozen=True)
class Question:
    """Which words are to be explained.

    Attributes:
        said: the captions, (B, T) from `<start>` on, padded.
        places: how many words were said before each word in question, `<start>` not counted, (B, K).
        words: the words in question, (B, K).
        instead: the words they are held against, (B, K), −1 for none.
    """

    said: Tensor
    places: Tensor
    words: Tensor
    instead: Tensor

    def scores(self, logits: Tensor) -> Tensor:
        """The numbers that are explained, (B, K): logits (B, T, V) of the words, less those of the others."""
        there = logits.gather(1, self.places.unsqueeze(-1).expand(-1, -1, logits.shape[-1]))  # (B, K, V)
        wanted = there.gather(-1, self.words.unsqueeze(-1)).squeeze(-1)
        other = there.gather(-1, self.instead.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        return wanted - other * (self.instead >= 0)

    def at_places(self, values: Tensor) -> Tensor:
        """Of values (B, T, …), those at the places in question, (B, K, …)."""
        rows = torch.arange(len(values), device=values.device).unsqueeze(1)
        return values[rows, self.places]


@dataclass(frozen=True)
class Forward:
    """A pass that has run forward: what is explained, and all that it can be traced to."""

    question: Question
    logits: Tensor  # (B, T, V)
    scores: Tensor  # (B, K)
    attention: Attention
    features: Features
    embedded: Sequence[Tensor]
    x: Tensor  # normalised pixels (B, 3, S, S), or given vectors (B, R, D)
    chunk: int

    def detached(self) -> Forward:
        """The same numbers, without the graph that led to them."""
        beta = None if self.attention.beta is None else self.attention.beta.detach()
        return replace(
            self,
            logits=self.logits.detach(),
            scores=self.scores.detach(),
            attention=Attention(self.attention.alpha.detach(), beta),
            features=replace(self.features, vectors=self.features.vectors.detach()),
            embedded=(),
            x=self.x.detach(),
        )

    def traced(self, outputs: Tensor, inputs: Sequence[Tensor], g: Tensor) -> tuple[Tensor, ...]:
        """The gradients (K, …) of inputs, for gradients g (K, …) of outputs; zeros where there is no way."""

        def back(one: Tensor) -> tuple[Tensor, ...]:
            return torch.autograd.grad(outputs, list(inputs), one, retain_graph=True, **UNUSED)

        def alone(one: Tensor) -> tuple[Tensor, ...]:  # the same; torch loads sympy when it is given gradients
            with torch.enable_grad():
                return torch.autograd.grad((outputs * one).sum(), list(inputs), retain_graph=True, **UNUSED)

        if self.chunk == 1:
            return tuple(torch.stack(each) for each in zip(*map(alone, g), strict=True))
        return torch.func.vmap(back, chunk_size=self.chunk)(g)

    def from_words(self, *accounts: Tensor) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Gradients of the features (K, B, L, D), of the embeddings, and of accounts (K, B)."""
        K = self.scores.shape[1]
        one = torch.eye(K, dtype=self.scores.dtype, device=self.scores.device)
        g = one.unsqueeze(1).expand(K, *self.scores.shape)
        inputs = [self.features.vectors, *self.embedded, *accounts]
        of_vectors, *others = self.traced(self.scores, inputs, g)
        return of_vectors, others[: len(self.embedded)], others[len(self.embedded) :]

    def by_word(self, of_embedded: Sequence[Tensor]) -> Tensor:
        """Numbers of each word that was read, (K, B, T), from numbers of each number of its embedding."""
        sums = [each.detach().sum(dim=-1) for each in of_embedded]  # (K, B, T), or (K, rows, 1) word by word
        if sums[0].ndim == 3 and len(sums) == 1:
            return sums[0]
        out = sums[0].new_zeros(sums[0].shape[0], *self.question.said.shape)
        for t, each in enumerate(sums):
            out[:, : each.shape[1], t] = each
        return out


def run_gradients(
    captioner: Captioner,
    pixels: Tensor,
    boxes: Tensor | None,
    question: Question,
    chunk: int,
    to_pixels: bool = True,
) -> tuple[Forward, GuidedMode]:
    """The model forward, ready for gradients, plain or guided."""
    x = captioner.encoder.normalise(pixels).detach().requires_grad_(to_pixels)
    encoding, decoding = GuidedMode(), GradientMode()
    with torch.enable_grad():
        if to_pixels:
            with encoding:
                features = _now(captioner.encoder.encode_normalised(x, boxes))
        else:
            features = _annotations(captioner, x, boxes)
        with decoding:
            logits, attention = captioner(features, question.said)
            logits = now(logits)
        scores = question.scores(logits)
    return Forward(question, logits, scores, attention, features, decoding.embedded, x, chunk), encoding


@dataclass(frozen=True)
class Relevances:
    """LRP of K words of B images.

    Attributes:
        pixels: relevance of the encoder's input summed over channels, (K, B, S, S); None for given features, and
            where relevance was followed no further than features.
        places: of features, summed over their numbers, (K, B, L).
        said: of the words read, (K, B, T), `<start>` first.
        start: of constant initial states, (K, B).
        absorbed: by the decoder's biases and stabilisers, (K, B).
        absorbed_by_encoder: by the encoder's, of what reached the features, (K, B).
    """

    pixels: Tensor | None
    places: Tensor
    said: Tensor
    start: Tensor
    absorbed: Tensor
    absorbed_by_encoder: Tensor

    def image_share(self) -> Tensor:
        """How much of the evidence was the image's, (K, B); as `Budget.share`."""
        image, start = self.places.sum(dim=-1), self.said[..., 0] + self.start
        words = self.said[..., 1:].sum(dim=-1)
        evidence = image.abs() + words.abs() + start.abs()
        return torch.where(evidence > 0, image / evidence.clamp(min=1e-30), 0.0)

    def check_conservation(self, scores: Tensor) -> None:
        """Raise a `UserError` where the parts of scores (K, B) do not add up: a model that rules misunderstand."""
        image = self.places.sum(dim=-1)
        off = (image + self.said.sum(dim=-1) + self.start + self.absorbed - scores).abs()
        if self.pixels is not None:
            off = torch.maximum(off, (self.pixels.sum(dim=(2, 3)) + self.absorbed_by_encoder - image).abs())
        if (off > TOLERANCE * scores.abs().clamp(min=1)).any():
            raise UserError("the books of this model do not balance: LRP cannot follow it; use other methods")


def run_relevance(
    captioner: Captioner,
    pixels: Tensor,
    boxes: Tensor | None,
    question: Question,
    composite: Composite,
    chunk: int,
    to_pixels: bool = True,
    refuse: bool = True,
) -> tuple[Forward, Relevances]:
    """Relevance of the words in question, from their logits down to pixels, or to features alone.

    Books that do not balance are refused unless that is not asked for.
    """
    x = captioner.encoder.normalise(pixels).detach().requires_grad_(to_pixels)
    sink = torch.zeros_like(x, requires_grad=True)
    if x.ndim == 4:
        ends = [captioner.encoder.normalise(torch.full_like(pixels[:1], edge)).expand_as(x) for edge in (0, 255)]
        x.pixels = Pixels(sink, torch.minimum(*ends), torch.maximum(*ends), torch.ones_like(x))  # type: ignore[attr-defined]
    encoding = Relevance(composite, x, attention="attnlrp")
    if to_pixels:
        with torch.enable_grad(), encoding:
            features = _now(captioner.encoder.encode_normalised(x, boxes))
    else:
        features = _annotations(captioner, x, boxes)
    decoding = Relevance(composite, x, attention="attnlrp" if captioner.propagates_through_attention else "constant")
    with torch.enable_grad(), decoding:
        logits, attention = captioner(features, question.said)
        logits = now(logits)
    with torch.enable_grad():
        scores = question.scores(logits)
    forward = Forward(question, logits, scores, attention, features, decoding.embedded, x, chunk)
    relevances = _relevances(forward, encoding if to_pixels else None, decoding, sink)
    if refuse and captioner.isolated_head is None:  # of one head alone, books have no reason to balance
        relevances.check_conservation(scores.detach().cpu().T)
    return forward, relevances


def _annotations(captioner: Captioner, x: Tensor, boxes: Tensor | None) -> Features:
    """What the encoder says of x, with no way back to it."""
    with torch.no_grad():
        features = captioner.encoder.encode_normalised(x, boxes)
    return replace(features, vectors=features.vectors.detach().clone().requires_grad_())


def _now(features: Features) -> Features:
    return replace(features, vectors=now(features.vectors))


def _relevances(forward: Forward, encoding: Relevance | None, decoding: Relevance, sink: Tensor) -> Relevances:
    vectors, x = forward.features.vectors, forward.x
    g, of_embedded, (absorbed, start) = forward.from_words(decoding.absorbed, decoding.start)
    R = g * vectors.detach()  # (K, B, L, D)
    said = forward.by_word([each * E.detach() for each, E in zip(of_embedded, forward.embedded, strict=True)])
    of_pixels, lost = None, torch.zeros_like(absorbed)
    if x.ndim == 4 and encoding is not None:
        gx, at_sink, *lost_by = forward.traced(vectors, (x, sink, encoding.absorbed, encoding.start), g)
        of_pixels, lost = (gx * x.detach() + at_sink).sum(dim=2), lost_by[0] + lost_by[1]
    found = (of_pixels, R.sum(dim=-1), said, start, absorbed, lost)
    return Relevances(*(None if each is None else each.detach().cpu() for each in found))  # type: ignore[arg-type]
