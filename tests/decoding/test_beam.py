"""Beam search against brute force and against a search that never stops early."""

from __future__ import annotations

import pytest
import torch

import tiny
from reference import decoding as reference
from saywhy.captioners import captioners
from saywhy.data.vocabulary import END, MARKERS, PAD, START, UNK
from saywhy.decoding import Decoding, beam_search, decode, greedy

FIRST = len(MARKERS)
WORDS, MAX = FIRST + 3, 4  # three words, captions of up to four: 120 captions in all
FULL = 3**MAX
RULES = [(length, least, most) for length in (0.0, 0.7, 1.0, 2.0) for least, most in ((1, 4), (1, 3), (3, 4), (2, 2))]


def rows(features):
    """The images one by one."""
    return [features.select(torch.tensor([row])) for row in range(len(features))]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", captioners)
@torch.inference_mode()
def test_a_full_beam_finds_the_best_caption_that_brute_force_finds(name, seed):
    captioner, features = tiny.opinionated(name, WORDS, seed), tiny.features(3, seed)
    every = [reference.every_caption(captioner, image, MAX) for image in rows(features)]
    assert [len(captions) for captions in every] == [120] * 3
    lengths = set()
    for length, least, most in RULES:
        how = Decoding(beam=FULL, length=length, min_words=least, max_words=most)
        for captions, found in zip(every, beam_search(captioner, features, how), strict=True):
            words, score = reference.best_caption(captions, length, least, most)
            assert found[0].words == words
            assert found[0].score == pytest.approx(score, abs=1e-4)
            lengths.add(len(words))
    assert len(lengths) > 1, "one length is always best: the rules were not tested"


@torch.inference_mode()
def test_captions_of_a_full_beam_have_the_scores_that_brute_force_gives_them():
    captioner, image = tiny.opinionated(words=WORDS), tiny.features(1)
    every = reference.every_caption(captioner, image, 2)
    found = beam_search(captioner, image, Decoding(beam=12, length=1.0, max_words=2))[0]
    assert len(found) > 3
    for hypothesis in found:
        assert hypothesis.score == pytest.approx(reference.rank(every[hypothesis.words], 1.0), abs=1e-5)


class Counting(torch.nn.Module):
    """Passes steps on, and counts them."""

    def __init__(self, captioner):
        super().__init__()
        self.captioner, self.device, self.start, self.steps = captioner, captioner.device, captioner.start, 0

    def step(self, words, state):
        self.steps += 1
        return self.captioner.step(words, state)


@pytest.mark.parametrize("beam", [1, 2, 3])
@torch.inference_mode()
def test_stopping_early_never_changes_the_result(beam):
    most, saved = 9, 0
    for seed in range(4):
        captioner, features = tiny.opinionated(words=FIRST + 5, seed=seed), tiny.features(3, seed)
        for length in (0.0, 0.7, 1.5):
            for image in rows(features):
                counting = Counting(captioner)
                how = Decoding(beam=beam, length=length, max_words=most)
                found = beam_search(counting, image, how)[0][0]  # type: ignore[arg-type]
                words, score = reference.beam_search(captioner, image, beam, length, 1, most)
                assert found.words == words
                assert found.score == pytest.approx(score, abs=1e-4)
                saved += most + 1 - counting.steps
    assert saved > 0, "it never stopped early"


@pytest.mark.parametrize("length", [0.0, 0.7])
@torch.inference_mode()
def test_images_together_are_described_as_each_alone(length):
    for seed in range(3):
        captioner, features = tiny.opinionated(seed=seed), tiny.features(5, seed)
        how = Decoding(beam=3, length=length, max_words=8)
        for together, image in zip(decode(captioner, features, how), rows(features), strict=True):
            (alone,) = decode(captioner, image, how)
            assert together.words == alone.words
            assert together.score == pytest.approx(alone.score, abs=1e-4)


@torch.inference_mode()
def test_a_beam_of_one_is_greedy_decoding_where_the_length_is_given():
    for seed in range(4):
        captioner, features = tiny.opinionated(seed=seed), tiny.features(4, seed)
        how = Decoding(beam=1, length=0.0, min_words=6, max_words=6)
        narrow = [found[0] for found in beam_search(captioner, features, how)]
        straight = greedy(captioner, features, how)
        assert [one.words for one in narrow] == [one.words for one in straight]
        assert [one.score for one in narrow] == pytest.approx([one.score for one in straight], abs=1e-4)


@torch.inference_mode()
def test_a_beam_of_one_walks_greedys_path_and_ends_where_that_is_best():
    longer = 0
    for seed in range(6):
        captioner, features = tiny.opinionated(seed=seed), tiny.features(4, seed)
        how = Decoding(beam=1, length=0.0, max_words=8)
        straight = greedy(captioner, features, how)
        for found, one in zip(beam_search(captioner, features, how), straight, strict=True):
            shared = min(len(found[0].words), len(one.words))
            assert found[0].words[:shared] == one.words[:shared]
            assert found[0].score >= one.score - 1e-5
            longer += len(one.words) > len(found[0].words)
    assert longer, "greedy was never beaten"


@torch.inference_mode()
def test_captions_of_one_image_come_best_first_and_differ():
    for found in beam_search(tiny.opinionated(), tiny.features(3), Decoding(beam=4, max_words=6)):
        scores = [hypothesis.score for hypothesis in found]
        assert scores == sorted(scores, reverse=True)
        assert len({hypothesis.words for hypothesis in found}) == len(found) > 1


@pytest.mark.parametrize("name", captioners)
@torch.inference_mode()
def test_every_caption_of_a_beam_carries_the_glances_and_log_probabilities_of_its_own_words(name):
    captioner, features = tiny.opinionated(name), tiny.features(4)
    found = beam_search(captioner, features, Decoding(beam=5, min_words=3, max_words=6))
    for image, hypotheses in zip(rows(features), found, strict=True):
        for hypothesis in hypotheses:
            logits, attention = captioner(image, torch.tensor([[START, *hypothesis.words]]))
            logits[..., [PAD, START, UNK]] = -torch.inf
            log_p = logits[0].log_softmax(dim=-1)
            expected = [log_p[t, word].item() for t, word in enumerate((*hypothesis.words, END))]
            assert hypothesis.logprobs == pytest.approx(expected, abs=1e-3)
            looked = attention.alpha[0, :-1]
            torch.testing.assert_close(torch.from_numpy(hypothesis.alpha), looked, rtol=0, atol=1e-4)


@torch.inference_mode()
def test_a_beam_wider_than_the_vocabulary_is_no_trouble():
    logits = torch.tensor([0.0, 0.0, 1.0, 0.0, 0.5])  # one word there is to say
    found = beam_search(tiny.Script.always(logits), tiny.features(1), Decoding(beam=9, max_words=3))[0]
    assert {hypothesis.words for hypothesis in found} <= {(4,), (4, 4), (4, 4, 4)}
    assert END not in found[0].words
