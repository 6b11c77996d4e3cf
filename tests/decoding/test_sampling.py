"""Samples follow their distribution and do not depend on the batch."""

from __future__ import annotations

import pytest
import torch

import tiny
from saywhy.data.tokenizer import END, MARKERS
from saywhy.decoding import Decoding, decode
from saywhy.decoding.sampling import filter_top_k_top_p, inverse_cdf

FIRST = len(MARKERS)
P = torch.tensor([0.4, 0.3, 0.2, 0.1])


def word_counts(**settings) -> torch.Tensor:
    """How often each of four words is sampled for 20,000 images."""
    logits = torch.cat([torch.full((FIRST,), 5.0), P.log()])
    images = tiny.features(1, width=1).select(torch.zeros(20_000, dtype=torch.long))
    decoding = Decoding(method="sample", max_words=1, **settings)
    words = [
        hypothesis.tokens[0] - FIRST for hypothesis in decode(tiny.TableCaptioner.always(logits), images, decoding)
    ]
    return torch.tensor(words).bincount(minlength=4)


def chi_square(counts: torch.Tensor, p: torch.Tensor) -> float:
    expected = counts.sum() * p
    return float(((counts - expected).square() / expected)[p > 0].sum())


@pytest.mark.parametrize(
    ("settings", "p"),
    [
        ({}, P),
        ({"temperature": 0.5}, P**2 / (P**2).sum()),
        ({"temperature": 2.0}, P**0.5 / (P**0.5).sum()),
        ({"top_k": 2}, torch.tensor([4, 3, 0, 0]) / 7),
        ({"top_p": 0.6}, torch.tensor([4, 3, 0, 0]) / 7),
        ({"top_p": 0.75}, torch.tensor([4, 3, 2, 0]) / 9),
        ({"top_k": 3, "top_p": 0.5}, torch.tensor([4, 3, 0, 0]) / 7),
    ],
    ids=str,
)
def test_words_are_sampled_with_their_probability(settings, p):
    counts = word_counts(**settings)
    assert not counts[p == 0].any()
    assert chi_square(counts, p) < 16.3  # exceeded once in a thousand with three degrees of freedom
    assert settings == {} or chi_square(counts, P) > 100, "the test cannot detect the setting"


def test_top_k_and_top_p_keep_the_most_probable_words():
    p = torch.tensor([[0.15, 0.5, 0.05, 0.3], [0.3, 0.05, 0.5, 0.15]])

    def allowed_words(top_k: int, top_p: float) -> list[list[int]]:
        filtered = filter_top_k_top_p(p.log(), top_k, top_p)
        assert torch.equal(filtered[filtered.isfinite()], p.log()[filtered.isfinite()])
        return [row.isfinite().nonzero().flatten().tolist() for row in filtered]

    assert allowed_words(0, 1.0) == allowed_words(4, 1.0) == allowed_words(9, 1.0) == [[0, 1, 2, 3]] * 2
    assert allowed_words(1, 1.0) == [[1], [2]]
    assert allowed_words(2, 1.0) == [[1, 3], [0, 2]]
    assert allowed_words(0, 0.01) == allowed_words(0, 0.49) == [[1], [2]]
    assert allowed_words(0, 0.6) == [[1, 3], [0, 2]]
    assert allowed_words(0, 0.9) == [[0, 1, 3], [0, 2, 3]]
    assert allowed_words(2, 0.7) == [[1, 3], [0, 2]]  # the mass is that of the words within top_k
    assert allowed_words(2, 0.6) == [[1], [2]]


def test_the_inverse_cdf_never_returns_a_word_of_probability_zero():
    p = torch.tensor([[0.0, 0.25, 0.0, 0.75, 0.0]])
    below_one = 1 - 2.0**-53
    draws = {0.0: 1, 0.2: 1, 0.25: 3, 0.9: 3, below_one: 3}
    for u, word in draws.items():
        assert inverse_cdf(p, torch.tensor([u], dtype=torch.float64)).item() == word


def sampled(captioner, features, indices=None, seed: int = 0) -> list[tuple[int, ...]]:
    decoding = Decoding(method="sample", max_words=8, seed=seed)
    return [hypothesis.tokens for hypothesis in decode(captioner, features, decoding, indices)]


def test_a_sampled_caption_does_not_depend_on_the_other_images_of_its_batch():
    captioner, features = tiny.sensitive_captioner(), tiny.features(5)
    together = sampled(captioner, features)
    for batch_size in (1, 2):
        batches = [list(range(5))[start : start + batch_size] for start in range(0, 5, batch_size)]
        apart = [
            caption for batch in batches for caption in sampled(captioner, features.select(torch.tensor(batch)), batch)
        ]
        assert apart == together
    assert sampled(captioner, features.select(torch.tensor([4, 1])), [4, 1]) == [together[4], together[1]]


def test_equal_images_at_different_positions_have_different_samples():
    captioner, features = tiny.captioner(), tiny.features(1).select(torch.zeros(6, dtype=torch.long))
    assert len(set(sampled(captioner, features))) > 1


def test_a_caption_is_a_function_of_the_seed():
    captioner, features = tiny.captioner(), tiny.features(6)
    assert sampled(captioner, features, seed=1) == sampled(captioner, features, seed=1)
    assert sampled(captioner, features, seed=1) != sampled(captioner, features, seed=2)
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    sampled(captioner, features)
    assert torch.rand(1) == expected, "sampling must not use the global random state"


def test_sampling_with_a_low_temperature_is_greedy_decoding():
    captioner, features = tiny.sensitive_captioner(seed=2), tiny.features(6)
    greedy, cold, hot = (
        [hypothesis.tokens for hypothesis in decode(captioner, features, Decoding(max_words=8, **settings))]
        for settings in (
            {"method": "greedy"},
            {"method": "sample", "temperature": 0.01},
            {"method": "sample", "temperature": 5.0},
        )
    )
    assert cold == greedy
    assert hot != greedy


def test_log_probabilities_are_those_of_the_model_whatever_the_temperature():
    logits = torch.cat([torch.full((FIRST,), -60.0), P.log()])
    logits[END] = P[0].log()
    decoding = Decoding(method="sample", temperature=0.3, top_k=1, min_words=1, max_words=1)
    (hypothesis,) = decode(tiny.TableCaptioner.always(logits), tiny.features(1, width=1), decoding)
    assert hypothesis.logprobs == pytest.approx([float((P[0] / 1.4).log())] * 2, abs=1e-5)
