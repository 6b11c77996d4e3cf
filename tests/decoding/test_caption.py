"""Captions in words: as a sentence, as JSON, and in a notebook."""

from __future__ import annotations

import base64
import html
import io
import math
import re

import numpy as np
import pytest
from PIL import Image

import tiny
from saywhy.data.tokenizer import MARKERS
from saywhy.decoding import Caption, Decoding, decode


def caption(*words: str, **details) -> Caption:
    logprobs = tuple(math.log(0.9 - 0.1 * position) for position in range(len(words)))
    return Caption(words, logprobs, -1.0, np.full((len(words), 6), 1 / 6), None, (2, 3), **details)


def test_a_caption_pairs_each_word_with_its_own_log_probability():
    features = tiny.features(1)
    hypothesis = decode(tiny.sensitive_captioner(), features, Decoding(max_words=5))[0]
    decoded = Caption.of(hypothesis, tiny.vocabulary(), features, 0, source="a.jpg", model="tiny")
    assert decoded.words == tuple(f"word{token - len(MARKERS)}" for token in hypothesis.tokens)
    assert decoded.logprobs == hypothesis.logprobs[:-1]
    table = decoded.as_dict()
    assert [entry["word"] for entry in table["words"]] == list(decoded.words)
    assert [entry["logprob"] for entry in table["words"]] == pytest.approx(decoded.logprobs, abs=1e-6)
    assert (table["caption"], str(decoded)) == (" ".join(decoded.words),) * 2


def test_the_risk_follows_its_word_and_clitics_join_theirs():
    text = caption("the", "dog", "'s", "ball", risks=(None, 0.125, None, 0.5)).text_with_risks
    assert text == "the dog's (12%) ball (50%)"


def tooltips(page: str) -> dict[str, str]:
    spans = re.findall('<span title="([^"]*)">([^<]*)</span>', page)
    return {html.unescape(word): title for title, word in spans}


def test_a_notebook_shows_words_with_probability_and_risk():
    page = caption("a", "dog", "'s", "ball", risks=(None, 0.25, None, None))._repr_html_()
    assert tooltips(page) == {
        "a": "probability 90.0%",
        "dog": "probability 80.0%, hallucination risk 25%",
        "'s": "probability 70.0%",
        "ball": "probability 60.0%",
    }
    assert html.unescape(re.sub("<[^>]*>", "", page)) == "a dog's ball"
    assert "<img" not in page


def test_a_notebook_shows_the_image_as_png():
    page = caption("a", image=Image.new("RGBA", (2000, 1000), "red"), source="a.png")._repr_html_()
    (data,) = re.findall('<img src="data:image/png;base64,([^"]*)"', page)
    image = Image.open(io.BytesIO(base64.b64decode(data)))
    assert (image.format, image.size) == ("PNG", (320, 160))
    assert image.getpixel((5, 5)) == (255, 0, 0)


def test_html_in_words_and_file_names_is_escaped():
    hostile = '"><script>alert(1)</script>'
    page = caption(hostile, source=hostile, image=Image.new("RGB", (4, 4)))._repr_html_()
    assert "<script>" not in page
    assert page.count('">') == 2, "no attribute is closed early"
    assert html.unescape(page).count(hostile) == 2


def test_show_draws_the_attention_on_the_image():
    figure = caption("a", "dog", image=Image.new("RGB", (40, 40)), crop=(0.0, 0.0, 40.0, 40.0)).show()
    assert isinstance(figure, Image.Image)
