"""Captions in a style begin with its marker, which is never produced."""

from __future__ import annotations

import pytest
import torch

import tiny
from saywhy.captioners import captioners
from saywhy.data.tokenizer import END, PAD, START, UNK
from saywhy.decoding import Decoding, decode
from saywhy.decoding.config import log_probabilities
from saywhy.errors import UserError

METHODS = ["beam", "greedy", "sample"]
STYLES = ("coco", "flickr8k")
VOCABULARY = tiny.vocabulary(styles=STYLES)
COCO, FLICKR8K = map(VOCABULARY.start, STYLES)
FIRST = VOCABULARY.markers


def styled(captioner):
    captioner.styles = len(STYLES)
    return captioner


@pytest.mark.parametrize("method", METHODS)
def test_the_first_word_is_the_one_that_follows_the_marker_of_the_style(method):
    table = torch.zeros(FIRST + 3, FIRST + 3)
    table[:, END] = 30.0
    for token, word in ((START, FIRST), (COCO, FIRST + 1), (FLICKR8K, FIRST + 2)):
        table[token, word] = 60.0
    for start, word in ((COCO, FIRST + 1), (FLICKR8K, FIRST + 2)):
        decoding = Decoding(method=method)
        hypotheses = decode(styled(tiny.TableCaptioner(table)), tiny.features(3), decoding, start=start)
        assert [hypothesis.tokens for hypothesis in hypotheses] == [(word,)] * 3
    (hypothesis,) = decode(tiny.TableCaptioner(table), tiny.features(1), Decoding(method=method))
    assert hypothesis.tokens == (FIRST,), "a captioner without styles begins with <start>"


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("marker", [COCO, FLICKR8K])
def test_captions_contain_no_marker_of_a_style_even_if_it_is_most_probable(method, marker):
    logits = torch.zeros(FIRST + 3)
    logits[marker] = 60.0
    captioner, decoding = styled(tiny.TableCaptioner.always(logits)), Decoding(method=method, max_words=5)
    for hypothesis in decode(captioner, tiny.features(8), decoding, start=COCO):
        assert min(hypothesis.tokens) >= FIRST


def test_markers_of_styles_have_no_probability_and_the_words_share_all_of_it():
    p = log_probabilities(torch.randn(2, 3, FIRST + 4), styles=2).exp()
    assert p[..., [PAD, START, UNK, COCO, FLICKR8K]].eq(0).all()
    torch.testing.assert_close(p.sum(dim=-1), torch.ones(2, 3))


@pytest.mark.parametrize("name", captioners)
@pytest.mark.parametrize("method", METHODS)
def test_log_probabilities_equal_those_of_teacher_forcing_from_the_marker(name, method):
    captioner, features = styled(tiny.sensitive_captioner(name)), tiny.features(3)
    captions = {}
    for start in (COCO, FLICKR8K):
        captions[start] = decode(captioner, features, Decoding(method=method, max_words=6, seed=3), start=start)
        for row, hypothesis in enumerate(captions[start]):
            with torch.no_grad():
                tokens = torch.tensor([[start, *hypothesis.tokens]])
                logits, _ = captioner(features.select(torch.tensor([row])), tokens)
            logits[..., [PAD, START, UNK, COCO, FLICKR8K]] = -torch.inf
            log_p = logits[0].log_softmax(dim=-1)
            expected = [log_p[t, token].item() for t, token in enumerate((*hypothesis.tokens, END))]
            assert hypothesis.logprobs == pytest.approx(expected, abs=1e-4)
    pairs = zip(captions[COCO], captions[FLICKR8K], strict=True)
    assert any(first.logprobs != second.logprobs for first, second in pairs)


@pytest.mark.parametrize(("styles", "start"), [(0, COCO), (2, START), (2, FIRST), (2, END)])
def test_a_start_that_is_no_marker_of_the_captioner_is_refused(styles, start):
    captioner = tiny.TableCaptioner.always(torch.zeros(FIRST + 3))
    captioner.styles = styles
    with pytest.raises(ValueError, match="cannot begin a caption"):
        decode(captioner, tiny.features(1), Decoding(), start=start)


def test_an_empty_style_becomes_the_first_of_the_model():
    assert Decoding(beam=5).with_style_of(VOCABULARY) == Decoding(beam=5, style="coco")
    assert Decoding(style="flickr8k").with_style_of(VOCABULARY).style == "flickr8k"
    assert Decoding().with_style_of(tiny.vocabulary()) == Decoding()


def test_an_unknown_style_is_one_line_that_suggests_a_known_one():
    with pytest.raises(UserError, match=r'unknown style .cocoa.: did you mean "coco"'):
        Decoding(style="cocoa").with_style_of(VOCABULARY)
    with pytest.raises(UserError, match=r"unknown style .coco.: this model has only one style"):
        Decoding(style="coco").with_style_of(tiny.vocabulary())
    for value in (3, None, ["coco"]):
        with pytest.raises(UserError, match="style must be text"):
            Decoding(style=value)  # type: ignore[arg-type]


def test_the_signature_names_the_style_of_a_model_with_styles():
    assert str(Decoding(beam=5, style="coco")) == "beam5,length0.7,max20,style:coco"
    assert str(Decoding(beam=5)) == "beam5,length0.7,max20"
