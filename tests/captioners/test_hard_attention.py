"""Hard attention: its gradient against the exact one, and what it takes in."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import tiny
from reference.hard_attention import lower_bound
from saywhy.captioners import Attention, TeacherForced
from saywhy.captioners.hard_attention import HardAttention
from saywhy.decoding import Decoding, decode
from saywhy.encoders.features import Features
from saywhy.errors import UserError

SIZES = {"embedding": 4, "hidden": 4, "attention": 3}
REWARDS = {"caption": {"reward": "caption"}, "onward": {"reward": "onward"}}
CHUNKS, ROWS = 60, 1000


def hard(**chosen) -> HardAttention:
    found = tiny.opinionated("hard-attention", **{**SIZES, **chosen})
    assert isinstance(found, HardAttention)
    return found


def forced(captioner: HardAttention, features: Features, words: Tensor) -> TeacherForced:
    logits, attention = captioner(features, words[:, :-1])
    log_p = logits.log_softmax(-1).gather(-1, words[:, 1:, None]).squeeze(-1)
    rows, everyone = torch.arange(len(words)), torch.ones(len(words), dtype=torch.bool)
    return TeacherForced(features, words, log_p, torch.ones_like(log_p, dtype=torch.bool), everyone, rows, attention)


def small_image() -> Features:
    """A grid of 2 × 2."""
    return Features(0.3 * tiny.features(1, dtype=torch.float64).vectors[:, :4], (2, 2))


def estimates(captioner: HardAttention, features: Features, words: Tensor, baseline: float) -> Tensor:
    """Independent estimates (CHUNKS, parameters) of ∂L_s, each from ROWS drawn sequences."""
    rows = torch.zeros(ROWS, dtype=torch.long)
    found = []
    torch.manual_seed(1)
    for _ in range(CHUNKS):
        captioner.zero_grad()
        captioner.baseline.fill_(baseline)
        taught = forced(captioner, features.select(rows), words.expand(ROWS, -1))
        (taught.log_p.sum(dim=1) - captioner.auxiliary_loss(taught)).mean().backward()
        found.append(torch.cat([p.grad.flatten() for p in captioner.parameters() if p.requires_grad]))
    return torch.stack(found)


def distance(captioner: HardAttention, baseline: float) -> float:
    """How far the mean estimate is from the exact gradient, in standard errors: the worst of 40 directions."""
    features, words = small_image(), tiny.captions(1, length=2)
    weights = {name: p for name, p in captioner.named_parameters() if p.requires_grad}
    bound = lower_bound(weights, features.vectors[0], words[0].tolist())
    exact = torch.cat([grad.flatten() for grad in torch.autograd.grad(bound, list(weights.values()))])
    found = estimates(captioner, features, words, baseline)
    random = torch.randn(40, len(exact), dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    looks = torch.cat([(name.startswith("score.") * torch.ones_like(p)).flatten() for name, p in weights.items()])
    random[20:] *= looks  # half of the directions move attention alone, which only drawing teaches
    along, error = found @ random.T, (found.mean(dim=0) - exact) @ random.T
    return float((error.abs() / (along.std(dim=0) / CHUNKS**0.5)).max())


@pytest.mark.parametrize("baseline", [0.0, -3.0])
@pytest.mark.parametrize("reward", REWARDS)
def test_the_monte_carlo_gradient_equals_that_of_trying_every_sequence_of_places(reward, baseline):
    captioner = hard(expected=0.0, entropy_weight=0.0, **REWARDS[reward]).double().train()
    assert distance(captioner, baseline) < 4.5  # of 40 normal draws the largest is beyond this once in 3,700 times


def test_another_weight_of_the_reward_would_be_noticed():
    captioner = hard(expected=0.0, entropy_weight=0.0, reward_weight=0.5).double().train()
    assert distance(captioner, -3.0) > 10


def test_the_entropy_of_the_words_said_is_rewarded():
    alpha = torch.rand(3, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).softmax(-1)
    spoken = torch.arange(4)[None] < torch.tensor([4, 2, 0])[:, None]
    taught = _lesson_about(alpha, torch.full((3, 4), -1), spoken)
    found = hard(entropy_weight=0.3).auxiliary_loss(taught)
    entropy = [
        sum(-a * math.log(a) for look, is_word in zip(looks, said, strict=True) for a in look if is_word)
        for looks, said in zip(alpha.tolist(), spoken.tolist(), strict=True)
    ]
    assert found.tolist() == pytest.approx([-0.3 * each for each in entropy], abs=1e-5)


def _lesson_about(alpha: Tensor, drawn: Tensor, spoken: Tensor, log_p: Tensor | None = None) -> TeacherForced:
    rows = torch.arange(len(alpha))
    log_p = torch.zeros_like(spoken, dtype=torch.float64) if log_p is None else log_p
    nothing = tiny.features(len(alpha))
    return TeacherForced(nothing, rows[:, None], log_p, spoken, rows >= 0, rows, Attention(alpha, None, drawn))


def test_the_baseline_is_a_moving_average_of_the_drawn_captions_log_p():
    captioner = hard(reward="caption").train()
    alpha, spoken = torch.full((3, 2, 4), 0.25), torch.ones(3, 2, dtype=torch.bool)
    drawn = torch.tensor([[0, 1], [2, 3], [-1, -1]])  # the third took in the expected context
    for log_p, expected in ((-2.0, -4.0), (-5.0, 0.9 * -4 + 0.1 * -10)):
        captioner.auxiliary_loss(_lesson_about(alpha, drawn, spoken, torch.tensor([[log_p] * 2] * 2 + [[-99.0] * 2])))
        assert captioner.baseline.item() == pytest.approx(expected)


def test_the_reward_of_the_paper_the_code_and_ours():
    log_p, spoken = torch.tensor([[-1.0, -2.0, -4.0, 0.0]]), torch.tensor([[True, True, True, False]])
    drawn = torch.zeros(1, 4, dtype=torch.long)
    taught = _lesson_about(torch.full((1, 4, 2), 0.5), drawn, spoken, log_p)
    expected = {"caption": [-7 + 0.5], "mean": [-7 / 3 + 0.5], "onward": [-7 + 1.5, -6 + 1.0, -4 + 0.5, 0.0]}
    for reward, advantage in expected.items():
        captioner = hard(reward=reward)
        captioner.baseline.fill_(-0.5)
        assert captioner._advantage(taught, spoken)[0].tolist() == pytest.approx(advantage), reward


def test_half_of_the_captions_take_in_the_expected_context_and_the_others_one_place():
    captioner = hard().train()
    torch.manual_seed(0)
    _, attention = captioner(tiny.features(1).select(torch.zeros(400, dtype=torch.long)), tiny.captions(400)[:, :-1])
    soft = (attention.drawn < 0).float().mean(dim=1)
    assert set(soft.tolist()) == {0.0, 1.0}  # a caption draws at every word or at none
    assert 0.4 < soft.mean() < 0.6
    assert attention.drawn.max() == 5


def test_the_coin_of_the_code_is_tossed_for_the_whole_batch():
    captioner = hard(coin="batch").train()
    tosses = set()
    for seed in range(12):
        torch.manual_seed(seed)
        soft = captioner.start(tiny.features(5)).soft
        assert len(set(soft.tolist())) == 1
        tosses.add(bool(soft[0]))
    assert tosses == {True, False}


def test_places_are_drawn_as_often_as_attention_says():
    captioner = hard(expected=0.0).train()
    torch.manual_seed(0)
    rows = torch.zeros(20_000, dtype=torch.long)
    step = captioner.step(torch.ones_like(rows), captioner.start(tiny.features(1).select(rows)))
    share = torch.bincount(step.attention.drawn, minlength=6) / len(rows)
    torch.testing.assert_close(share, step.attention.alpha[0], rtol=0, atol=0.015)


def test_the_context_is_the_drawn_place_alone():
    captioner, features = hard(expected=0.0).train(), tiny.features(2)
    torch.manual_seed(0)
    step = captioner.step(torch.tensor([1, 1]), captioner.start(features))
    rows = torch.arange(2)
    elsewhere = features.vectors.clone()
    elsewhere += 5
    elsewhere[rows, step.attention.drawn] = features.vectors[rows, step.attention.drawn]
    state = captioner.start(features)
    blind = type(state)(state.h, state.c, Features(elsewhere, (2, 3)), state.keys, state.soft)
    torch.manual_seed(0)
    captioner.start(features)  # tosses the same coins
    torch.testing.assert_close(captioner.step(torch.tensor([1, 1]), blind).logits, step.logits)


def test_expected_argmax_and_sampled_attention_say_different_things_and_each_the_same_twice():
    captioner, features = hard(), tiny.features(12, seed=1)
    said = {}
    for attend in ("expected", "argmax", "sampled"):
        once, again = (decode(captioner, features, Decoding(max_words=6, attend=attend)) for _ in range(2))
        assert [c.words for c in once] == [c.words for c in again]
        said[attend] = tuple(c.words for c in once)
    assert len(set(said.values())) == 3
    assert captioner.attend == "expected"


def test_only_hard_attention_can_attend_otherwise():
    with pytest.raises(UserError, match="'argmax' is not for soft-attention, which knows expected"):
        decode(tiny.opinionated("soft-attention"), tiny.features(1), Decoding(attend="argmax"))
    with pytest.raises(UserError, match="sampled"):
        Decoding(attend="sample")


def test_expected_it_is_soft_attention():
    features, words = tiny.features(3), tiny.captions(3)[:, :-1]
    captioner, soft = hard(), tiny.opinionated("soft-attention", **SIZES)
    soft.load_state_dict({name: p for name, p in captioner.state_dict().items() if name != "baseline"})
    torch.testing.assert_close(captioner(features, words)[0], soft(features, words)[0])


@pytest.mark.parametrize("wrong", [{"reward": "words"}, {"coin": "image"}, {"expected": 1.5}])
def test_what_cannot_be_meant_is_refused(wrong):
    with pytest.raises(UserError, match=next(iter(wrong))):
        hard(**wrong)
