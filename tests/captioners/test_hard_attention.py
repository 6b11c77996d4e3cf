"""Hard attention: its gradient against the exact gradient, and the sampled features."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import tiny
from reference.hard_attention import lower_bound
from saywhy.captioners import Attention, TeacherForced
from saywhy.captioners.hard_attention import HardAttention, sample_index, uniform
from saywhy.data.tokenizer import END, START
from saywhy.decoding import Decoding, decode
from saywhy.decoding.config import log_probabilities
from saywhy.encoders.base import Features
from saywhy.errors import UserError
from tracing import inputs, make_targets, relevance_of

SIZES = {"embedding": 4, "hidden": 4, "attention": 3}
CHUNKS, ROWS = 60, 1000
METHODS = {"beam": {"beam": 3}, "greedy": {"method": "greedy"}, "sample": {"method": "sample", "seed": 4}}


def hard_attention(**changes) -> HardAttention:
    captioner = tiny.sensitive_captioner("hard-attention", **{**SIZES, **changes})
    assert isinstance(captioner, HardAttention)
    return captioner


def teacher_forced(captioner: HardAttention, features: Features, tokens: Tensor) -> TeacherForced:
    logits, attention = captioner(features, tokens[:, :-1])
    log_p = logits.log_softmax(-1).gather(-1, tokens[:, 1:, None]).squeeze(-1)
    rows, has_image = torch.arange(len(tokens)), torch.ones(len(tokens), dtype=torch.bool)
    return TeacherForced(features, tokens, log_p, torch.ones_like(log_p, dtype=torch.bool), has_image, rows, attention)


def forced_with(alpha: Tensor, drawn: Tensor, mask: Tensor, log_p: Tensor | None = None) -> TeacherForced:
    """A result of teacher forcing with this attention."""
    rows = torch.arange(len(alpha))
    log_p = torch.zeros_like(mask, dtype=torch.float64) if log_p is None else log_p
    features = tiny.features(len(alpha))
    return TeacherForced(features, rows[:, None], log_p, mask, rows >= 0, rows, Attention(alpha, None, drawn))


def small_image() -> Features:
    """A grid of 2 × 2."""
    return Features(0.3 * tiny.features(1, dtype=torch.float64).vectors[:, :4], (2, 2))


def estimates(captioner: HardAttention, features: Features, tokens: Tensor, baseline: float) -> Tensor:
    """Independent estimates (CHUNKS, parameters) of ∂L_s, each from ROWS sampled sequences."""
    rows = torch.zeros(ROWS, dtype=torch.long)
    gradients = []
    torch.manual_seed(1)
    for _ in range(CHUNKS):
        captioner.zero_grad()
        captioner.baseline.fill_(baseline)
        forced = teacher_forced(captioner, features.select(rows), tokens.expand(ROWS, -1))
        (forced.log_p.sum(dim=1) - captioner.auxiliary_loss(forced)).mean().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in captioner.parameters() if p.requires_grad]))
    return torch.stack(gradients)


def distance(captioner: HardAttention, baseline: float) -> float:
    """The distance of the mean estimate from the exact gradient, in standard errors: the worst of 40 directions."""
    features, tokens = small_image(), tiny.captions(1, length=2)
    weights = {name: p for name, p in captioner.named_parameters() if p.requires_grad}
    bound = lower_bound(weights, features.vectors[0], tokens[0].tolist())
    exact = torch.cat([grad.flatten() for grad in torch.autograd.grad(bound, list(weights.values()))])
    estimated = estimates(captioner, features, tokens, baseline)
    directions = torch.randn(40, len(exact), dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    in_score = torch.cat([(name.startswith("score.") * torch.ones_like(p)).flatten() for name, p in weights.items()])
    directions[20:] *= in_score  # half of the directions change attention only, which only REINFORCE trains
    along, error = estimated @ directions.T, (estimated.mean(dim=0) - exact) @ directions.T
    return float((error.abs() / (along.std(dim=0) / CHUNKS**0.5)).max())


@pytest.mark.parametrize("baseline", [0.5, -3.0])
@pytest.mark.parametrize("reward", ["caption", "onward"])
def test_monte_carlo_gradient_equals_the_sum_over_all_sequences(reward, baseline):
    captioner = hard_attention(expected=0.0, entropy_weight=0.0, reward=reward).double().train()
    assert distance(captioner, baseline) < 4.5  # the largest of 40 normal draws exceeds this once in 3,700 times


def test_gradient_with_another_reward_weight_differs_from_the_exact_one():
    captioner = hard_attention(expected=0.0, entropy_weight=0.0, reward_weight=0.5).double().train()
    assert distance(captioner, -3.0) > 10


def test_loss_contains_the_entropy_of_words_and_not_of_padding():
    alpha = torch.rand(3, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).softmax(-1)
    mask = torch.arange(4)[None] < torch.tensor([4, 2, 0])[:, None]
    forced = forced_with(alpha, torch.full((3, 4), -1), mask)
    loss = hard_attention(entropy_weight=0.3).auxiliary_loss(forced)
    entropy = [
        sum(-a * math.log(a) for row, is_word in zip(rows, words, strict=True) for a in row if is_word)
        for rows, words in zip(alpha.tolist(), mask.tolist(), strict=True)
    ]
    assert loss.tolist() == pytest.approx([-0.3 * value for value in entropy], abs=1e-5)


def test_baseline_is_a_moving_average_of_log_p_of_sampled_captions():
    captioner = hard_attention(reward="caption").train()
    alpha, mask = torch.full((3, 2, 4), 0.25), torch.ones(3, 2, dtype=torch.bool)
    drawn = torch.tensor([[0, 1], [2, 3], [-1, -1]])  # the third used the expected context
    for log_p, expected in ((-2.0, -4.0), (-5.0, 0.9 * -4 + 0.1 * -10)):
        captioner.auxiliary_loss(forced_with(alpha, drawn, mask, torch.tensor([[log_p] * 2] * 2 + [[-99.0] * 2])))
        assert captioner.baseline.item() == pytest.approx(expected)


@pytest.mark.parametrize("reward", ["caption", "mean", "onward"])
def test_first_batch_has_no_reinforce_term_and_the_second_uses_the_mean_of_the_first(reward):
    captioner = hard_attention(reward=reward, entropy_weight=0.0).train()
    alpha, mask = torch.full((2, 2, 4), 0.25), torch.ones(2, 2, dtype=torch.bool)
    forced = forced_with(alpha, torch.zeros(2, 2, dtype=torch.long), mask, torch.tensor([[-1.0, -1.0], [-3.0, -3.0]]))
    assert captioner.auxiliary_loss(forced).tolist() == [0, 0]
    first_mean = {"caption": -4.0, "mean": -2.0, "onward": -2.0}[reward]
    assert captioner.baseline.item() == first_mean
    loss = captioner.auxiliary_loss(replace(forced, log_p=forced.log_p - 1))
    unit = (
        math.log(4) * {"caption": 2, "mean": 2, "onward": 3}[reward]
    )  # −log p(s̃), times the words it is credited with
    rewards = {"caption": (-4.0, -8.0), "mean": (-2.0, -4.0), "onward": (-2.0, -4.0)}[reward]
    assert loss.tolist() == pytest.approx([unit * (value - first_mean) for value in rewards], rel=1e-5)


def test_rewards_of_the_paper_of_the_authors_code_and_onward():
    log_p, mask = torch.tensor([[-1.0, -2.0, -4.0, 0.0]]), torch.tensor([[True, True, True, False]])
    drawn = torch.zeros(1, 4, dtype=torch.long)
    forced = forced_with(torch.full((1, 4, 2), 0.5), drawn, mask, log_p)
    expected = {"caption": [-7 + 0.5], "mean": [-7 / 3 + 0.5], "onward": [-7 + 1.5, -6 + 1.0, -4 + 0.5, 0.0]}
    for reward, advantage in expected.items():
        captioner = hard_attention(reward=reward)
        captioner.baseline.fill_(-0.5)
        assert captioner._advantage(forced, mask)[0].tolist() == pytest.approx(advantage), reward


def test_half_of_the_captions_use_the_expected_context_and_the_others_sample():
    captioner = hard_attention().train()
    torch.manual_seed(0)
    _, attention = captioner(tiny.features(1).select(torch.zeros(400, dtype=torch.long)), tiny.captions(400)[:, :-1])
    soft = (attention.drawn < 0).float().mean(dim=1)
    assert set(soft.tolist()) == {0.0, 1.0}  # a caption samples at every word or at none
    assert 0.4 < soft.mean() < 0.6
    assert attention.drawn.max() == 5


def test_coin_of_the_authors_code_is_tossed_once_per_batch():
    captioner = hard_attention(coin="batch").train()
    tosses = set()
    for seed in range(12):
        torch.manual_seed(seed)
        soft = captioner.start(tiny.features(5)).soft
        assert len(set(soft.tolist())) == 1
        tosses.add(bool(soft[0]))
    assert tosses == {True, False}


def test_training_samples_features_in_proportion_to_alpha():
    captioner = hard_attention(expected=0.0).train()
    torch.manual_seed(0)
    rows = torch.zeros(20_000, dtype=torch.long)
    step = captioner.step(torch.ones_like(rows), captioner.start(tiny.features(1).select(rows)))
    share = torch.bincount(step.attention.drawn, minlength=6) / len(rows)
    torch.testing.assert_close(share, step.attention.alpha[0], rtol=0, atol=0.015)


def test_hashed_numbers_are_uniform_and_independent_over_seeds_and_times():
    seeds, t = torch.meshgrid(torch.arange(200), torch.arange(1, 21), indexing="ij")
    u = uniform(seeds.flatten(), t.flatten()).view(200, 20)
    assert ((u >= 0) & (u < 1)).all()
    assert abs(u.mean() - 0.5) < 0.02
    assert (torch.histc(u, 10, 0, 1) / u.numel() - 0.1).abs().max() < 0.02
    for first, second in ((u[:, :-1], u[:, 1:]), (u[:-1], u[1:])):  # neighbours in time, and in seed
        assert torch.corrcoef(torch.stack([first.flatten(), second.flatten()]))[0, 1].abs() < 0.06


def test_sampled_index_inverts_the_cumulative_distribution():
    alpha = torch.tensor([[0.0, 0.5, 0.0, 0.25, 0.25, 0.0]])
    u = torch.tensor([0.0, 0.49, 0.5, 0.74, 0.75, 1 - 2**-24])
    assert sample_index(alpha.expand(6, -1), u).tolist() == [1, 1, 3, 3, 4, 4]


def test_context_is_the_sampled_feature_only():
    captioner, features = hard_attention(expected=0.0).train(), tiny.features(2)
    torch.manual_seed(0)
    step = captioner.step(torch.tensor([1, 1]), captioner.start(features))
    rows = torch.arange(2)
    changed = features.vectors + 5
    changed[rows, step.attention.drawn] = features.vectors[rows, step.attention.drawn]
    state = replace(captioner.start(features), features=Features(changed, (2, 3)))
    torch.manual_seed(0)
    captioner.start(features)  # tosses the same coins
    torch.testing.assert_close(captioner.step(torch.tensor([1, 1]), state).logits, step.logits)


def test_attention_modes_give_different_captions_and_each_mode_the_same_twice():
    captioner, features = hard_attention(), tiny.features(12, seed=1)
    captions = {}
    for mode in ("expected", "argmax", "sampled"):
        first, second = (decode(captioner, features, Decoding(max_words=6, attention=mode)) for _ in range(2))
        assert [caption.tokens for caption in first] == [caption.tokens for caption in second]
        captions[mode] = tuple(caption.tokens for caption in first)
    assert len(set(captions.values())) == 3
    assert captioner.attention_mode == "expected"


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", ["grid", "regions"])
def test_sampled_caption_does_not_depend_on_other_images_of_the_batch(kind, method):
    captioner, features = hard_attention().double(), tiny.features(6, dtype=torch.float64, kind=kind)
    decoding = Decoding(max_words=6, attention="sampled", **METHODS[method])
    captions = decode(captioner, features, decoding)
    for row in range(6):
        (alone,) = decode(captioner, features.select(torch.tensor([row])), decoding, [row])
        assert alone.tokens == captions[row].tokens
        assert alone.logprobs == pytest.approx(captions[row].logprobs, abs=1e-9)


@pytest.mark.parametrize("method", METHODS)
def test_teacher_forcing_repeats_the_features_sampled_in_decoding(method):
    captioner, features = hard_attention().double(), tiny.features(6, dtype=torch.float64)
    captions = decode(captioner, features, Decoding(max_words=6, attention="sampled", **METHODS[method]))
    for row, caption in enumerate(captions):
        tokens = torch.tensor([[START, *caption.tokens]])
        with captioner.using_attention("sampled"):
            logits, _ = captioner(features.select(torch.tensor([row])), tokens)
        targets = torch.tensor([*caption.tokens, END])[:, None]
        log_p = log_probabilities(logits[0]).gather(1, targets).squeeze(1)
        assert log_p.tolist() == pytest.approx(caption.logprobs, abs=1e-6)


@pytest.mark.parametrize("kind", ["grid", "regions"])
def test_relevance_is_of_the_features_sampled_in_decoding(kind):
    captioner = hard_attention().double()
    pixels, boxes = inputs(captioner, kind)
    with captioner.using_attention("sampled"):
        logits, attention = captioner(captioner.encode(pixels, boxes), tiny.captions(3)[:, :-1])
        forward, _ = relevance_of(captioner, pixels, boxes, make_targets(tiny.captions(3)[:, :-1]))
    torch.testing.assert_close(forward.logits, logits)
    assert torch.equal(forward.attention.drawn, attention.drawn)


def test_different_images_sample_different_features():
    captioner = hard_attention()
    with captioner.using_attention("sampled"):
        seeds = captioner.start(tiny.features(50)).seed
    assert len(set(seeds.tolist())) > 20


def test_padding_boxes_are_never_sampled():
    captioner, features = hard_attention(), tiny.features(40, kind="regions")
    with captioner.using_attention("sampled"):
        _, attention = captioner(features, tiny.captions(40)[:, :-1])
    assert features.mask.gather(1, attention.drawn).all()


def test_only_hard_attention_has_other_modes():
    with pytest.raises(UserError, match="soft-attention has no attention mode 'argmax': use one of expected"):
        decode(tiny.sensitive_captioner("soft-attention"), tiny.features(1), Decoding(attention="argmax"))
    with pytest.raises(UserError, match="sampled"):
        Decoding(attention="sample")


def test_expected_attention_equals_soft_attention():
    features, tokens = tiny.features(3), tiny.captions(3)[:, :-1]
    captioner, soft = hard_attention(), tiny.sensitive_captioner("soft-attention", **SIZES)
    soft.load_state_dict({name: p for name, p in captioner.state_dict().items() if name != "baseline"})
    torch.testing.assert_close(captioner(features, tokens)[0], soft(features, tokens)[0])


@pytest.mark.parametrize("invalid", [{"reward": "words"}, {"coin": "image"}, {"expected": 1.5}])
def test_invalid_settings_are_refused(invalid):
    with pytest.raises(UserError, match=next(iter(invalid))):
        hard_attention(**invalid)
