"""Self-critical training: its gradient is that of the expected reward, enumerated over all captions."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tiny
from reference import metrics as reference_metrics
from reference import self_critical as reference
from saywhy.captioners.base import Captioner
from saywhy.data.tokenizer import END, MARKERS, PAD, START
from saywhy.errors import UserError
from saywhy.training import self_critical
from saywhy.training.builders import build_loss
from saywhy.training.objectives import CaptionLoss
from saywhy.training.recipe import from_table
from saywhy.training.relevance_weighting import RelevanceWeighting
from saywhy.training.rewards import CiderReward, PenalisedReward
from saywhy.training.self_critical import SelfCriticalLoss, SelfCriticalSums, draw_words, image_references
from tracing import Operations

FIRST, SECOND, THIRD = WORDS = tuple(range(len(MARKERS), len(MARKERS) + 3))
SIZE = len(MARKERS) + len(WORDS)
GRID = (2, 3)
TRAIN = [
    [[START, FIRST, SECOND, END], [START, FIRST, END]],
    [[START, THIRD, SECOND, THIRD, END], [START, THIRD, END], [START, SECOND, END]],
    [[START, SECOND, FIRST, END]],
]


def batch(images: int) -> dict[str, Any]:
    """The captions of the first images of `TRAIN`."""
    pairs = [(tokens, image) for image in range(images) for tokens in TRAIN[image]]
    tokens = torch.full((len(pairs), 5), PAD)
    for row, (caption, _) in enumerate(pairs):
        tokens[row, : len(caption)] = torch.tensor(caption)
    index = torch.tensor([image for _, image in pairs])
    return {"tokens": tokens, "image_index": index, "may_flip": torch.ones(images, dtype=torch.bool), "grid": GRID}


def loss_of(captioner: Captioner, max_words: int = 1, loss: dict[str, Any] | None = None, **settings: Any) -> nn.Module:
    cross_entropy = CaptionLoss(captioner, 64, **(loss or {}))
    return SelfCriticalLoss(cross_entropy, CiderReward(TRAIN, SIZE), 3, max_words, **settings)


def reward_of(image: int, caption: tuple[int, ...]) -> float:
    references = [tokens[1:] for tokens in TRAIN[image]]
    documents = [[tokens[1:] for tokens in group] for group in TRAIN]
    return reference_metrics.cider([list(caption)], [references], documents)[0]


def gradient(captioner: Captioner, value: Tensor) -> Tensor:
    parameters = [weight for name, weight in captioner.named_parameters() if not name.startswith("encoder.")]
    gradients = torch.autograd.grad(value, parameters, allow_unused=True)
    return torch.cat([
        torch.zeros(weight.numel()) if grad is None else grad.flatten()
        for weight, grad in zip(parameters, gradients, strict=True)
    ])  # fmt: skip


def forced(captions: list[tuple[int, ...]]) -> Any:
    """A `draw_words` that draws these captions, one per row; after their end, any word."""
    steps: Iterator[list[int]] = iter(zip(*((*caption, *[FIRST] * 9) for caption in captions), strict=False))
    return lambda log_p: torch.tensor(next(steps))


@pytest.mark.parametrize("name", ["soft-attention", "ada-lstm", "mh-fc", "coca"])
@pytest.mark.parametrize("settings", [{"samples": 2}, {"samples": 1, "baseline": "greedy"}], ids=["others", "greedy"])
@pytest.mark.parametrize("temperature", [1.0, 1.5])
def test_the_expected_gradient_is_that_of_the_enumerated_expected_reward(name, settings, temperature, monkeypatch):
    captioner, features = tiny.sensitive_captioner(name, SIZE), tiny.features(1)
    loss = loss_of(captioner, temperature=temperature, **settings)
    captions = reference.all_captions(WORDS, steps=2)
    assert len(captions) == 3 + 9

    def probability(caption: tuple[int, ...]) -> Tensor:
        return torch.exp(
            sum(reference.word_log_probabilities(captioner, features, caption, WORDS, temperature=temperature))
        )

    probabilities = {caption: probability(caption).item() for caption in captions}
    assert sum(probabilities.values()) == pytest.approx(1)
    estimate: Any = 0
    for drawn in product(captions, repeat=settings["samples"]):
        monkeypatch.setattr(self_critical, "draw_words", forced(list(drawn)))
        sums = loss(features.vectors, **batch(1))
        weight = torch.tensor([probabilities[caption] for caption in drawn]).prod()
        estimate = estimate + weight * gradient(captioner, sums.loss / sums.captions)
    expected = reference.expected_reward(
        captioner, features, lambda caption: reward_of(0, caption), WORDS, 2, temperature=temperature
    )
    exact = -gradient(captioner, expected)
    assert exact.abs().max() > 0.05
    torch.testing.assert_close(estimate, exact, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("baseline", ["others", "greedy"])
def test_sums_equal_the_reference(baseline, monkeypatch):
    captioner, features = tiny.sensitive_captioner(words=SIZE), tiny.features(2)
    drawn = [(FIRST, END), (FIRST, SECOND, END), (THIRD, THIRD, SECOND), (SECOND, END)]  # two of each image
    monkeypatch.setattr(self_critical, "draw_words", forced(drawn))
    sums = loss_of(captioner, 2, samples=2, baseline=baseline)(features.vectors, **batch(2))
    loss = log_loss = reward = 0.0
    for image in range(2):
        own = drawn[2 * image : 2 * image + 2]
        image_features = features[image : image + 1]
        rewards = [reward_of(image, caption) for caption in own]
        greedy = reference.greedy_caption(captioner, image_features, WORDS, 3)
        others = reference.baseline_of_others(rewards)
        baselines = others if baseline == "others" else [reward_of(image, greedy)] * 2
        log_ps = [
            [p.item() for p in reference.word_log_probabilities(captioner, image_features, caption, WORDS)]
            for caption in own
        ]
        loss += len(TRAIN[image]) * reference.loss(rewards, baselines, log_ps)
        log_loss -= sum(map(sum, log_ps))
        reward += sum(rewards)
    expected = [loss, log_loss, 2 + 3 + 3 + 2, 2 + 3, reward, 4]
    assert sums.as_vector().tolist() == pytest.approx(expected, rel=1e-4)


def test_the_loss_is_mixed_with_cross_entropy_by_its_weight(monkeypatch):
    captioner, features = tiny.sensitive_captioner(words=SIZE), tiny.features(2)
    drawn = [(FIRST, END), (FIRST, SECOND, END), (THIRD, THIRD, SECOND), (SECOND, END)]

    def loss(weight: float) -> float:
        monkeypatch.setattr(self_critical, "draw_words", forced(drawn))
        settings = {"smoothing": 0.1, "penalty": 0.3}
        return loss_of(captioner, 2, settings, samples=2, weight=weight)(features.vectors, **batch(2)).loss.item()

    cross_entropy = CaptionLoss(captioner, 64, smoothing=0.1, penalty=0.3)(features.vectors, **batch(2)).loss
    assert loss(0.3) == pytest.approx(0.3 * loss(1.0) + 0.7 * cross_entropy.item(), rel=1e-5)


def test_cross_entropy_gets_the_features_of_the_same_augmented_pixels():
    captioner, pixels = tiny.sensitive_captioner(words=SIZE), tiny.pixels(2)
    calls = []
    captioner.encoder.register_forward_pre_hook(lambda module, inputs: calls.append(inputs[0]))
    loss_of(captioner, samples=2, weight=0.5)(pixels, **{**batch(2), "grid": None})
    assert len(calls) == 1, "the images are encoded once"


def test_regions_are_trained_on_too():
    captioner, features = tiny.sensitive_captioner(words=SIZE), tiny.features(2, kind="regions")
    captioner.encode = lambda vectors, boxes: tiny.Features.of_regions(vectors, boxes)  # type: ignore[method-assign]
    inputs = {**batch(2), "grid": None, "boxes": features.boxes}
    sums = loss_of(captioner, samples=3, weight=0.5)(features.vectors, **inputs)
    assert torch.isfinite(sums.loss)
    assert sums.samples == 6


def test_padding_unreadable_images_and_repeated_images_are_handled():
    captioner, features = tiny.sensitive_captioner(words=SIZE), tiny.features(3)
    inputs = batch(2)

    def sums(images: int, **changes: Tensor) -> SelfCriticalSums:
        torch.manual_seed(0)
        loss = loss_of(captioner, 3, samples=2, baseline="greedy")
        return loss(features[:images].vectors, **{**inputs, **changes})

    plain = sums(2)
    padding = torch.full((4, 5), PAD)
    padded = {
        "tokens": torch.cat([inputs["tokens"], padding]),
        "image_index": torch.cat([inputs["image_index"], torch.tensor([0, 0, 1, 1])]),
    }
    torch.testing.assert_close(sums(2, **padded).as_vector(), plain.as_vector())
    with_image_without_captions = sums(3, **padded)
    assert with_image_without_captions.captions == plain.captions
    assert with_image_without_captions.samples == plain.samples
    twice = {name: torch.cat([inputs[name], inputs[name]]) for name in ("tokens", "image_index")}
    torch.testing.assert_close(
        sums(2, **twice).as_vector(), plain.as_vector() * torch.tensor([2.0, 1, 1, 2, 1, 1], dtype=torch.double)
    )


def test_references_are_the_captions_of_each_image_and_equal_ones_are_counted():
    inputs = batch(3)
    rows = torch.tensor([5, 2, 0, 2, 1, 3, 4])  # in any order, one of them twice
    tokens, index = inputs["tokens"][rows], inputs["image_index"][rows]
    tokens = torch.cat([tokens, torch.full((1, 5), PAD)])
    references, copies = image_references(tokens, torch.cat([index, torch.tensor([0])]), 4, 3)
    for image in range(3):
        captions = [[token for token in row if token != PAD] for row in references[image].tolist()]
        assert sorted(caption for caption in captions if caption) == sorted(TRAIN[image])
    assert copies.tolist() == [[1, 1, 0], [2, 1, 1], [1, 0, 0], [0, 0, 0]]
    assert not references[3].any()


def test_markers_and_empty_captions_are_never_drawn_and_samples_begin_with_their_style():
    logits = torch.zeros(9, 9)
    logits[:, :6] = 20.0  # all markers are more probable than words
    logits[:, END] = 0
    logits[5, 8] = 40.0  # after the second style's marker
    captioner = tiny.TableCaptioner(logits)
    captioner.styles = 2
    train = [[[4, 6, END]], [[5, 7, END]]]
    tokens = torch.tensor([row for group in train for row in group])
    loss = SelfCriticalLoss(CaptionLoss(captioner, 64), CiderReward(train, 9), 1, 4, samples=200)
    features = tiny.features(2)
    references, copies = image_references(tokens, torch.arange(2), 2, 1)
    torch.manual_seed(0)
    sample, _, _ = loss._sample(features, references, copies)
    assert set(sample.tokens.unique().tolist()) == {PAD, END, 6, 7, 8}
    assert not (sample.tokens[:, 0] == END).any()
    assert (sample.tokens[200:, 0] == 8).all()
    assert set(sample.tokens[:200, 0].tolist()) == {6, 7, 8}
    for row, log_p in zip(sample.tokens.tolist(), sample.log_p.tolist(), strict=True):
        length = row.index(END) + 1 if END in row else 5
        assert PAD not in row[:length]
        assert not any(row[length:])
        assert not any(log_p[length:])


def test_words_are_drawn_with_their_probabilities():
    torch.manual_seed(0)
    p = torch.tensor([0.0, 0.5, 0.3, 0.15, 0.05])
    drawn = draw_words(p.log().expand(40_000, -1))
    shares = torch.bincount(drawn, minlength=5) / 40_000
    assert shares[0] == 0
    torch.testing.assert_close(shares, p, atol=0.01, rtol=0)


def test_the_greedy_baseline_has_no_dropout_and_no_gradient_and_the_captioner_stays_in_training():
    captioner = tiny.sensitive_captioner(words=SIZE, dropout=0.5).train()
    loss = loss_of(captioner, 3, samples=1, baseline="greedy")
    features, inputs = tiny.features(2), batch(2)
    references, copies = image_references(inputs["tokens"], inputs["image_index"], 2, 3)
    rewards = [loss._greedy_reward(features, references[:, 0, 0], references[..., 1:], copies) for _ in range(5)]
    assert all(torch.equal(reward, rewards[0]) for reward in rewards)
    assert not rewards[0].requires_grad
    assert captioner.training
    expected = [
        reward_of(image, reference.greedy_caption(captioner.eval(), features[image : image + 1], WORDS, 4))
        for image in range(2)
    ]
    assert rewards[0].squeeze(1).tolist() == pytest.approx(expected, abs=1e-4)


def test_samples_in_training_mode_have_the_log_probabilities_they_were_drawn_with():
    captioner = tiny.sensitive_captioner(words=SIZE, dropout=0.5).train()
    loss, inputs = loss_of(captioner, 3, samples=4), batch(2)
    seen = []
    original = self_critical.draw_words

    def record(log_p: Tensor) -> Tensor:
        words = original(log_p)
        seen.append(log_p.gather(1, words[:, None]).squeeze(1))
        return words

    references, copies = image_references(inputs["tokens"], inputs["image_index"], 2, 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(self_critical, "draw_words", record)
        sample, _, _ = loss._sample(tiny.features(2), references, copies)
    mask = sample.tokens != PAD
    torch.testing.assert_close(sample.log_p.detach(), torch.stack(seen, dim=1) * mask)
    assert sample.log_p.requires_grad


@pytest.mark.parametrize(("name", "seed"), [("ada-lstm", 0), ("mh-fc", 7), ("soft-attention", 0)])
def test_with_relevance_samples_are_drawn_from_the_reweighted_distribution_and_the_baseline_is_not(name, seed):
    captioner, features, inputs = tiny.sensitive_captioner(name, SIZE, seed), tiny.features(2), batch(2)
    weighting = RelevanceWeighting("lrp", tiny.vocabulary(SIZE))
    plain = loss_of(captioner, 3, samples=2)
    weighted = loss_of(captioner, 3, {"relevance": weighting}, samples=2, baseline="greedy")
    references, copies = image_references(inputs["tokens"], inputs["image_index"], 2, 3)
    torch.manual_seed(0)
    sample, reward, advantage = weighted._sample(features, references, copies)
    greedy = plain._greedy_reward(features, references[:, 0, 0], references[..., 1:], copies)
    torch.testing.assert_close(reward - advantage, greedy.expand(-1, 2))
    previous = torch.cat([torch.full((4, 1), START), sample.tokens[:, :-1]], dim=1)
    rows = torch.arange(2).repeat_interleave(2)

    def log_p() -> Tensor:
        logits = captioner(features.select(rows), previous)[0] + weighted.allowed
        logits[:, 0, END] = -torch.inf
        mask = sample.tokens != PAD
        words = sample.tokens.where(mask, FIRST)
        return (logits.log_softmax(dim=-1).gather(-1, words[..., None]).squeeze(-1)).where(mask, 0)

    with captioner.reweighted(weighting):
        reweighted = log_p()
    torch.testing.assert_close(sample.log_p, reweighted, rtol=1e-4, atol=1e-5)
    assert (sample.log_p - log_p()).abs().max() > 0.01, "p̂ = p"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('[reward]\nmetric = "spice"', "unknown reward metric 'spice'"),
        ('[reward]\nbaseline = "mean"', "unknown reward.baseline 'mean'"),
        ("[reward]\nsamples = 1", "needs reward.samples of at least 2"),
        ("[reward]\nweight = 1.5", "reward.weight = 1.5 is out of range"),
        ("[reward]\ntemperature = 0", "reward.temperature = 0.0 is out of range"),
        ("[reward]\nhallucination = -1", "reward.hallucination = -1.0 is out of range"),
        ('[reward]\n[training]\nbatches = "equal-length"', 'set training.batches = "images"'),
        ("[reward]\n[training]\ndistil = 0.5", "exclude each other"),
        ('[relevance]\nweights = "magic"', "unknown relevance.weights 'magic'"),
        ("[relevance]\ncross_entropy = 2", "relevance.cross_entropy = 2.0 is out of range"),
    ],
)
def test_recipes_that_cannot_be_trained_are_refused_in_one_line(text, line):
    with pytest.raises(UserError) as caught:
        from_table(tomllib.loads(text))
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_recipe_without_the_tables_has_neither():
    recipe = from_table({})
    assert recipe.reward is None
    assert recipe.relevance is None
    assert from_table({"reward": {"samples": 3}}).reward.samples == 3


def test_recipes_can_penalise_objects_that_no_reference_names():
    recipe = from_table({"reward": {"hallucination": 0.5}, "captioner": {"name": "ada-lstm"}})
    captioner, vocabulary = tiny.sensitive_captioner("ada-lstm", SIZE), tiny.vocabulary(SIZE)
    loss = build_loss(recipe, captioner, (), vocabulary, [[[START, FIRST, END]]])
    assert isinstance(loss.reward, PenalisedReward)
    assert loss.reward.penalty == 0.5
    assert isinstance(loss.reward.reward, CiderReward)


@pytest.mark.parametrize("baseline", ["others", "greedy"])
@pytest.mark.parametrize("relevance", [False, True])
def test_the_loss_neither_waits_for_the_device_nor_copies_from_the_host_so_that_cuda_graphs_can_capture_it(
    baseline, relevance
):
    captioner, features = tiny.sensitive_captioner("ada-lstm", SIZE, dropout=0.5).train(), tiny.features(2)
    settings = {"relevance": RelevanceWeighting("lrp", tiny.vocabulary(SIZE))} if relevance else {}
    loss = loss_of(captioner, 4, settings, samples=3, baseline=baseline, weight=0.9)
    loss.reward = PenalisedReward(loss.reward, tiny.vocabulary(SIZE).words, 0.5)
    inputs = batch(2)
    with Operations() as operations:
        loss(features.vectors, **inputs, active=[5, 4, 4, 2]).loss.backward()
    assert {"argmax", "searchsorted"} <= operations.names
    waiting = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "lift_fresh", "unique", "repeat_interleave"}
    assert not operations.names & waiting
