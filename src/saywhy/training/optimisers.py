"""Optimisers, learning-rate schedules, and the moving average of the weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer, RMSprop

from saywhy.encoders.base import Encoder
from saywhy.registry import Registry

optimisers: Registry[Callable[..., Optimizer]] = Registry("optimiser")
schedules: Registry[Callable[[float], float]] = Registry("schedule")


class HasEncoder(Protocol):
    """A captioner or a judge: a module with an encoder."""

    encoder: Encoder

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """All parameters, those of the encoder included."""


@optimisers.register("adam")
def adam(groups: list[dict], weight_decay: float, capturable: bool = False) -> Optimizer:
    """Adam with decoupled weight decay (AdamW); on a GPU, all parameters are updated by few kernels."""
    return AdamW(groups, weight_decay=weight_decay, capturable=capturable, fused=capturable or None)


@optimisers.register("rmsprop")
def rmsprop(groups: list[dict], weight_decay: float, capturable: bool = False) -> Optimizer:
    """RMSProp, the optimiser of Show, attend and tell on Flickr8k."""
    return RMSprop(groups, alpha=0.95, weight_decay=weight_decay, capturable=capturable)


def parameter_groups(model: HasEncoder, lr: float, encoder_lr: float, capturable: bool = False) -> list[dict]:
    """The trained parameters of encoder and of the rest, each with its learning rate; `base` is the unscheduled rate.

    An update that a CUDA graph replays reads its learning rate from a tensor.
    """
    encoder = [parameter for parameter in model.encoder.parameters() if parameter.requires_grad]
    encoder_ids = {id(parameter) for parameter in model.encoder.parameters()}
    others = [p for p in model.parameters() if p.requires_grad and id(p) not in encoder_ids]
    groups = [
        {"params": others, "lr": lr, "base": lr},
        {"params": encoder, "lr": encoder_lr, "base": encoder_lr},
    ]
    if capturable:
        for group in groups:
            group["lr"] = torch.tensor(group["lr"], device=model.device)
    return [group for group in groups if group["params"]]


@schedules.register("constant")
def constant(_: float) -> float:
    """The same learning rate throughout."""
    return 1.0


@schedules.register("cosine")
def cosine(fraction: float) -> float:
    """Half a cosine from 1 to 0.01; `fraction` is the share of the steps made."""
    return 0.01 + 0.99 * (1 + math.cos(math.pi * fraction)) / 2


@schedules.register("linear")
def linear(fraction: float) -> float:
    """A straight line from 1 to 0.01."""
    return 1 - 0.99 * fraction


def set_learning_rates(optimiser: Optimizer, schedule: str, step: int, steps: int, warmup: int) -> float:
    """Set the learning rate of every group for step `step` of `steps`; returns that of the first group."""
    if step < warmup:
        factor = (step + 1) / warmup
    else:
        factor = schedules[schedule](min(1.0, (step - warmup) / max(1, steps - warmup)))
    for group in optimiser.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(group["base"] * factor)
        else:
            group["lr"] = group["base"] * factor
    return optimiser.param_groups[0]["base"] * factor


class WeightAverage:
    """An exponential moving average of the trained weights, which usually captions better than the last weights.

    The decay grows to `decay` over the first steps, so that the average forgets the initial weights.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.decay = decay
        self.weights = {name: weight for name, weight in module.named_parameters() if weight.requires_grad}
        self.mean = {name: weight.detach().clone() for name, weight in self.weights.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Add the weights after step number `step`, counted from 0."""
        decay = min(self.decay, (1 + step) / (10 + step))
        weights = [weight.detach() for weight in self.weights.values()]
        torch._foreach_lerp_(list(self.mean.values()), weights, 1 - decay)

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """Within this context the module has the averaged weights."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for name, weight in self.weights.items():
            current = weight.detach().clone()
            weight.copy_(self.mean[name])
            self.mean[name].copy_(current)


def optimiser_tensors(optimiser: Optimizer) -> dict[str, Tensor]:
    """The optimiser's state as tensors named "parameter number.name"; its settings are in the recipe."""
    state = optimiser.state_dict()["state"]
    return {f"{index}.{name}": tensor for index, tensors in state.items() for name, tensor in tensors.items()}


def restore_optimiser(optimiser: Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Restore what `optimiser_tensors` returned; a `ValueError` where it does not fit the parameters."""
    parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        number, _, name = key.partition(".")
        if not (number.isdecimal() and int(number) < len(parameters) and name):
            raise ValueError(f"unknown optimiser tensor {key[:100]!r}")
        if tensor.ndim and tensor.shape != parameters[int(number)].shape:
            raise ValueError(f"optimiser tensor {key[:100]!r} has the shape {tuple(tensor.shape)}")
        state.setdefault(int(number), {})[name] = tensor
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})
