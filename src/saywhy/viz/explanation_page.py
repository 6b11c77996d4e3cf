"""`report.html`: an explanation as one page that needs nothing else, neither network nor other files.

The page is a template with its style and its script beside it (`explanation.html`, `.css`, `.js`). What the script
needs to know, and the maps, are written into it: a map is a small image of few colours with their own transparency,
which the browser lays over the image.
"""

from __future__ import annotations

import io
import json
import re
from base64 import b64encode
from dataclasses import asdict
from html import escape
from importlib.resources import files
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from PIL import Image

from saywhy.viz.colormap import BLUE, PALE, RED, blurred, look, overlay, strength
from saywhy.viz.explanation_figure import BLUR, PARTS, held_against, image_of, parts, seen_part

if TYPE_CHECKING:
    from saywhy.explain.explanation import Explanation, Word

IMAGE, FINE, COARSE = 800, 256, 112
"""Pixels along the longer side: of the image, of a map over pixels or boxes, of a smooth one over a grid."""
LARGE = 16_000
"""Bytes from which on a map is drawn in fewer colours: a smooth one would show their steps, but is not as large."""
GATE = """<dt>Gate β</dt>
    <dd>The model’s own gate at this word, as its paper defines it: soft attention and MH-FC let the image in by it,
      in Ada-LSTM it is the share of what was said before.</dd>"""
RISK = """<dt>Chance that it is made up</dt>
    <dd>Of object words that looked like this one where the risk was fitted, so many were in no reference of their
      image. Only words for things have it. Those more likely made up than true stand over a wavy line.</dd>"""
DOUBTFUL = 0.5
"""The risk from which on a word stands over a wavy line."""


def explanation_page(explanation: Explanation) -> str:
    """The page of an explanation."""
    width, height = explanation.size
    filling = {
        "caption": escape(explanation.caption),
        "aspect": f"{width / height:.5f}",
        "pale": str(PALE),
        "colours": _colours(),
        "css": _beside("explanation.css"),
        "js": _beside("explanation.js"),
        "tokens": _tokens(explanation),
        "image": _image(explanation),
        "methods": _methods(explanation),
        "table": _table(explanation),
        "gate": GATE if any(word.beta is not None for word in explanation.words) else "",
        "risk": RISK if any(word.risk is not None for word in explanation.words) else "",
        "about": _about(explanation),
        "told": json.dumps(_told(explanation), ensure_ascii=False).replace("<", r"\u003c"),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda name: filling[name[1]], _beside("explanation.html"))


def _beside(name: str) -> str:
    return (files("saywhy.viz") / name).read_text(encoding="utf-8").strip()


def _told(explanation: Explanation) -> dict[str, Any]:
    """What the script knows."""
    return {
        "parts": {part: name for part, (name, _) in PARTS.items()},
        "methods": [{"id": each, **asdict(look(each))} for each in explanation.methods],
        "words": [_word(word) for word in explanation.words],
        "maps": {method: _maps(explanation, method) for method in explanation.methods},
        "seen": _seen(explanation),
    }


def _word(word: Word) -> dict[str, Any]:
    return {**asdict(word), "text": held_against(word), "share": word.budget.share}


def _seen(explanation: Explanation) -> list[float] | None:
    """Left, top, width and height of what the encoder saw, as shares of the image; None if it saw all of it."""
    part = seen_part(explanation)
    return None if part is None else [part[0], part[1], part[2] - part[0], part[3] - part[1]]


def _maps(explanation: Explanation, method: str) -> list[list[str]]:
    """Of each word the images of its maps: one, or for several heads of attention the mean and each."""
    heads = explanation.maps[method].shape[1] if method == "attention" and explanation.maps[method].ndim == 3 else 0
    wanted = [None, *range(heads)]
    return [[_map(explanation, i, method, head) for head in wanted] for i in range(len(explanation.words))]


def _map(explanation: Explanation, i: int, method: str, head: int | None) -> str:
    signed = look(method).signed
    side = FINE if signed or explanation.boxes is not None else COARSE
    values = explanation.map(i, method, head, size=_scaled(explanation.size, side))
    if signed:
        values = blurred(values, BLUR * side)
    strengths = strength(values, signed)
    drawn = _png(overlay(strengths, signed, levels=126))
    if len(drawn.getvalue()) > LARGE:
        drawn = _png(overlay(strengths, signed, levels=48))
    return _data(drawn, "png")


def _png(image: Image.Image) -> io.BytesIO:
    held = io.BytesIO()
    image.save(held, format="PNG", optimize=True)
    return held


def _image(explanation: Explanation) -> str:
    image, held = image_of(explanation), io.BytesIO()
    if max(image.size) > IMAGE:
        image = image.resize(_scaled(image.size, IMAGE), Image.Resampling.LANCZOS)
    image.save(held, format="JPEG", quality=84)
    return _data(held, "jpeg")


def _scaled(size: tuple[int, int], side: int) -> tuple[int, int]:
    """A size of the same shape whose longer side is this."""
    width, height = size
    return max(1, round(width * side / max(size))), max(1, round(height * side / max(size)))


def _data(held: io.BytesIO, kind: str) -> str:
    return f"data:image/{kind};base64,{b64encode(held.getvalue()).decode()}"


def _colours() -> str:
    """The figure's colours as the style's variables."""
    named = {part: "#{:02x}{:02x}{:02x}".format(*colour) for part, (_, colour) in PARTS.items()}
    pairs = {"red": RED[0], "red-strong": RED[1], "blue": BLUE[0], "blue-strong": BLUE[1]}
    named |= {name: " ".join(map(str, colour)) for name, colour in pairs.items()}
    return " ".join(f"--{name}: {colour};" for name, colour in named.items())


def _tokens(explanation: Explanation) -> str:
    """The caption: a button for each word that is explained, plain text for others."""
    explained = {word.position: k for k, word in reversed([*enumerate(explanation.words)])}
    made = []
    for place, token in enumerate(explanation.tokens):
        k = explained.get(place)
        word = token if k is None else explanation.words[k].word
        other = "" if word == token else f"<del>{escape(token)}</del><ins>{escape(word)}</ins>"
        inside = f'<span class="text">{other or escape(token)}</span><span class="weight"></span>'
        if k is None:
            made.append(f'<span class="token">{inside}</span>')
        else:
            risk = explanation.words[k].risk
            doubt = (
                f' doubtful" title="{100 * risk:.0f} % likely made up' if risk is not None and risk >= DOUBTFUL else ""
            )
            made.append(f'<button type="button" class="token{doubt}" data-word="{k}">{inside}</button>')
    return "\n".join(made)


def _methods(explanation: Explanation) -> str:
    radio = '<label><input type="radio" name="method" value="{}"><span>{}</span></label>'
    return "\n".join(radio.format(escape(each), escape(look(each).name)) for each in explanation.methods)


def _table(explanation: Explanation) -> str:
    """All numbers, for those who read tables or print."""
    heads = ["word", "probability", "logit", *(name for name, _ in PARTS.values()), "from the image"]
    if has_risk := any(word.risk is not None for word in explanation.words):
        heads.append("made up")
    rows = []
    for word in explanation.words:
        numbers = [f"{value:z.3f}" for value in (word.logit, *parts(word.budget))]
        cells = [f"{word.probability:.4f}", *numbers, f"{100 * word.budget.share:z.0f} %"]
        if has_risk:
            cells.append("" if word.risk is None else f"{100 * word.risk:.0f} %")
        row = "".join(f"<td>{cell.replace('-', '−')}</td>" for cell in cells)
        rows.append(f'<tr><th scope="row">{escape(held_against(word))}</th>{row}</tr>')
    head = "".join(f'<th scope="col">{each}</th>' for each in heads)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _about(explanation: Explanation) -> str:
    width, height = explanation.size
    told = [
        f"{PurePath(explanation.source).name}, {width} × {height} pixels",
        f"model {explanation.model}, which sees {explanation.seen} × {explanation.seen}",
        f"LRP by the rules “{explanation.composite}”",
    ]
    return escape(" · ".join(told))
