"""LRP of single functions: relevance is conserved, or refused where there is no rule."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from saywhy.errors import UserError
from saywhy.explain.composites import Composite
from tracing import DOUBLE, Propagation, assert_close, propagate, randn

pytestmark = pytest.mark.usefixtures("one_thread")


class AfterConvolution(nn.Module):
    """A convolution, then a function."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.conv(x))


def propagate_after_convolution(function: Callable[[Tensor], Tensor]) -> Propagation:
    return propagate(AfterConvolution(function).double(), randn(2, 3, 6, 6), Composite(conv_bias=True))


WITHOUT_RULES = {
    "cos": torch.cos,
    "exp": Tensor.exp,
    "prod": lambda x: x.prod(dim=1),
    "maximum": lambda x: torch.maximum(x, -x),
    "pow": lambda x: 2.0**x,
    "lp_pool2d": lambda x: F.lp_pool2d(x, 2, 2),
}


@pytest.mark.parametrize("name", WITHOUT_RULES)
def test_function_without_a_rule_raises_an_error_that_names_it(name):
    with pytest.raises(UserError, match=rf"no rule for .*{name}"):
        propagate_after_convolution(WITHOUT_RULES[name])


def test_function_without_a_rule_is_allowed_inside_a_gate():
    result = propagate_after_convolution(lambda x: torch.sigmoid(torch.cos(x)) * x)
    assert result.conservation_error < 1e-9


def write_into_ones(x: Tensor) -> Tensor:
    out = torch.ones_like(x)
    out[:, :2] = x[:, :2]
    return out


def relu_of_a_part_in_place(x: Tensor) -> Tensor:
    x[:, :2].relu_()
    return x * 1.0


def scale_a_view_in_place(x: Tensor) -> Tensor:
    x.flatten(1).mul_(2.0)
    return x * 1.0


CONSERVED_OR_REFUSED = {
    "maximum of two signals": lambda x: torch.max(x, -x),
    "maximum with ones": lambda x: torch.max(x, torch.ones_like(x)),
    "minimum with ones": lambda x: torch.min(x, torch.ones_like(x)),
    "a part of it in place": relu_of_a_part_in_place,
    "a view in place": scale_a_view_in_place,
    "reciprocal": lambda x: 1 / (x + 9),
    "requires_grad_": lambda x: x.requires_grad_() * 2,
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
    "written into ones": write_into_ones,
    "joined to ones": lambda x: torch.cat([x, torch.ones_like(x)], dim=1),
    "clamp above zero": lambda x: (x * (x > 0)).clamp(min=0.5),
    "constant minus signal": lambda x: 3 - x,
    "with a float mask": lambda x: (x + torch.zeros(6, 6, dtype=DOUBLE)).softmax(dim=-1) * x,
}


@pytest.mark.parametrize("name", CONSERVED_OR_REFUSED)
def test_relevance_is_conserved_or_refused(name):
    try:
        result = propagate_after_convolution(CONSERVED_OR_REFUSED[name])
    except UserError:
        return
    assert_close(result.out, AfterConvolution(CONSERVED_OR_REFUSED[name]).double()(randn(2, 3, 6, 6)).detach())
    assert result.conservation_error < 1e-9


def relu_in_place(x: Tensor) -> Tensor:
    x.relu_()
    return x.flatten(1)


def add_in_place(x: Tensor) -> Tensor:
    x.add_(1.0)
    return x.flatten(1)


def use_input_after_relu_in_place(x: Tensor) -> Tensor:
    y = F.relu(x, inplace=True)
    return x + y


def scale_in_place(x: Tensor) -> Tensor:
    x *= 2.0
    return x


IN_PLACE = {
    "nn.ReLU in place": nn.ReLU(inplace=True),
    "+=": lambda x: x.__iadd__(1.0),
    "/=": lambda x: x.__itruediv__(2.0),
    "*=": scale_in_place,
    "mul_ by a gate": lambda x: x.mul_(x.sigmoid()),
    "relu_, result unused": relu_in_place,
    "add_, result unused": add_in_place,
    "input used after a ReLU in place": use_input_after_relu_in_place,
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place_functions_keep_their_result_and_conserve_relevance(name):
    result = propagate_after_convolution(IN_PLACE[name])
    assert_close(result.out, AfterConvolution(IN_PLACE[name]).double()(randn(2, 3, 6, 6)).detach())
    assert result.conservation_error < 1e-9


def test_batch_norm_of_vectors_conserves_relevance():
    norm = nn.BatchNorm1d(4).double().eval()
    norm.running_mean.data, norm.bias.data = randn(4), randn(4, seed=1)
    for x in (randn(3, 4), randn(3, 4, 5)):
        result = propagate(norm, x)
        assert_close(result.out, norm(x).detach())
        assert result.conservation_error < 1e-9
