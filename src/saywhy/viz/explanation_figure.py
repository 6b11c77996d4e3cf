"""The classic figure of an explanation: the image, and one panel a word with what spoke for it and against it.

Under each panel stand the word, its probability, and its evidence budget: a bar whose parts add up to the logit, on
one scale for all words. What speaks for the word goes to the right of the mark, what speaks against it to the left.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageDraw

from saywhy.data.preprocess import Region
from saywhy.viz.colormap import Look, blurred, look, shown, strength
from saywhy.viz.panels import (
    GREY,
    INK,
    PANEL,
    PAPER,
    fitted,
    flowed,
    font,
    label,
    paragraph,
    plain,
    sheet,
    shortened,
    text_width,
)

if TYPE_CHECKING:
    from saywhy.explain.explanation import Budget, Explanation, Word

PARTS = {
    "image": ("image", (23, 146, 125)),
    "words": ("earlier words", (226, 160, 52)),
    "start": ("start", (139, 120, 186)),
    "absorbed": ("absorbed", (190, 195, 203)),
}
"""The parts of a budget: their names and colours."""
READING = "Bars: the word's logit, split; right of the mark speaks for the word, left of it against. p: probability."
TALL, BAR, RAMP = 84, 8, 96
BLUR = 0.005  # of a map's longer side
UNSEEN = 0.65  # how white what the encoder did not see becomes


def words_figure(explanation: Explanation, method: str = "lrp") -> Image.Image:
    """Draw the maps of one method and the budgets of all words."""
    how = look(method)
    size = fitted(explanation.size)
    image = image_of(explanation).resize(size, Image.Resampling.LANCZOS)
    reach = _reach(explanation.budget)
    panels, labels = [image], [label("image", "", TALL)]
    for i, word in enumerate(explanation.words):
        values = explanation.map(i, method, size=size)
        values = blurred(values, BLUR * max(size)) if how.signed else values
        panels.append(_unseen_faded(shown(image, strength(values, how.signed), how.signed), explanation))
        labels.append(_word_label(word, reach))
    return sheet(explanation.caption, panels, labels, lambda width: _legend(explanation, how, width))


def image_of(explanation: Explanation) -> Image.Image:
    """The image, or grey paper of its shape where it was not kept."""
    if explanation.image is not None:
        return explanation.image.convert("RGB")
    return Image.new("RGB", fitted(explanation.size), (150, 150, 150))


def seen_part(explanation: Explanation) -> Region | None:
    """What the encoder saw, as shares of the image: left, top, right, bottom; None if it saw all of it."""
    (left, top, right, bottom), (width, height) = explanation.region, explanation.size
    part = left / width, top / height, right / width, bottom / height
    return part if max(part[:2]) > 0.01 or min(part[2:]) < 0.99 else None


def _unseen_faded(panel: Image.Image, explanation: Explanation) -> Image.Image:
    """The panel, white-washed where a crop cut away: what was not seen is not the same as what did not matter."""
    part = seen_part(explanation)
    if part is None:
        return panel
    left, top, right, bottom = (round(each * side) for each, side in zip(part, panel.size * 2, strict=True))
    faded = Image.blend(panel, Image.new("RGB", panel.size, "white"), UNSEEN)
    faded.paste(panel.crop((left, top, right, bottom)), (left, top))
    return faded


def held_against(word: Word) -> str:
    """The word, and what it is held against."""
    return word.word if word.instead is None else f"{word.word}, not {word.instead}"


def as_probability(p: float) -> str:
    """A probability in few digits.

    >>> as_probability(0.7229), as_probability(0.00004)
    ('p = 0.72', 'p < 0.001')
    """
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}" if p < 0.01 else f"p = {p:.2f}"


def _reach(budgets: list[Budget]) -> tuple[float, float]:
    """How far any word's bar goes to the left and to the right."""
    sides = [([-min(value, 0) for value in parts(b)], [max(value, 0) for value in parts(b)]) for b in budgets]
    return max(sum(left) for left, _ in sides), max(sum(right) for _, right in sides)


def parts(budget: Budget) -> list[float]:
    """The parts of a budget in the order in which they are drawn."""
    return [getattr(budget, part) for part in PARTS]


def _word_label(word: Word, reach: tuple[float, float]) -> Image.Image:
    drawn = label(held_against(word), as_probability(word.probability), TALL)
    draw = ImageDraw.Draw(drawn)
    _bar(draw, word.budget, reach, 36)
    share = f"{word.budget.share:z.0%}"
    draw.text((2, 49), share, PARTS["image"][1], font(14))
    draw.text((2 + text_width(share + " ", 14), 49), "image", GREY, font(14))
    beside = f"made up: {word.risk:.0%}" if word.risk is not None else ""
    if word.said != word.word:
        beside = shortened(plain(f"said: {word.said}"), PANEL - 120, 14)
    draw.text((PANEL - 2 - text_width(beside, 14), 49), beside, GREY, font(14))
    return drawn


def _bar(draw: ImageDraw.ImageDraw, budget: Budget, reach: tuple[float, float], y: int) -> None:
    scale = (PANEL - 5) / (sum(reach) or 1.0)
    zero = 2 + reach[0] * scale
    ends = {-1: zero, 1: zero}
    for value, (_, colour) in zip(parts(budget), PARTS.values(), strict=True):
        side = -1 if value < 0 else 1
        left, right = sorted((ends[side], ends[side] + value * scale))
        if round(right) > round(left):
            draw.rectangle((round(left), y, round(right) - 1, y + BAR - 1), fill=colour)
        ends[side] += value * scale
    draw.line((round(zero), y - 3, round(zero), y + BAR + 2), INK)


def _legend(explanation: Explanation, how: Look, width: int) -> Image.Image:
    about = [how.name, explanation.model, PurePath(explanation.source).name]
    if how.name == "LRP":
        about[0] += f" ({explanation.composite})"
    rows = [
        flowed(list(_keys(how)), width),
        paragraph(READING, width, 14, below=2),
        paragraph("  ·  ".join(about), width, 14),
    ]
    whole = Image.new("RGB", (width, sum(row.height for row in rows)), PAPER)
    y = 0
    for row in rows:
        whole.paste(row, (0, y))
        y += row.height
    return whole


def _keys(how: Look) -> Iterator[Image.Image]:
    """What each colour means: the map's, then the budget's."""
    yield _ramp(how)
    for name, colour in PARTS.values():
        key = Image.new("RGB", (18 + round(text_width(name, 14)) + 2, 20), PAPER)
        draw = ImageDraw.Draw(key)
        draw.rectangle((0, 4, 11, 15), colour)
        draw.text((18, 2), name, INK, font(14))
        yield key


def _ramp(how: Look) -> Image.Image:
    low, high = ("against the word", "for it") if how.signed else ("none", "most")
    strip = Image.new("RGB", (RAMP, 12), "white" if how.signed else (236, 232, 222))
    s = np.broadcast_to(np.linspace(-1 if how.signed else 0, 1, RAMP), (12, RAMP))
    strip = shown(strip, s, how.signed)
    left = round(text_width(low, 14)) + 8
    key = Image.new("RGB", (left + RAMP + 8 + round(text_width(high, 14)) + 16, 20), PAPER)
    draw = ImageDraw.Draw(key)
    draw.text((0, 2), low, INK, font(14))
    key.paste(strip, (left, 4))
    draw.text((left + RAMP + 8, 2), high, INK, font(14))
    return key
