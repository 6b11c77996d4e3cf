"""The score log p and the maps of words equal the loops of tests/reference; `why` adds up to the image's share."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import tiny
from reference import maps as reference
from saywhy.captioners import Captioner
from saywhy.data.tokenizer import PAD, START, UNK
from saywhy.encoders.base import Features
from saywhy.errors import UserError
from saywhy.explain.composites import (
    MAPS,
    Composite,
    composite,
    composites,
    less_others,
    lrp_map,
    over_pixels,
    why,
)
from saywhy.explain.methods import attribute
from saywhy.explain.passes import Targets
from tracing import assert_close, inputs, make_targets, randn, relevance_of

pytestmark = pytest.mark.usefixtures("one_thread")

MARKERS = {PAD, START, UNK}


def captions() -> Tensor:
    """Two captions from `<start>` on, the second shorter."""
    tokens = tiny.captions(2, length=4)[:, :-1]
    tokens[1, 4:] = PAD
    return tokens


def random_relevance(S: int = 12, side: int = 3) -> tuple[Tensor, Tensor, Features]:
    """Relevance of pixels (K, B, S, S) and of features (K, B, L), and features."""
    pixels, coarse = randn(2, 3, S, S), randn(2, 3, side * side, seed=1)
    return pixels, coarse, Features(randn(3, side * side, 4), (side, side))


def test_log_p_is_the_words_logit_less_the_mean_of_the_others():
    logits = randn(1, 2, 11, seed=4) * 3
    targets = make_targets(captions()[:1, :2], (0, 1), (5, 7))
    scores = targets.scores(logits, "logp")
    for k, word in enumerate((5, 7)):
        row = logits[0, k].tolist()
        weights = reference.log_p_weights(row, word, MARKERS)
        assert_close(scores[0, k], sum(weight * z for weight, z in zip(weights, row, strict=True)))


def test_gradient_of_the_score_is_that_of_log_p_divided_by_one_less_p():
    logits = randn(1, 2, 11, seed=4).requires_grad_()
    targets = make_targets(captions()[:1, :1], (0,), (5,))
    (g,) = torch.autograd.grad(targets.scores(logits, "logp").sum(), logits)
    masked = logits[0, 0].index_fill(0, torch.tensor(sorted(MARKERS)), -torch.inf)
    log_p = masked.log_softmax(dim=-1)[5]
    (expected,) = torch.autograd.grad(log_p, logits)
    assert_close(g, expected / (1 - log_p.exp()))


def test_log_p_of_a_certain_word_is_finite():
    logits = torch.zeros(1, 1, 11)
    logits[..., 5] = 200
    assert make_targets(captions()[:1, :1], (0,), (5,)).scores(logits, "logp").item() == 200


@pytest.mark.parametrize("name", ["ada-lstm", "coca"])
def test_relevance_of_log_p_is_the_weighted_sum_of_the_relevance_of_all_logits(name):
    captioner = tiny.sensitive_captioner(name).double()
    pixels, boxes = inputs(captioner, "grid", 2)
    targets = make_targets(captions(), (1,), (6,))
    forward, relevance = relevance_of(captioner, pixels, boxes, targets, Composite(score="logp"))
    for row in range(2):
        logits = forward.logits[row, 1].tolist()
        weights = reference.log_p_weights(logits, 6, MARKERS)
        expected = torch.zeros_like(relevance.features[0, row])
        for word, weight in enumerate(weights):
            _, single = relevance_of(captioner, pixels, boxes, make_targets(captions(), (1,), (word,)), Composite())
            expected += weight * single.features[0, row]
        assert_close(relevance.features[0, row], expected)


def test_a_contrast_is_one_of_logits_for_every_score():
    logits = randn(2, 4, 11)
    targets = make_targets(captions(), (0, 1), (5, 7))
    targets = replace(targets, contrast=torch.full_like(targets.words, 8))
    assert_close(targets.scores(logits, "logp"), targets.scores(logits, "logit"))


def test_why_equals_loops_over_pixels():
    pixels, coarse, features = random_relevance()
    values = why(pixels, coarse, over_pixels(coarse, features, pixels))
    for k in range(2):
        for b in range(3):
            expected = reference.why(pixels[k, b].tolist(), coarse[k, b].unflatten(0, (3, 3)).tolist())
            assert_close(values[k, b], expected, within=1e-6)  # grids are enlarged in float32


@pytest.mark.parametrize("case", ["ordinary", "tiny", "signs never agree", "no relevance", "one sign"])
def test_why_adds_up_to_the_features_for_either_sign(case):
    pixels, coarse, features = (value for value in random_relevance())
    coarse = coarse * 1e-20 if case == "tiny" else coarse
    if case == "signs never agree":
        pixels = -over_pixels(coarse, features, pixels)
    elif case == "no relevance":
        pixels = pixels * 0
    elif case == "one sign":
        coarse = coarse.abs()
    pixels, coarse = pixels.float(), coarse.float()
    values = why(pixels, coarse, over_pixels(coarse, features, pixels)).double()
    for sign in (1, -1):
        parts, total = ((sign * part.double()).clamp(min=0) for part in (values, coarse))
        torch.testing.assert_close(parts.sum(dim=(2, 3)), total.sum(dim=-1), rtol=1e-5, atol=1e-30)


def test_less_others_equals_loops_over_words():
    values = randn(4, 2, 6)
    result = less_others(values, torch.arange(4).expand(2, -1), values, [4, 3])
    for row, length in enumerate((4, 3)):
        maps = values[:length, row].tolist()
        for k in range(length):
            assert_close(result[k, row], reference.less_others(maps, k))
    alone = less_others(values[:1], torch.zeros(2, 1, dtype=torch.long), values[:1], [1, 1])
    assert_close(alone, values[:1])


def attributed(captioner: Captioner, kind: str, targets: Targets) -> Tensor:
    pixels, boxes = inputs(captioner, "grid", 2)
    return attribute(captioner, pixels, boxes, targets, ("lrp",), composite("by-stride", map=kind)).maps["lrp"]


@pytest.mark.parametrize("kind", MAPS)
def test_the_map_of_one_word_is_that_of_the_same_word_among_all(kind):
    captioner = tiny.sensitive_captioner("ada-lstm").double()
    tokens = captions()
    whole = make_targets(tokens).whole_captions()
    assert whole.words.tolist() == tokens[:, 1:].tolist()
    one = make_targets(tokens, (2,), (0,))
    one = replace(one, words=whole.words[:, 2:3])
    assert_close(attributed(captioner, kind, one)[0], attributed(captioner, kind, whole)[2])


@pytest.mark.parametrize("kind", ["grid", "regions"])
@pytest.mark.parametrize("name", [name for name, rules in composites.items() if rules.map == "why"])
def test_the_map_adds_up_to_the_images_share_in_float32(name, kind):
    captioner = tiny.sensitive_captioner("ada-lstm")
    pixels, boxes = inputs(captioner, kind, 2)
    attributions = attribute(captioner, pixels, boxes, make_targets(captions()), ("lrp",), composites[name])
    features = attributions.relevance.features.double()
    share, scale = features.sum(dim=-1), features.abs().sum(dim=-1)
    total = attributions.maps["lrp"].double().flatten(2).sum(dim=-1)
    assert ((total - share).abs() <= 1e-5 * scale).all()


def test_maps_of_precomputed_features_are_over_features():
    relevance = randn(2, 3, 4)
    assert lrp_map("why", None, relevance, Features(randn(3, 4, 5), (2, 2))) is relevance


@pytest.mark.parametrize("field", ["score", "map", "sums"])
def test_an_unknown_choice_is_refused(field):
    with pytest.raises(UserError, match=f"^unknown {field} 'whyy'"):
        Composite(**{field: "whyy"})


@pytest.mark.parametrize("positions", [(0, 1, 2, 3), (2,)], ids=["all words", "one word"])
def test_a_map_named_as_a_method_is_the_map_that_the_composite_names(positions):
    captioner = tiny.sensitive_captioner("ada-lstm").double()
    pixels, boxes = inputs(captioner, "grid", 1)
    tokens = tiny.captions(1, length=4)[:, :-1]
    targets = make_targets(tokens, positions, [int(tokens[0, position + 1]) for position in positions if position < 4])
    rules = composite("by-stride")
    together = attribute(captioner, pixels, boxes, targets, [f"lrp-{kind}" for kind in MAPS], rules)
    for kind in MAPS:
        alone = attribute(captioner, pixels, boxes, targets, ("lrp",), replace(rules, map=kind))
        assert_close(together.maps[f"lrp-{kind}"], alone.maps["lrp"])
        assert_close(together.earlier_words[f"lrp-{kind}"], alone.earlier_words["lrp"])
