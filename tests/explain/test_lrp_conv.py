"""The LRP rules of convolutions equal loops over inputs and outputs, and zennit on whole networks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models.resnet import BasicBlock, Bottleneck
from zennit import rules as zennit
from zennit.canonizers import CompositeCanonizer, SequentialMergeBatchNorm
from zennit.composites import LayerMapComposite, NameMapComposite, SpecialFirstLayerMapComposite
from zennit.layer import Sum
from zennit.torchvision import ResNetBasicBlockCanonizer, ResNetBottleneckCanonizer

from reference import lrp as reference
from saywhy.explain.composites import Composite, composites
from tracing import DOUBLE, Propagation, assert_close, propagate, randn

pytestmark = pytest.mark.usefixtures("one_thread")

GEOMETRIES = {
    "plain": (3, 4, (3, 3), {}),
    "1x1": (3, 4, (1, 1), {}),
    "padded": (3, 4, (3, 3), {"padding": (1, 1)}),
    "oblong, strided and padded": (2, 4, (3, 2), {"stride": (2, 1), "padding": (1, 2)}),
    "dilated": (2, 3, (3, 2), {"dilation": (2, 1), "padding": (2, 0)}),
    "strided past the last row": (2, 3, (3, 3), {"stride": (3, 2)}),
    "grouped": (4, 6, (3, 3), {"groups": 2, "padding": (1, 1)}),
    "depthwise": (3, 3, (3, 3), {"groups": 3, "padding": (1, 1), "stride": (2, 2)}),
    "depthwise, two for each": (3, 6, (3, 3), {"groups": 3, "padding": (1, 1)}),
}
RULES: dict[str, tuple[Composite, Callable[..., Any]]] = {
    "ε": (Composite(convolution="epsilon"), partial(reference.epsilon_shares, epsilon=0.01)),
    "z⁺": (Composite(conv_bias=True), partial(reference.alpha_beta_shares, alpha=1, has_bias=True)),
    "z⁺ without biases": (Composite(), partial(reference.alpha_beta_shares, alpha=1, has_bias=False)),
    "α2β1": (Composite(alpha=2, conv_bias=True), partial(reference.alpha_beta_shares, alpha=2, has_bias=True)),
    "α3β2 without biases": (Composite(alpha=3), partial(reference.alpha_beta_shares, alpha=3, has_bias=False)),
    "γ": (Composite(convolution="gamma", conv_bias=True), partial(reference.gamma_shares, gamma=0.25)),
    "large γ": (Composite(convolution="gamma", gamma=3, conv_bias=True), partial(reference.gamma_shares, gamma=3)),
}
FULL = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1}


def assert_equals_loops(
    result: Propagation, x: Tensor, conv: nn.Conv2d, rule: Callable[..., Any], bounds_by_pixel: tuple[Tensor, ...] = ()
) -> None:
    """The relevance of each image equals that of the loops."""
    geometry = {name: getattr(conv, name) for name in FULL}
    bias = None if conv.bias is None else conv.bias.tolist()
    for row in range(len(x)):
        image_bounds = [values[row].tolist() for values in bounds_by_pixel]
        arguments = result.R_out[row].tolist(), x[row].tolist(), conv.weight.tolist(), bias, geometry
        R, absorbed = reference.convolution(*arguments, rule, image_bounds)
        assert_close(result.R[row].flatten(), list(R.values()))
        assert_close(result.absorbed[row], absorbed)
    assert result.conservation_error < 1e-9


def convolution(geometry: str, bias: bool = True) -> tuple[nn.Conv2d, Tensor]:
    """A convolution, and two images of 5 × 6."""
    inside, outside, kernel, options = GEOMETRIES[geometry]
    torch.manual_seed(0)
    return nn.Conv2d(inside, outside, kernel, bias=bias, **options).double(), randn(2, inside, 5, 6)


@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("rule", ["ε", "z⁺", "α2β1", "γ"])
def test_every_geometry_equals_the_loops(rule, geometry):
    conv, x = convolution(geometry)
    composite, shares = RULES[rule]
    assert_equals_loops(propagate(conv, x, composite), x, conv, shares)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("signs", ["signed", "after a ReLU", "never positive"])
@pytest.mark.parametrize("rule", RULES)
def test_every_rule_equals_the_loops_for_any_sign_and_bias(rule, signs, bias):
    conv, x = convolution("padded", bias)
    x = {"signed": x, "after a ReLU": x.relu(), "never positive": -x.relu()}[signs]
    composite, shares = RULES[rule]
    assert_equals_loops(propagate(conv, x, composite), x, conv, shares)


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_flat_rule_splits_equally_among_the_pixels_of_the_window(geometry):
    conv, x = convolution(geometry)
    result = propagate(conv, x, Composite(first="flat"), bounds=(x, x))
    assert_equals_loops(result, x, conv, reference.flat_shares)


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_box_rule_equals_the_loops(geometry):
    conv, x = convolution(geometry)
    channels = torch.arange(x.shape[1], dtype=DOUBLE).view(1, -1, 1, 1)
    low, high = ((edge * (1 + channels)).expand_as(x) for edge in (-3.0, 4.0))
    result = propagate(conv, x, Composite(first="box"), bounds=(low, high))
    assert_equals_loops(result, x, conv, reference.box_shares, (low, high))
    assert (result.R * result.R_out.sum(dim=(1, 2, 3), keepdim=True)).sum() > 0


def test_pixels_of_value_zero_have_relevance_under_the_flat_and_box_rules():
    conv, x = convolution("padded")
    for first in ("flat", "box"):
        result = propagate(conv, torch.zeros_like(x), Composite(first=first), bounds=(x - 4, x + 4))
        assert result.R.abs().min() > 0


@pytest.mark.parametrize("first", ["flat", "box"])
def test_padding_before_the_first_convolution_gets_no_relevance(first):
    conv, x = convolution("plain")
    padded, _ = convolution("padded")
    padded.load_state_dict(conv.state_dict())
    box = (torch.full_like(x, -4.0), torch.full_like(x, 4.0))
    apart = propagate(lambda x: conv(F.pad(x, (1, 1, 1, 1))), x, Composite(first=first), bounds=box)
    within = propagate(padded, x, Composite(first=first), bounds=box)
    assert_close(apart.out, within.out)
    assert apart.conservation_error < 1e-9
    assert_close(apart.R, within.R)


def test_only_the_convolution_of_pixels_follows_the_first_rule():
    first, second = convolution("padded")[0], nn.Conv2d(4, 3, 3).double()
    x = randn(2, 3, 5, 6)
    result = propagate(lambda x: second(first(x).relu()), x, Composite(first="flat"), bounds=(x, x))
    below = propagate(second, first(x).relu().detach(), Composite())
    assert_close(result.absorbed, below.absorbed, within=1e-8)  # the flat rule absorbs 1e-9
    assert result.conservation_error < 1e-9


def test_reflection_padding_conserves_relevance():
    conv, x = nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect").double(), randn(2, 3, 5, 6)
    result = propagate(conv, x, Composite(conv_bias=True))
    assert_close(result.out, conv(x).detach())
    assert result.conservation_error < 1e-9


@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize("first", [None, "flat"])
def test_padding_by_name_equals_padding_by_number(padding, first):
    named, x = nn.Conv2d(3, 4, 3, padding=padding).double(), randn(2, 3, 5, 6)
    numbered = nn.Conv2d(3, 4, 3, padding=1 if padding == "same" else 0).double()
    numbered.load_state_dict(named.state_dict())
    result, expected = (propagate(conv, x, Composite(first=first), bounds=(x - 1, x + 1)) for conv in (named, numbered))
    assert_close(result.R, expected.R)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rule", RULES)
def test_batch_norm_is_folded_into_the_convolution_before_it(rule, bias):
    (conv, x), norm = convolution("padded", bias), batch_norm(4)
    scale = norm.weight / (norm.running_var + norm.eps).sqrt()
    folded = nn.Conv2d(3, 4, 3, padding=1).double()
    folded.weight.data = conv.weight * scale.view(-1, 1, 1, 1)
    folded.bias.data = norm.bias + scale * ((conv.bias if bias else 0) - norm.running_mean)
    result = propagate(lambda x: norm(conv(x)), x, RULES[rule][0])
    assert_close(result.out, norm(conv(x)).detach())
    assert_equals_loops(result, x, folded, RULES[rule][1])


def batch_norm(channels: int) -> nn.BatchNorm2d:
    """With running statistics, negative scales and no mean of 0."""
    norm = nn.BatchNorm2d(channels).double().eval()
    norm.weight.data, norm.bias.data = randn(channels, seed=4), randn(channels, seed=5)
    norm.running_mean.data, norm.running_var.data = randn(channels, seed=6), randn(channels, seed=7).abs() + 0.5
    return norm


# Zennit's rules have the same form, with settings to match: its default stabiliser is 1e-6, saywhy's is 1e-9; its
# rule for averages and residual sums, `Norm`, is the ε-rule, where saywhy uses ε = 0 for averages and the composite's ε
# for sums. Its canonizers fold batch norms but apply the norm's own ε a second time, a factor √(1 + 1e-5) per layer:
# here that ε is 0. Then the two agree to 1e-9.
STABILISER = 1e-9
ZENNIT = {
    "epsilon-plus": zennit.ZPlus(stabilizer=STABILISER),
    "paper": zennit.ZPlus(stabilizer=STABILISER, zero_params="bias"),
    "alpha2-beta1": zennit.AlphaBeta(2, 1, stabilizer=STABILISER),
    "epsilon-gamma-box": zennit.Gamma(0.25, stabilizer=STABILISER),
    "epsilon-plus-flat": zennit.ZPlus(stabilizer=STABILISER),
    "epsilon-plus-box": zennit.ZPlus(stabilizer=STABILISER),
    "epsilon": zennit.Epsilon(epsilon=0.01),
}
LOW, HIGH = torch.tensor([-2.5, 2.7], dtype=DOUBLE)


def by_zennit(net: nn.Module, x: Tensor, R: Tensor, name: str) -> Tensor:
    """Zennit's relevance of pixels for relevance R of the network's output."""
    epsilon, average = composites[name].epsilon, zennit.Norm(stabilizer=1e-12)
    layers = [
        ((nn.ReLU, nn.ReLU6, nn.BatchNorm2d), zennit.Pass()),
        ((nn.AvgPool2d, nn.AdaptiveAvgPool2d), average),
        (Sum, zennit.Norm(stabilizer=epsilon)),
        (nn.Conv2d, ZENNIT[name]),
    ]
    blocks = [SequentialMergeBatchNorm(), ResNetBasicBlockCanonizer(), ResNetBottleneckCanonizer()]
    canonizers = [CompositeCanonizer(blocks)]
    composite: Any = LayerMapComposite(layers, canonizers=canonizers)
    first = {"flat": zennit.Flat(STABILISER), "box": zennit.ZBox(LOW, HIGH, STABILISER)}.get(composites[name].first)
    if first is not None:
        composite = SpecialFirstLayerMapComposite(layers, [(nn.Conv2d, first)], canonizers=canonizers)
    x = x.clone().requires_grad_()
    with composite.context(net) as explained:
        (relevance,) = torch.autograd.grad(explained(x), x, R)
    return relevance


def vgg_like() -> nn.Module:
    """Convolutions with biases, ReLUs and max-pooling; the last convolution's output is signed."""
    return nn.Sequential(
        *(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Conv2d(8, 5, 3, padding=1),
    )


def residual(block: type[nn.Module]) -> nn.Module:
    """A stem and blocks of a ResNet, with batch norm, a strided block and average pooling."""
    wide = 4 * block.expansion

    def shortcut(inside: int, stride: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(inside, wide, 1, stride, bias=False), nn.BatchNorm2d(wide))

    return nn.Sequential(
        *(nn.Conv2d(3, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)),
        block(6, 4, 1, shortcut(6, 1)),
        block(wide, 4),
        block(wide, 4, 2, shortcut(wide, 2)),
        nn.AvgPool2d(2),
    )


def mobile() -> nn.Module:
    """Expansion, depthwise convolution and projection with ReLU6, and no sums."""
    return nn.Sequential(
        *(nn.Conv2d(3, 6, 3, 2, 1, bias=False), nn.BatchNorm2d(6), nn.ReLU6()),
        *(nn.Conv2d(6, 12, 1, bias=False), nn.BatchNorm2d(12), nn.ReLU6()),
        *(nn.Conv2d(12, 12, 3, padding=1, groups=12, bias=False), nn.BatchNorm2d(12), nn.ReLU6()),
        *(nn.Conv2d(12, 6, 1, bias=False), nn.BatchNorm2d(6)),
    )


NETS = {
    "VGG-like": vgg_like,
    "residual": lambda: residual(BasicBlock),
    "residual with bottlenecks": lambda: residual(Bottleneck),
    "mobile": mobile,
}


def with_statistics(net: nn.Module) -> nn.Module:
    """The network with biases other than 0 and batch statistics other than 0 and 1."""
    generator = torch.Generator().manual_seed(3)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eps = 0.0
            module.weight.data.uniform_(0.5, 2, generator=generator)
            module.running_var.uniform_(0.2, 1, generator=generator)
            module.running_mean.normal_(0, 0.2, generator=generator)
        if getattr(module, "bias", None) is not None:
            module.bias.data.normal_(0, 0.3, generator=generator)
    return net.double().eval()


@pytest.mark.parametrize("name", ZENNIT)
@pytest.mark.parametrize("net", NETS)
def test_pixel_relevance_equals_zennit(net, name):
    torch.manual_seed(0)
    network, x = with_statistics(NETS[net]()), randn(2, 3, 12, 12).clamp(LOW, HIGH)
    result = propagate(network, x, composites[name], bounds=(LOW, HIGH))
    expected = by_zennit(network, x, result.R_out, name)
    scale = expected.abs().max()
    assert_close(result.R / scale, expected / scale)
    assert result.R.std() > 1e-6
    assert_close(result.out, network(x).detach())  # zennit has removed its canonizers


def test_rules_by_stride_equal_zennit_with_a_rule_per_layer():
    torch.manual_seed(0)
    network, x = with_statistics(vgg_like()), randn(2, 3, 12, 12).clamp(LOW, HIGH)
    fine, middle = (Composite(convolution="gamma", gamma=gamma, conv_bias=True) for gamma in (1.0, 0.25))
    rules = Composite(convolution="epsilon", first="box", by_stride=((1, fine), (2, middle)))
    result = propagate(network, x, rules, bounds=(LOW, HIGH))
    by_layer = [
        (["0"], zennit.ZBox(LOW, HIGH, STABILISER)),
        (["2"], zennit.Gamma(1.0, stabilizer=STABILISER)),
        (["5", "7"], zennit.Gamma(0.25, stabilizer=STABILISER)),
        (["10"], zennit.Epsilon(epsilon=0.01)),
        ([name for name, module in network.named_children() if isinstance(module, nn.ReLU)], zennit.Pass()),
    ]
    pixels = x.clone().requires_grad_()
    with NameMapComposite(by_layer).context(network) as explained:
        (expected,) = torch.autograd.grad(explained(pixels), pixels, result.R_out)
    scale = expected.abs().max()
    assert_close(result.R / scale, expected / scale)


def test_default_stabilisers_of_zennit_differ_by_less_than_1e_4():
    torch.manual_seed(0)
    network, x = with_statistics(vgg_like()), randn(2, 3, 12, 12)
    result = propagate(network, x, composites["epsilon-plus"])
    default = LayerMapComposite([(nn.ReLU, zennit.Pass()), (nn.Conv2d, zennit.ZPlus())])
    pixels = x.clone().requires_grad_()
    with default.context(network) as explained:
        (expected,) = torch.autograd.grad(explained(pixels), pixels, result.R_out)
    assert 0 < (result.R - expected).abs().max() < 1e-4 * expected.abs().max()
