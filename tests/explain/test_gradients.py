"""Gradient methods: against captum on a CNN, against loops, and against finite differences through a captioner."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from captum.attr import GuidedBackprop, LayerGradCam
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import _get_current_function_mode_stack

import tiny
from saywhy import encoders
from saywhy.captioners import Captioner, build
from saywhy.data.vocabulary import PAD
from saywhy.encoders.features import Features
from saywhy.explain.composites import Composite
from saywhy.explain.gradients import GradientMode, GuidedMode, grad_cam
from saywhy.explain.lrp import Relevance
from saywhy.explain.methods import METHODS, explain
from saywhy.explain.passes import run_gradients
from saywhy.explain.tracing import TracingMode, now
from tracing import asked, close, inputs, random


class CNN(nn.Module):
    """A classifier of four classes over the last map of a few convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 8, 3, padding=1), nn.ReLU()),
            *(nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()),
        )
        self.classifier = nn.Linear(8 * 9, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).flatten(1))


@pytest.fixture
def cnn() -> CNN:
    torch.manual_seed(0)
    return CNN().double().eval()


def test_grad_cam_is_captums(cnn):
    x = random(2, 3, 12, 12)
    features = cnn.features(x)  # (B, D, rows, columns): the last map plays the features
    vectors = features.flatten(2).transpose(1, 2)  # (B, L, D)
    for target in range(4):
        score = cnn.classifier(vectors.transpose(1, 2).flatten(1))[:, target].sum()
        (g,) = torch.autograd.grad(score, vectors, retain_graph=True)
        found = grad_cam(vectors, g.unsqueeze(0)).squeeze(0)  # (B, L)
        expected = LayerGradCam(cnn, cnn.features).attribute(x, target, relu_attributions=True)
        close(found, expected.detach().flatten(1), within=1e-12)
    assert found.max() > 0


def guided(net: Callable[[Tensor], Tensor], x: Tensor, target: int | slice) -> Tensor:
    """The gradient of a class with respect to pixels, guided."""
    x, mode = x.clone().requires_grad_(), GuidedMode()
    with mode:
        score = net(x)[:, target].sum()
    with mode.guided():
        return torch.autograd.grad(score, x)[0]


def plain(net: Callable[[Tensor], Tensor], x: Tensor, target: int | slice) -> Tensor:
    x = x.clone().requires_grad_()
    return torch.autograd.grad(net(x)[:, target].sum(), x)[0]


def test_guided_backpropagation_is_captums(cnn):
    x = random(2, 3, 12, 12)
    for target in range(4):
        expected = GuidedBackprop(cnn).attribute(x.clone().requires_grad_(), target)
        close(guided(cnn, x, target), expected, within=1e-12)
        assert (expected - plain(cnn, x, target)).abs().max() > 1e-4


def test_a_pass_that_can_be_guided_has_the_plain_gradient_until_it_is(cnn):
    x, mode = random(2, 3, 12, 12).requires_grad_(), GuidedMode()
    with mode:
        score = cnn(x)[:, 1].sum()
    (before,) = torch.autograd.grad(score, x, retain_graph=True)
    with mode.guided():
        (during,) = torch.autograd.grad(score, x, retain_graph=True)
    (after,) = torch.autograd.grad(score, x)
    close(before, plain(cnn, x.detach(), 1))
    close(after, before)
    assert (during - before).abs().max() > 1e-4


class Three(nn.Module):
    """Three linear layers with rectifiers between them, of whatever kind."""

    def __init__(self, rectify: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.layers = nn.ModuleList([nn.Linear(5, 8), nn.Linear(8, 8), nn.Linear(8, 4)])
        self.rectify = rectify

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = self.rectify(layer(x))
        return self.layers[-1](x)


def by_loops(net: Three, x: np.ndarray, target: int, most: float) -> np.ndarray:
    """Guided backpropagation of one row, number by number: x ↦ min(max(x, 0), most) between the layers."""
    W = [layer.weight.detach().numpy() for layer in net.layers]
    b = [layer.bias.detach().numpy() for layer in net.layers]
    z1 = W[0] @ x + b[0]
    z2 = W[1] @ z1.clip(0, most) + b[1]
    g = W[2][target]
    for z, weights in ((z2, W[1]), (z1, W[0])):
        kept = np.zeros_like(z)
        for i in range(len(z)):
            if 0 < z[i] < most and g[i] > 0:
                kept[i] = g[i]
        g = kept @ weights
    return g


def clipped_in_place(x: Tensor) -> Tensor:
    return F.relu6(x, inplace=True)


def discarded(x: Tensor) -> Tensor:
    """In place, the result taken up by the name it had before."""
    torch.relu_(x)
    return x


RECTIFIERS: dict[str, tuple[Callable[[Tensor], Tensor], float]] = {
    "one nn.ReLU used twice": (nn.ReLU(), np.inf),
    "nn.ReLU in place": (nn.ReLU(inplace=True), np.inf),
    "F.relu": (F.relu, np.inf),
    "F.relu in place": (lambda x: F.relu(x, inplace=True), np.inf),
    "torch.relu": (torch.relu, np.inf),
    "torch.relu_": (torch.relu_, np.inf),
    "Tensor.relu": (Tensor.relu, np.inf),
    "Tensor.relu_": (Tensor.relu_, np.inf),
    "Tensor.relu_, its result not taken up": (discarded, np.inf),
    "nn.ReLU6": (nn.ReLU6(), 6.0),
    "nn.ReLU6 in place": (nn.ReLU6(inplace=True), 6.0),
    "F.relu6": (F.relu6, 6.0),
    "F.relu6 in place": (clipped_in_place, 6.0),
}


@pytest.mark.parametrize("name", RECTIFIERS)
def test_every_kind_of_rectifier_is_guided_as_loops_have_it(name):
    rectify, most = RECTIFIERS[name]
    net, x = Three(rectify).double(), 20 * random(4, 5, seed=5)
    with GuidedMode():
        close(net(x.clone().requires_grad_()).detach(), net(x).detach())
    for target in range(4):
        expected = [by_loops(net, row, target, most) for row in x.numpy()]
        close(guided(net, x, target), np.array(expected))
    if most == 6:
        assert (net.layers[0](x) > 6).any()


@pytest.mark.parametrize("rectify", [F.relu, F.relu6])
def test_where_a_rectifier_gets_nothing_no_gradient_goes_on(rectify):
    x = torch.tensor([[-1.0, 0.0, 2.0]], dtype=torch.float64)
    for gradient in (plain, guided):
        close(gradient(rectify, x, slice(None)), [[0.0, 0.0, 1.0]])


def test_a_rectifier_in_place_rectifies_for_all_who_hold_it():
    conv = nn.Conv2d(3, 4, 3).double()

    def aliased(x: Tensor) -> Tensor:
        before = conv(x)
        after = F.relu(before, inplace=True)
        return (after + before).flatten(1)

    x = random(2, 3, 5, 5)
    with GuidedMode():
        found = aliased(x.clone().requires_grad_())
    close(found.detach(), aliased(x).detach())


class Breaks(nn.Module):
    """Raises an error in the middle of a forward pass."""

    def __init__(self, cnn: CNN) -> None:
        super().__init__()
        self.cnn = cnn

    def forward(self, x: Tensor) -> Tensor:
        self.cnn.features[:4](x)
        raise RuntimeError("in the middle")


def hooks(net: nn.Module) -> int:
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return sum(len(getattr(module, kind)) for module in net.modules() for kind in kinds)


@contextmanager
def raised() -> Iterator[None]:
    with pytest.raises(RuntimeError, match="in the middle"):
        yield


@pytest.mark.parametrize("mode", [GuidedMode, lambda: Relevance(Composite(), random(2, 1))])
def test_an_error_in_the_middle_of_a_pass_leaves_nothing_behind(cnn, mode):
    x = random(2, 3, 12, 12)
    expected, net = plain(cnn, x, 0), Breaks(cnn)
    attributes = {name: set(vars(module)) for name, module in net.named_modules()}
    with raised(), mode():
        net(x.clone().requires_grad_())
    assert _get_current_function_mode_stack() == []
    assert hooks(net) == 0
    assert {name: set(vars(module)) for name, module in net.named_modules()} == attributes
    assert all(p.grad is None for p in net.parameters())
    assert torch.equal(plain(cnn, x, 0), expected)


def test_an_error_in_the_middle_of_a_guided_backward_pass_leaves_it_unguided(cnn):
    x, mode = random(2, 3, 12, 12).requires_grad_(), GuidedMode()
    with mode:
        score = cnn(x)[:, 1].sum()
    with raised(), mode.guided():
        raise RuntimeError("in the middle")
    close(torch.autograd.grad(score, x)[0], plain(cnn, x.detach(), 1))


NAMES = ["soft-attention", "ada-lstm", "mh-fc", "coca"]


@pytest.fixture(params=NAMES)
def captioner(request: pytest.FixtureRequest) -> Captioner:
    return tiny.opinionated(request.param).double()


def said() -> Tensor:
    """Two captions of words that differ from each other, one of which ends sooner."""
    return torch.tensor([[1, 4, 5, 6, 7], [1, 8, 9, 10, PAD]])


@pytest.mark.parametrize("name", [*NAMES, "show-and-tell"])  # the last one reads word by word
def test_gradients_through_the_whole_captioner_are_finite_differences(name):
    captioner = tiny.opinionated(name).double()
    pixels, _ = inputs(captioner, "grid", 2)
    question = asked(said(), (0, 3), (5, 7))
    forward, _ = run_gradients(captioner, pixels, None, question, chunk=1)
    g, of_embedded, _ = forward.from_words()
    of_pixels = forward.traced(forward.features.vectors, (forward.x,), g)[0]  # (K, B, 3, S, S)
    of_words = forward.by_word(of_embedded)  # (K, B, T)
    x, vectors, step = forward.x.detach(), forward.features.vectors.detach(), 1e-6

    @torch.no_grad()
    def scores(x: Tensor | None = None, vectors: Tensor | None = None) -> Tensor:
        features = captioner.encoder.encode_normalised(x) if vectors is None else Features(vectors, (2, 2))
        return question.scores(captioner(features, question.said)[0]).T  # (K, B)

    def difference(where: str, at: Tensor, along: Tensor) -> Tensor:
        ahead, behind = (scores(**{where: at + way * step * along}) for way in (1, -1))
        return (ahead - behind) / (2 * step)

    for seed in range(3):
        along = random(*x.shape, seed=seed)
        close((of_pixels * along).sum(dim=(2, 3, 4)), difference("x", x, along), within=1e-6)
        along = random(*vectors.shape, seed=seed)
        close((g * along).sum(dim=(2, 3)), difference("vectors", vectors, along), within=1e-6)
    for row, t in ((0, 0), (0, 2), (1, 3)):  # the sum over the embedding is the slope when all of it grows alike
        word = int(said()[row, t])
        embedding, ends = captioner.E.weight.data, []
        for way in (1, -1):
            embedding[word] += way * step
            ends.append(scores(vectors=vectors)[:, row])
            embedding[word] -= way * step
        close(of_words[:, row, t], (ends[0] - ends[1]) / (2 * step), within=1e-6)


def test_gradient_times_input_is_gradient_times_pixel(captioner):
    pixels, _ = inputs(captioner, "grid", 2)
    question = asked(said(), (0, 3), (5, 7))
    evidence = explain(captioner, pixels, None, question, ["gradient-input"], Composite(), 1)
    x = captioner.encoder.normalise(pixels).requires_grad_()
    scores = question.scores(captioner(captioner.encoder.encode_normalised(x), question.said)[0])
    for k in range(2):
        (gx,) = torch.autograd.grad(scores[:, k].sum(), x, retain_graph=True)
        close(evidence.maps["gradient-input"][k], (gx * x).sum(dim=1).detach())


def test_words_not_yet_said_and_padding_have_no_gradient(captioner):
    pixels, _ = inputs(captioner, "grid", 2)
    evidence = explain(captioner, pixels, None, asked(said(), (0, 3), (5, 7)), METHODS, Composite(), 1)
    for method, weights in evidence.earlier.items():
        assert not weights[0, :, 1:].any(), method
        assert not weights[1, :, 4:].any(), method
        assert weights[1, :, :4].abs().min() > 0, method


def test_guided_grad_cam_is_the_product_of_the_two(captioner):
    pixels, _ = inputs(captioner, "grid", 2)
    question = asked(said(), (0, 3), (5, 7))
    methods = ["gradcam", "guided-backprop", "guided-gradcam"]
    maps = explain(captioner, pixels, None, question, methods, Composite(), 1).maps
    cam = maps["gradcam"].unflatten(-1, (2, 2))  # (K, B, rows, columns)
    wide = F.interpolate(cam, (tiny.SIDE, tiny.SIDE), mode="bilinear", align_corners=False)
    close(maps["guided-gradcam"], maps["guided-backprop"] * wide, within=1e-6)
    assert maps["gradcam"].min() >= 0


def test_of_a_captioner_the_encoders_rectifiers_are_guided_and_nothing_else():
    torch.manual_seed(0)
    eyes = encoders.build("alexnet", weights=None, size=64)
    captioner = build("soft-attention", eyes, tiny.WORDS, **tiny.settings("soft-attention")).eval().double()
    pixels, question = tiny.pixels(2), asked(said(), (0, 3), (5, 7))
    found = explain(captioner, pixels, None, question, ["guided-backprop"], Composite(), 1).maps["guided-backprop"]
    g = run_gradients(captioner, pixels, None, question, chunk=1)[0].from_words()[0]  # (K, B, L, D), not guided

    class Scored(nn.Module):
        """The encoder alone; how the decoder's logits change with its features is all it needs to know."""

        def __init__(self) -> None:
            super().__init__()
            self.eyes = eyes

        def forward(self, x: Tensor) -> Tensor:
            return torch.einsum("kbld, bld -> bk", g, self.eyes.encode_normalised(x).vectors)

    for module in eyes.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = False  # captum's hooks want it so
    x = eyes.normalise(pixels)
    for k in range(2):
        expected = GuidedBackprop(Scored()).attribute(x.clone().requires_grad_(), k).sum(dim=1)
        close(found[k], expected.detach())
        assert (expected - found[1 - k]).abs().max() > 1e-6


def test_words_explained_together_are_as_each_alone(captioner):
    pixels, _ = inputs(captioner, "grid", 2)
    question = asked(said(), (0, 1, 3), (5, 7, 8))
    one, many = (explain(captioner, pixels, None, question, METHODS, Composite(), chunk) for chunk in (1, 16))
    for method in METHODS:
        close(many.maps[method], one.maps[method])
    for method in one.earlier:
        close(many.earlier[method], one.earlier[method])


def test_explaining_changes_no_weight_and_gives_none_a_gradient(captioner):
    captioner.encoder.finetune_from("all")
    before = {name: value.clone() for name, value in captioner.state_dict().items()}
    pixels, _ = inputs(captioner, "grid", 2)
    explain(captioner, pixels, None, asked(said(), (0, 3), (5, 7)), METHODS, Composite(), 1)
    assert all(torch.equal(value, before[name]) for name, value in captioner.state_dict().items())
    assert all(p.grad is None and p.requires_grad for p in captioner.parameters())
    assert hooks(captioner) == 0


def test_what_was_written_in_place_is_freed_with_its_graph():
    def gone(mode: TracingMode) -> bool:
        x = random(2, 3).requires_grad_()
        with mode:
            y = x * 1.0
            y.mul_(y.sigmoid())
            out = now(y).sum()
        torch.autograd.grad(out, x, retain_graph=True)
        watched = weakref.ref(y)
        del y, out
        return watched() is None

    assert gone(GradientMode())
    assert gone(GuidedMode())


@pytest.mark.parametrize("mode", [GradientMode, GuidedMode])
def test_a_tensor_written_in_place_stands_for_what_it_became(mode):
    x = random(2, 3).requires_grad_()
    with mode():
        y = x * 1.0
        y.relu_()
        found = now(y)
    torch.testing.assert_close(found, x.relu())
