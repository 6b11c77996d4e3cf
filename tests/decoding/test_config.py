"""Decoding settings, and the constraints that hold for every decoding method."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import tiny
from saywhy.captioners import captioners
from saywhy.data.tokenizer import END, MARKERS, PAD, START, UNK
from saywhy.decoding import Decoding, decode, decoding_methods
from saywhy.errors import UserError

METHODS = ["beam", "greedy", "sample"]
FIRST = len(MARKERS)


@pytest.fixture(params=METHODS)
def method(request: pytest.FixtureRequest) -> str:
    return request.param


def decoded(captioner, features, **settings) -> list[tuple[int, ...]]:
    return [hypothesis.tokens for hypothesis in decode(captioner, features, Decoding(**settings))]


@pytest.mark.parametrize("marker", [END, UNK, PAD, START])
def test_captions_contain_no_marker_even_if_it_is_most_probable(method, marker):
    logits = torch.zeros(FIRST + 3)
    logits[marker] = 60.0
    for tokens in decoded(tiny.TableCaptioner.always(logits), tiny.features(8), method=method, max_words=5):
        assert 1 <= len(tokens) <= 5
        assert min(tokens) >= FIRST


def test_min_words_holds_when_ending_is_most_probable(method):
    logits = torch.zeros(FIRST + 3)
    logits[END] = 60.0
    captioner = tiny.TableCaptioner.always(logits)
    for min_words in (1, 4):
        captions = decoded(captioner, tiny.features(4), method=method, min_words=min_words)
        assert [len(tokens) for tokens in captions] == [min_words] * 4


def test_max_words_holds_when_ending_is_improbable(method):
    logits = torch.zeros(FIRST + 3)
    logits[END] = -60.0
    hypotheses = decode(tiny.TableCaptioner.always(logits), tiny.features(4), Decoding(method=method, max_words=7))
    assert [len(hypothesis.tokens) for hypothesis in hypotheses] == [7] * 4
    assert all(hypothesis.logprobs[-1] < -50 for hypothesis in hypotheses), "<end> keeps the model's log-probability"


def looping(words: int = 3) -> tiny.TableCaptioner:
    """A captioner that repeats its words in order and hardly ever ends."""
    table = torch.zeros(FIRST + words, FIRST + words)
    table[:, END] = -9.0
    for n in range(words):
        table[FIRST + n, FIRST + (n + 1) % words] = 9.0
    return tiny.TableCaptioner(table)


def trigrams(tokens: tuple[int, ...]) -> list[tuple[int, ...]]:
    return [tokens[i : i + 3] for i in range(len(tokens) - 2)]


def test_no_repeat_forbids_repeated_trigrams(method):
    settings = {"method": method, "max_words": 15, "min_words": 12}
    loops = decoded(looping(), tiny.features(5), **settings)
    assert all(len(set(trigrams(tokens))) < len(trigrams(tokens)) for tokens in loops), "the model does not loop"
    for tokens in decoded(looping(), tiny.features(5), no_repeat=True, **settings):
        assert len(tokens) >= 12
        assert len(set(trigrams(tokens))) == len(trigrams(tokens)), tokens


def test_no_repeat_allows_repeated_bigrams(method):
    captions = decoded(looping(2), tiny.features(3), method=method, no_repeat=True, min_words=4, max_words=4)
    assert any(tokens[:2] == tokens[2:] for tokens in captions)


def test_a_caption_ends_where_every_word_would_repeat_a_trigram(method):
    logits = torch.tensor([0.0, 0.0, -5.0, 0.0, 3.0])  # a single word, which can follow itself three times at most
    settings = {"method": method, "no_repeat": True, "min_words": 6, "max_words": 9}
    assert decoded(tiny.TableCaptioner.always(logits), tiny.features(2), **settings) == [(4, 4, 4)] * 2


@pytest.mark.parametrize("name", captioners)
@pytest.mark.parametrize("penalty", [0.0, 0.7])
def test_log_probabilities_scores_and_attention_equal_those_of_teacher_forcing(name, method, penalty):
    captioner, features = tiny.sensitive_captioner(name), tiny.features(4)
    decoding = Decoding(method=method, length_penalty=penalty, max_words=6, seed=3)
    for row, hypothesis in enumerate(decode(captioner, features, decoding)):
        image = features.select(torch.tensor([row]))
        with torch.no_grad():
            logits, attention = captioner(image, torch.tensor([[START, *hypothesis.tokens]]))
        logits[..., [PAD, START, UNK]] = -math.inf
        log_p = logits[0].log_softmax(dim=-1)
        expected = [log_p[t, token].item() for t, token in enumerate((*hypothesis.tokens, END))]
        assert hypothesis.logprobs == pytest.approx(expected, abs=1e-4)
        assert hypothesis.score == pytest.approx(sum(expected) / len(expected) ** penalty, abs=1e-4)
        T = len(hypothesis.tokens)
        assert hypothesis.alpha.shape == attention.alpha[0, :T].shape
        torch.testing.assert_close(torch.from_numpy(hypothesis.alpha), attention.alpha[0, :T], rtol=0, atol=1e-5)
        assert hypothesis.alpha.sum(axis=-1) == pytest.approx(1.0, abs=1e-5)
        if attention.beta is not None:
            assert hypothesis.beta == pytest.approx(attention.beta[0, :T].numpy(), abs=1e-5)


def test_decoding_changes_neither_weights_nor_gradients(method):
    captioner = tiny.sensitive_captioner()
    before = {name: tensor.clone() for name, tensor in captioner.state_dict().items()}
    first, second = (decoded(captioner, tiny.features(3), method=method, max_words=6) for _ in range(2))
    assert first == second
    assert all(parameter.grad is None for parameter in captioner.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in captioner.state_dict().items())


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_logits_that_are_not_finite_are_an_error_of_one_line(method, value):
    logits = torch.zeros(FIRST + 3)
    logits[FIRST] = value
    with pytest.raises(UserError, match="logits are not finite") as caught:
        decode(tiny.TableCaptioner.always(logits), tiny.features(2), Decoding(method=method))
    assert "\n" not in str(caught.value)


def test_a_word_can_have_a_logit_of_minus_infinity(method):
    logits = torch.zeros(FIRST + 3)
    logits[FIRST] = -math.inf
    for tokens in decoded(tiny.TableCaptioner.always(logits), tiny.features(4), method=method, max_words=5):
        assert FIRST not in tokens


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "beem"}, 'unknown decoding method .beem.: did you mean "beam"'),
        ({"attention": "sample"}, "unknown attention mode .sample.: did you mean .sampled"),
        ({"beam": 0}, "beam = 0 is out of range: use 1 to 1000"),
        ({"beam": 3000}, "beam = 3000 is out of range: use 1 to 1000"),
        ({"beam": 100_000_000}, "beam = 100000000 is out of range: use 1 to 1000"),
        ({"max_words": 10**9}, "max_words = 1000000000 is out of range: use 1 to 1000"),
        ({"length_penalty": -0.1}, "length_penalty = -0.1 is out of range: use 0 to 10"),
        ({"length_penalty": 1e308}, r"length_penalty = 1e\+308 is out of range"),
        ({"length_penalty": math.nan}, "length_penalty = nan is out of range"),
        ({"min_words": 0}, "min_words = 0 is out of range"),
        ({"min_words": 5, "max_words": 4}, "min_words = 5 is above max_words = 4"),
        ({"temperature": 0.0}, "temperature = 0.0 is out of range: use 0.01 to 100"),
        ({"temperature": 1e-300}, "temperature = 1e-300 is out of range: use 0.01 to 100"),
        ({"temperature": 1e300}, r"temperature = 1e\+300 is out of range: use 0.01 to 100"),
        ({"temperature": math.inf}, "temperature = inf is out of range"),
        ({"temperature": math.nan}, "temperature = nan is out of range"),
        ({"top_k": -1}, "top_k = -1 is out of range"),
        ({"top_p": 0.0}, "top_p = 0.0 is out of range"),
        ({"top_p": 1.1}, "top_p = 1.1 is out of range"),
        ({"seed": -1}, "seed = -1 is out of range"),
        ({"seed": 2**64}, "seed = 18446744073709551616 is out of range: use 0 to 9223372036854775807"),
        ({"beam": 2.5}, "beam must be a whole number, not 2.5"),
        ({"beam": "3"}, "beam must be a whole number, not '3'"),
        ({"beam": True}, "beam must be a whole number, not True"),
        ({"max_words": None}, "max_words must be a whole number, not None"),
        ({"seed": 1.0}, "seed must be a whole number, not 1.0"),
        ({"temperature": "hot"}, "temperature must be a number, not 'hot'"),
        ({"length_penalty": False}, "length_penalty must be a number, not False"),
        ({"no_repeat": 1}, "no_repeat must be true or false, not 1"),
        ({"method": 3}, "method must be text, not 3"),
        ({"attention": None}, "attention must be text, not None"),
    ],
    ids=str,
)
def test_wrong_settings_are_an_error_of_one_line_that_names_the_limits(settings, message):
    with pytest.raises(UserError, match=message) as caught:
        Decoding(**settings)
    assert "\n" not in str(caught.value)


def test_settings_at_their_limits_can_be_decoded(method):
    captioner, features = tiny.sensitive_captioner(), tiny.features(2)
    for limit in (0, 1):
        limits = {name: limits[limit] for name, limits in (Decoding.WHOLE_NUMBERS | Decoding.NUMBERS).items()}
        settings = limits | {"beam": min(limits["beam"], 50), "max_words": min(limits["max_words"], 9), "min_words": 1}
        for hypothesis in decode(captioner, features, Decoding(method=method, **settings)):
            assert hypothesis.tokens
            assert math.isfinite(hypothesis.score)


def test_numpy_numbers_are_accepted():
    decoding = Decoding(beam=np.int64(4), temperature=np.float32(0.5), length_penalty=1)
    assert str(decoding) == "beam4,length1,max20"


def test_settings_of_version_0_1_are_read_and_unknown_ones_are_named():
    old = {"method": "beam", "beam": 5, "length": 0.85, "attend": "argmax"}
    assert Decoding.from_config(old) == Decoding(beam=5, length_penalty=0.85, attention="argmax")
    with pytest.raises(UserError, match=r'unknown decoding setting .beem.: did you mean "beam"'):
        Decoding.from_config({"beem": 5})
    with pytest.raises(UserError, match="must be a table"):
        Decoding.from_config([5])  # type: ignore[arg-type]


def test_different_settings_have_different_signatures():
    settings = [
        Decoding(),
        Decoding(beam=4),
        Decoding(length_penalty=0),
        Decoding(min_words=2),
        Decoding(max_words=9),
        Decoding(no_repeat=True),
        Decoding(attention="argmax"),
        Decoding(method="greedy"),
        Decoding(method="sample"),
        Decoding(method="sample", seed=1),
        Decoding(method="sample", temperature=0.5),
        Decoding(method="sample", top_k=5),
        Decoding(method="sample", top_p=0.5),
    ]
    assert len({str(decoding) for decoding in settings}) == len(settings)


def test_signatures_are_those_of_published_results():
    assert str(Decoding(beam=5, length_penalty=0.85, no_repeat=True)) == "beam5,length0.85,max20,norepeat3"
    assert str(Decoding(method="greedy", min_words=2)) == "greedy,length0.7,min2,max20"
    sampled = Decoding(method="sample", temperature=0.8, top_k=10, top_p=0.9, seed=4, attention="sampled")
    assert str(sampled) == "sample,t0.8,k10,p0.9,seed4,length0.7,max20,sampled"


def test_a_registered_method_can_be_chosen_by_name(monkeypatch):
    monkeypatch.setattr(decoding_methods, "_entries", dict(decoding_methods._entries))

    @decoding_methods.register("first-word")
    def first_word(captioner, features, decoding, indices, start):
        return [(decoding.beam, index) for index in indices]

    decoding = Decoding(method="first-word", beam=2)
    assert str(decoding) == "first-word,length0.7,max20"
    assert decode(tiny.TableCaptioner.always(torch.zeros(FIRST + 1)), tiny.features(2), decoding, [7, 9]) == [
        (2, 7),
        (2, 9),
    ]


def test_the_number_of_indices_must_be_that_of_the_images():
    with pytest.raises(ValueError, match="1 indices for features of 2 images"):
        decode(tiny.TableCaptioner.always(torch.zeros(FIRST + 1)), tiny.features(2), Decoding(), [0])
