"""What the server answers: captions, words and maps as JSON.

A map is a small grey PNG over the whole picture, scaled by its own maximum, which stands beside it. The page multiplies
the two, so that all words share one scale, and draws the map in colours.
"""

from __future__ import annotations

import io
from base64 import b64encode
from dataclasses import asdict
from typing import Any

import numpy as np
from PIL import Image

from saywhy.decoding.caption import Caption
from saywhy.explain.explanation import Explanation
from saywhy.viz.drawing import map_maximum, normalise_map
from saywhy.viz.explanation_page import drawn_map
from saywhy.viz.method_styles import METHOD_STYLES
from saywhy.web.captioning import Doubts
from saywhy.web.pictures import Picture

Event = dict[str, Any]
ZERO = 127
"""The grey value of 0 in a signed map: 0 is −1, 254 is 1."""


def caption_event(caption: Caption, picture: Picture) -> Event:
    """A caption, and by which id its picture can be referred to."""
    return {"event": "caption", **caption.as_dict(), **_picture(picture)}


def begin_event(picture: Picture, model: str, words: tuple[str, ...]) -> Event:
    """What is known before the first word is explained."""
    return {"event": "begin", "model": model, "words": list(words), **_picture(picture)}


def _picture(picture: Picture) -> dict[str, Any]:
    """A picture's id and size, and the part of it that the encoder sees, in shares of its sides."""
    (left, top, right, bottom), (width, height) = picture.crop, picture.size
    crop = [left / width, top / height, right / width, bottom / height]
    return {"image_id": picture.key[0], "size": [width, height], "crop": crop}


def doubts_event(doubts: Doubts) -> Event:
    """The risk of each word, null for words that name no object, and the familiarity of the picture."""
    return {"event": "doubts", "risks": None if doubts.risks is None else list(doubts.risks), **doubts.familiarity}


def word_event(k: int, explanation: Explanation, alternatives: list[tuple[str, float]]) -> Event:
    """The explanation of the word with index k, which is the only one of `explanation`."""
    (word,) = explanation.words
    return {
        "event": "word",
        "index": k,
        **asdict(word),
        "image_share": word.budget.image_share,
        "alternatives": [{"word": other, "probability": p} for other, p in alternatives],
        "maps": {method: map_answer(explanation, 0, method) for method in explanation.methods},
    }


def maps_event(method: str, explanation: Explanation) -> Event:
    """The maps of one method of all words, and its weights of earlier words."""
    return {
        "event": "maps",
        "method": method,
        "maps": [map_answer(explanation, k, method) for k in range(len(explanation.words))],
        "earlier_words": [word.earlier_words.get(method) for word in explanation.words],
    }


def explanation_answer(explanation: Explanation, alternatives: list[list[tuple[str, float]]], maps: bool) -> Event:
    """A whole explanation: `explanation.json` of `saywhy explain`, with alternatives and, if wanted, maps."""
    answer = explanation.as_dict()
    for word, others in zip(answer["words"], alternatives, strict=True):
        word["alternatives"] = [{"word": other, "probability": p} for other, p in others]
    if maps:
        count = range(len(explanation.words))
        answer["maps"] = {method: [map_answer(explanation, k, method) for k in count] for method in explanation.methods}
    return answer


def map_answer(explanation: Explanation, k: int, method: str) -> dict[str, Any]:
    """The map of the word with index k: a PNG, its maximum, and whether it has negative values."""
    signed = METHOD_STYLES[method].signed
    values = drawn_map(explanation, k, method)
    maximum = map_maximum(values)
    scaled = normalise_map(values, signed, maximum)
    grey = np.rint(ZERO + ZERO * scaled if signed else 2 * ZERO * scaled).astype(np.uint8)
    return {"png": b64encode(png(Image.fromarray(grey))).decode(), "maximum": maximum, "signed": signed}


def png(image: Image.Image) -> bytes:
    """An image as the contents of a PNG file."""
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return buffer.getvalue()
