"""Gradient methods equal captum on a CNN, plain loops, and finite differences through a captioner."""

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
from saywhy.data.tokenizer import PAD
from saywhy.encoders.base import Features
from saywhy.explain.composites import Composite
from saywhy.explain.lrp import LRPMode
from saywhy.explain.methods import METHODS, attribute, grad_cam
from saywhy.explain.passes import run_gradients
from saywhy.explain.tracing import GradientMode, GuidedMode, TracingMode, current
from tracing import assert_close, inputs, make_targets, randn


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


def test_grad_cam_equals_captum(cnn):
    x = randn(2, 3, 12, 12)
    features = cnn.features(x)  # (B, D, rows, columns)
    vectors = features.flatten(2).transpose(1, 2)  # (B, L, D)
    for target in range(4):
        score = cnn.classifier(vectors.transpose(1, 2).flatten(1))[:, target].sum()
        (g,) = torch.autograd.grad(score, vectors, retain_graph=True)
        cam = grad_cam(vectors, g.unsqueeze(0)).squeeze(0)  # (B, L)
        expected = LayerGradCam(cnn, cnn.features).attribute(x, target, relu_attributions=True)
        assert_close(cam, expected.detach().flatten(1), within=1e-12)
    assert cam.max() > 0


def guided(net: Callable[[Tensor], Tensor], x: Tensor, target: int | slice) -> Tensor:
    """The guided gradient of a class with respect to pixels."""
    x, mode = x.clone().requires_grad_(), GuidedMode()
    with mode:
        score = net(x)[:, target].sum()
    with mode.guided():
        return torch.autograd.grad(score, x)[0]


def plain(net: Callable[[Tensor], Tensor], x: Tensor, target: int | slice) -> Tensor:
    x = x.clone().requires_grad_()
    return torch.autograd.grad(net(x)[:, target].sum(), x)[0]


def test_guided_backpropagation_equals_captum(cnn):
    x = randn(2, 3, 12, 12)
    for target in range(4):
        expected = GuidedBackprop(cnn).attribute(x.clone().requires_grad_(), target)
        assert_close(guided(cnn, x, target), expected, within=1e-12)
        assert (expected - plain(cnn, x, target)).abs().max() > 1e-4


def test_gradients_are_guided_only_inside_the_block(cnn):
    x, mode = randn(2, 3, 12, 12).requires_grad_(), GuidedMode()
    with mode:
        score = cnn(x)[:, 1].sum()
    (before,) = torch.autograd.grad(score, x, retain_graph=True)
    with mode.guided():
        (during,) = torch.autograd.grad(score, x, retain_graph=True)
    (after,) = torch.autograd.grad(score, x)
    assert_close(before, plain(cnn, x.detach(), 1))
    assert_close(after, before)
    assert (during - before).abs().max() > 1e-4


class ThreeLayers(nn.Module):
    """Three linear layers with rectifiers between them."""

    def __init__(self, rectify: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.layers = nn.ModuleList([nn.Linear(5, 8), nn.Linear(8, 8), nn.Linear(8, 4)])
        self.rectify = rectify

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = self.rectify(layer(x))
        return self.layers[-1](x)


def guided_by_loops(net: ThreeLayers, x: np.ndarray, target: int, limit: float) -> np.ndarray:
    """Guided backpropagation of one row, with rectifiers x ↦ min(max(x, 0), limit)."""
    W = [layer.weight.detach().numpy() for layer in net.layers]
    b = [layer.bias.detach().numpy() for layer in net.layers]
    z1 = W[0] @ x + b[0]
    z2 = W[1] @ z1.clip(0, limit) + b[1]
    g = W[2][target]
    for z, weights in ((z2, W[1]), (z1, W[0])):
        guided = np.zeros_like(z)
        for i in range(len(z)):
            if 0 < z[i] < limit and g[i] > 0:
                guided[i] = g[i]
        g = guided @ weights
    return g


def relu6_in_place(x: Tensor) -> Tensor:
    return F.relu6(x, inplace=True)


def relu_with_unused_result(x: Tensor) -> Tensor:
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
    "Tensor.relu_ with unused result": (relu_with_unused_result, np.inf),
    "nn.ReLU6": (nn.ReLU6(), 6.0),
    "nn.ReLU6 in place": (nn.ReLU6(inplace=True), 6.0),
    "F.relu6": (F.relu6, 6.0),
    "F.relu6 in place": (relu6_in_place, 6.0),
}


@pytest.mark.parametrize("name", RECTIFIERS)
def test_every_rectifier_is_guided_like_the_loops(name):
    rectify, limit = RECTIFIERS[name]
    net, x = ThreeLayers(rectify).double(), 20 * randn(4, 5, seed=5)
    with GuidedMode():
        assert_close(net(x.clone().requires_grad_()).detach(), net(x).detach())
    for target in range(4):
        expected = [guided_by_loops(net, row, target, limit) for row in x.numpy()]
        assert_close(guided(net, x, target), np.array(expected))
    if limit == 6:
        assert (net.layers[0](x) > 6).any()


@pytest.mark.parametrize("rectify", [F.relu, F.relu6])
def test_rectifier_has_no_gradient_at_zero(rectify):
    x = torch.tensor([[-1.0, 0.0, 2.0]], dtype=torch.float64)
    for gradient in (plain, guided):
        assert_close(gradient(rectify, x, slice(None)), [[0.0, 0.0, 1.0]])


def test_rectifier_in_place_changes_every_reference_to_its_input():
    conv = nn.Conv2d(3, 4, 3).double()

    def net(x: Tensor) -> Tensor:
        before = conv(x)
        after = F.relu(before, inplace=True)
        return (after + before).flatten(1)

    x = randn(2, 3, 5, 5)
    with GuidedMode():
        out = net(x.clone().requires_grad_())
    assert_close(out.detach(), net(x).detach())


class RaisesInForward(nn.Module):
    """Raises an error during its forward pass."""

    def __init__(self, cnn: CNN) -> None:
        super().__init__()
        self.cnn = cnn

    def forward(self, x: Tensor) -> Tensor:
        self.cnn.features[:4](x)
        raise RuntimeError("a test")


def hooks(net: nn.Module) -> int:
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return sum(len(getattr(module, kind)) for module in net.modules() for kind in kinds)


@contextmanager
def raises() -> Iterator[None]:
    with pytest.raises(RuntimeError, match="a test"):
        yield


@pytest.mark.parametrize("mode", [GuidedMode, lambda: LRPMode(Composite(), randn(2, 1))])
def test_error_in_a_forward_pass_leaves_no_mode_or_hook(cnn, mode):
    x = randn(2, 3, 12, 12)
    expected, net = plain(cnn, x, 0), RaisesInForward(cnn)
    attributes = {name: set(vars(module)) for name, module in net.named_modules()}
    with raises(), mode():
        net(x.clone().requires_grad_())
    assert _get_current_function_mode_stack() == []
    assert hooks(net) == 0
    assert {name: set(vars(module)) for name, module in net.named_modules()} == attributes
    assert all(p.grad is None for p in net.parameters())
    assert torch.equal(plain(cnn, x, 0), expected)


def test_error_in_a_guided_block_ends_the_guiding(cnn):
    x, mode = randn(2, 3, 12, 12).requires_grad_(), GuidedMode()
    with mode:
        score = cnn(x)[:, 1].sum()
    with raises(), mode.guided():
        raise RuntimeError("a test")
    assert_close(torch.autograd.grad(score, x)[0], plain(cnn, x.detach(), 1))


NAMES = ["soft-attention", "ada-lstm", "mh-fc", "coca"]


@pytest.fixture(params=NAMES)
def captioner(request: pytest.FixtureRequest) -> Captioner:
    return tiny.sensitive_captioner(request.param).double()


def captions() -> Tensor:
    """Two captions without a repeated word, the second shorter."""
    return torch.tensor([[1, 4, 5, 6, 7], [1, 8, 9, 10, PAD]])


@pytest.mark.parametrize("name", [*NAMES, "show-and-tell"])  # which has no parallel forward
def test_gradients_of_a_captioner_equal_finite_differences(name):
    captioner = tiny.sensitive_captioner(name).double()
    pixels, _ = inputs(captioner, "grid", 2)
    targets = make_targets(captions(), (0, 3), (5, 7))
    forward, _ = run_gradients(captioner, pixels, None, targets, words_per_pass=1)
    g, g_embedded, _ = forward.decoder_gradients()
    g_pixels = forward.gradients(forward.features.vectors, (forward.x,), g)[0]  # (K, B, 3, S, S)
    g_tokens = forward.per_token(g_embedded)  # (K, B, T)
    x, vectors, step = forward.x.detach(), forward.features.vectors.detach(), 1e-6

    @torch.no_grad()
    def scores(x: Tensor | None = None, vectors: Tensor | None = None) -> Tensor:
        features = captioner.encoder.encode_normalised(x) if vectors is None else Features(vectors, (2, 2))
        return targets.scores(captioner(features, targets.tokens)[0]).T  # (K, B)

    def slope(name: str, values: Tensor, direction: Tensor) -> Tensor:
        upper, lower = (scores(**{name: values + sign * step * direction}) for sign in (1, -1))
        return (upper - lower) / (2 * step)

    for seed in range(3):
        direction = randn(*x.shape, seed=seed)
        assert_close((g_pixels * direction).sum(dim=(2, 3, 4)), slope("x", x, direction), within=1e-6)
        direction = randn(*vectors.shape, seed=seed)
        assert_close((g * direction).sum(dim=(2, 3)), slope("vectors", vectors, direction), within=1e-6)
    for row, t in ((0, 0), (0, 2), (1, 3)):  # the sum over an embedding is the slope along the vector of ones
        word = int(captions()[row, t])
        embedding, bounds = captioner.E.weight.data, []
        for sign in (1, -1):
            embedding[word] += sign * step
            bounds.append(scores(vectors=vectors)[:, row])
            embedding[word] -= sign * step
        assert_close(g_tokens[:, row, t], (bounds[0] - bounds[1]) / (2 * step), within=1e-6)


def test_gradient_input_is_gradient_times_pixel(captioner):
    pixels, _ = inputs(captioner, "grid", 2)
    targets = make_targets(captions(), (0, 3), (5, 7))
    attributions = attribute(captioner, pixels, None, targets, ["gradient-input"], Composite())
    x = captioner.encoder.normalise(pixels).requires_grad_()
    scores = targets.scores(captioner(captioner.encoder.encode_normalised(x), targets.tokens)[0])
    for k in range(2):
        (g_x,) = torch.autograd.grad(scores[:, k].sum(), x, retain_graph=True)
        assert_close(attributions.maps["gradient-input"][k], (g_x * x).sum(dim=1).detach())


def test_later_words_and_padding_have_no_weight(captioner):
    pixels, _ = inputs(captioner, "grid", 2)
    attributions = attribute(captioner, pixels, None, make_targets(captions(), (0, 3), (5, 7)), METHODS, Composite())
    for method, weights in attributions.earlier_words.items():
        assert not weights[0, :, 1:].any(), method
        assert not weights[1, :, 4:].any(), method
        assert weights[1, :, :4].abs().min() > 0, method


def test_guided_grad_cam_is_the_product_of_both_maps(captioner):
    pixels, _ = inputs(captioner, "grid", 2)
    targets = make_targets(captions(), (0, 3), (5, 7))
    methods = ["gradcam", "guided-backprop", "guided-gradcam"]
    maps = attribute(captioner, pixels, None, targets, methods, Composite()).maps
    cam = maps["gradcam"].unflatten(-1, (2, 2))  # (K, B, rows, columns)
    enlarged = F.interpolate(cam, (tiny.SIDE, tiny.SIDE), mode="bilinear", align_corners=False)
    assert_close(maps["guided-gradcam"], maps["guided-backprop"] * enlarged, within=1e-6)
    assert maps["gradcam"].min() >= 0


def test_only_the_rectifiers_of_the_encoder_are_guided():
    torch.manual_seed(0)
    encoder = encoders.build("alexnet", weights=None, size=64)
    captioner = build("soft-attention", encoder, tiny.WORDS, **tiny.settings("soft-attention")).eval().double()
    pixels, targets = tiny.pixels(2), make_targets(captions(), (0, 3), (5, 7))
    maps = attribute(captioner, pixels, None, targets, ["guided-backprop"], Composite()).maps["guided-backprop"]
    forward, _ = run_gradients(captioner, pixels, None, targets, words_per_pass=1)
    g = forward.decoder_gradients()[0]  # (K, B, L, D), not guided

    class EncoderScores(nn.Module):
        """The encoder and the linearised decoder."""

        def __init__(self) -> None:
            super().__init__()
            self.encoder = encoder

        def forward(self, x: Tensor) -> Tensor:
            return torch.einsum("kbld, bld -> bk", g, self.encoder.encode_normalised(x).vectors)

    for module in encoder.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = False  # as captum's hooks require
    x = encoder.normalise(pixels)
    for k in range(2):
        expected = GuidedBackprop(EncoderScores()).attribute(x.clone().requires_grad_(), k).sum(dim=1)
        assert_close(maps[k], expected.detach())
        assert (expected - maps[1 - k]).abs().max() > 1e-6


def test_number_of_words_per_pass_changes_no_method(captioner):
    pixels, _ = inputs(captioner, "grid", 2)
    targets = make_targets(captions(), (0, 1, 3), (5, 7, 8))
    one, many = (attribute(captioner, pixels, None, targets, METHODS, Composite(), words) for words in (1, 16))
    for method in METHODS:
        assert_close(many.maps[method], one.maps[method])
    for method in one.earlier_words:
        assert_close(many.earlier_words[method], one.earlier_words[method])


def test_explaining_changes_no_weight_and_stores_no_gradient(captioner):
    captioner.encoder.finetune_from("all")
    before = {name: value.clone() for name, value in captioner.state_dict().items()}
    pixels, _ = inputs(captioner, "grid", 2)
    attribute(captioner, pixels, None, make_targets(captions(), (0, 3), (5, 7)), METHODS, Composite())
    assert all(torch.equal(value, before[name]) for name, value in captioner.state_dict().items())
    assert all(p.grad is None and p.requires_grad for p in captioner.parameters())
    assert hooks(captioner) == 0


def test_tensors_written_in_place_are_freed_with_their_graph():
    def is_freed(mode: TracingMode) -> bool:
        x = randn(2, 3).requires_grad_()
        with mode:
            y = x * 1.0
            y.mul_(y.sigmoid())
            out = current(y).sum()
        torch.autograd.grad(out, x, retain_graph=True)
        reference = weakref.ref(y)
        del y, out
        return reference() is None

    assert is_freed(GradientMode())
    assert is_freed(GuidedMode())


@pytest.mark.parametrize("mode", [GradientMode, GuidedMode])
def test_current_gives_the_result_of_an_in_place_function(mode):
    x = randn(2, 3).requires_grad_()
    with mode():
        y = x * 1.0
        y.relu_()
        result = current(y)
    torch.testing.assert_close(result, x.relu())
