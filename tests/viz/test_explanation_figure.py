"""The figure of an explanation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from saywhy.explain import Budget, Explanation, WordExplanation
from saywhy.viz.drawing import PANEL, panel_size
from saywhy.viz.explanation_figure import BAR, BUDGET_PARTS, explanation_figure

S = 32
GREY = 90


def word(text: str = "dog", position: int = 0, budget: Budget | None = None, **fields: Any) -> WordExplanation:
    budget = budget or Budget(3.0, 1.0, 0.5, 0.5)
    defaults = {
        "caption_word": text,
        "contrast": None,
        "logit": budget.total,
        "score": budget.total,
        "probability": 0.5,
    }
    defaults |= {"pixel_relevance": 1.0, "absorbed_by_encoder": 2.0, "earlier_words": {"lrp": [0.5] * position}}
    return WordExplanation(text, position, budget=budget, **(defaults | fields))


def explanation(*words: WordExplanation, size: tuple[int, int] = (320, 240), **fields: Any) -> Explanation:
    """An explanation by LRP, positive at the left and negative at the right, and by attention to the top left."""
    lrp = np.ones((len(words), S, S), np.float32)
    lrp[:, :, S // 2 :] = -1
    alpha = np.zeros((len(words), 16), np.float32)
    alpha[:, 0] = 1
    defaults = {"size": size, "crop": (0.0, 0.0, *map(float, size)), "input_size": S, "grid": (4, 4)}
    defaults |= {"maps": {"lrp": lrp, "attention": alpha}, "methods": ("lrp", "attention"), "composite": "epsilon"}
    defaults |= {"image": Image.new("RGB", size, (GREY,) * 3), "tokens": tuple(word.caption_word for word in words)}
    return Explanation("dog.png", "tiny", words=words, **(defaults | fields))


def panel(figure: Image.Image, number: int = 1) -> np.ndarray:
    """A panel of a figure with one row of landscape images of 4 : 3."""
    left, top, height = 26 + number * (PANEL + 14), first_row(figure), round(PANEL * 3 / 4)
    return np.asarray(figure).astype(int)[top : top + height, left : left + PANEL]


def first_row(figure: Image.Image) -> int:
    """The row of pixels at which the first panel, a grey image, begins."""
    column = np.asarray(figure)[:, 30]
    return int(np.argmax((column == GREY).all(axis=1)))


def redness(pixels: np.ndarray) -> float:
    return float((pixels[..., 0] - pixels[..., 2]).mean())


def colours_in(figure: Image.Image) -> set[tuple[int, ...]]:
    return {tuple(colour) for colour in np.asarray(figure).reshape(-1, 3).tolist()}


def test_evidence_for_a_word_is_red_and_evidence_against_it_is_blue():
    pixels = panel(explanation_figure(explanation(word())))
    assert redness(pixels[:, : PANEL // 2 - 8]) > 80
    assert redness(pixels[:, PANEL // 2 + 8 :]) < -80


def test_a_map_of_zeros_leaves_the_image_grey():
    zeros = explanation(word(), maps={"lrp": np.zeros((1, S, S), np.float32)})
    pixels = panel(explanation_figure(zeros))
    assert np.ptp(pixels) == 0
    assert redness(pixels) == 0


def test_an_unsigned_map_brightens_the_dark_image():
    pixels = panel(explanation_figure(explanation(word()), "attention"))
    assert redness(pixels) == 0
    assert pixels[5, 5, 0] == GREY
    assert pixels[-5, -5, 0] < 30


def bars(figure: Image.Image) -> dict[str, tuple[int, int]]:
    """Where the bar of each part of the only word's budget begins and ends, relative to the zero mark."""
    pixels = np.asarray(figure)
    top = first_row(figure) + round(PANEL * 3 / 4) + 36
    row = pixels[top + BAR // 2, 26 + PANEL + 14 :]
    zero = int(np.argmax((pixels[top - 2, 26 + PANEL + 14 :] == (28, 30, 34)).all(axis=1)))
    ends = {}
    for part, (_, colour) in BUDGET_PARTS.items():
        columns = np.flatnonzero((row == colour).all(axis=1))
        if columns.size:
            ends[part] = int(columns[0]) - zero, int(columns[-1]) + 1 - zero
    return ends


def test_a_bar_is_divided_in_proportion_to_the_budget():
    ends = bars(explanation_figure(explanation(word(budget=Budget(4.0, 2.0, 1.0, 1.0)))))
    lengths = {part: end - start for part, (start, end) in ends.items()}
    assert lengths["image"] == pytest.approx((PANEL - 5) / 2, abs=2)
    assert lengths["earlier_words"] == pytest.approx((PANEL - 5) / 4, abs=2)
    assert lengths["initial_state"] == pytest.approx((PANEL - 5) / 8, abs=2)
    assert ends["image"][0] <= 1


def test_negative_parts_are_drawn_to_the_left_of_zero():
    ends = bars(explanation_figure(explanation(word(budget=Budget(-1.0, 4.0, -0.5, 0.5)))))
    assert ends["image"][1] <= 0
    assert ends["initial_state"][1] <= ends["image"][0] + 1
    assert 0 <= ends["earlier_words"][0] <= 1
    assert ends["absorbed"][0] == ends["earlier_words"][1]


def test_a_budget_of_zeros_has_no_bar():
    assert bars(explanation_figure(explanation(word(budget=Budget(0.0, 0.0, 0.0, 0.0))))) == {}


@pytest.mark.parametrize("count", [1, 3, 7, 20])
@pytest.mark.parametrize("size", [(640, 427), (200, 900), (900, 90), (8, 8)])
def test_every_word_has_a_panel_whatever_the_shape_of_the_image(size, count):
    figure = explanation_figure(explanation(*(word(f"word{n}", n) for n in range(count)), size=size))
    height = panel_size(size)[1]
    rows = 1 if count < 5 else 2 if count == 7 else 4
    assert rows * (height + 80) < figure.height < rows * (height + 90) + 260
    assert figure.width >= 2 * PANEL


def test_the_label_shows_contrast_caption_word_probability_and_risk():
    plain = word("cat")
    variants = [
        plain,
        replace(plain, contrast="dog"),
        replace(plain, caption_word="bed"),
        replace(plain, probability=0.0),
        replace(plain, risk=0.5),
    ]
    figures = {explanation_figure(explanation(variant, tokens=("cat",))).tobytes() for variant in variants}
    assert len(figures) == len(variants)


def test_the_image_is_faded_outside_the_crop():
    pixels = panel(explanation_figure(explanation(word(), crop=(80.0, 0.0, 240.0, 240.0))))
    assert pixels[50, 10].min() > 220
    assert redness(pixels[:, PANEL // 4 + 8 : PANEL // 2 - 8]) > 80


def test_an_explanation_without_its_image_is_drawn_on_grey():
    figure = explanation_figure(explanation(word(), image=None))
    assert (150, 150, 150) in colours_in(figure)


def test_the_legend_shows_the_colours_of_all_parts():
    without_bars = explanation_figure(explanation(word(budget=Budget(0.0, 0.0, 0.0, 0.0))))
    assert {colour for _, colour in BUDGET_PARTS.values()} <= colours_in(without_bars)


def test_show_draws_the_figure():
    shown = explanation(word())
    assert shown.show("attention").tobytes() == explanation_figure(shown, "attention").tobytes()
