"""The figure of an explanation: the image, then one panel per word with the evidence for the word and against it.

Each panel has a label with the word, its probability and its evidence budget: a bar whose parts add up to the score,
on the same scale for all words. Evidence for the word is drawn to the right of the zero mark, evidence against it to
the left.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePath

import numpy as np
from PIL import Image, ImageDraw

from saywhy.viz.drawing import (
    GREY,
    INK,
    PANEL,
    PAPER,
    blur_map,
    flow,
    font,
    map_maximum,
    normalise_map,
    overlay_map,
    panel_grid,
    panel_label,
    panel_size,
    paragraph,
    shorten,
    text_width,
    without_accents,
)
from saywhy.viz.method_styles import METHOD_STYLES, MethodStyle
from saywhy.viz.protocols import BudgetLike, Crop, ExplanationLike, WordLike

Parts = dict[str, tuple[str, tuple[int, int, int]]]
"""By part of a budget, its name and its colour."""

BUDGET_PARTS: Parts = {
    "image": ("image", (23, 146, 125)),
    "earlier_words": ("earlier words", (226, 160, 52)),
    "initial_state": ("initial state", (139, 120, 186)),
    "absorbed": ("absorbed", (190, 195, 203)),
}
"""The parts of a budget: their names and colours."""
RARE_PARTS: Parts = {
    "class_token": ("class token", (98, 186, 172)),
    "own_pieces": ("the word's first pieces", (240, 205, 140)),
}
"""Parts that only transformers and sub-words have; they are shown where a word has them."""
ORDER = ("image", "class_token", "earlier_words", "own_pieces", "initial_state", "absorbed")
"""In which parts are drawn."""
HELP = (
    "Bars: the parts of the word's score; right of the mark is evidence for the word, left of it evidence against it. "
    "p: probability of the word."
)
RISK_HELP = "Made up: estimated chance that the image does not show it."
WORD_LABEL, BAR, RAMP = 84, 8, 96  # pixels: heights of a word's label and bar, width of the colour ramp
BLUR = 0.005  # σ of the blur of signed maps, as a fraction of the longer side
FADING = 0.65  # the weight of white over what the encoder does not get


def explanation_figure(explanation: ExplanationLike, method: str = "lrp") -> Image.Image:
    """Draw the maps of one method and the budgets of all words."""
    style = METHOD_STYLES[method]
    size = panel_size(explanation.size)
    image = image_of(explanation).resize(size, Image.Resampling.LANCZOS)
    parts = budget_parts(explanation.words)
    extent = _extent([word.budget for word in explanation.words], parts)
    panels, labels = [image], [panel_label("image", "", WORD_LABEL)]
    maps = [explanation.map(i, method, size=size) for i in range(len(explanation.words))]
    maps = [blur_map(values, BLUR * max(size)) if style.signed else values for values in maps]
    maximum = max(map(map_maximum, maps))
    for values, word in zip(maps, explanation.words, strict=True):
        panel = overlay_map(image, normalise_map(values, style.signed, maximum), style.signed)
        panels.append(_fade_outside(panel, crop_fractions(explanation)))
        labels.append(_word_label(word, extent, parts))
    return panel_grid(explanation.caption, panels, labels, lambda width: _legend(explanation, style, width))


def image_of(explanation: ExplanationLike) -> Image.Image:
    """The image, or a grey one of the same shape if the explanation carries none."""
    if explanation.image is not None:
        return explanation.image.convert("RGB")
    return Image.new("RGB", panel_size(explanation.size), (150, 150, 150))


def crop_fractions(explanation: ExplanationLike) -> Crop | None:
    """The crop as fractions of the image: left, top, right, bottom; None if it is the whole image."""
    (left, top, right, bottom), (width, height) = explanation.crop, explanation.size
    fractions = left / width, top / height, right / width, bottom / height
    return fractions if max(fractions[:2]) > 0.01 or min(fractions[2:]) < 0.99 else None


def _fade_outside(panel: Image.Image, crop: Crop | None) -> Image.Image:
    """The panel, whitened outside the crop: there the model has no information, which differs from no relevance."""
    if crop is None:
        return panel
    left, top, right, bottom = (round(edge * side) for edge, side in zip(crop, panel.size * 2, strict=True))
    faded = Image.blend(panel, Image.new("RGB", panel.size, "white"), FADING)
    faded.paste(panel.crop((left, top, right, bottom)), (left, top))
    return faded


def word_with_contrast(word: WordLike) -> str:
    """The word, and the word it is compared with, if any."""
    return word.word if word.contrast is None else f"{word.word}, not {word.contrast}"


def probability_text(p: float) -> str:
    """A probability in few digits.

    >>> probability_text(0.7229), probability_text(0.00004)
    ('p = 0.72', 'p < 0.001')
    """
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}" if p < 0.01 else f"p = {p:.2f}"


def budget_parts(words: Sequence[WordLike]) -> Parts:
    """The parts of the budgets of these words, in the order in which they are drawn."""
    known = BUDGET_PARTS | RARE_PARTS
    shown = {part for part in known if part in BUDGET_PARTS or any(getattr(word.budget, part) for word in words)}
    return {part: known[part] for part in ORDER if part in shown}


def part_values(budget: BudgetLike, parts: Iterable[str]) -> list[float]:
    """The values of parts of a budget."""
    return [getattr(budget, part) for part in parts]


def _extent(budgets: Sequence[BudgetLike], names: Iterable[str]) -> tuple[float, float]:
    """The longest negative and the longest positive stack of parts of any word."""
    values = [part_values(budget, names) for budget in budgets]
    return max(sum(max(-v, 0) for v in parts) for parts in values), max(
        sum(max(v, 0) for v in parts) for parts in values
    )


def _word_label(word: WordLike, extent: tuple[float, float], parts: Parts) -> Image.Image:
    label = panel_label(word_with_contrast(word), probability_text(word.probability), WORD_LABEL)
    draw = ImageDraw.Draw(label)
    _draw_bar(draw, word.budget, extent, parts, 36)
    share = f"{word.budget.image_share:z.0%}"
    draw.text((2, 49), share, BUDGET_PARTS["image"][1], font(14))
    draw.text((2 + text_width(share + " ", 14), 49), "from image", GREY, font(14))
    note = f"made up: {word.risk:.0%}" if word.risk is not None else ""
    if word.caption_word != word.word:
        note = shorten(without_accents(f"caption: {word.caption_word}"), PANEL - 120, 14)
    draw.text((PANEL - 2 - text_width(note, 14), 49), note, GREY, font(14))
    return label


def _draw_bar(draw: ImageDraw.ImageDraw, budget: BudgetLike, extent: tuple[float, float], parts: Parts, y: int) -> None:
    scale = (PANEL - 5) / (sum(extent) or 1.0)
    zero = 2 + extent[0] * scale
    ends = {-1: zero, 1: zero}
    for value, (_, colour) in zip(part_values(budget, parts), parts.values(), strict=True):
        side = -1 if value < 0 else 1
        left, right = sorted((ends[side], ends[side] + value * scale))
        if round(right) > round(left):
            draw.rectangle((round(left), y, round(right) - 1, y + BAR - 1), fill=colour)
        ends[side] += value * scale
    draw.line((round(zero), y - 3, round(zero), y + BAR + 2), INK)


def _legend(explanation: ExplanationLike, style: MethodStyle, width: int) -> Image.Image:
    method = f"LRP ({explanation.composite})" if style.name == "LRP" else style.name
    has_risk = any(word.risk is not None for word in explanation.words)
    about = [method, explanation.model, PurePath(explanation.source).name]
    rows = [
        flow([*_colour_keys(style, budget_parts(explanation.words))], width),
        paragraph(f"{HELP} {RISK_HELP}" if has_risk else HELP, width, 14, below=2),
        paragraph("  ·  ".join(about), width, 14),
    ]
    legend = Image.new("RGB", (width, sum(row.height for row in rows)), PAPER)
    y = 0
    for row in rows:
        legend.paste(row, (0, y))
        y += row.height
    return legend


def _colour_keys(style: MethodStyle, parts: Parts) -> Iterator[Image.Image]:
    """The meaning of each colour: the map's, then the budget's."""
    yield _ramp(style)
    for name, colour in parts.values():
        key = Image.new("RGB", (18 + round(text_width(name, 14)) + 2, 20), PAPER)
        draw = ImageDraw.Draw(key)
        draw.rectangle((0, 4, 11, 15), colour)
        draw.text((18, 2), name, INK, font(14))
        yield key


def _ramp(style: MethodStyle) -> Image.Image:
    low, high = ("against the word", "for it") if style.signed else ("none", "most")
    strip = Image.new("RGB", (RAMP, 12), "white" if style.signed else (236, 232, 222))
    values = np.broadcast_to(np.linspace(-1 if style.signed else 0, 1, RAMP), (12, RAMP))
    strip = overlay_map(strip, values, style.signed)
    left = round(text_width(low, 14)) + 8
    key = Image.new("RGB", (left + RAMP + 8 + round(text_width(high, 14)) + 16, 20), PAPER)
    draw = ImageDraw.Draw(key)
    draw.text((0, 2), low, INK, font(14))
    key.paste(strip, (left, 4))
    draw.text((left + RAMP + 8, 2), high, INK, font(14))
    return key
