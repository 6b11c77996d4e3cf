"""Learning-rate schedules, parameter groups, averaged weights, and optimiser states that survive a restart."""

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
    set_learning_rates,
)


def rates(schedule: str, steps: int, warmup: int) -> list[float]:
    """The factor at every step, from a group whose base rate is 2."""
    optimiser = torch.optim.SGD([{"params": [nn.Parameter(torch.ones(1))], "lr": 9.0, "base": 2.0}])
    return [set_learning_rates(optimiser, schedule, step, steps, warmup) / 2 for step in range(steps + 1)]


def test_rates_rise_in_the_warm_up_and_then_follow_the_schedule():
    assert rates("constant", 8, 4) == pytest.approx([0.25, 0.5, 0.75, 1, 1, 1, 1, 1, 1])
    assert rates("linear", 8, 4) == pytest.approx([0.25, 0.5, 0.75, 1, 1, 0.7525, 0.505, 0.2575, 0.01])
    half_cosine = [0.01 + 0.99 * (1 + math.cos(math.pi * fraction)) / 2 for fraction in (0, 0.25, 0.5, 0.75, 1)]
    assert rates("cosine", 4, 0) == pytest.approx(half_cosine)
    assert rates("cosine", 8, 4)[4:] == pytest.approx(half_cosine)


@pytest.mark.parametrize("schedule", schedules)
def test_every_schedule_starts_at_one_never_rises_and_stays_above_zero(schedule):
    factors = rates(schedule, 50, 0)
    assert factors[0] == pytest.approx(1)
    assert factors == sorted(factors, reverse=True)
    assert factors[-1] > 0


def test_in_a_warm_up_longer_than_the_run_rates_only_rise():
    assert rates("cosine", 4, 10) == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])
    assert rates("cosine", 4, 4)[-1] == pytest.approx(1)


def test_every_group_keeps_its_base_rate():
    groups = [{"params": [nn.Parameter(torch.ones(1))], "lr": base, "base": base} for base in (1.0, 0.1)]
    optimiser = torch.optim.SGD(groups)
    assert set_learning_rates(optimiser, "linear", 5, 10, 0) == pytest.approx(0.505)
    assert [group["lr"] for group in optimiser.param_groups] == pytest.approx([0.505, 0.0505])


@pytest.mark.parametrize("tie", [False, True])
def test_every_parameter_is_in_exactly_one_group(tie):
    captioner = tiny.captioner(tie=tie)
    captioner.encoder.finetune_from("all")
    decoder, encoder = parameter_groups(captioner, lr=0.5, encoder_lr=0.25)
    assert (decoder["lr"], decoder["base"], encoder["lr"], encoder["base"]) == (0.5, 0.5, 0.25, 0.25)
    assert [id(weight) for weight in encoder["params"]] == [id(weight) for weight in captioner.encoder.parameters()]
    grouped = [id(weight) for weight in (*decoder["params"], *encoder["params"])]
    assert len(grouped) == len(set(grouped))
    assert set(grouped) == {id(weight) for weight in captioner.parameters()}


def test_frozen_parameters_are_in_no_group():
    captioner = tiny.captioner()
    (decoder,) = parameter_groups(captioner, 0.5, 0.25)
    assert all(weight.requires_grad for weight in decoder["params"])
    captioner.encoder.finetune_from(captioner.encoder.blocks()[-1])
    _, encoder = parameter_groups(captioner, 0.5, 0.25)
    expected = [id(weight) for weight in captioner.encoder.parameters() if weight.requires_grad]
    assert [id(weight) for weight in encoder["params"]] == expected
    assert 0 < len(expected) < len(list(captioner.encoder.parameters()))


def test_the_average_forgets_the_initial_weights_and_then_decays_as_set():
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


def test_after_one_step_the_average_is_close_to_the_weight():
    layer = nn.Linear(1, 1, bias=False)
    average = WeightAverage(layer, decay=0.999)
    initial = layer.weight.item()
    with torch.no_grad():
        layer.weight.fill_(5.0)
    average.update(0)
    assert average.mean["weight"].item() == pytest.approx(0.1 * initial + 0.9 * 5.0)


@pytest.mark.parametrize("fails", [False, True])
def test_swapping_puts_the_average_in_and_restores_exactly(fails):
    net = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1).requires_grad_(False))
    average = WeightAverage(net, decay=0.9)
    with torch.no_grad():
        net[0].weight.add_(1.0)
    average.update(30)
    weights = {name: weight.detach().clone() for name, weight in net.named_parameters()}
    mean = {name: weight.clone() for name, weight in average.mean.items()}
    try:
        with average.swapped():
            assert torch.equal(net[0].weight, mean["0.weight"])
            assert not torch.equal(net[0].weight, weights["0.weight"])
            assert torch.equal(net[1].weight, weights["1.weight"]), "frozen weights have no average"
            if fails:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        assert fails
    assert all(torch.equal(weight, weights[name]) for name, weight in net.named_parameters())
    assert all(torch.equal(weight, mean[name]) for name, weight in average.mean.items())
    assert net[0].weight.requires_grad


def train_steps(steps: int, name: str, net: nn.Module, optimiser=None):
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
def test_a_restored_optimiser_makes_the_same_step(name):
    net = nn.Linear(3, 2)
    optimiser = train_steps(4, name, net)
    state = {key: tensor.clone() for key, tensor in optimiser_tensors(optimiser).items()}
    assert all(isinstance(tensor, torch.Tensor) for tensor in state.values())
    restored_net, fresh_net = deepcopy(net), deepcopy(net)
    train_steps(1, name, net, optimiser)
    restored = train_steps(0, name, restored_net)
    restore_optimiser(restored, state)
    train_steps(1, name, restored_net, restored)
    train_steps(1, name, fresh_net)
    assert torch.equal(restored_net.weight, net.weight)
    assert torch.equal(restored_net.bias, net.bias)
    assert not torch.equal(fresh_net.weight, net.weight), "the state makes no difference"
    assert restored.param_groups[0]["base"] == 0.01


@pytest.mark.parametrize("name", ["x.step", "2.step", "-1.step", "0", "0.", "\u00b2.step", ""])
def test_optimiser_tensors_of_unknown_parameters_are_refused(name):
    optimiser = train_steps(1, "adam", nn.Linear(3, 2))
    with pytest.raises(ValueError, match="unknown optimiser tensor"):
        restore_optimiser(optimiser, {name: torch.zeros(())})
    with pytest.raises(ValueError, match="has the shape"):
        restore_optimiser(optimiser, {"0.exp_avg": torch.zeros(7)})


@pytest.mark.parametrize("name", optimisers)
def test_every_optimiser_lowers_the_loss(name):
    net = nn.Linear(3, 2)
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(1))
    before = net(x).square().sum().item()
    train_steps(30, name, net)
    assert net(x).square().sum().item() < before
