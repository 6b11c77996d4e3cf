"""LRP of whole captioners: the explained model is the model itself, and its relevance is conserved."""

from __future__ import annotations

import dataclasses
import functools
from copy import deepcopy
from types import MethodType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tiny
from saywhy import encoders
from saywhy.captioners import Captioner, build, captioners
from saywhy.data.tokenizer import PAD
from saywhy.encoders.base import calibrate_batch_norm
from saywhy.errors import UserError
from saywhy.explain.composites import Composite, composites
from saywhy.explain.explanation import Budget
from saywhy.explain.methods import FEATURE_METHODS, METHODS, attribute
from saywhy.explain.passes import Relevance, Targets, run_gradients
from tracing import (
    ROUNDING,
    assert_close,
    conservation_errors,
    inputs,
    make_targets,
    randn,
    relevance_of,
)

VARIANTS = {tiny.label(variant): variant for variant in tiny.variants()}
PARTS = [field.name for field in dataclasses.fields(Relevance)]
ENCODERS = {  # with a small input size
    "alexnet": 64,
    "vgg16": 32,
    "resnet50": 64,
    "densenet201": 64,
    "googlenet": 64,
    "inception-v3": 96,
    "mobilenet-v2": 64,
    "efficientnet-lite0": 64,
    "timm:vit_tiny_patch16_224": 32,
    "timm:convnext_atto": 64,
    "timm:mobilenetv3_small_050": 64,
    "timm:test_efficientnet": 64,
    "timm:test_vit": 64,
}
FURTHER = {  # slow: more networks of the same families
    "vgg19": 32,
    "vgg19-normalised": 32,
    "resnet50-keras": 64,
    "resnet101": 64,
    "resnet152": 64,
    "densenet121": 64,
    "inception-v3-fid": 96,
    "efficientnet-lite1": 64,
    "efficientnet-lite2": 64,
    "timm:resnet18": 64,
    "timm:regnetx_002": 64,
    "timm:efficientnet_b0": 64,
    "timm:deit_tiny_patch16_224": 32,
    "timm:eva02_tiny_patch14_224": 56,
}


def some_targets(images: int = 3) -> Targets:
    return make_targets(tiny.captions(images)[:, :-1], (0, 4), (5, 7))


def plain_logits(captioner: Captioner, pixels: Tensor, boxes: Tensor | None, tokens: Tensor) -> Tensor:
    with torch.no_grad():
        return captioner(captioner.encode(pixels, boxes), tokens)[0]


def with_encoder(name: str, size: int) -> Captioner:
    return deepcopy(_with_encoder(name, size))


@functools.lru_cache(maxsize=1)  # tests of one encoder run consecutively
def _with_encoder(name: str, size: int) -> Captioner:
    """As if trained: no bias is 0 and no scale is 0 or 1, as some are after initialisation."""
    torch.manual_seed(0)
    encoder = encoders.build(name, weights=None, size=size)
    for part, values in encoder.named_parameters():
        if values.ndim == 1:
            nn.init.normal_(values, 0, 0.1) if part.endswith("bias") else nn.init.uniform_(values, 0.5, 1.5)
    calibrate_batch_norm(encoder)
    return build("soft-attention", encoder, tiny.WORDS, **tiny.settings("soft-attention")).eval()


def check(captioner: Captioner, pixels: Tensor, boxes: Tensor | None, composite: Composite | None = None) -> None:
    """The logits are those of the plain model, and relevance is conserved."""
    targets = some_targets(len(pixels))
    forward, relevance = relevance_of(captioner, pixels, boxes, targets, composite)
    expected = plain_logits(captioner, pixels, boxes, targets.tokens)
    within = 1e-4 if expected.dtype == torch.float32 else 1e-10
    torch.testing.assert_close(forward.logits.detach(), expected, rtol=within, atol=within)
    assert max(conservation_errors(forward, relevance)) <= 1
    assert relevance.features.abs().amax(dim=-1).min() > 0
    assert relevance.pixels is None or relevance.pixels.abs().amax(dim=(-1, -2)).min() > 0


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
@pytest.mark.parametrize("kind", ["grid", "regions"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_captioner_keeps_its_logits_and_conserves_relevance(variant, kind, dtype):
    name, settings = VARIANTS[variant]
    captioner = tiny.sensitive_captioner(name, **settings).to(dtype)
    check(captioner, *inputs(captioner, kind))


@pytest.mark.parametrize("variant", [name for name in VARIANTS if name in captioners])
def test_relevance_of_regions_pooled_from_a_grid_reaches_pixels(variant):
    captioner = tiny.sensitive_captioner(variant)
    check(captioner, tiny.pixels(3), tiny.features(3, kind="regions").boxes)


@pytest.mark.parametrize("mode", ["sampled", "argmax"])
def test_hard_attention_conserves_relevance_in_every_mode(mode):
    captioner = tiny.sensitive_captioner("hard-attention").double()
    with captioner.using_attention(mode):
        check(captioner, *inputs(captioner, "grid"))


def test_relevance_is_conserved_without_an_image():
    captioner = tiny.sensitive_captioner("soft-attention", no_image="learned").double()
    rows = torch.tensor([True, False, True])
    encode = captioner.encoder.encode_normalised
    captioner.encoder.encode_normalised = lambda x, boxes=None: captioner.without_image(encode(x, boxes), rows)
    forward, relevance = relevance_of(captioner, tiny.pixels(3), None, some_targets())
    assert max(conservation_errors(forward, relevance)) <= 1
    assert not relevance.pixels[:, rows].any()
    assert relevance.pixels[:, ~rows].abs().max() > 0
    assert_close(relevance.absorbed_by_encoder[:, rows], relevance.features[:, rows].sum(dim=-1))


def assert_conserves(name: str, size: int) -> None:
    captioner = with_encoder(name, size)
    for dtype in ROUNDING:
        check(captioner.to(dtype), tiny.pixels(2, size), None)


@pytest.mark.parametrize("name", ENCODERS)
def test_every_encoder_family_conserves_relevance_to_pixels(name):
    assert_conserves(name, ENCODERS[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", FURTHER)
def test_further_encoders_conserve_relevance_to_pixels(name):
    assert_conserves(name, FURTHER[name])


def test_every_registered_encoder_is_tested():
    assert {spec.name for spec in encoders.registered()} <= {*ENCODERS, *FURTHER}


@pytest.mark.parametrize("composite", composites)
@pytest.mark.parametrize(
    ("name", "size"), [("efficientnet-lite0", 40), ("timm:test_resnet", 64), ("timm:test_vit", 64)]
)
def test_every_composite_conserves_relevance(name, size, composite):
    check(with_encoder(name, size).double(), tiny.pixels(2, size), None, composites[composite])


@pytest.mark.parametrize(
    "composite", [Composite(epsilon=0), Composite(epsilon=0.3, relative_epsilon=True), Composite(alpha=3.0)]
)
def test_custom_composites_conserve_relevance(composite):
    check(with_encoder("timm:test_resnet", 64).double(), tiny.pixels(2), None, composite)


def test_composite_of_the_paper_absorbs_nothing_in_convolutions():
    captioner, shares = with_encoder("alexnet", 64).double(), []
    for name in ("paper", "epsilon-plus"):
        _, relevance = relevance_of(captioner, tiny.pixels(2), None, some_targets(2), composites[name])
        shares.append(float((relevance.absorbed_by_encoder / relevance.features.sum(dim=-1)).abs().max()))
    assert shares[0] < 1e-6
    assert shares[1] > 0.01


def assert_words_per_pass_changes_nothing(captioner: Captioner, *arguments: Any) -> None:
    one, two, many = (relevance_of(captioner.double(), *arguments, words_per_pass=words)[1] for words in (1, 2, 16))
    for part in PARTS:
        if getattr(one, part) is not None:
            assert_close(getattr(many, part), getattr(one, part))
            assert_close(getattr(two, part), getattr(one, part))


@pytest.mark.parametrize("kind", ["grid", "regions"])
@pytest.mark.parametrize("name", ["soft-attention", "ada-lstm", "mh-fc", "coca"])
def test_number_of_words_per_pass_changes_nothing(name, kind):
    captioner = tiny.sensitive_captioner(name).double()
    assert_words_per_pass_changes_nothing(captioner, *inputs(captioner, kind), some_targets())


@pytest.mark.parametrize("composite", composites.values(), ids=composites)
def test_number_of_words_per_pass_changes_nothing_in_convolutions(composite):
    captioner = with_encoder("timm:test_resnet", 64)
    assert_words_per_pass_changes_nothing(captioner, tiny.pixels(2), None, some_targets(2), composite)


@pytest.mark.parametrize("kind", ["grid", "regions of pixels", "regions"])
@pytest.mark.parametrize("name", ["soft-attention", "ada-lstm", "mh-fc", "coca"])
def test_without_pixels_everything_over_features_is_the_same(name, kind):
    captioner, within = tiny.sensitive_captioner(name), 1e-9
    if kind == "regions of pixels":
        pixels, boxes, within = tiny.pixels(3), tiny.features(3, kind="regions").boxes, 1e-4
    else:
        pixels, boxes = inputs(captioner.double(), kind)
    targets = some_targets()
    to_pixels, to_features = (
        attribute(captioner, pixels, boxes, targets, METHODS, Composite(conv_bias=True), to_pixels=flag)
        for flag in (True, False)
    )
    for part in ("features", "tokens", "initial_state", "absorbed"):
        assert_close(getattr(to_features.relevance, part), getattr(to_pixels.relevance, part), within)
    weighting = {"lrp", "gradient-input"} if captioner.propagates_through_attention else set(METHODS) - {"attention"}
    assert to_pixels.earlier_words.keys() == to_features.earlier_words.keys() == weighting
    for method, weights in to_pixels.earlier_words.items():
        assert_close(to_features.earlier_words[method], weights, within)
        assert weights.abs().max() > 0
    for part in ("scores", "probabilities", "log_p", "alpha"):
        assert_close(getattr(to_features, part), getattr(to_pixels, part), within)
    over_pixels = set(METHODS) - {*FEATURE_METHODS} if kind != "regions" else set()
    assert to_features.maps.keys() == set(METHODS) - over_pixels
    for method, values in to_features.maps.items():
        assert_close(values, to_pixels.maps[method], within)
    assert to_features.relevance.pixels is None
    assert not to_features.relevance.absorbed_by_encoder.any()


@pytest.mark.parametrize("name", ["soft-attention", "ada-lstm", "mh-fc", "coca"])
def test_image_share_equals_that_of_the_budget(name):
    _, relevance = relevance_of(tiny.sensitive_captioner(name).double(), tiny.pixels(2), None, some_targets(2))
    for k, row in [(0, 0), (1, 1)]:
        tokens, initial_state = relevance.tokens[k, row], float(relevance.initial_state[k, row])
        image, earlier_words = float(relevance.features[k, row].sum()), float(tokens[1:].sum())
        budget = Budget(image, earlier_words, float(tokens[0]) + initial_state, absorbed=9.9)
        assert float(relevance.image_share()[k, row]) == pytest.approx(budget.image_share)
        assert 0 < abs(budget.image_share) < 1


@pytest.mark.parametrize("kind", ["grid", "regions"])
@pytest.mark.parametrize("name", ["soft-attention", "ada-lstm", "mh-fc", "coca"])
def test_images_and_captions_of_a_batch_are_explained_as_if_alone(name, kind):
    captioner = tiny.sensitive_captioner(name).double()
    pixels, boxes = inputs(captioner, kind, 4)
    tokens = tiny.captions(4)[:, :-1]
    lengths = (3, 7, 1, 5)
    for row, length in enumerate(lengths):
        tokens[row, length:] = PAD
    positions = torch.tensor([[0, length // 2, length - 1] for length in lengths])
    words = torch.tensor([[5, 7, 9]] * 4)
    _, together = relevance_of(captioner, pixels, boxes, Targets(tokens, positions, words, torch.full_like(words, -1)))
    for row, length in enumerate(lengths):
        one = slice(row, row + 1)
        targets = Targets(tokens[one, :length], positions[one], words[one], torch.full_like(words[one], -1))
        _, alone = relevance_of(captioner, pixels[one], None if boxes is None else boxes[one], targets)
        for part in PARTS:
            value, expected = getattr(together, part), getattr(alone, part)
            if part == "tokens":
                assert not value[:, row, length:].any()
                value = value[:, :, :length]
            if expected is not None:
                assert_close(value[:, row], expected[:, 0])


@pytest.mark.parametrize("name", ["soft-attention", "ada-lstm", "mh-fc"])
def test_stepwise_forward_is_explained_like_the_parallel_one(name):
    captioner = tiny.sensitive_captioner(name).double()
    pixels, tokens = tiny.pixels(3), tiny.captions(3)[:, :-1]
    tokens[1, 5:] = PAD
    _, parallel = relevance_of(captioner, pixels, None, make_targets(tokens))
    captioner.forward = MethodType(Captioner.forward, captioner)
    _, stepwise = relevance_of(captioner, pixels, None, make_targets(tokens))
    for part in PARTS:
        assert_close(getattr(stepwise, part), getattr(parallel, part))


@pytest.mark.parametrize(
    ("name", "encoder", "default"),
    [("ada-lstm", "grid", "constant"), ("coca", "grid", "attnlrp"), ("soft-attention", "vit", "attnlrp")],
)
def test_attention_weights_are_constants_except_in_transformers(name, encoder, default):
    captioner = tiny.sensitive_captioner(name) if encoder == "grid" else with_encoder("timm:test_vit", 64)
    pixels = {}
    for attention in (None, "constant", "attnlrp"):
        composite = Composite(attention=attention)
        _, relevance = relevance_of(captioner.double(), tiny.pixels(2), None, some_targets(2), composite)
        pixels[attention] = relevance.pixels
    other = "constant" if default == "attnlrp" else "attnlrp"
    if encoder == "grid":  # the composite applies to encoder and decoder alike
        assert_close(pixels[None], pixels[default])
    assert (pixels[None] - pixels[other]).abs().max() > 1e-4 * pixels[None].abs().max()


def sensitivity(parameter: str, captioner: Captioner, kind: str) -> tuple[float, float]:
    """How much the targets' logits and their explanation change with a parameter."""
    pixels, boxes = inputs(captioner, kind, 2)
    results = []
    for size in (0.0, 0.1):
        with torch.no_grad():
            weight = captioner.get_parameter(parameter)
            weight += size * randn(*weight.shape, seed=3)
        results.append(relevance_of(captioner, pixels, boxes, make_targets(tiny.captions(2)[:, :-1], [4], [7])))
    (forward, relevance), (changed_forward, changed_relevance) = results
    pairs = [(getattr(relevance, part), getattr(changed_relevance, part)) for part in PARTS]
    changes = [float((before - after).abs().max()) for before, after in pairs if before is not None]
    return float((changed_forward.scores - forward.scores).detach().abs().max()), max(changes)


@pytest.mark.parametrize("name", ["soft-attention", "ada-lstm", "mh-fc", "coca"])
def test_a_weight_changes_the_explanation_exactly_if_it_changes_the_logits(name):
    captioner = tiny.sensitive_captioner(name).double()
    for name in [name for name, _ in captioner.named_parameters() if not name.startswith("encoder.")]:
        logits, explanation = sensitivity(name, captioner, "regions")
        has_influence = not name.startswith("contrastive.")  # a head of CoCa that does not caption
        assert (logits > 1e-9, explanation > 1e-9) == (has_influence, has_influence), name


def test_every_encoder_weight_changes_logits_and_explanation():
    captioner = with_encoder("timm:test_resnet", 64).double()
    names = [name for name, _ in captioner.named_parameters() if name.startswith("encoder.")]
    assert len(names) > 20
    for name in names[::4]:
        assert min(sensitivity(name, captioner, "grid")) > 1e-9, name


class Cosine(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cos(x)


def test_encoder_with_a_function_without_a_rule_still_has_gradients():
    captioner = with_encoder("timm:test_resnet", 64)
    captioner.encoder.body.maxpool = Cosine()
    with pytest.raises(UserError, match="cos"):
        relevance_of(captioner, tiny.pixels(2), None, some_targets(2))
    forward, _ = run_gradients(captioner, tiny.pixels(2), None, some_targets(2), words_per_pass=1)
    assert forward.decoder_gradients()[0].abs().max() > 0


def relevance_of_ones(pixels: Tensor | None = None, **parts: Tensor) -> Relevance:
    """Relevance 1 of features and tokens, 0 of all else, of one word of two images."""
    ones, zeros = torch.ones(1, 2, 1), torch.zeros(1, 2)
    return dataclasses.replace(Relevance(pixels, ones, ones, zeros, zeros, zeros), **parts)


def test_relevance_that_is_not_conserved_is_refused():
    relevance = relevance_of_ones()
    relevance.check_conservation(torch.full((1, 2), 2.0))
    with pytest.raises(UserError, match=r"^relevance is not conserved: parts sum to 2, score is 2.5 \(word 'dog'\)"):
        relevance.check_conservation(torch.tensor([[2.0, 2.5]]), [["a"], ["dog"]])
    with pytest.raises(UserError, match=r"parts sum to 3, relevance of the image features is 1"):
        relevance_of_ones(torch.full((1, 2, 1, 1), 3.0)).check_conservation(torch.full((1, 2), 2.0))


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("part", ["features", "tokens", "absorbed", "pixels", "absorbed_by_encoder", "scores"])
def test_relevance_that_is_not_finite_is_refused(part, value):
    relevance, scores = relevance_of_ones(torch.ones(1, 2, 1, 1)), torch.full((1, 2), 2.0)
    relevance.check_conservation(scores)
    if part == "scores":
        scores = torch.tensor([[2.0, value]])
    else:
        bad = getattr(relevance, part).clone()
        bad[0, 1] = value
        relevance = dataclasses.replace(relevance, **{part: bad})
    with pytest.raises(UserError, match="relevance is not conserved"):
        relevance.check_conservation(scores)


def test_weights_that_are_not_finite_are_refused():
    captioner = tiny.sensitive_captioner()
    captioner.L_o.weight.data[7] = torch.nan
    with pytest.raises(UserError, match="relevance is not conserved: parts sum to nan"):
        relevance_of(captioner, tiny.pixels(2), None, some_targets(2))
