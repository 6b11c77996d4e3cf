"""Rates over time, groups, averages, and memories that survive a restart."""

from __future__ import annotations

import math
from copy import deepcopy

import pytest
import torch
from torch import nn

import tiny
from saywhy.training.optimisers import (
    WeightAverage,
    optimiser_tensors,
    optimisers,
    parameter_groups,
    restore_optimiser,
    schedules,
    set_rates,
)


def rates(schedule: str, steps: int, warmup: int) -> list[float]:
    """The factor at every step, read off a group whose base rate is 2."""
    optimiser = torch.optim.SGD([{"params": [nn.Parameter(torch.ones(1))], "lr": 9.0, "base": 2.0}])
    return [set_rates(optimiser, schedule, step, steps, warmup) / 2 for step in range(steps + 1)]


def test_rates_rise_over_the_warm_up_and_fall_as_the_schedule_says():
    assert rates("constant", 8, 4) == pytest.approx([0.25, 0.5, 0.75, 1, 1, 1, 1, 1, 1])
    assert rates("linear", 8, 4) == pytest.approx([0.25, 0.5, 0.75, 1, 1, 0.7525, 0.505, 0.2575, 0.01])
    wave = [0.01 + 0.99 * (1 + math.cos(math.pi * done)) / 2 for done in (0, 0.25, 0.5, 0.75, 1)]
    assert rates("cosine", 4, 0) == pytest.approx(wave)
    assert rates("cosine", 8, 4)[4:] == pytest.approx(wave)


@pytest.mark.parametrize("schedule", schedules)
def test_every_schedule_starts_at_one_never_rises_and_stays_above_zero(schedule):
    factors = rates(schedule, 50, 0)
    assert factors[0] == pytest.approx(1)
    assert factors == sorted(factors, reverse=True)
    assert factors[-1] > 0


def test_a_warm_up_longer_than_the_run_only_rises():
    assert rates("cosine", 4, 10) == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])
    assert rates("cosine", 4, 4)[-1] == pytest.approx(1)


def test_every_group_keeps_its_own_base_rate():
    groups = [{"params": [nn.Parameter(torch.ones(1))], "lr": base, "base": base} for base in (1.0, 0.1)]
    optimiser = torch.optim.SGD(groups)
    assert set_rates(optimiser, "linear", 5, 10, 0) == pytest.approx(0.505)
    assert [group["lr"] for group in optimiser.param_groups] == pytest.approx([0.505, 0.0505])


@pytest.mark.parametrize("tie", [False, True])
def test_groups_split_encoder_and_decoder_and_name_nothing_twice(tie):
    captioner = tiny.captioner(tie=tie)
    captioner.encoder.finetune_from("all")
    decoder, encoder = parameter_groups(captioner, lr=0.5, encoder_lr=0.25)
    assert (decoder["lr"], decoder["base"], encoder["lr"], encoder["base"]) == (0.5, 0.5, 0.25, 0.25)
    assert [id(p) for p in encoder["params"]] == [id(p) for p in captioner.encoder.parameters()]
    both = [id(p) for p in (*decoder["params"], *encoder["params"])]
    assert len(both) == len(set(both))
    assert set(both) == {id(p) for p in captioner.parameters()}


def test_what_is_frozen_is_in_no_group():
    captioner = tiny.captioner()
    (decoder,) = parameter_groups(captioner, 0.5, 0.25)
    assert all(p.requires_grad for p in decoder["params"])
    last = captioner.encoder.blocks()[-1]
    captioner.encoder.finetune_from(last)
    _, encoder = parameter_groups(captioner, 0.5, 0.25)
    expected = [id(p) for p in captioner.encoder.parameters() if p.requires_grad]
    assert [id(p) for p in encoder["params"]] == expected
    assert 0 < len(expected) < len(list(captioner.encoder.parameters()))


def test_the_average_forgets_the_start_and_then_remembers_as_told():
    layer = nn.Linear(1, 1, bias=False)
    average = WeightAverage(layer, decay=0.5)
    mean = layer.weight.item()
    for step in range(20):
        with torch.no_grad():
            layer.weight.fill_(step)
        average.update(step)
        decay = min(0.5, (1 + step) / (10 + step))
        mean = decay * mean + (1 - decay) * step
        assert average.mean["weight"].item() == pytest.approx(mean, rel=1e-5)
    assert 17 < mean < 19


def test_after_one_step_the_average_is_nearly_the_weight_and_not_the_start():
    layer = nn.Linear(1, 1, bias=False)
    average = WeightAverage(layer, decay=0.999)
    start = layer.weight.item()
    with torch.no_grad():
        layer.weight.fill_(5.0)
    average.update(0)
    assert average.mean["weight"].item() == pytest.approx(0.1 * start + 0.9 * 5.0)


def moved() -> tuple[nn.Module, WeightAverage]:
    layer = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1).requires_grad_(False))
    average = WeightAverage(layer, decay=0.9)
    with torch.no_grad():
        layer[0].weight.add_(1.0)
    average.update(30)
    return layer, average


@pytest.mark.parametrize("failing", [False, True])
def test_swapping_puts_the_average_in_and_restores_exactly(failing):
    layer, average = moved()
    weights = {name: p.detach().clone() for name, p in layer.named_parameters()}
    mean = {name: p.clone() for name, p in average.mean.items()}
    try:
        with average.swapped():
            assert torch.equal(layer[0].weight, mean["0.weight"])
            assert not torch.equal(layer[0].weight, weights["0.weight"])
            assert torch.equal(layer[1].weight, weights["1.weight"]), "what is frozen has no average"
            if failing:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        assert failing
    assert all(torch.equal(p, weights[name]) for name, p in layer.named_parameters())
    assert all(torch.equal(p, mean[name]) for name, p in average.mean.items())
    assert layer[0].weight.requires_grad


def trained(steps: int, name: str, net: nn.Module, optimiser=None):
    if optimiser is None:
        groups = [{"params": list(net.parameters()), "lr": 0.01, "base": 0.01}]
        optimiser = optimisers[name](groups, weight_decay=0.01)
    for step in range(steps):
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(step))
        optimiser.zero_grad()
        net(x).square().sum().backward()
        optimiser.step()
    return optimiser


@pytest.mark.parametrize("name", optimisers)
def test_with_its_memory_back_an_optimiser_steps_as_if_nothing_had_happened(name):
    net = nn.Linear(3, 2)
    optimiser = trained(4, name, net)
    memory = {key: value.clone() for key, value in optimiser_tensors(optimiser).items()}
    assert all(isinstance(value, torch.Tensor) for value in memory.values())
    again, without = deepcopy(net), deepcopy(net)
    trained(1, name, net, optimiser)
    fresh = trained(0, name, again)
    restore_optimiser(fresh, memory.items())
    trained(1, name, again, fresh)
    trained(1, name, without)
    assert torch.equal(again.weight, net.weight)
    assert torch.equal(again.bias, net.bias)
    assert not torch.equal(without.weight, net.weight), "memory makes no difference"
    assert fresh.param_groups[0]["base"] == 0.01


@pytest.mark.parametrize("name", optimisers)
def test_every_optimiser_goes_downhill(name):
    net = nn.Linear(3, 2)
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(1))
    before = net(x).square().sum().item()
    trained(30, name, net)
    assert net(x).square().sum().item() < before
