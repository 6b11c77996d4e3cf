"""What no caption ever contains, whichever way it is decoded."""

from __future__ import annotations

import math

import pytest
import torch

import tiny
from saywhy.captioners import captioners
from saywhy.data.vocabulary import END, MARKERS, PAD, START, UNK
from saywhy.decoding import Caption, Decoding, decode
from saywhy.errors import UserError

METHODS = ["beam", "greedy", "sample"]
FIRST = len(MARKERS)


@pytest.fixture(params=METHODS)
def method(request: pytest.FixtureRequest) -> str:
    return request.param


def said(captioner, features, **how) -> list[tuple[int, ...]]:
    return [hypothesis.words for hypothesis in decode(captioner, features, Decoding(**how))]


@pytest.mark.parametrize("loved", [END, UNK, PAD, START])
def test_a_model_that_loves_a_marker_still_speaks_words_alone(method, loved):
    logits = torch.zeros(FIRST + 3)
    logits[loved] = 60.0
    for words in said(tiny.Script.always(logits), tiny.features(8), method=method, max_words=5):
        assert 1 <= len(words) <= 5
        assert min(words) >= FIRST


def test_a_model_that_loves_to_end_says_exactly_the_least_number_of_words(method):
    logits = torch.zeros(FIRST + 3)
    logits[END] = 60.0
    captioner = tiny.Script.always(logits)
    for least in (1, 4):
        found = said(captioner, tiny.features(4), method=method, min_words=least)
        assert [len(words) for words in found] == [least] * 4


def test_a_model_that_never_ends_is_stopped_at_the_most_words(method):
    logits = torch.zeros(FIRST + 3)
    logits[END] = -60.0
    found = decode(tiny.Script.always(logits), tiny.features(4), Decoding(method=method, max_words=7))
    assert [len(hypothesis.words) for hypothesis in found] == [7] * 4
    assert all(hypothesis.logprobs[-1] < -50 for hypothesis in found), "<end> must cost what it costs"


def looping(words: int = 3) -> tiny.Script:
    """After word n comes n + 1, and after the last the first again; it hardly ever ends."""
    table = torch.zeros(FIRST + words, FIRST + words)
    table[:, END] = -9.0
    for n in range(words):
        table[FIRST + n, FIRST + (n + 1) % words] = 9.0
    return tiny.Script(table)


def trigrams(words: tuple[int, ...]) -> list[tuple[int, ...]]:
    return [words[i : i + 3] for i in range(len(words) - 2)]


def test_no_three_words_in_a_row_are_said_twice_if_so_asked(method):
    how = {"method": method, "max_words": 15, "min_words": 12}
    loops = said(looping(), tiny.features(5), **how)
    assert all(len(set(trigrams(words))) < len(trigrams(words)) for words in loops), "the model does not loop"
    for words in said(looping(), tiny.features(5), no_repeat=True, **how):
        assert len(words) >= 12
        assert len(set(trigrams(words))) == len(trigrams(words)), words


def test_two_words_may_be_said_again_where_three_may_not(method):
    found = said(looping(2), tiny.features(3), method=method, no_repeat=True, min_words=4, max_words=4)
    assert any(words[:2] == words[2:] for words in found)


def test_where_every_word_would_repeat_the_caption_ends(method):
    logits = torch.tensor([0.0, 0.0, -5.0, 0.0, 3.0])  # a single word, said three times at most
    how = {"method": method, "no_repeat": True, "min_words": 6, "max_words": 9}
    assert said(tiny.Script.always(logits), tiny.features(2), **how) == [(4, 4, 4)] * 2


@pytest.mark.parametrize("name", captioners)
@pytest.mark.parametrize("length", [0.0, 0.7])
def test_log_probabilities_and_the_score_are_those_of_teacher_forcing(name, method, length):
    captioner, features = tiny.opinionated(name), tiny.features(4)
    how = Decoding(method=method, length=length, max_words=6, seed=3)
    for row, hypothesis in enumerate(decode(captioner, features, how)):
        image = features.select(torch.tensor([row]))
        with torch.no_grad():
            logits, attention = captioner(image, torch.tensor([[START, *hypothesis.words]]))
        logits[..., [PAD, START, UNK]] = -math.inf
        log_p = logits[0].log_softmax(dim=-1)
        expected = [log_p[t, word].item() for t, word in enumerate((*hypothesis.words, END))]
        assert hypothesis.logprobs == pytest.approx(expected, abs=1e-4)
        assert hypothesis.score == pytest.approx(sum(expected) / len(expected) ** length, abs=1e-4)
        T = len(hypothesis.words)
        assert hypothesis.alpha.shape == attention.alpha[0, :T].shape
        torch.testing.assert_close(torch.from_numpy(hypothesis.alpha), attention.alpha[0, :T], rtol=0, atol=1e-5)
        assert hypothesis.alpha.sum(axis=-1) == pytest.approx(1.0, abs=1e-5)
        if attention.beta is not None:
            assert hypothesis.beta == pytest.approx(attention.beta[0, :T].numpy(), abs=1e-5)


def test_decoding_leaves_no_gradient_and_no_mark_on_the_model(method):
    captioner = tiny.opinionated()
    before = {name: tensor.clone() for name, tensor in captioner.state_dict().items()}
    one, other = (said(captioner, tiny.features(3), method=method, max_words=6) for _ in range(2))
    assert one == other
    assert all(parameter.grad is None for parameter in captioner.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in captioner.state_dict().items())


@pytest.mark.parametrize(
    "wrong",
    [
        {"method": "beem"},
        {"beam": 0},
        {"length": -0.1},
        {"length": math.nan},
        {"min_words": 0},
        {"min_words": 5, "max_words": 4},
        {"temperature": 0.0},
        {"temperature": math.inf},
        {"temperature": math.nan},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.1},
    ],
    ids=str,
)
def test_settings_out_of_range_are_refused_in_one_line_that_names_them(wrong):
    with pytest.raises(UserError, match=next(iter(wrong))) as caught:
        Decoding(**wrong)
    assert "\n" not in str(caught.value)


def test_different_ways_of_decoding_have_different_signatures():
    ways = [
        Decoding(),
        Decoding(beam=4),
        Decoding(length=0),
        Decoding(min_words=2),
        Decoding(max_words=9),
        Decoding(no_repeat=True),
        Decoding(method="greedy"),
        Decoding(method="sample"),
        Decoding(method="sample", seed=1),
        Decoding(method="sample", temperature=0.5),
        Decoding(method="sample", top_k=5),
        Decoding(method="sample", top_p=0.5),
    ]
    assert len({str(way) for way in ways}) == len(ways)


def test_a_caption_pairs_each_word_with_its_own_log_probability():
    features = tiny.features(1)
    hypothesis = decode(tiny.opinionated(), features, Decoding(max_words=5))[0]
    caption = Caption.of(hypothesis, tiny.vocabulary(), features, 0, source="a.jpg", model="tiny")
    assert caption.words == tuple(f"word{number - FIRST}" for number in hypothesis.words)
    assert caption.logprobs == hypothesis.logprobs[:-1]
    shown = caption.as_dict()
    assert [pair["word"] for pair in shown["words"]] == list(caption.words)
    assert [pair["logprob"] for pair in shown["words"]] == pytest.approx(caption.logprobs, abs=1e-6)
    assert (shown["caption"], str(caption)) == (" ".join(caption.words),) * 2
