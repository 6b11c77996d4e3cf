"""HTML pages that need neither a network nor other files: `report.html` of one explanation, and an index of reports.

A report is a template with its style and its script (`explanation.html`, `.css`, `.js`). The numbers and the maps are
written into it. A map is a small palette image with transparency, which the browser lays over the photograph.
"""

from __future__ import annotations

import io
import json
import os
import re
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

import numpy as np
from PIL import Image

from saywhy.viz.drawing import BLUE, GAMMA, PALE, RED, blur_map, map_layer, map_maximum, normalise_map
from saywhy.viz.explanation_figure import (
    BLUR,
    BUDGET_PARTS,
    RARE_PARTS,
    budget_parts,
    crop_fractions,
    image_of,
    part_values,
    word_with_contrast,
)
from saywhy.viz.method_styles import METHOD_STYLES, MethodStyle
from saywhy.viz.protocols import ExplanationLike, WordLike

IMAGE_SIDE, FINE_SIDE, COARSE_SIDE = 800, 256, 112
"""Pixels along the longer side: of the image, of a map over pixels or boxes, of a smooth map over a grid."""
THUMBNAIL_HEIGHT = 320  # pixels, in the index of reports
ASPECTS = (0.75, 2.0)
"""The narrowest and the widest image in the index, width divided by height; others are cut at the sides."""
CELLS = 20
"""Cells along the longer side of the image, of which the page knows each word's relevance."""
LARGE_MAP = 16_000
"""Bytes above which a map gets fewer colours. Smooth maps, where steps of colour would be visible, are smaller."""
WORD_FIELDS = (
    *("word", "position", "caption_word", "contrast", "score", "probability", "pixel_relevance"),
    *("absorbed_by_encoder", "earlier_words", "beta", "risk"),
)
UNFAMILIAR = """<p class="muted"><b>This image is unlike the photographs the model was trained on;
    its caption may be wrong.</b></p>"""
UNFAMILIAR_CARD = '<small class="unfamiliar">Unlike the photographs the model was trained on</small>'
LIKELY_MADE_UP = 0.5
"""The risk from which on a word gets a wavy underline."""
GATE_HELP = """<dt>Gate β</dt>
    <dd>The model’s own gate for this word, as its paper defines it. In soft attention and MH-FC, β is how much of the
      image is let in; in Ada-LSTM, it is the share of what the model knows from the earlier words.</dd>"""
SCORE_HELP = {
    "logit": """Before it chooses a word, the model gives every word a number, the logit; the word with the highest
      logit is the most probable one.""",
    "logp": """The score is the word’s logit, the number that the model gives it before it chooses, less the mean logit
      of the other words, weighted by their probability: how much it leads over the words that were likely instead.""",
}
RISK_LEGEND = '<span><span class="made-up">Wavy line</span>: more likely made up than true</span>'
RISK_HELP = """<dt>Chance that it is made up</dt>
    <dd>Estimated from similar object words: the share of them that no human caption of their image mentions. Only
      words for objects have it. A wavy line marks words that are more likely made up than true.</dd>"""


def explanation_page(explanation: ExplanationLike) -> str:
    """The HTML page of an explanation."""
    width, height = explanation.size
    values = {
        "caption": escape(explanation.caption),
        "aspect": f"{width / height:.5f}",
        "pale": str(PALE),
        "colours": _css_colours(),
        "css": read_template("explanation.css"),
        "js": read_template("explanation.js"),
        "tokens": _tokens(explanation),
        "image": _image_url(explanation),
        "methods": _method_buttons(explanation),
        "table": numbers_table(explanation),
        "gate": GATE_HELP if any(word.beta is not None for word in explanation.words) else "",
        "score": SCORE_HELP[explanation.score],
        "risk": RISK_HELP if any(word.risk is not None for word in explanation.words) else "",
        "unfamiliar": UNFAMILIAR if explanation.familiar is False else "",
        "footer": _footer(explanation),
        "data": json.dumps(_script_data(explanation), ensure_ascii=False).replace("<", r"\u003c"),
    }
    return fill_template("explanation.html", values)


def index_page(reports: Iterable[tuple[str, ExplanationLike]]) -> str:
    """A page that links to reports. Each comes as its path, relative to the page, and its explanation."""
    items = "\n".join(cards := [_index_item(path, explanation) for path, explanation in reports])
    title = f"Why each word: {len(cards)} image{'s' if len(cards) != 1 else ''}"
    risk = RISK_LEGEND if 'class="made-up"' in items else ""
    values = {"title": title, "colours": _css_colours(), "risk": risk, "items": items}
    return fill_template("explanation_index.html", values)


def thumbnail(explanation: ExplanationLike) -> Image.Image | None:
    """A small copy of the image, as `index_page` shows it."""
    if explanation.image is None:
        return None
    small = explanation.image.copy()
    small.thumbnail((2 * THUMBNAIL_HEIGHT, THUMBNAIL_HEIGHT))
    return small


def _index_item(path: str, explanation: ExplanationLike) -> str:
    link = quote(os.fsencode(path))  # a file name may hold bytes that are not UTF-8
    url = jpeg_url(explanation.image, quality=80) if explanation.image else ""
    image = f'<img alt="" src="{url}">' if url else ""
    width, height = explanation.size
    aspect = min(max(width / height, ASPECTS[0]), ASPECTS[1])
    caption, source = _coloured_caption(explanation), escape(PurePath(explanation.source).name)
    warning = UNFAMILIAR_CARD if explanation.familiar is False else ""
    text = f'<p class="caption">{caption}</p>{warning}<small>{source}</small>'
    return f'<li style="--aspect: {aspect:.3f}"><a href="{link}">{image}{text}</a></li>'


def _coloured_caption(explanation: ExplanationLike) -> str:
    """The caption, each word coloured by its share of evidence from the image, likely made-up words underlined."""
    explained = {word.position: word for word in explanation.words if word.word == word.caption_word}
    parts, end = [], 0
    for position, token in enumerate(explanation.tokens):
        start = explanation.caption.index(token, end)
        space, end = explanation.caption[end:start], start + len(token)  # no space before "n't" and "'s"
        parts.append(space + _coloured_word(token, explained.get(position)))
    return "".join(parts)


def _coloured_word(token: str, word: WordLike | None) -> str:
    if word is None or word.contrast is not None:
        return escape(token)
    share = word.budget.image_share
    title = f"{100 * share:z.0f} % of the evidence is from the image".replace("-", "−")
    style = f'style="--share: {max(share, 0):.2f}"'
    mark = ""
    if word.risk is not None and word.risk >= LIKELY_MADE_UP:
        mark, title = 'class="made-up" ', f"{title}; {100 * word.risk:.0f} % likely made up"
    return f'<span {mark}{style} title="{title}">{escape(token)}</span>'


def _script_data(explanation: ExplanationLike) -> dict[str, Any]:
    """The data that the page's script reads."""
    crop, parts = crop_fractions(explanation), budget_parts(explanation.words)
    maps = {method: _word_maps(explanation, method) for method in explanation.methods}
    return {
        "parts": {part: name for part, (name, _) in parts.items()},
        "methods": [_method_data(explanation, method) for method in explanation.methods],
        "words": [_word_data(word, parts) for word in explanation.words],
        "opens": _most_doubtful(explanation),
        "maps": {method: _map_urls(explanation, method, values) for method, values in maps.items()},
        "strengths": {method: _strengths(values) for method, values in maps.items()},
        "cells": {method: _cells(values) for method, values in maps.items()},
        "grid": _cell_grid(explanation.size),
        "gamma": GAMMA,
        "crop": crop and [crop[0], crop[1], crop[2] - crop[0], crop[3] - crop[1]],  # left, top, width, height
    }


def _most_doubtful(explanation: ExplanationLike) -> int:
    """The word with which the page opens: the one that is most likely made up; the first if no risk is known."""
    risks = [-1.0 if word.risk is None else word.risk for word in explanation.words]
    return max(range(len(risks)), key=risks.__getitem__, default=0)


def method_style(explanation: ExplanationLike, method: str) -> MethodStyle:
    """How a method is shown; "lrp" is named after its map."""
    named = f"lrp-{explanation.map_kind}"
    return METHOD_STYLES[named if method == "lrp" and named in METHOD_STYLES else method]


def _method_data(explanation: ExplanationLike, method: str) -> dict[str, Any]:
    style = method_style(explanation, method)
    return {"id": method, "name": style.name, "signed": style.signed, "description": style.description}


def _word_maps(explanation: ExplanationLike, method: str) -> list[np.ndarray]:
    """The map of each word as it is drawn, (height, width); the mean over attention heads."""
    return [drawn_map(explanation, i, method) for i in range(len(explanation.words))]


def drawn_map(explanation: ExplanationLike, i: int, method: str, head: int | None = None) -> np.ndarray:
    """The map of a word, (height, width), as the page draws it."""
    signed = METHOD_STYLES[method].signed
    side = FINE_SIDE if signed or explanation.boxes is not None else COARSE_SIDE
    values = explanation.map(i, method, head, size=_scaled(explanation.size, side))
    return blur_map(values, BLUR * side) if signed else values


def _strengths(maps: Sequence[np.ndarray]) -> list[float]:
    """The maximum of each map, as a share of the largest."""
    maxima = [map_maximum(values) for values in maps]
    return [round(maximum / (max(maxima) or 1.0), 4) for maximum in maxima]


def _cell_grid(size: tuple[int, int]) -> list[int]:
    """Columns and rows of the cells."""
    return [*_scaled(size, CELLS)]


def _cells(maps: Sequence[np.ndarray]) -> list[list[int]]:
    """The mean of each map in each cell, in thousandths of the largest of all words; the cells row by row."""
    if not maps:
        return []
    columns, rows = _scaled((maps[0].shape[1], maps[0].shape[0]), CELLS)
    means = [_means(values, rows, columns) for values in maps]
    largest = max(float(np.abs(values).max()) for values in means) or 1.0
    return [[round(1000 * float(value) / largest) for value in values.flat] for values in means]


def _word_data(word: WordLike, parts: Iterable[str]) -> dict[str, Any]:
    return {
        **{field: getattr(word, field) for field in WORD_FIELDS},
        "earlier_words": {method: [*weights] for method, weights in word.earlier_words.items()},
        "text": word_with_contrast(word),
        "budget": dict(zip(parts, part_values(word.budget, parts), strict=True)),
        "image_share": word.budget.image_share,
    }


def _means(values: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """The mean of each cell, (rows, columns)."""
    strips = np.array_split(values, rows)
    return np.array([[cell.mean() for cell in np.array_split(strip, columns, axis=1)] for strip in strips])


def _map_urls(explanation: ExplanationLike, method: str, maps: Sequence[np.ndarray]) -> list[list[str]]:
    """For each word the URLs of its maps: one, or for multi-head attention the mean and one per head."""
    heads = explanation.maps[method].shape[1] if method == "attention" and explanation.maps[method].ndim == 3 else 0
    signed = METHOD_STYLES[method].signed
    return [
        [_map_url(values, signed) for values in (own, *(drawn_map(explanation, i, method, h) for h in range(heads)))]
        for i, own in enumerate(maps)
    ]


def _map_url(values: np.ndarray, signed: bool) -> str:
    """A map, scaled by its own maximum; the page fades it to the scale of all words."""
    normalised = normalise_map(values, signed)
    png = _png(map_layer(normalised, signed, levels=126))
    if len(png) > LARGE_MAP:
        png = _png(map_layer(normalised, signed, levels=48))
    return data_url(png, "png")


def _png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()


def _image_url(explanation: ExplanationLike) -> str:
    image = image_of(explanation)
    if max(image.size) > IMAGE_SIDE:
        image = image.resize(_scaled(image.size, IMAGE_SIDE), Image.Resampling.LANCZOS)
    return jpeg_url(image, quality=84)


def _scaled(size: tuple[int, int], side: int) -> tuple[int, int]:
    """A size of the same shape whose longer side is `side`."""
    width, height = size
    return max(1, round(width * side / max(size))), max(1, round(height * side / max(size)))


def _css_colours() -> str:
    """The colours of the figure as CSS variables."""
    names = {part.replace("_", "-"): colour for part, (_, colour) in (BUDGET_PARTS | RARE_PARTS).items()}
    variables = {name: "#{:02x}{:02x}{:02x}".format(*colour) for name, colour in names.items()}
    shades = {"red": RED[0], "red-strong": RED[1], "blue": BLUE[0], "blue-strong": BLUE[1]}
    variables |= {name: " ".join(map(str, colour)) for name, colour in shades.items()}
    return " ".join(f"--{name}: {colour};" for name, colour in variables.items())


def _tokens(explanation: ExplanationLike) -> str:
    """The caption: a button for each explained word, plain text for the others."""
    explained = {word.position: k for k, word in reversed([*enumerate(explanation.words)])}
    return "\n".join(
        _token(token, None) if k is None else _token(token, explanation.words[k], k)
        for token, k in zip(explanation.tokens, map(explained.get, range(len(explanation.tokens))), strict=True)
    )


def _token(token: str, word: WordLike | None, k: int = 0) -> str:
    """One word of the caption; an explained word that differs from it is shown as its replacement."""
    replaced = word is not None and word.word != token
    text = f"<del>{escape(token)}</del><ins>{escape(word.word)}</ins>" if word and replaced else escape(token)
    content = f'<span class="text">{text}</span><span class="weight"></span>'
    if word is None:
        return f'<span class="token">{content}</span>'
    risky = word.risk is not None and word.risk >= LIKELY_MADE_UP
    mark = f' likely-made-up" title="{100 * (word.risk or 0):.0f} % likely made up' if risky else ""
    return f'<button type="button" class="token{mark}" data-word="{k}">{content}</button>'


def _method_buttons(explanation: ExplanationLike) -> str:
    button = '<label><input type="radio" name="method" value="{}"><span>{}</span></label>'
    return "\n".join(
        button.format(escape(method), escape(method_style(explanation, method).name)) for method in explanation.methods
    )


def numbers_table(explanation: ExplanationLike) -> str:
    """All numbers as a table, which needs no script and can be printed."""
    parts = budget_parts(explanation.words)
    titles = ["word", "probability", "score", *(name for name, _ in parts.values()), "from the image"]
    if has_risk := any(word.risk is not None for word in explanation.words):
        titles.append("made up")
    rows = []
    for word in explanation.words:
        numbers = [f"{value:z.3f}" for value in (word.score, *part_values(word.budget, parts))]
        cells = [f"{word.probability:.4f}", *numbers, f"{100 * word.budget.image_share:z.0f} %"]
        if has_risk:
            cells.append("" if word.risk is None else f"{100 * word.risk:.0f} %")
        row = "".join(f"<td>{cell.replace('-', '−')}</td>" for cell in cells)
        rows.append(f'<tr><th scope="row">{escape(word_with_contrast(word))}</th>{row}</tr>')
    head = "".join(f'<th scope="col">{title}</th>' for title in titles)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _footer(explanation: ExplanationLike) -> str:
    width, height = explanation.size
    side = explanation.input_size
    style = f", style {explanation.style}" if explanation.style else ""
    parts = [
        f"{PurePath(explanation.source).name}, {width} × {height} pixels",
        f"model {explanation.model}{style}, input {side} × {side} pixels",
        f"LRP rules “{explanation.composite}”",
    ]
    if explanation.familiarity is not None:
        parts.append(f"familiarity {explanation.familiarity:.2g}")
    return escape(" · ".join(parts))


def fill_template(name: str, values: Mapping[str, str]) -> str:
    """A template of this package with every {{name}} replaced by its value, which must be HTML already."""
    return re.sub(r"\{\{(\w+)\}\}", lambda match: values[match[1]], read_template(name))


def read_template(name: str) -> str:
    """The text of a template, style or script of this package."""
    return (files("saywhy.viz") / name).read_text(encoding="utf-8").strip()


def jpeg_url(image: Image.Image, quality: int) -> str:
    """An RGB image as the URL of a JPEG."""
    buffer = io.BytesIO()
    image.save(buffer, format="JPEG", quality=quality)
    return data_url(buffer.getvalue(), "jpeg")


def data_url(content: bytes, kind: str) -> str:
    """The contents of an image file as a URL; `kind` is "jpeg" or "png"."""
    return f"data:image/{kind};base64,{b64encode(content).decode()}"
