"""Prompts and samples that share rows of the decoder: equal to a slow twin, and independent of the batch."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch

import audit_data
import tiny
from reference import hallucination as reference
from saywhy.captioners import Captioner
from saywhy.data.tokenizer import END, START
from saywhy.decoding.beam import _at_quantiles, prompted_log_p, sampled_captions
from saywhy.decoding.config import log_probabilities
from saywhy.encoders.base import Features

NAMES = ("soft-attention", "ada-lstm", "mh-fc", "coca")
STARTS = torch.tensor([START, START])


@pytest.fixture(params=NAMES)
def captioner(request: pytest.FixtureRequest) -> Captioner:
    return tiny.sensitive_captioner(request.param, words=len(audit_data.WORDS))


@pytest.fixture
def features(captioner: Captioner) -> Features:
    with torch.no_grad():
        return captioner.encode(tiny.pixels(2))


def next_word(captioner: Captioner, features: Features, words: list[int]) -> torch.Tensor:
    """log p after a caption's first words, word by word."""
    state = captioner.start(features)
    for word in (START, *words):
        step = captioner.step(torch.tensor([word]), state)
        state = step.state
    return log_probabilities(step.logits)[0]


@torch.no_grad()
def test_prompted_log_p_is_that_of_the_next_word_after_each_prompt(captioner, features):
    prompts = [[], [7], [5, 8, 6], [6, 5]]
    log_p = prompted_log_p(captioner, captioner.start(features), STARTS, prompts)
    assert log_p.shape == (2, 4, len(audit_data.WORDS))
    for image in range(2):
        for prompt, values in zip(prompts, log_p[image], strict=True):
            expected = next_word(captioner, features[image : image + 1], prompt)
            torch.testing.assert_close(values, expected, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_samples_are_those_at_the_quantiles_of_a_slow_twin(captioner, features):
    temperature = 5.0  # so that samples differ
    captions = sampled_captions(captioner, captioner.start(features), STARTS, 12, temperature, max_words=4)
    offsets = np.random.default_rng(0).random(4).tolist()
    for image in range(2):

        def distribution(words: list[int], image: int = image) -> list[float]:
            log_p = next_word(captioner, features[image : image + 1], words).double()
            return (log_p / temperature).softmax(dim=-1).tolist()

        assert captions[image] == reference.sampled_captions(distribution, 12, offsets, END)
    assert len({tuple(caption) for caption in captions[0]}) > 3
    assert captions[0] != captions[1] or captioner.name == "coca"  # whose random weights hardly see the image


@torch.no_grad()
def test_samples_of_an_image_do_not_depend_on_the_batch(captioner, features):
    both = sampled_captions(captioner, captioner.start(features), STARTS, 8)
    for image in range(2):
        state = captioner.start(features[image : image + 1])
        assert sampled_captions(captioner, state, STARTS[:1], 8) == [both[image]]


@torch.no_grad()
def test_first_words_are_as_frequent_as_they_are_probable():
    captioner = tiny.sensitive_captioner("soft-attention", words=len(audit_data.WORDS))
    features = captioner.encode(tiny.pixels(1))
    (captions,) = sampled_captions(captioner, captioner.start(features), STARTS[:1], 100)
    counts = Counter(caption[0] if caption else END for caption in captions)
    p = (next_word(captioner, features, []).double()).softmax(dim=-1)
    for word, probability in enumerate(p.tolist()):
        assert abs(counts[word] - 100 * probability) <= 1, "systematic sampling is within one sample of its mean"


def test_quantiles_fall_on_words_in_proportion_to_their_probability():
    p = np.array([0.0, 0.25, 0.0, 0.75, 0.0])
    words = _at_quantiles(p, np.array([0.0, 0.2, 0.25, 0.9, math.nextafter(1, 0)]))
    assert words.tolist() == [1, 1, 3, 3, 3]
