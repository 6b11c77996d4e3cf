"""Optimisers, learning rates over time, and the average of the weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer, RMSprop

from saywhy.captioners.base import Captioner
from saywhy.registry import Registry

optimisers: Registry[Callable[..., Optimizer]] = Registry("optimiser")
schedules: Registry[Callable[[float], float]] = Registry("schedule")


@optimisers.register("adam")
def adam(groups: list[dict], weight_decay: float) -> Optimizer:
    """Adam, with weight decay apart from the gradient (AdamW)."""
    return AdamW(groups, weight_decay=weight_decay)


@optimisers.register("rmsprop")
def rmsprop(groups: list[dict], weight_decay: float) -> Optimizer:
    """RMSProp, which Show, attend and tell used on Flickr8k."""
    return RMSprop(groups, alpha=0.95, weight_decay=weight_decay)


def parameter_groups(captioner: Captioner, lr: float, encoder_lr: float) -> list[dict]:
    """What is trained: the decoder, and the encoder with its own rate. `base` is the rate before schedule."""
    encoder = [p for p in captioner.encoder.parameters() if p.requires_grad]
    own = {id(p) for p in captioner.encoder.parameters()}
    decoder = [p for p in captioner.parameters() if p.requires_grad and id(p) not in own]
    groups = [
        {"params": decoder, "lr": lr, "base": lr},
        {"params": encoder, "lr": encoder_lr, "base": encoder_lr},
    ]
    return [group for group in groups if group["params"]]


@schedules.register("constant")
def constant(_: float) -> float:
    """The same rate to the end."""
    return 1.0


@schedules.register("cosine")
def cosine(done: float) -> float:
    """Half a cosine, down to a hundredth."""
    return 0.01 + 0.99 * (1 + math.cos(math.pi * done)) / 2


@schedules.register("linear")
def linear(done: float) -> float:
    """A straight line, down to a hundredth."""
    return 1 - 0.99 * done


def set_rates(optimiser: Optimizer, schedule: str, step: int, steps: int, warmup: int) -> float:
    """Set every group's rate for this step, a function of the step alone; gives the first group's."""
    if step < warmup:
        factor = (step + 1) / warmup
    else:
        factor = schedules[schedule](min(1.0, (step - warmup) / max(1, steps - warmup)))
    for group in optimiser.param_groups:
        group["lr"] = group["base"] * factor
    return optimiser.param_groups[0]["lr"]


class WeightAverage:
    """A running average of the trained weights, which usually captions better than the last ones.

    Its memory grows to `decay` over the first steps, so that it does not remember the random start.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.decay = decay
        self.live = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self.mean = {name: p.detach().clone() for name, p in self.live.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the weights after step number `step`, counted from 0."""
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(list(self.mean.values()), [p.detach() for p in self.live.values()], 1 - decay)

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """Put the average in the weights' place for a while."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        for name, parameter in self.live.items():
            kept = parameter.detach().clone()
            parameter.copy_(self.mean[name])
            self.mean[name].copy_(kept)


def optimiser_tensors(optimiser: Optimizer) -> dict[str, Tensor]:
    """An optimiser's memory as named tensors: its state, without the settings that the recipe holds."""
    state = optimiser.state_dict()["state"]
    return {f"{index}.{name}": value for index, memory in state.items() for name, value in memory.items()}


def restore_optimiser(optimiser: Optimizer, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Give an optimiser the memory `optimiser_tensors` took."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors:
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = value
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})
