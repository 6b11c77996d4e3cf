"""Algorithm 1 of the LRP paper, from a word's logit over all earlier steps, against its slow twins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import tiny
from reference import lrp as reference
from saywhy.captioners import Captioner
from saywhy.data.vocabulary import PAD
from saywhy.explain.composites import Composite
from saywhy.explain.passes import Forward, Relevances
from tracing import asked, close, inputs, relevances

Twin = Callable[..., reference.Explained]

SIZES: dict[str, dict[str, Any]] = {
    "ada-lstm": {"embedding": 5, "hidden": 4, "attention": 3},
    "mh-fc": {"embedding": 5, "hidden": 6, "heads": 3},
    "soft-attention": {"embedding": 5, "hidden": 4, "attention": 3},
    "soft-attention, bilinear": {"embedding": 5, "hidden": 4, "attention": 3, "score": "bilinear"},
}
EPSILONS = {"absolute": {"epsilon": 0.01}, "large": {"epsilon": 0.5}, "relative": {"epsilon": 0.1, "relative": True}}
PLACES, WORDS = (0, 1, 3), (6, 9, 4)


def built(name: str) -> Captioner:
    return tiny.opinionated(name.split(",")[0], **SIZES[name]).double()


def twin_of(name: str, captioner: Captioner, rules: type[reference.LRP] = reference.LRP) -> Twin:
    weights = {part: p.tolist() for part, p in captioner.state_dict().items() if not part.startswith("encoder.")}
    if name == "ada-lstm":
        return reference.AdaLSTM(weights, rules)
    if name == "mh-fc":
        return reference.MHFC(weights, captioner.settings.heads, rules)
    return reference.SoftAttention(weights, captioner.settings.score, rules)


def captions() -> Tensor:
    """Two captions from `<start>` on, one of which ends sooner."""
    said = tiny.captions(2, length=4)[:, :-1]
    said[1, 4:] = PAD
    return said


def fast(captioner: Captioner, kind: str, how: dict[str, Any]) -> tuple[Forward, Relevances, Tensor]:
    """The fast code's answers, and R of each number of each feature, (K, B, L, D)."""
    question = asked(captions(), PLACES, WORDS)
    forward, found = relevances(captioner, *inputs(captioner, kind, 2), question, Composite(**how))
    g, _, _ = forward.from_words()
    return forward, found, g * forward.features.vectors.detach()


@pytest.mark.parametrize("how", EPSILONS)
@pytest.mark.parametrize("kind", ["grid", "regions"])
@pytest.mark.parametrize("name", SIZES)
def test_relevance_is_that_of_the_slow_twin(name, kind, how):
    captioner = built(name)
    twin = twin_of(name, captioner)
    forward, found, R = fast(captioner, kind, EPSILONS[how])
    mask = forward.features.mask
    for row, said in enumerate(captions().tolist()):
        there = torch.ones(R.shape[2], dtype=torch.bool) if mask is None else mask[row]
        places = forward.features.vectors[row, there].tolist()
        for k, (place, word) in enumerate(zip(PLACES, WORDS, strict=True)):
            expected = twin(places, said[: place + 1], word, **EPSILONS[how])
            close(forward.scores[row, k].detach(), expected.logit)
            close(R[k, row, there], expected.features)
            close(found.places[k, row, there], [sum(each) for each in expected.features])
            close(found.said[k, row, : place + 1], expected.words)
            close(found.start[k, row], expected.start)
            close(found.absorbed[k, row], expected.absorbed)
            assert not R[k, row, ~there].any()
            assert not found.said[k, row, place + 1 :].any()
            total = sum(map(sum, expected.features)) + sum(expected.words) + expected.start + expected.absorbed
            assert total == pytest.approx(expected.logit, abs=1e-9)  # the twin's own books


@pytest.mark.parametrize("name", SIZES)
def test_relevance_comes_from_every_word_and_every_place(name):
    _, found, _ = fast(built(name), "grid", EPSILONS["absolute"])
    assert found.places.abs().min() > 1e-6
    for k, place in enumerate(PLACES):
        assert found.said[k, :, : place + 1].abs().min() > 1e-6


class DropsTheCell(reference.LRP):
    """The original code's R(c_t) := R(h_t)."""

    def lstm(self, R_h, R_c, cell):
        return super().lstm(R_h, [0.0] * len(R_c), cell)


def one_bias_twice(weights: dict[str, Any]) -> None:
    """The original code's language LSTM."""
    for name in [name for name in weights if name.endswith("lstm.bias_hh")]:
        weights[name] = weights[name.replace("bias_hh", "bias_ih")]


@pytest.mark.parametrize("error", ["one bias twice", "the cell dropped"])
@pytest.mark.parametrize("name", SIZES)
def test_known_errors_of_the_original_code_would_be_seen(name, error):
    captioner = built(name)
    twin: Any = twin_of(name, captioner, DropsTheCell if error == "the cell dropped" else reference.LRP)
    if error == "one bias twice":
        one_bias_twice(twin.weights)
    forward, found, _ = fast(captioner, "grid", {})
    wrong = twin(forward.features.vectors[0].tolist(), captions()[0, : PLACES[-1] + 1].tolist(), WORDS[-1])
    assert abs(float(found.places[-1, 0].sum()) - sum(map(sum, wrong.features))) > 1e-3


def test_the_sentinel_is_gated_by_the_state_before_the_word():
    captioner = built("ada-lstm")
    before, _, _ = fast(captioner, "grid", {})
    captioner.W_h.weight.data *= 3  # at the first word there is no state before, so W_h says nothing
    after, _, _ = fast(captioner, "grid", {})
    close(after.scores[:, 0].detach(), before.scores[:, 0].detach())
    assert (after.scores[:, 1:] - before.scores[:, 1:]).abs().min() > 1e-6


def test_a_contrast_is_explained_as_the_difference_of_two_explanations():
    captioner = built("ada-lstm")
    pixels, boxes = inputs(captioner, "grid", 2)
    question = asked(captions(), PLACES, WORDS)
    other = asked(captions(), PLACES, (8, 8, 8))
    against = type(question)(question.said, question.places, question.words, other.words)
    (forward, found), (_, this), (_, that) = (
        relevances(captioner, pixels, boxes, each) for each in (against, question, other)
    )
    for part in ("pixels", "places", "said", "start", "absorbed", "absorbed_by_encoder"):
        close(getattr(found, part), getattr(this, part) - getattr(that, part))
    total = found.places.sum(dim=-1) + found.said.sum(dim=-1) + found.absorbed + found.start
    close(total, forward.scores.detach().T)
