"""One forward pass and the backward passes of all words.

`Targets` (`targets.py`) name K words of each of B images. The encoder and the decoder run forward once; the backward
passes, of gradients or relevance, have a leading axis of words, (K, B, …), over which `torch.func.vmap` maps them. Each
pass has two halves: from logits to features and word embeddings, and from features to pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from saywhy.captioners.base import Attention, Captioner
from saywhy.encoders.base import Features
from saywhy.errors import UserError
from saywhy.explain.composites import Composite
from saywhy.explain.lrp import LRPMode, PixelInput
from saywhy.explain.targets import Targets
from saywhy.explain.tracing import GradientMode, GuidedMode, current, no_table

TOLERANCE = 1e-2
"""Largest error of conservation, relative to max(1, |logit|); rounding causes about 1e-4."""
UNUSED: Any = {"allow_unused": True, "materialize_grads": True}  # an input without influence has gradient 0


@dataclass(frozen=True)
class Forward:
    """The results of a forward pass, from which backward passes start."""

    targets: Targets
    logits: Tensor  # (B, T, V)
    scores: Tensor  # (B, K)
    attention: Attention
    features: Features
    embedded: Sequence[Tensor]
    x: Tensor  # normalised pixels (B, 3, S, S), or precomputed vectors (B, R, D)
    words_per_pass: int

    def detached(self) -> Forward:
        """The same values without their graph."""
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

    def gradients(self, outputs: Tensor, inputs: Sequence[Tensor], g: Tensor) -> tuple[Tensor, ...]:
        """Gradients (K, …) of the inputs for gradients g (K, …) of the outputs; zeros for inputs without influence."""

        def backward(g_word: Tensor) -> tuple[Tensor, ...]:
            return torch.autograd.grad(outputs, list(inputs), g_word, retain_graph=True, **UNUSED)

        def backward_of_sum(g_word: Tensor) -> tuple[Tensor, ...]:  # the same; torch imports sympy for the other
            with torch.enable_grad():
                return torch.autograd.grad((outputs * g_word).sum(), list(inputs), retain_graph=True, **UNUSED)

        if self.words_per_pass == 1:
            return tuple(torch.stack(gradient) for gradient in zip(*map(backward_of_sum, g), strict=True))
        return torch.func.vmap(backward, chunk_size=self.words_per_pass)(g)

    def decoder_gradients(
        self, *leaves: Tensor, words: Sequence[int] | None = None
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Gradients of the scores: of features (K, B, L, D), of embeddings, and of further leaves (K, B).

        With `words`, of these of the K words only.
        """
        K = self.scores.shape[1]
        one_hot = torch.eye(K, dtype=self.scores.dtype, device=self.scores.device)
        one_hot = one_hot if words is None else one_hot[list(words)]  # (words, K)
        g = one_hot.unsqueeze(1).expand(len(one_hot), *self.scores.shape)
        inputs = [self.features.vectors, *self.embedded, *leaves]
        g_vectors, *others = self.gradients(self.scores, inputs, g)
        return g_vectors, others[: len(self.embedded)], others[len(self.embedded) :]

    def per_token(self, values: Sequence[Tensor]) -> Tensor:
        """Sums over the embedding axis, (K, B, T), of values shaped like the embeddings with a leading axis K."""
        sums = [part.detach().sum(dim=-1) for part in values]  # one (K, B, T), or one (K, rows, 1) per step
        if sums[0].ndim == 3 and len(sums) == 1:
            before = sums[0].shape[2] - self.targets.tokens.shape[1]  # tokens of a prompt count as `<start>`
            return torch.cat([sums[0][..., : before + 1].sum(dim=2, keepdim=True), sums[0][..., before + 1 :]], dim=2)
        out = sums[0].new_zeros(sums[0].shape[0], *self.targets.tokens.shape)
        for t, part in enumerate(sums):
            out[:, : part.shape[1], t] = part
        return out

    def per_word(self, values: Sequence[Tensor]) -> Tensor:
        """As `per_token`, summed over the pieces of each word, (K, B, 1 + words)."""
        return self.targets.per_word(self.per_token(values))


def run_gradients(
    captioner: Captioner,
    pixels: Tensor,
    boxes: Tensor | None,
    targets: Targets,
    words_per_pass: int,
    to_pixels: bool = True,
) -> tuple[Forward, GuidedMode]:
    """A forward pass for gradients; the returned mode can guide them in the encoder."""
    x = captioner.encoder.normalise(pixels).detach().requires_grad_(to_pixels)
    encoder_mode, decoder_mode = GuidedMode(), GradientMode(captioner.is_word_table)
    with torch.enable_grad():
        if to_pixels:
            with encoder_mode:
                features = _current_features(captioner.encoder.encode_normalised(x, boxes))
        else:
            features = _detached_features(captioner, x, boxes)
        with decoder_mode:
            logits, attention = captioner(features, targets.tokens)
            logits = current(logits)
        scores = targets.scores(logits)
    forward = Forward(targets, logits, scores, attention, features, decoder_mode.embedded, x, words_per_pass)
    return forward, encoder_mode


@dataclass(frozen=True)
class Relevance:
    """LRP of K words of B images.

    Attributes:
        pixels: of the encoder's input, summed over channels, (K, B, S, S); None for precomputed features, and where
            relevance was propagated to features only.
        features: of features, summed over their channels, (K, B, L).
        tokens: of the caption's words, (K, B, 1 + words), `<start>` first; that of a word's own first pieces, if it
            has several, is in the column of the word itself.
        initial_state: of constant initial states, (K, B).
        absorbed: by biases and stabilisers of the decoder, (K, B).
        absorbed_by_encoder: the part of the features' relevance absorbed by those of the encoder, (K, B).
    """

    pixels: Tensor | None
    features: Tensor
    tokens: Tensor
    initial_state: Tensor
    absorbed: Tensor
    absorbed_by_encoder: Tensor

    def image_share(self) -> Tensor:
        """The image's share of the evidence, (K, B), as `Budget.image_share`."""
        image, initial_state = self.features.sum(dim=-1), self.tokens[..., 0] + self.initial_state
        earlier_words = self.tokens[..., 1:].sum(dim=-1)
        evidence = image.abs() + earlier_words.abs() + initial_state.abs()
        return torch.where(evidence > 0, image / evidence.clamp(min=1e-30), 0.0)

    def check_conservation(self, scores: Tensor, labels: Sequence[Sequence[str]] = ()) -> None:
        """Raise a `UserError` where the parts of the scores (K, B) do not sum to them, or are not finite."""
        image = self.features.sum(dim=-1)
        parts = image + self.tokens.sum(dim=-1) + self.initial_state + self.absorbed
        _check_sums(parts, scores, scores, "score", labels)
        if self.pixels is not None:
            parts = self.pixels.sum(dim=(2, 3)) + self.absorbed_by_encoder
            _check_sums(parts, image, scores, "relevance of the image features", labels)


def _check_sums(parts: Tensor, totals: Tensor, scores: Tensor, name: str, labels: Sequence[Sequence[str]]) -> None:
    error = (parts - totals).abs() / scores.abs().clamp(min=1)  # (K, B)
    is_conserved = error <= TOLERANCE  # False for NaN
    if is_conserved.all():
        return
    k, b = (~is_conserved).nonzero()[0].tolist()
    word = f" (word {labels[b][k]!r})" if b < len(labels) and k < len(labels[b]) else ""
    total, expected = float(parts[k, b]), float(totals[k, b])
    raise UserError(
        f"relevance is not conserved: parts sum to {total:.4g}, {name} is {expected:.4g}{word}; "
        "LRP cannot explain this model's functions or weights"
    )


def run_lrp(
    captioner: Captioner,
    pixels: Tensor,
    boxes: Tensor | None,
    targets: Targets,
    composite: Composite,
    words_per_pass: int,
    to_pixels: bool = True,
    check: bool = True,
) -> tuple[Forward, Relevance]:
    """Relevance of the targets' scores, propagated to pixels, or to features only.

    With `check`, relevance that is not conserved raises a `UserError`.
    """
    lrp = lrp_pass(captioner, pixels, boxes, targets, composite, words_per_pass, to_pixels, check)
    return lrp.forward, lrp.relevance()


@dataclass(frozen=True)
class LRPPass:
    """A forward pass under the rules of LRP, from which the relevance of its words is computed at once or in turn."""

    forward: Forward
    encoder_mode: LRPMode | None  # None where relevance is propagated to features only
    decoder_mode: LRPMode
    sink: Tensor
    check: bool

    def relevance(self, words: Sequence[int] | None = None) -> Relevance:
        """The relevance of all K targets, or of some of them, by their indices."""
        relevance = _relevance(self.forward, self.encoder_mode, self.decoder_mode, self.sink, words)
        if self.check:
            scores, labels = self.forward.scores.detach().cpu().T, self.forward.targets.labels  # (K, B)
            if words is not None:
                scores, labels = scores[list(words)], [[row[k] for k in words] for row in labels]
            relevance.check_conservation(scores, labels)
        return relevance


def lrp_pass(
    captioner: Captioner,
    pixels: Tensor,
    boxes: Tensor | None,
    targets: Targets,
    composite: Composite,
    words_per_pass: int,
    to_pixels: bool = True,
    check: bool = True,
) -> LRPPass:
    """The forward pass of `run_lrp`."""
    x = captioner.encoder.normalise(pixels).detach().requires_grad_(to_pixels)
    sink = torch.zeros_like(x, requires_grad=True)
    if x.ndim == 4:
        ends = [captioner.encoder.normalise(torch.full_like(pixels[:1], value)).expand_as(x) for value in (0, 255)]
        bounds = torch.minimum(*ends), torch.maximum(*ends)
        x.pixel_input = PixelInput(sink, *bounds, torch.ones_like(x))  # type: ignore[attr-defined]
    encoder_mode = LRPMode(composite, x, "attnlrp", no_table)
    if to_pixels:
        with torch.enable_grad(), encoder_mode:
            features = _current_features(captioner.encoder.encode_normalised(x, boxes))
    else:
        features = _detached_features(captioner, x, boxes)
    attention_rule = "attnlrp" if captioner.propagates_through_attention else "constant"
    decoder_mode = LRPMode(composite, x, attention_rule, captioner.is_word_table)
    with torch.enable_grad(), decoder_mode:
        logits, attention = captioner(features, targets.tokens)
        logits = current(logits)
    with torch.enable_grad():
        scores = targets.scores(logits, composite.score, captioner.styles)
    forward = Forward(targets, logits, scores, attention, features, decoder_mode.embedded, x, words_per_pass)
    check = check and captioner.isolated_head is None  # relevance of one head alone is not conserved
    return LRPPass(forward, encoder_mode if to_pixels else None, decoder_mode, sink, check)


def _detached_features(captioner: Captioner, x: Tensor, boxes: Tensor | None) -> Features:
    """The encoder's features of x, without a graph back to x."""
    with torch.no_grad():
        features = captioner.encoder.encode_normalised(x, boxes)
    return replace(features, vectors=features.vectors.detach().clone().requires_grad_())


def _current_features(features: Features) -> Features:
    return replace(features, vectors=current(features.vectors))


def _relevance(
    forward: Forward,
    encoder_mode: LRPMode | None,
    decoder_mode: LRPMode,
    sink: Tensor,
    words: Sequence[int] | None = None,
) -> Relevance:
    vectors, x = forward.features.vectors, forward.x
    leaves = (decoder_mode.absorbed, decoder_mode.initial_state)
    g, g_embedded, (absorbed, initial_state) = forward.decoder_gradients(*leaves, words=words)
    features = (g * vectors.detach()).sum(dim=-1)  # (K, B, L)
    pairs = zip(g_embedded, forward.embedded, strict=True)
    tokens = forward.per_word([g_word * E.detach() for g_word, E in pairs])
    pixels, absorbed_by_encoder = None, torch.zeros_like(absorbed)
    if x.ndim == 4 and encoder_mode is not None:
        inputs = (x, sink, encoder_mode.absorbed, encoder_mode.initial_state)
        g_x, at_sink, by_biases, by_constants = forward.gradients(vectors, inputs, g)
        pixels, absorbed_by_encoder = (g_x * x.detach() + at_sink).sum(dim=2), by_biases + by_constants
    parts = (pixels, features, tokens, initial_state, absorbed, absorbed_by_encoder)
    return Relevance(*(None if part is None else part.detach().cpu() for part in parts))  # type: ignore[arg-type]
