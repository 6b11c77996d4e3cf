"""Algorithm 1 of the LRP paper, from a word's logit back over all steps, equals the loops of tests/reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import tiny
from reference import lrp as reference
from saywhy.captioners import Captioner
from saywhy.data.tokenizer import PAD
from saywhy.explain.composites import Composite
from saywhy.explain.passes import Forward, Relevance
from tracing import assert_close, inputs, make_targets, relevance_of

ReferenceLRP = Callable[..., reference.WordRelevance]

SIZES: dict[str, dict[str, Any]] = {
    "ada-lstm": {"embedding": 5, "hidden": 4, "attention": 3},
    "mh-fc": {"embedding": 5, "hidden": 6, "heads": 3},
    "soft-attention": {"embedding": 5, "hidden": 4, "attention": 3},
    "soft-attention, bilinear": {"embedding": 5, "hidden": 4, "attention": 3, "score": "bilinear"},
}
EPSILONS = {
    "absolute": {"epsilon": 0.01},
    "large": {"epsilon": 0.5},
    "relative": {"epsilon": 0.1, "relative_epsilon": True},
}
POSITIONS, WORDS = (0, 1, 3), (6, 9, 4)


def small_captioner(name: str) -> Captioner:
    return tiny.sensitive_captioner(name.split(",")[0], **SIZES[name]).double()


def reference_of(name: str, captioner: Captioner, rules: type[reference.LRP] = reference.LRP) -> ReferenceLRP:
    weights = {part: p.tolist() for part, p in captioner.state_dict().items() if not part.startswith("encoder.")}
    if name == "ada-lstm":
        return reference.AdaLSTM(weights, rules)
    if name == "mh-fc":
        return reference.MHFC(weights, captioner.settings.heads, rules)
    return reference.SoftAttention(weights, captioner.settings.score, rules)


def captions() -> Tensor:
    """Two captions from `<start>` on, the second shorter."""
    tokens = tiny.captions(2, length=4)[:, :-1]
    tokens[1, 4:] = PAD
    return tokens


def run(captioner: Captioner, kind: str, settings: dict[str, Any]) -> tuple[Forward, Relevance, Tensor]:
    """The results of the code under test, and R of each channel of each feature, (K, B, L, D)."""
    targets = make_targets(captions(), POSITIONS, WORDS)
    forward, relevance = relevance_of(captioner, *inputs(captioner, kind, 2), targets, Composite(**settings))
    g, _, _ = forward.decoder_gradients()
    return forward, relevance, g * forward.features.vectors.detach()


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("kind", ["grid", "regions"])
@pytest.mark.parametrize("name", SIZES)
def test_relevance_equals_the_loops(name, kind, epsilon):
    captioner = small_captioner(name)
    loops = reference_of(name, captioner)
    forward, relevance, R = run(captioner, kind, EPSILONS[epsilon])
    mask = forward.features.mask
    for row, tokens in enumerate(captions().tolist()):
        is_feature = torch.ones(R.shape[2], dtype=torch.bool) if mask is None else mask[row]
        features = forward.features.vectors[row, is_feature].tolist()
        for k, (position, word) in enumerate(zip(POSITIONS, WORDS, strict=True)):
            expected = loops(features, tokens[: position + 1], word, **EPSILONS[epsilon])
            assert_close(forward.scores[row, k].detach(), expected.logit)
            assert_close(R[k, row, is_feature], expected.features)
            assert_close(relevance.features[k, row, is_feature], [sum(vector) for vector in expected.features])
            assert_close(relevance.tokens[k, row, : position + 1], expected.tokens)
            assert_close(relevance.initial_state[k, row], expected.initial_state)
            assert_close(relevance.absorbed[k, row], expected.absorbed)
            assert not R[k, row, ~is_feature].any()
            assert not relevance.tokens[k, row, position + 1 :].any()
            parts = sum(map(sum, expected.features)), sum(expected.tokens), expected.initial_state, expected.absorbed
            assert sum(parts) == pytest.approx(expected.logit, abs=1e-9)  # the loops conserve relevance, too


@pytest.mark.parametrize("name", SIZES)
def test_every_earlier_token_and_every_feature_gets_relevance(name):
    _, relevance, _ = run(small_captioner(name), "grid", EPSILONS["absolute"])
    assert relevance.features.abs().min() > 1e-6
    for k, position in enumerate(POSITIONS):
        assert relevance.tokens[k, :, : position + 1].abs().min() > 1e-6


class WithoutCellRelevance(reference.LRP):
    """The LRP paper's code: R(c_t) := R(h_t)."""

    def lstm(self, R_h, R_c, cell):
        return super().lstm(R_h, [0.0] * len(R_c), cell)


def use_one_bias_twice(weights: dict[str, Any]) -> None:
    """The language LSTM of the LRP paper's code."""
    for name in [name for name in weights if name.endswith("lstm.bias_hh")]:
        weights[name] = weights[name.replace("bias_hh", "bias_ih")]


@pytest.mark.parametrize("error", ["one bias twice", "no cell relevance"])
@pytest.mark.parametrize("name", SIZES)
def test_known_errors_of_the_papers_code_change_the_result(name, error):
    captioner = small_captioner(name)
    rules = WithoutCellRelevance if error == "no cell relevance" else reference.LRP
    loops: Any = reference_of(name, captioner, rules)
    if error == "one bias twice":
        use_one_bias_twice(loops.weights)
    forward, relevance, _ = run(captioner, "grid", {})
    wrong = loops(forward.features.vectors[0].tolist(), captions()[0, : POSITIONS[-1] + 1].tolist(), WORDS[-1])
    assert abs(float(relevance.features[-1, 0].sum()) - sum(map(sum, wrong.features))) > 1e-3


def test_sentinel_gate_depends_on_the_previous_state():
    captioner = small_captioner("ada-lstm")
    before, _, _ = run(captioner, "grid", {})
    captioner.W_h.weight.data *= 3  # the first word has no previous state, so W_h has no influence
    after, _, _ = run(captioner, "grid", {})
    assert_close(after.scores[:, 0].detach(), before.scores[:, 0].detach())
    assert (after.scores[:, 1:] - before.scores[:, 1:]).abs().min() > 1e-6


def test_relevance_of_a_contrast_is_the_difference_of_two_relevances():
    captioner = small_captioner("ada-lstm")
    pixels, boxes = inputs(captioner, "grid", 2)
    words = make_targets(captions(), POSITIONS, WORDS)
    others = make_targets(captions(), POSITIONS, (8, 8, 8))
    contrast = replace(words, contrast=others.words)
    (forward, difference), (_, first), (_, second) = (
        relevance_of(captioner, pixels, boxes, targets) for targets in (contrast, words, others)
    )
    for part in ("pixels", "features", "tokens", "initial_state", "absorbed", "absorbed_by_encoder"):
        assert_close(getattr(difference, part), getattr(first, part) - getattr(second, part))
    image, tokens = difference.features.sum(dim=-1), difference.tokens.sum(dim=-1)
    assert_close(image + tokens + difference.absorbed + difference.initial_state, forward.scores.detach().T)
