"""Relevance through whole models: the model explained is the model, its books balance, and nothing goes unseen."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from copy import deepcopy
from types import MethodType

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import tiny
from saywhy import encoders
from saywhy.captioners import Captioner, build, captioners
from saywhy.data.vocabulary import PAD
from saywhy.encoders.initial import settle_batch_norm
from saywhy.errors import UserError
from saywhy.explain.composites import Composite, composites
from saywhy.explain.explanation import Budget
from saywhy.explain.methods import METHODS, OVER_PLACES, explain
from saywhy.explain.passes import Question, Relevances, run_gradients
from tracing import DOUBLE, ROUNDING, TracingMode, asked, close, inputs, random, relevances, traced, unbalanced

VARIANTS = {tiny.label(variant): variant for variant in tiny.variants()}
PARTS = [field.name for field in dataclasses.fields(Relevances)]
ENCODERS = {  # with the side of the smallest image that is worth the while
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
RARER = {  # more of the same kinds, too dear for every day
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


def question(images: int = 3) -> Question:
    return asked(tiny.captions(images)[:, :-1], (0, 4), (5, 7))


def plain_logits(captioner: Captioner, pixels: Tensor, boxes: Tensor | None, said: Tensor) -> Tensor:
    with torch.no_grad():
        return captioner(captioner.encode(pixels, boxes), said)[0]


def with_encoder(name: str, size: int) -> Captioner:
    return deepcopy(_with_encoder(name, size))


@functools.lru_cache(maxsize=1)  # tests of one encoder come one after the other
def _with_encoder(name: str, size: int) -> Captioner:
    """As if trained: no bias is 0, and no scale 1, or 0 as those of the last norms of timm's residual branches."""
    torch.manual_seed(0)
    eyes = encoders.build(name, weights=None, size=size)
    for part, values in eyes.named_parameters():
        if values.ndim == 1:
            nn.init.normal_(values, 0, 0.1) if part.endswith("bias") else nn.init.uniform_(values, 0.5, 1.5)
    settle_batch_norm(eyes)
    return build("soft-attention", eyes, tiny.WORDS, **tiny.settings("soft-attention")).eval()


def check(captioner: Captioner, pixels: Tensor, boxes: Tensor | None, rules: Composite | None = None) -> None:
    """Logits are the model's own, and the books balance."""
    asking = question(len(pixels))
    forward, found = relevances(captioner, pixels, boxes, asking, rules)
    expected = plain_logits(captioner, pixels, boxes, asking.said)
    within = 1e-4 if expected.dtype == torch.float32 else 1e-10
    torch.testing.assert_close(forward.logits.detach(), expected, rtol=within, atol=within)
    of_decoder, of_encoder = unbalanced(forward, found)
    assert of_decoder <= 1
    assert of_encoder <= 1
    assert found.places.abs().amax(dim=-1).min() > 0
    assert found.pixels is None or found.pixels.abs().amax(dim=(-1, -2)).min() > 0


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
@pytest.mark.parametrize("kind", ["grid", "regions"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_of_every_captioner_logits_are_the_models_own_and_the_books_balance(variant, kind, dtype):
    name, chosen = VARIANTS[variant]
    captioner = tiny.opinionated(name, **chosen).to(dtype)
    check(captioner, *inputs(captioner, kind))


@pytest.mark.parametrize("variant", [name for name in VARIANTS if name in captioners])
def test_regions_cut_out_of_a_grid_are_explained_down_to_pixels(variant):
    captioner = tiny.opinionated(variant)
    check(captioner, tiny.pixels(3), tiny.features(3, kind="regions").boxes)


@pytest.mark.parametrize("attend", ["sampled", "argmax"])
def test_hard_attention_is_explained_as_it_looks(attend):
    captioner = tiny.opinionated("hard-attention").double()
    with captioner.attention_mode_set(attend):
        check(captioner, *inputs(captioner, "grid"))


def test_without_a_image_the_books_balance_too():
    captioner = tiny.opinionated("soft-attention", no_image="learned").double()
    rows = torch.tensor([True, False, True])
    see = captioner.encoder.encode_normalised
    captioner.encoder.encode_normalised = lambda x, boxes=None: captioner.without_image(see(x, boxes), rows)
    forward, found = relevances(captioner, tiny.pixels(3), None, question())
    assert max(unbalanced(forward, found)) <= 1
    assert not found.pixels[:, rows].any()
    assert found.pixels[:, ~rows].abs().max() > 0
    close(found.absorbed_by_encoder[:, rows], found.places[:, rows].sum(dim=-1))


def explained_by(name: str, size: int) -> None:
    captioner = with_encoder(name, size)
    for dtype in ROUNDING:
        check(captioner.to(dtype), tiny.pixels(2, size), None)


@pytest.mark.parametrize("name", ENCODERS)
def test_of_every_family_of_encoders_the_books_balance_down_to_pixels(name):
    explained_by(name, ENCODERS[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", RARER)
def test_of_rarer_encoders_the_books_balance_down_to_pixels(name):
    explained_by(name, RARER[name])


def test_every_registered_encoder_is_among_those_tested():
    assert {card.name for card in encoders.registered()} <= {*ENCODERS, *RARER}


@pytest.mark.parametrize("composite", composites)
@pytest.mark.parametrize(
    ("name", "size"), [("efficientnet-lite0", 40), ("timm:test_resnet", 64), ("timm:test_vit", 64)]
)
def test_by_every_composite_the_books_balance(name, size, composite):
    check(with_encoder(name, size).double(), tiny.pixels(2, size), None, composites[composite])


@pytest.mark.parametrize("rules", [Composite(epsilon=0), Composite(epsilon=0.3, relative=True), Composite(alpha=3.0)])
def test_by_rules_of_ones_own_the_books_balance(rules):
    check(with_encoder("timm:test_resnet", 64).double(), tiny.pixels(2), None, rules)


def test_in_the_papers_way_convolutions_keep_nothing():
    captioner, shares = with_encoder("alexnet", 64).double(), []
    for name in ("paper", "epsilon-plus"):
        _, found = relevances(captioner, tiny.pixels(2), None, question(2), composites[name])
        shares.append(float((found.absorbed_by_encoder / found.places.sum(dim=-1)).abs().max()))
    assert shares[0] < 1e-6
    assert shares[1] > 0.01


@pytest.mark.parametrize("kind", ["grid", "regions"])
@pytest.mark.parametrize("name", ["soft-attention", "ada-lstm", "mh-fc", "coca"])
def test_words_explained_one_at_a_time_and_many_at_a_time_are_explained_alike(name, kind):
    captioner = tiny.opinionated(name).double()
    pixels, boxes = inputs(captioner, kind)
    one, many, some = (relevances(captioner, pixels, boxes, question(), chunk=chunk)[1] for chunk in (1, 16, 2))
    for part in PARTS:
        if getattr(one, part) is not None:
            close(getattr(many, part), getattr(one, part))
            close(getattr(some, part), getattr(one, part))


@pytest.mark.parametrize("kind", ["grid", "regions of pixels", "regions"])
@pytest.mark.parametrize("name", ["soft-attention", "ada-lstm", "mh-fc", "coca"])
def test_without_a_way_to_pixels_earlier_words_budgets_and_maps_over_places_are_the_same(name, kind):
    captioner, within = tiny.opinionated(name), 1e-9
    if kind == "regions of pixels":
        pixels, boxes, within = tiny.pixels(3), tiny.features(3, kind="regions").boxes, 1e-4
    else:
        pixels, boxes = inputs(captioner.double(), kind)
    asking = question()
    whole, short = (
        explain(captioner, pixels, boxes, asking, METHODS, Composite(conv_bias=True), 1, to_pixels=to_pixels)
        for to_pixels in (True, False)
    )
    for part in ("places", "said", "start", "absorbed"):
        close(getattr(short.relevances, part), getattr(whole.relevances, part), within)
    weighed = {"lrp", "gradient-input"} if captioner.propagates_through_attention else set(METHODS) - {"attention"}
    assert whole.earlier.keys() == short.earlier.keys() == weighed
    for method, weights in whole.earlier.items():
        close(short.earlier[method], weights, within)
        assert weights.abs().max() > 0
    for part in ("scores", "probabilities", "log_p", "alpha"):
        close(getattr(short, part), getattr(whole, part), within)
    over_pixels = set(METHODS) - {*OVER_PLACES} if kind != "regions" else set()
    assert short.maps.keys() == set(METHODS) - over_pixels
    for method, values in short.maps.items():
        close(values, whole.maps[method], within)
    assert short.relevances.pixels is None
    assert not short.relevances.absorbed_by_encoder.any()


@pytest.mark.parametrize("name", ["soft-attention", "ada-lstm", "mh-fc", "coca"])
def test_the_share_of_the_image_is_that_of_its_budget(name):
    _, found = relevances(tiny.opinionated(name).double(), tiny.pixels(2), None, question(2))
    for k, row in [(0, 0), (1, 1)]:
        said = found.said[k, row]
        budget = Budget(
            float(found.places[k, row].sum()), float(said[1:].sum()), float(said[0] + found.start[k, row]), 9.9
        )
        assert float(found.image_share()[k, row]) == pytest.approx(budget.share)
        assert 0 < abs(budget.share) < 1


@pytest.mark.parametrize("composite", composites)
def test_convolutions_too_are_explained_alike_one_word_at_a_time_and_many(composite):
    captioner = with_encoder("timm:test_resnet", 64).double()
    one, many = (
        relevances(captioner, tiny.pixels(2), None, question(2), composites[composite], chunk)[1] for chunk in (1, 16)
    )
    for part in PARTS:
        close(getattr(many, part), getattr(one, part))


@pytest.mark.parametrize("kind", ["grid", "regions"])
@pytest.mark.parametrize("name", ["soft-attention", "ada-lstm", "mh-fc", "coca"])
def test_captions_of_different_lengths_are_explained_as_each_alone(name, kind):
    captioner = tiny.opinionated(name).double()
    pixels, boxes = inputs(captioner, kind, 4)
    said = tiny.captions(4)[:, :-1]
    lengths = (3, 7, 1, 5)
    for row, length in enumerate(lengths):
        said[row, length:] = PAD
    places = torch.tensor([[0, length // 2, length - 1] for length in lengths])
    words = torch.tensor([[5, 7, 9]] * 4)
    _, together = relevances(captioner, pixels, boxes, Question(said, places, words, torch.full_like(words, -1)))
    for row, length in enumerate(lengths):
        these = slice(row, row + 1)
        alone = Question(said[these, :length], places[these], words[these], torch.full_like(words[these], -1))
        _, found = relevances(captioner, pixels[these], None if boxes is None else boxes[these], alone)
        for part in PARTS:
            value, expected = getattr(together, part), getattr(found, part)
            if part == "said":
                assert not value[:, row, length:].any()
                value = value[:, :, :length]
            if expected is not None:
                close(value[:, row], expected[:, 0])


@pytest.mark.parametrize("name", ["soft-attention", "ada-lstm", "mh-fc"])
def test_a_captioner_that_reads_word_by_word_is_explained_as_one_that_reads_all_at_once(name):
    captioner = tiny.opinionated(name).double()
    pixels, said = tiny.pixels(3), tiny.captions(3)[:, :-1]
    said[1, 5:] = PAD
    _, at_once = relevances(captioner, pixels, None, asked(said))
    captioner.forward = MethodType(Captioner.forward, captioner)
    _, by_word = relevances(captioner, pixels, None, asked(said))
    for part in PARTS:
        close(getattr(by_word, part), getattr(at_once, part))


@pytest.mark.parametrize(
    ("name", "encoder", "usual"),
    [("ada-lstm", "grid", "constant"), ("coca", "grid", "attnlrp"), ("soft-attention", "vit", "attnlrp")],
)
def test_attention_weights_are_constants_but_in_transformers(name, encoder, usual):
    captioner = tiny.opinionated(name) if encoder == "grid" else with_encoder("timm:test_vit", 64)
    found = {}
    for attention in (None, "constant", "attnlrp"):
        rules = Composite(attention=attention)
        found[attention] = relevances(captioner.double(), tiny.pixels(2), None, question(2), rules)[1].pixels
    other = "constant" if usual == "attnlrp" else "attnlrp"
    if encoder == "grid":  # there a composite's word is law for encoder and decoder alike
        close(found[None], found[usual])
    assert (found[None] - found[other]).abs().max() > 1e-4 * found[None].abs().max()


def moves_with(part: str, captioner: Captioner, kind: str) -> tuple[float, float]:
    """How far the logits in question move when some of the weights do, and how far their explanation."""
    pixels, boxes = inputs(captioner, kind, 2)
    ends = []
    for by in (0.0, 0.1):
        with torch.no_grad():
            weight = captioner.get_parameter(part)
            weight += by * random(*weight.shape, seed=3)
        ends.append(relevances(captioner, pixels, boxes, asked(tiny.captions(2)[:, :-1], [4], [7])))
    (before, was), (after, now) = ends
    told = [(getattr(was, each), getattr(now, each)) for each in PARTS]
    moved = [float((one - other).abs().max()) for one, other in told if one is not None]
    return float((after.scores - before.scores).detach().abs().max()), max(moved)


@pytest.mark.parametrize("name", ["soft-attention", "ada-lstm", "mh-fc", "coca"])
def test_a_weight_that_changes_the_logits_changes_the_explanation_and_no_other_does(name):
    captioner = tiny.opinionated(name).double()
    for part in [part for part, _ in captioner.named_parameters() if not part.startswith("encoder.")]:
        logits, explanation = moves_with(part, captioner, "regions")
        silent = part.startswith("contrastive.")  # the head of CoCa that has no say in captions
        assert (logits > 1e-9, explanation > 1e-9) == (not silent, not silent), part


def test_a_weight_of_the_encoder_changes_logits_and_explanation_alike():
    captioner = with_encoder("timm:test_resnet", 64).double()
    parts = [part for part, _ in captioner.named_parameters() if part.startswith("encoder.")]
    assert len(parts) > 20
    for part in parts[::4]:
        assert min(moves_with(part, captioner, "grid")) > 1e-9, part


def test_the_explanation_of_a_image_does_not_change_with_its_neighbours():
    captioner = with_encoder("timm:test_resnet", 64).double()
    pixels, asking = tiny.pixels(3), question(3)
    _, three = relevances(captioner, pixels, None, asking)
    for row in range(3):
        these = slice(row, row + 1)
        alone = Question(asking.said[these], asking.places[these], asking.words[these], asking.instead[these])
        _, one = relevances(captioner, pixels[these], None, alone)
        for part in PARTS:
            close(getattr(one, part)[:, 0], getattr(three, part)[:, row])


class Odd(nn.Module):
    """A convolution, and then something."""

    def __init__(self, then: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.then = then

    def forward(self, x: Tensor) -> Tensor:
        return self.then(self.conv(x))


def odd(then: Callable[[Tensor], Tensor]) -> TracingMode:
    return traced(Odd(then).double(), random(2, 3, 6, 6), Composite(conv_bias=True))


WITHOUT_RULES = {
    "cos": torch.cos,
    "square": torch.square,
    "exp": Tensor.exp,
    "prod": lambda x: x.prod(dim=1),
    "maximum": lambda x: torch.maximum(x, -x),
    "pow": lambda x: x**2,
    "lp_pool2d": lambda x: F.lp_pool2d(x, 2, 2),
}


@pytest.mark.parametrize("name", WITHOUT_RULES)
def test_relevance_that_reaches_a_function_without_a_rule_raises_and_names_it(name):
    with pytest.raises(UserError, match=rf"no rule for .*{name}"):
        odd(WITHOUT_RULES[name])


def test_a_function_without_a_rule_whose_result_is_a_gate_may_do_as_it_likes():
    found = odd(lambda x: torch.sigmoid(torch.cos(x)) * x)
    assert found.imbalance < 1e-9


class Cosine(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cos(x)


def test_an_encoder_with_such_a_function_cannot_be_explained_but_still_has_gradients():
    captioner = with_encoder("timm:test_resnet", 64)
    captioner.encoder.body.maxpool = Cosine()
    with pytest.raises(UserError, match="cos"):
        relevances(captioner, tiny.pixels(2), None, question(2))
    forward, _ = run_gradients(captioner, tiny.pixels(2), None, question(2), chunk=1)
    assert forward.from_words()[0].abs().max() > 0


def scattered(x: Tensor) -> Tensor:
    whole = torch.ones_like(x)
    whole[:, :2] = x[:, :2]
    return whole


def part_in_place(x: Tensor) -> Tensor:
    x[:, :2].relu_()
    return x * 1.0


def same_numbers_in_place(x: Tensor) -> Tensor:
    x.flatten(1).mul_(2.0)
    return x * 1.0


BOOKED_OR_REFUSED = {
    "the larger of two": lambda x: torch.max(x, -x),
    "the larger of it and one": lambda x: torch.max(x, torch.ones_like(x)),
    "the smaller of it and one": lambda x: torch.min(x, torch.ones_like(x)),
    "a part of it in place": part_in_place,
    "the same numbers in another shape, in place": same_numbers_in_place,
    "a number by it": lambda x: 1 / (x + 9),
    "asked for a gradient": lambda x: x.requires_grad_() * 2,
    "chunk": lambda x: x.chunk(2, dim=1)[0] + x.chunk(2, dim=1)[1],
    "unbind": lambda x: torch.stack(x.unbind(dim=1), dim=2),
    "split": lambda x: torch.cat(x.split(3, dim=1), dim=1),
    "max over an axis": lambda x: x.max(dim=1).values,
    "variance and mean": lambda x: torch.var_mean(x, dim=1)[0],
    "deviation and mean": lambda x: torch.std_mean(x, dim=1)[0] * x[:, 0],
    "a product by keyword": lambda x: torch.bmm(x[:, 0], mat2=x[:, 1]),
    "a product of a list": lambda x: torch.einsum("bij, bjk -> bik", [x[:, 0], x[:, 1]]),
    "padding with zeros": lambda x: F.pad(x, (1, 1)),
    "padding with ones": lambda x: F.pad(x, (1, 1), value=1.0),
    "filled with zeros": lambda x: x.masked_fill(x > 0.2, 0.0),
    "filled with ones": lambda x: x.masked_fill(x > 0.2, 1.0),
    "zeros elsewhere": lambda x: torch.where(x > 0.2, x, 0.0),
    "ones elsewhere": lambda x: torch.where(x > 0.2, x, 1.0),
    "ones elsewhere, as a tensor": lambda x: torch.where(x > 0.2, x, torch.ones_like(x)),
    "written into ones": scattered,
    "joined to ones": lambda x: torch.cat([x, torch.ones_like(x)], dim=1),
    "never below a half": lambda x: (x * (x > 0)).clamp(min=0.5),
    "a number less": lambda x: 3 - x,
    "with a float mask": lambda x: (x + torch.zeros(6, 6, dtype=DOUBLE)).softmax(dim=-1) * x,
}


@pytest.mark.parametrize("name", BOOKED_OR_REFUSED)
def test_relevance_is_booked_to_the_last_bit_or_refused(name):
    try:
        found = odd(BOOKED_OR_REFUSED[name])
    except UserError:
        return
    close(found.out, Odd(BOOKED_OR_REFUSED[name]).double()(random(2, 3, 6, 6)).detach())
    assert found.imbalance < 1e-9


def relu_in_place(x: Tensor) -> Tensor:
    x.relu_()
    return x.flatten(1)


def added_in_place(x: Tensor) -> Tensor:
    x.add_(1.0)
    return x.flatten(1)


def aliased(x: Tensor) -> Tensor:
    y = F.relu(x, inplace=True)
    return x + y


def times_in_place(x: Tensor) -> Tensor:
    x *= 2.0
    return x


IN_PLACE = {
    "nn.ReLU in place": nn.ReLU(inplace=True),
    "+=": lambda x: x.__iadd__(1.0),
    "/=": lambda x: x.__itruediv__(2.0),
    "*=": times_in_place,
    "mul_ by a gate": lambda x: x.mul_(x.sigmoid()),
    "relu_, its result not taken up": relu_in_place,
    "add_, its result not taken up": added_in_place,
    "a ReLU in place, and the input used after it": aliased,
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_what_is_done_in_place_is_done_for_the_explained_model_too(name):
    found = odd(IN_PLACE[name])
    close(found.out, Odd(IN_PLACE[name]).double()(random(2, 3, 6, 6)).detach())
    assert found.imbalance < 1e-9


def test_a_batch_norm_of_vectors_is_explained():
    norm = nn.BatchNorm1d(4).double().eval()
    norm.running_mean.data, norm.bias.data = random(4), random(4, seed=1)
    for x in (random(3, 4), random(3, 4, 5)):
        found = traced(norm, x)
        close(found.out, norm(x).detach())
        assert found.imbalance < 1e-9


def test_books_that_do_not_balance_are_refused():
    right = Relevances(None, *(torch.ones(1, 2, 1) for _ in range(2)), *(torch.zeros(1, 2) for _ in range(3)))
    right.check_conservation(torch.full((1, 2), 2.0))
    with pytest.raises(UserError, match="do not balance"):
        right.check_conservation(torch.tensor([[2.0, 2.5]]))
