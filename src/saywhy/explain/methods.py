"""The explanation methods, for a batch of words.

| method | pixels | earlier words |
| --- | --- | --- |
| `lrp` | relevance, signed: the map that the composite names | relevance, summed over the embedding |
| `lrp-why`, `lrp-apart`, … | the map of that name, of `composites` | the same |
| `gradcam` | ReLU of features weighted by their mean gradients | the sum of the embedding's gradients |
| `guided-backprop` | the gradient, with guided ReLUs in the encoder | the same |
| `guided-gradcam` | the product of the two | the same |
| `gradient-input` | gradient × pixel | gradient × embedding, summed |
| `attention` | α, of each head and their mean | none: attention weights cover the image only |
| `occlusion` | the fall of log p when a window hides the pixel | none |

As defined for captioners by the LRP paper (Sun et al. 2021, section IV). In transformers the sum of an embedding's
gradients is zero, because layer normalisation removes a constant added to the embedding; methods that use this sum
give no weights for earlier words there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from saywhy.captioners.base import Captioner
from saywhy.data.tokenizer import PAD
from saywhy.decoding.config import log_probabilities
from saywhy.encoders.base import Features
from saywhy.errors import UserError, did_you_mean
from saywhy.explain.composites import COMPARING, MAPS, Composite, less_others, lrp_map, over_pixels
from saywhy.explain.occlusion import occlusion
from saywhy.explain.passes import Forward, Relevance, run_gradients, run_lrp
from saywhy.explain.targets import Targets
from saywhy.explain.tracing import GuidedMode

METHODS = ("lrp", "gradcam", "guided-gradcam", "guided-backprop", "gradient-input", "attention")
EXPENSIVE_METHODS = ("occlusion",)
"""Further methods, which run only if they are named."""
MAP_METHODS = tuple(f"lrp-{kind}" for kind in MAPS)
"""The maps of LRP, each as a method."""
REPORT_METHODS = ("lrp", "lrp-apart", *METHODS[1:])
"""The methods of an explanation, unless others are named."""
GRADIENT_METHODS = ("gradcam", "guided-gradcam", "guided-backprop", "gradient-input")
FEATURE_METHODS = ("gradcam", "attention", "lrp-features")
"""Methods whose maps are over features, not pixels."""


@dataclass(frozen=True)
class Attributions:
    """The results of the methods for K words of B images.

    Attributes:
        scores: the explained numbers, (B, K): see `Targets.scores`.
        logits: of the words, or differences of logits, (B, K).
        probabilities: of the words, (B, K).
        log_p: of all words of the vocabulary at the words' positions, (B, K, V).
        alpha: attention weights at each word, (B, K, [heads,] L), those of unplaced features left out.
        beta: the gate at each word, (B, K), or None.
        features: of the images.
        maps: by method, (K, B, S, S) over pixels or (K, B, [heads,] L) over features.
        earlier_words: by method, a weight for each word of the caption, (K, B, 1 + words), `<start>` first.
        relevance: the full result of LRP, from which the evidence budget is computed.
    """

    scores: Tensor
    logits: Tensor
    probabilities: Tensor
    log_p: Tensor
    alpha: Tensor
    beta: Tensor | None
    features: Features
    maps: dict[str, Tensor]
    earlier_words: dict[str, Tensor]
    relevance: Relevance


def parse_methods(methods: str | Iterable[str]) -> tuple[str, ...]:
    """Names of methods, each once; an unknown name raises a `UserError`.

    >>> parse_methods("lrp,attention")
    ('lrp', 'attention')
    """
    known = (*METHODS, *EXPENSIVE_METHODS, *MAP_METHODS)
    names = methods.split(",") if isinstance(methods, str) else methods
    names = tuple(dict.fromkeys(name.strip() for name in names))
    if not names:
        raise UserError(f"name at least one method, of {', '.join(METHODS)}")
    for name in names:
        if name not in known:
            raise UserError(f"unknown method {name!r}: {did_you_mean(name, known)}")
    return names


def attribute(
    captioner: Captioner,
    pixels: Tensor,
    boxes: Tensor | None,
    targets: Targets,
    methods: Sequence[str],
    composite: Composite,
    words_per_pass: int | None = None,
    to_pixels: bool = True,
    check: bool = True,
) -> Attributions:
    """Explain K words of each of B images (B, 3, S, S).

    LRP always runs, because the evidence budget is computed from it. `words_per_pass` words share a backward pass: by
    default one on a CPU and 16 on a GPU. Without `to_pixels` there is no backward pass through the encoder: earlier
    words, budgets and maps over features are the same, maps over pixels are omitted. With `check`, relevance that is
    not conserved raises a `UserError`.
    """
    words_per_pass = words_per_pass or (1 if pixels.device.type == "cpu" else 16)
    forward, relevance = run_lrp(captioner, pixels, boxes, targets, composite, words_per_pass, to_pixels, check)
    forward = forward.detached()  # frees a large graph; the gradient methods build their own
    alpha = targets.at_positions(forward.attention.alpha).cpu()
    maps: dict[str, Tensor] = {}
    kinds = {method: composite.map for method in methods if method == "lrp"}
    kinds |= {method: method.removeprefix("lrp-") for method in methods if method in MAP_METHODS}
    earlier_words = dict.fromkeys(("lrp", *kinds), relevance.tokens)
    if kinds and (to_pixels or pixels.ndim < 4):
        parts = (relevance.pixels, relevance.features, forward.features)
        maps = {method: lrp_map(kind, *parts) for method, kind in kinds.items()}
        if comparing := {method: kind for method, kind in kinds.items() if kind in COMPARING}:
            whole = targets.whole_captions()
            others = relevance
            if not _are_whole_captions(targets, whole):
                _, others = run_lrp(captioner, pixels, boxes, whole, composite, words_per_pass, check=check)
            lengths = (whole.words != PAD).sum(dim=1).tolist()
            for method, kind in comparing.items():
                caption = lrp_map(kind, others.pixels, others.features, forward.features)
                maps[method] = less_others(maps[method], targets.word_positions.cpu(), caption, lengths)
    if "attention" in methods:
        maps["attention"] = alpha.transpose(0, 1)
    if "occlusion" in methods and to_pixels and pixels.ndim == 4:
        maps["occlusion"] = occlusion(captioner, pixels, boxes, targets)
    if set(methods) & set(GRADIENT_METHODS):
        gradients = gradient_attributions(captioner, pixels, boxes, targets, methods, words_per_pass, to_pixels)
        maps, earlier_words = maps | gradients[0], earlier_words | gradients[1]
    log_p = log_probabilities(targets.at_positions(forward.logits), captioner.styles)
    p = targets.probabilities(forward.logits, captioner.styles).cpu()
    beta = None if forward.attention.beta is None else targets.at_positions(forward.attention.beta).cpu()
    ordered = {method: maps[method] for method in methods if method in maps}
    scores, logits = forward.scores.cpu(), targets.scores(forward.logits).cpu()
    return Attributions(
        scores, logits, p, log_p.cpu(), alpha, beta, forward.features, ordered, earlier_words, relevance
    )


def gradient_attributions(
    captioner: Captioner,
    pixels: Tensor,
    boxes: Tensor | None,
    targets: Targets,
    methods: Sequence[str],
    words_per_pass: int,
    to_pixels: bool = True,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The maps and the weights of tokens of the gradient methods, as in `Attributions`."""
    forward, mode = run_gradients(captioner, pixels, boxes, targets, words_per_pass, to_pixels)
    g, g_embedded, _ = forward.decoder_gradients()
    earlier_words = _earlier_word_gradients(forward, g_embedded, methods, captioner.propagates_through_attention)
    return _gradient_maps(forward, mode, g, methods, to_pixels), earlier_words


def _are_whole_captions(targets: Targets, whole: Targets) -> bool:
    """Whether the targets are all words of their captions, each at its place, without a contrast."""
    same = targets.words.shape == whole.words.shape and bool((targets.words == whole.words).all())
    return same and not bool((targets.contrast >= 0).any())


def _earlier_word_gradients(
    forward: Forward, g_embedded: Sequence[Tensor], methods: Sequence[str], is_sum_zero: bool
) -> dict[str, Tensor]:
    """The gradient methods' weights of tokens, from the gradients of their embeddings."""
    weights = {}
    if not is_sum_zero:
        sums = forward.per_word(g_embedded)
        weights = {method: sums for method in methods if method in ("gradcam", "guided-gradcam", "guided-backprop")}
    if "gradient-input" in methods:
        pairs = zip(g_embedded, forward.embedded, strict=True)
        weights["gradient-input"] = forward.per_word([g * E.detach() for g, E in pairs])
    return weights


def _gradient_maps(
    forward: Forward, mode: GuidedMode, g: Tensor, methods: Sequence[str], to_pixels: bool
) -> dict[str, Tensor]:
    """The gradient methods' maps, from the gradients g (K, B, L, D) of features."""
    vectors, x, has_pixels = forward.features.vectors, forward.x, forward.x.ndim == 4
    channels = 2 if has_pixels else -1
    cam = grad_cam(vectors, g)[..., forward.features.unplaced :]  # (K, B, L)
    maps = {"gradcam": cam}
    if has_pixels and not to_pixels:
        return maps
    if "gradient-input" in methods:
        g_x = forward.gradients(vectors, (x,), g)[0] if has_pixels else g
        maps["gradient-input"] = (g_x * x.detach()).sum(dim=channels)
    if {"guided-backprop", "guided-gradcam"} & set(methods):
        with mode.guided():
            g_x = forward.gradients(vectors, (x,), g)[0] if has_pixels else g
        guided = g_x.sum(dim=channels)  # (K, B, S, S), or (K, B, L) of precomputed features
        maps["guided-backprop"] = guided
        maps["guided-gradcam"] = guided * (over_pixels(cam, forward.features, x) if has_pixels else cam)
    return maps


def grad_cam(vectors: Tensor, g: Tensor) -> Tensor:
    """Grad-CAM over features (B, L, D) with gradients (K, B, L, D): (K, B, L), not negative.

    Selvaraju et al. 2017 (https://arxiv.org/abs/1610.02391): ReLU(Σ_d w_d a_d), w_d the mean gradient of channel d.
    """
    weights = g.mean(dim=2)  # (K, B, D)
    return torch.einsum("kbd,bld->kbl", weights, vectors.detach()).clamp(min=0)
