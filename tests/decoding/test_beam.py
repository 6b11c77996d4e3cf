"""Beam search against brute force and against a search that never stops early."""

from __future__ import annotations

import pytest
import torch

import tiny
from reference import decoding as reference
from saywhy.captioners import captioners
from saywhy.data.tokenizer import END, MARKERS, PAD, START, UNK
from saywhy.decoding import Decoding, beam_search, decode

FIRST = len(MARKERS)
VOCABULARY, MAX = FIRST + 3, 4  # three words, captions of up to four: 120 captions in all
FULL = 3**MAX
SETTINGS = [
    (penalty, min_words, max_words)
    for penalty in (0.0, 0.7, 1.0, 2.0)
    for min_words, max_words in ((1, 4), (1, 3), (3, 4), (2, 2))
]


def images_of(features):
    """The features of each image alone."""
    return [features.select(torch.tensor([row])) for row in range(len(features))]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", captioners)
@torch.inference_mode()
def test_beam_search_with_a_full_beam_equals_brute_force(name, seed):
    captioner, features = tiny.sensitive_captioner(name, VOCABULARY, seed), tiny.features(3, seed)
    candidates = [reference.all_captions(captioner, image, MAX) for image in images_of(features)]
    assert [len(captions) for captions in candidates] == [120] * 3
    lengths = set()
    for penalty, min_words, max_words in SETTINGS:
        decoding = Decoding(beam=FULL, length_penalty=penalty, min_words=min_words, max_words=max_words)
        for captions, hypotheses in zip(candidates, beam_search(captioner, features, decoding), strict=True):
            tokens, score = reference.best_caption(captions, penalty, min_words, max_words)
            assert hypotheses[0].tokens == tokens
            assert hypotheses[0].score == pytest.approx(score, abs=1e-4)
            lengths.add(len(tokens))
    assert len(lengths) > 1, "one length is always best: the length penalty was not tested"


@torch.inference_mode()
def test_all_hypotheses_of_a_full_beam_have_the_scores_of_brute_force():
    captioner, image = tiny.sensitive_captioner(words=VOCABULARY), tiny.features(1)
    captions = reference.all_captions(captioner, image, 2)
    hypotheses = beam_search(captioner, image, Decoding(beam=12, length_penalty=1.0, max_words=2))[0]
    assert len(hypotheses) > 3
    for hypothesis in hypotheses:
        assert hypothesis.score == pytest.approx(reference.score(captions[hypothesis.tokens], 1.0), abs=1e-5)


class CountingCaptioner(torch.nn.Module):
    """Forwards steps to a captioner and counts them."""

    styles = 0

    def __init__(self, captioner):
        super().__init__()
        self.captioner, self.device, self.start, self.steps = captioner, captioner.device, captioner.start, 0

    def step(self, words, state):
        self.steps += 1
        return self.captioner.step(words, state)


@pytest.mark.parametrize("beam", [1, 2, 3])
@torch.inference_mode()
def test_stopping_early_never_changes_the_best_caption(beam):
    max_words, saved_steps = 9, 0
    for seed in range(4):
        captioner, features = tiny.sensitive_captioner(words=FIRST + 5, seed=seed), tiny.features(3, seed)
        for penalty in (0.0, 0.7, 1.5):
            for image in images_of(features):
                counting = CountingCaptioner(captioner)
                decoding = Decoding(beam=beam, length_penalty=penalty, max_words=max_words)
                best = beam_search(counting, image, decoding)[0][0]  # type: ignore[arg-type]
                tokens, score = reference.beam_search(captioner, image, beam, penalty, 1, max_words)
                assert best.tokens == tokens
                assert best.score == pytest.approx(score, abs=1e-4)
                saved_steps += max_words + 1 - counting.steps
    assert saved_steps > 0, "the search never stopped early"


@pytest.mark.parametrize("penalty", [0.0, 0.7])
@torch.inference_mode()
def test_captions_of_a_batch_equal_those_of_single_images(penalty):
    for seed in range(3):
        captioner, features = tiny.sensitive_captioner(seed=seed), tiny.features(5, seed)
        decoding = Decoding(beam=3, length_penalty=penalty, max_words=8)
        for together, image in zip(decode(captioner, features, decoding), images_of(features), strict=True):
            (alone,) = decode(captioner, image, decoding)
            assert together.tokens == alone.tokens
            assert together.score == pytest.approx(alone.score, abs=1e-4)


def greedy(captioner, features, **settings):
    return decode(captioner, features, Decoding(method="greedy", **settings))


@torch.inference_mode()
def test_a_beam_of_one_equals_greedy_decoding_for_a_fixed_length():
    settings = {"length_penalty": 0.0, "min_words": 6, "max_words": 6}
    for seed in range(4):
        captioner, features = tiny.sensitive_captioner(seed=seed), tiny.features(4, seed)
        by_beam = decode(captioner, features, Decoding(beam=1, **settings))
        by_greedy = greedy(captioner, features, **settings)
        assert [hypothesis.tokens for hypothesis in by_beam] == [hypothesis.tokens for hypothesis in by_greedy]
        scores = [hypothesis.score for hypothesis in by_greedy]
        assert [hypothesis.score for hypothesis in by_beam] == pytest.approx(scores, abs=1e-4)


@torch.inference_mode()
def test_a_beam_of_one_follows_the_greedy_path_and_ends_where_the_score_is_best():
    settings = {"length_penalty": 0.0, "max_words": 8}
    shorter = 0
    for seed in range(6):
        captioner, features = tiny.sensitive_captioner(seed=seed), tiny.features(4, seed)
        by_beam = decode(captioner, features, Decoding(beam=1, **settings))
        for best, path in zip(by_beam, greedy(captioner, features, **settings), strict=True):
            shared = min(len(best.tokens), len(path.tokens))
            assert best.tokens[:shared] == path.tokens[:shared]
            assert best.score >= path.score - 1e-5
            shorter += len(best.tokens) < len(path.tokens)
    assert shorter, "greedy decoding was never worse"


@torch.inference_mode()
def test_hypotheses_of_an_image_differ_and_are_sorted_by_score():
    for hypotheses in beam_search(tiny.sensitive_captioner(), tiny.features(3), Decoding(beam=4, max_words=6)):
        scores = [hypothesis.score for hypothesis in hypotheses]
        assert scores == sorted(scores, reverse=True)
        assert len({hypothesis.tokens for hypothesis in hypotheses}) == len(hypotheses) > 1


@pytest.mark.parametrize("name", captioners)
@torch.inference_mode()
def test_every_hypothesis_has_the_attention_and_log_probabilities_of_its_own_words(name):
    captioner, features = tiny.sensitive_captioner(name), tiny.features(4)
    results = beam_search(captioner, features, Decoding(beam=5, min_words=3, max_words=6))
    for image, hypotheses in zip(images_of(features), results, strict=True):
        for hypothesis in hypotheses:
            logits, attention = captioner(image, torch.tensor([[START, *hypothesis.tokens]]))
            logits[..., [PAD, START, UNK]] = -torch.inf
            log_p = logits[0].log_softmax(dim=-1)
            expected = [log_p[t, token].item() for t, token in enumerate((*hypothesis.tokens, END))]
            assert hypothesis.logprobs == pytest.approx(expected, abs=1e-3)
            alpha = attention.alpha[0, :-1]
            torch.testing.assert_close(torch.from_numpy(hypothesis.alpha), alpha, rtol=0, atol=1e-4)


@torch.inference_mode()
def test_the_beam_can_be_wider_than_the_vocabulary():
    logits = torch.tensor([0.0, 0.0, 1.0, 0.0, 0.5])  # the vocabulary has one word besides the markers
    hypotheses = beam_search(tiny.TableCaptioner.always(logits), tiny.features(1), Decoding(beam=9, max_words=3))[0]
    assert {hypothesis.tokens for hypothesis in hypotheses} <= {(4,), (4, 4), (4, 4, 4)}
    assert END not in hypotheses[0].tokens
