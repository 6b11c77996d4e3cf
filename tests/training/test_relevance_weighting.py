"""LRP-inference fine-tuning against loops over the paper's equations, and its controls."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import tiny
from reference import ada_lstm, mh_fc, soft_attention
from reference import relevance_weighting as reference
from saywhy.captioners.base import Attention, SummedOutputCaptioner
from saywhy.data.stop_words import STOP_WORDS
from saywhy.data.tokenizer import MARKERS, PAD, Vocabulary
from saywhy.decoding import Decoding, decode
from saywhy.encoders.base import Features
from saywhy.errors import UserError
from saywhy.explain.composites import composite
from saywhy.explain.lrp import LRPMode
from saywhy.training.objectives import CaptionLoss
from saywhy.training.recipe import from_table, read_recipe
from saywhy.training.relevance_weighting import (
    LARGEST_FACTOR,
    RelevanceWeighting,
    relevance_weights,
    require_terms,
)
from tracing import Operations

DOUBLE = torch.float64
RECIPES = Path(__file__).parents[2] / "recipes"
GRID = (2, 3)
IMAGE_INDEX = torch.tensor([0, 2, 1, 2])
MAY_FLIP = torch.ones(3, dtype=torch.bool)
CONTENT_WORDS = ("dog", "red", "runs", "man")
VOCABULARY = Vocabulary((*MARKERS, "a", *CONTENT_WORDS, "in", "the"))
UNWEIGHTED = {n for n, word in enumerate(VOCABULARY.words) if word not in CONTENT_WORDS}
REFERENCES: dict[str, Any] = {
    "ada-lstm": ada_lstm.AdaLSTM,
    "mh-fc": lambda weights: mh_fc.MHFC(weights, heads=8),
    "soft-attention": lambda weights: soft_attention.SoftAttention(weights, "mlp"),
}
KINDS = ("lrp", "random", "sharpened", "gradient-input", "gradient", "attention")


def build(name: str, **changes: Any) -> SummedOutputCaptioner:
    return require_terms(tiny.sensitive_captioner(name, len(VOCABULARY), **changes))


def teacher_forced(captioner: SummedOutputCaptioner, rows: int = 3) -> tuple[Any, Tensor, Attention]:
    """Terms, logits and attention of random captions."""
    dtype = captioner.output_layer.weight.dtype
    terms, attention = captioner.forward_terms(tiny.features(rows, dtype=dtype), tiny.captions(rows)[:, :-1])
    return terms, captioner.logits(terms), attention


def padded_captions() -> Tensor:
    """Captions of 5, 2 and 3 words, and one that is all padding."""
    tokens = tiny.captions(4, length=5)
    for row, length in ((1, 2), (2, 3)):
        tokens[row, length + 1] = 2
        tokens[row, length + 2 :] = PAD
    tokens[3] = PAD
    return tokens


def test_the_vocabulary_of_these_tests_has_stop_words_and_others():
    assert {"a", "in", "the"} <= STOP_WORDS
    assert not set(CONTENT_WORDS) & STOP_WORDS


@pytest.mark.parametrize("kind", ["lrp", "gradient-input", "gradient"])
@pytest.mark.parametrize("name", REFERENCES)
def test_logits_of_p_hat_equal_the_reference(name, kind):
    captioner = build(name).double()
    weights = {key: value.tolist() for key, value in captioner.state_dict().items()}
    layer = "L_o" if name == "soft-attention" else "fc"
    W, b = weights[f"{layer}.weight"], weights[f"{layer}.bias"]
    by_kind = getattr(reference, f"scores_by_{kind.replace('-', '_')}")
    features, tokens = tiny.features(3, dtype=DOUBLE), tiny.captions(3)[:, :-1]
    terms, attention = captioner.forward_terms(features, tokens)
    logits = captioner.logits(terms)
    weighting = RelevanceWeighting(kind, VOCABULARY)
    reweighted, omegas = (f(captioner, terms, logits, attention) for f in (weighting, weighting.weights))
    predicted = set()
    for row in range(3):
        steps = REFERENCES[name](weights).terms(features.vectors[row].tolist(), tokens[row].tolist())
        for t, (p, p_hat, word, expected_omegas) in enumerate(
            reference.inference([terms for terms, *_ in steps], W, b, UNWEIGHTED, by_kind)
        ):
            torch.testing.assert_close(logits[row, t], torch.tensor(p, dtype=DOUBLE), rtol=0, atol=1e-10)
            torch.testing.assert_close(reweighted[row, t], torch.tensor(p_hat, dtype=DOUBLE), rtol=0, atol=1e-9)
            for omega, expected in zip(omegas, expected_omegas, strict=True):
                torch.testing.assert_close(omega[row, t], torch.tensor(expected, dtype=DOUBLE), rtol=0, atol=1e-9)
            predicted.add(word in UNWEIGHTED)
    assert predicted == {True, False}, "the reference covers stop words or other words only"


@pytest.mark.parametrize("name", REFERENCES)
def test_relevance_is_that_of_the_explanations_through_the_whole_output_layer(name):
    """LRP of the arg-max logit through the captioner's own `logits` gives the same ω as LRP of the selected logit."""
    captioner = build(name)
    terms, logits, attention = teacher_forced(captioner)
    words = logits.argmax(dim=-1)
    leaves = [term.detach().clone().requires_grad_() for term in terms]
    with LRPMode(composite("epsilon-plus"), like=leaves[0]):
        traced = captioner.logits(leaves)
    gradients = torch.autograd.grad(traced.gather(-1, words.unsqueeze(-1)).sum(), leaves)
    deviations = relevance_weights["lrp"](captioner, terms, words, attention)
    for leaf, g, deviation in zip(leaves, gradients, deviations, strict=True):
        R = leaf.detach() * g
        torch.testing.assert_close(deviation, R / R.abs().amax(dim=-1, keepdim=True), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", REFERENCES)
def test_weights_are_in_0_to_2_and_1_for_stop_words_and_markers(name, kind):
    captioner = build(name)
    terms, logits, attention = teacher_forced(captioner, rows=8)
    words = logits.argmax(dim=-1)
    weighting = RelevanceWeighting(kind, VOCABULARY)
    omegas = weighting.weights(captioner, terms, logits, attention)
    is_unweighted = torch.tensor([[int(word) in UNWEIGHTED for word in row] for row in words])
    assert 0 < is_unweighted.sum() < is_unweighted.numel()
    for omega, term in zip(omegas, terms, strict=True):
        omega = omega.expand_as(term)
        assert omega.min() >= 0
        assert omega.max() <= (LARGEST_FACTOR if kind == "sharpened" else 2)
        assert (omega[is_unweighted] == 1).all()
        assert (omega[~is_unweighted] != 1).any(dim=-1).all()
    reweighted = weighting(captioner, terms, logits, attention)
    assert torch.equal(reweighted[is_unweighted], logits[is_unweighted])
    assert not torch.isclose(reweighted[~is_unweighted], logits[~is_unweighted]).all(dim=-1).any()


def test_random_weights_have_the_magnitudes_of_lrp_and_about_half_of_its_signs():
    captioner = build("ada-lstm", hidden=64)
    terms, logits, attention = teacher_forced(captioner)
    words = logits.argmax(dim=-1)
    R, random = (relevance_weights[kind](captioner, terms, words, attention) for kind in ("lrp", "random"))
    for by_lrp, by_chance in zip(R, random, strict=True):
        torch.testing.assert_close(by_chance.abs(), by_lrp.abs())
        assert 0.4 < (by_chance.sign() == by_lrp.sign()).float().mean() < 0.6
    assert not torch.equal(random[0], relevance_weights["random"](captioner, terms, words, attention)[0])


@pytest.mark.parametrize("name", REFERENCES)
def test_weights_from_attention_are_the_gates_shares_of_image_and_words(name):
    captioner = build(name)
    terms, logits, attention = teacher_forced(captioner)
    omegas = [1 + d for d in relevance_weights["attention"](captioner, terms, logits.argmax(dim=-1), attention)]
    image = 1 - attention.beta if name == "ada-lstm" else attention.beta
    for n, omega in enumerate(omegas):
        expected = 2 * image if n == captioner.image_term else 2 * (1 - image)
        torch.testing.assert_close(omega.squeeze(-1), expected)


@pytest.mark.parametrize("name", REFERENCES)
def test_the_image_term_alone_depends_on_the_attended_features(name):
    captioner = build(name).double()
    state = captioner.start(tiny.features(2, dtype=DOUBLE))
    field = {"ada-lstm": "image", "mh-fc": "V", "soft-attention": "features"}[name]
    first, second = (
        captioner.step_terms(torch.tensor([1, 1]), changed)[0] for changed in (state, _doubled(state, field))
    )
    unchanged = [n for n in range(len(first)) if torch.equal(first[n], second[n])]
    assert captioner.image_term not in unchanged
    if name == "mh-fc":  # in the others, the context is also an input of an LSTM
        assert unchanged == [1]


def _doubled(state: Any, field: str) -> Any:
    features: Features = getattr(state, field)
    return replace(state, **{field: replace(features, vectors=2 * features.vectors)})


@pytest.mark.parametrize("name", REFERENCES)
def test_sharpened_is_a_temperature_with_which_the_predicted_word_is_as_probable_as_with_lrp(name):
    captioner = build(name).double().eval()
    terms, logits, attention = teacher_forced(captioner, rows=8)
    words, bias = logits.argmax(dim=-1, keepdim=True), captioner.output_layer.bias
    by_lrp, by_factor = (
        RelevanceWeighting(kind, VOCABULARY)(captioner, terms, logits, attention) for kind in ("lrp", "sharpened")
    )
    factors = ((by_factor - bias) / (logits - bias)).gather(-1, words)
    torch.testing.assert_close(by_factor, bias + factors * (logits - bias))
    p_lrp, p_factor = (values.softmax(dim=-1).gather(-1, words) for values in (by_lrp, by_factor))
    free = (factors > 1.01) & (factors < LARGEST_FACTOR - 0.01)
    assert free.sum() > 3
    torch.testing.assert_close(p_factor[free], p_lrp[free], rtol=0, atol=2e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_no_gradient_flows_through_the_weights(kind):
    captioner = build("ada-lstm")
    terms, logits, attention = teacher_forced(captioner)
    weighting = RelevanceWeighting(kind, VOCABULARY)
    torch.manual_seed(0)
    omegas = weighting.weights(captioner, terms, logits, attention)
    assert not any(omega.requires_grad for omega in omegas)
    torch.manual_seed(0)
    gradients = torch.autograd.grad(
        weighting(captioner, terms, logits, attention).logsumexp(dim=-1).sum(), terms, retain_graph=True
    )
    constant = captioner.logits([omega * term for omega, term in zip(omegas, terms, strict=True)])
    expected = torch.autograd.grad(constant.logsumexp(dim=-1).sum(), terms)
    for gradient, of_constant in zip(gradients, expected, strict=True):
        assert torch.equal(gradient, of_constant)
    assert all(parameter.grad is None for parameter in captioner.parameters())


@pytest.mark.parametrize("name", REFERENCES)
def test_step_and_forward_offer_the_same_terms(name):
    captioner, tokens = build(name), tiny.captions(3)[:, :-1]
    features = tiny.features(3, kind="regions")
    terms, _ = captioner.forward_terms(features, tokens)
    state = captioner.start(features)
    for t in range(tokens.shape[1]):
        step_terms, state, _ = captioner.step_terms(tokens[:, t], state)
        for of_step, of_forward in zip(step_terms, terms, strict=True):
            torch.testing.assert_close(of_step, of_forward[:, t], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", REFERENCES)
def test_reweighted_captioners_decode_and_score_with_p_hat(name):
    captioner, weighting = build(name), RelevanceWeighting("lrp", VOCABULARY)
    features, tokens = tiny.features(3), tiny.captions(3)[:, :-1]
    with torch.inference_mode():
        terms, attention = captioner.forward_terms(features, tokens)
        logits = captioner.logits(terms)
        expected = weighting(captioner, terms, logits, attention)
        with captioner.reweighted(weighting):
            forced, _ = captioner(features, tokens)
            state, steps = captioner.start(features), []
            for token in tokens.unbind(1):
                step = captioner.step(token, state)
                state = step.state
                steps.append(step.logits)
            assert len(decode(captioner, features, Decoding(method="greedy", max_words=4))) == 3
        after, _ = captioner(features, tokens)
    torch.testing.assert_close(forced, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(torch.stack(steps, 1), expected, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(after, logits)
    assert not torch.allclose(forced, after)


@pytest.mark.parametrize("settings", [{}, {"smoothing": 0.1, "penalty": 0.3}], ids=str)
@pytest.mark.parametrize("cross_entropy", [0.0, 0.25, 0.5])
def test_the_loss_mixes_cross_entropies_of_p_and_p_hat(cross_entropy, settings):
    captioner, features, tokens = build("ada-lstm"), tiny.features(3), padded_captions()
    weighting = RelevanceWeighting("lrp", VOCABULARY)
    loss = CaptionLoss(captioner, 64, relevance=weighting, cross_entropy=cross_entropy, **settings)
    with torch.no_grad():
        sums = loss(features.vectors, MAY_FLIP, tokens, IMAGE_INDEX, GRID)
        terms, attention = captioner.forward_terms(features.select(IMAGE_INDEX), tokens[:, :-1])
        logits = captioner.logits(terms)
        reweighted = weighting(captioner, terms, logits, attention)
    arguments = (logits.tolist(), reweighted.tolist(), attention.alpha.tolist(), tokens[:, 1:].tolist())
    expected = reference.fine_tuning_loss(*arguments, cross_entropy, **settings)
    assert sums.loss.item() == pytest.approx(expected, rel=1e-5)
    plain = CaptionLoss(captioner, 64, **settings)(features.vectors, MAY_FLIP, tokens, IMAGE_INDEX, GRID)
    assert sums.log_loss.item() == pytest.approx(plain.log_loss.item()), "the logged loss is that of p"


def test_a_cross_entropy_weight_of_1_is_plain_training_with_the_same_random_numbers():
    features, tokens = tiny.features(3), padded_captions()

    def loss_and_gradient(**settings: Any) -> tuple[Tensor, Tensor]:
        captioner = build("mh-fc", dropout=0.5).train()
        torch.manual_seed(0)
        sums = CaptionLoss(captioner, 64, **settings)(features.vectors, MAY_FLIP, tokens, IMAGE_INDEX, GRID)
        sums.loss.backward()
        gradients = [weight.grad.flatten() for weight in captioner.parameters() if weight.grad is not None]
        return sums.loss.detach(), torch.cat(gradients)

    relevance = RelevanceWeighting("lrp", VOCABULARY)
    for tuned, plain in zip(
        loss_and_gradient(relevance=relevance, cross_entropy=1.0), loss_and_gradient(), strict=True
    ):
        assert torch.equal(tuned, plain)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", REFERENCES)
def test_a_training_step_under_bfloat16_autocast_gives_finite_gradients(name, kind):
    captioner, features, tokens = build(name, dropout=0.3).train(), tiny.features(3), padded_captions()
    loss = CaptionLoss(captioner, 64, relevance=RelevanceWeighting(kind, VOCABULARY), cross_entropy=0.5)
    with torch.autocast("cpu", torch.bfloat16):
        sums = loss(features.vectors, MAY_FLIP, tokens, IMAGE_INDEX, GRID, active=[4, 3, 3, 3, 1, 1])
    sums.loss.backward()
    gradients = [weight.grad for weight in captioner.parameters() if weight.grad is not None]
    assert gradients
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_weights_are_computed_in_float32_under_autocast():
    captioner = build("ada-lstm")
    with torch.autocast("cpu", torch.bfloat16):
        terms, logits, attention = teacher_forced(captioner)
        omegas = RelevanceWeighting("lrp", VOCABULARY).weights(captioner, terms, logits, attention)
    assert {omega.dtype for omega in omegas} == {torch.float32}


def test_a_captioner_without_terms_is_refused_in_one_line():
    with pytest.raises(UserError, match=r"captioner coca has no terms .* remove the table \[relevance\]"):
        CaptionLoss(tiny.captioner("coca"), 64, relevance=RelevanceWeighting("lrp", VOCABULARY))
    with pytest.raises(UserError, match="captioner coca has no terms"):
        from_table({"captioner": {"name": "coca"}, "relevance": {}})


def test_an_unknown_kind_is_refused_in_one_line():
    with pytest.raises(UserError, match=r"unknown relevance\.weights 'lpr'.*lrp"):
        RelevanceWeighting("lpr", VOCABULARY)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_neither_wait_for_the_device_nor_copy_from_the_host_so_that_cuda_graphs_can_capture_them(kind):
    captioner = build("ada-lstm")
    terms, logits, attention = teacher_forced(captioner)
    weighting = RelevanceWeighting(kind, VOCABULARY)
    with Operations() as operations:
        weighting.weights(captioner, terms, logits, attention)
    assert "argmax" in operations.names
    assert not operations.names & {"_local_scalar_dense", "nonzero", "masked_select", "equal", "lift_fresh", "unique"}


@pytest.mark.parametrize("data", ["flickr8k", "coco"])
@pytest.mark.parametrize("name", ["ada-lstm", "mh-fc"])
def test_recipes_differ_from_their_base_in_how_they_train(data, name):
    base = read_recipe(RECIPES / f"{data}-{name}-vgg16.toml")
    tuned = read_recipe(RECIPES / f"{data}-{name}-vgg16-lrp-ift.toml")
    assert (tuned.relevance.weights, tuned.relevance.cross_entropy) == ("lrp", 0.5)
    assert tuned == replace(
        base,
        name=tuned.name,
        augmentation=tuned.augmentation,
        encoder=tuned.encoder,
        training=tuned.training,
        relevance=tuned.relevance,
    )
