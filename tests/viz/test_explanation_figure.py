"""The figure of what spoke for each word and against it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from saywhy.explain import Budget, Explanation, Word
from saywhy.viz.colormap import overlay, shown, strength
from saywhy.viz.explanation_figure import BAR, PARTS, words_figure
from saywhy.viz.panels import PANEL, fitted, wrapped

S = 32


def word(text: str = "dog", position: int = 0, budget: Budget | None = None, **more: Any) -> Word:
    budget = budget or Budget(3.0, 1.0, 0.5, 0.5)
    told = {"said": text, "instead": None, "logit": budget.total, "probability": 0.5, "pixels": 1.0}
    told |= {"absorbed_by_encoder": 2.0, "earlier": {"lrp": [0.5] * position}}
    return Word(text, position, budget=budget, **(told | more))


def explanation(*words: Word, size: tuple[int, int] = (320, 240), **more: Any) -> Explanation:
    """An explanation by LRP, positive at the left and negative at the right, and by attention to the top left."""
    half = np.ones((len(words), S, S), np.float32)
    half[:, :, S // 2 :] = -1
    alpha = np.zeros((len(words), 16), np.float32)
    alpha[:, 0] = 1
    maps = {"lrp": half, "attention": alpha}
    image = Image.new("RGB", size, (90, 90, 90))
    about = {"size": size, "region": (0.0, 0.0, *map(float, size)), "seen": S, "maps": maps, "grid": (4, 4)}
    about |= {"composite": "epsilon", "image": image}
    about |= {"tokens": tuple(each.said for each in words), "methods": ("lrp", "attention")}
    return Explanation("dog.png", "tiny", words=words, **(about | more))


def panel(figure: Image.Image, number: int = 1) -> np.ndarray:
    """A panel of a figure that has one row of landscape images of 4 : 3."""
    left, top, height = 26 + number * (PANEL + 14), figure_top(figure), round(PANEL * 3 / 4)
    return np.asarray(figure).astype(int)[top : top + height, left : left + PANEL]


def figure_top(figure: Image.Image) -> int:
    """Where the first panel, a grey image, begins."""
    column = np.asarray(figure)[:, 30]
    return int(np.argmax((column == 90).all(axis=1)))


def redness(pixels: np.ndarray) -> float:
    return float((pixels[..., 0] - pixels[..., 2]).mean())


def colours_in(figure: Image.Image) -> set[tuple[int, ...]]:
    return {tuple(colour) for colour in np.asarray(figure).reshape(-1, 3).tolist()}


def test_what_supports_a_word_is_red_and_what_speaks_against_it_blue():
    shape = panel(words_figure(explanation(word())))
    assert redness(shape[:, : PANEL // 2 - 8]) > 80
    assert redness(shape[:, PANEL // 2 + 8 :]) < -80


def test_a_map_of_nothing_leaves_the_image_grey():
    blank = explanation(word(), maps={"lrp": np.zeros((1, S, S), np.float32)})
    shape = panel(words_figure(blank))
    assert np.ptp(shape) == 0
    assert redness(shape) == 0


def test_maps_that_are_never_negative_light_the_image_in_the_dark():
    shape = panel(words_figure(explanation(word()), "attention"))
    assert redness(shape) == 0
    assert shape[5, 5, 0] == 90
    assert shape[-5, -5, 0] < 30


def test_each_word_is_scaled_by_itself_and_single_bright_pixels_do_not_hide_the_rest():
    values = np.full((100, 100), 0.01)
    values[0, 0] = 5.0
    assert strength(values, signed=True)[50, 50] == 1
    assert strength(1000 * values, signed=True)[50, 50] == 1


def test_a_map_of_one_small_spot_is_not_lost():
    values = np.zeros((100, 100))
    values[3, 3] = -0.02
    assert strength(values, signed=True)[3, 3] == -1


def test_small_values_are_lifted_by_a_power_of_0_7():
    values = np.array([[-1.0, 1.0, 0.25]])
    assert strength(values, signed=True)[0, 2] == pytest.approx(0.25**0.7, rel=1e-2)


def test_overlays_of_few_colours_are_transparent_where_a_map_says_nothing():
    few = overlay(np.array([[-1.0, 0.0, 1.0]]), signed=True, levels=62)
    against, nothing, support = np.asarray(few.convert("RGBA"))[0].tolist()
    assert nothing[3] == 0
    assert against[3] == support[3] == 255
    assert against[2] > against[0]
    assert support[0] > support[2]


def test_a_lit_image_keeps_its_colours():
    image = Image.new("RGB", (2, 1), (200, 100, 50))
    assert np.asarray(shown(image, np.array([[1.0, 0.0]]), signed=False))[0, 0].tolist() == [200, 100, 50]


def bars(figure: Image.Image) -> dict[str, tuple[int, int]]:
    """Of each part of the only word's budget, where its bar begins and ends, from the mark of zero on."""
    pixels = np.asarray(figure)
    top = figure_top(figure) + round(PANEL * 3 / 4) + 36
    row = pixels[top + BAR // 2, 26 + PANEL + 14 :]
    mark = int(np.argmax((pixels[top - 2, 26 + PANEL + 14 :] == (28, 30, 34)).all(axis=1)))
    found = {}
    for part, (_, colour) in PARTS.items():
        at = np.flatnonzero((row == colour).all(axis=1))
        if at.size:
            found[part] = int(at[0]) - mark, int(at[-1]) + 1 - mark
    return found


def test_a_bar_is_split_as_the_budget_is():
    split = bars(words_figure(explanation(word(budget=Budget(4.0, 2.0, 1.0, 1.0)))))
    lengths = {part: end - start for part, (start, end) in split.items()}
    assert lengths["image"] == pytest.approx((PANEL - 5) / 2, abs=2)
    assert lengths["words"] == pytest.approx((PANEL - 5) / 4, abs=2)
    assert lengths["start"] == pytest.approx((PANEL - 5) / 8, abs=2)
    assert split["image"][0] <= 1


def test_parts_against_a_word_go_to_the_left():
    split = bars(words_figure(explanation(word(budget=Budget(-1.0, 4.0, -0.5, 0.5)))))
    assert split["image"][1] <= 0
    assert split["start"][1] <= split["image"][0] + 1
    assert 0 <= split["words"][0] <= 1
    assert split["absorbed"][0] == split["words"][1]


def test_a_word_without_any_evidence_has_no_bar():
    assert bars(words_figure(explanation(word(budget=Budget(0.0, 0.0, 0.0, 0.0))))) == {}


@pytest.mark.parametrize("count", [1, 3, 7, 20])
@pytest.mark.parametrize("size", [(640, 427), (200, 900), (900, 90), (8, 8)])
def test_every_word_has_a_panel_whatever_the_images_shape(size, count):
    figure = words_figure(explanation(*(word(f"word{n}", n) for n in range(count)), size=size))
    height = fitted(size)[1]
    rows = 1 if count < 5 else 2 if count == 7 else 4
    assert rows * (height + 80) < figure.height < rows * (height + 90) + 260
    assert figure.width >= 2 * PANEL


def test_other_words_and_words_held_against_look_different():
    plain = word("cat")
    figures = [
        words_figure(explanation(each, tokens=("cat",)))
        for each in (plain, replace(plain, instead="dog"), replace(plain, said="bed"), replace(plain, probability=0.0))
    ]
    different = {figure.tobytes() for figure in figures}
    assert len(different) == 4


def test_what_a_crop_cut_away_is_faded_not_grey_as_if_it_did_not_matter():
    cut = words_figure(explanation(word(), region=(80.0, 0.0, 240.0, 240.0)))
    shape = panel(cut)
    assert shape[50, 10].min() > 220
    assert redness(shape[:, PANEL // 4 + 8 : PANEL // 2 - 8]) > 80


def test_an_explanation_without_its_image_is_drawn_on_grey():
    figure = words_figure(explanation(word(), image=None))
    assert (150, 150, 150) in colours_in(figure)


def test_the_legend_names_the_colours_that_the_bars_have():
    legend = words_figure(explanation(word(budget=Budget(0.0, 0.0, 0.0, 0.0))))
    assert {colour for _, colour in PARTS.values()} <= colours_in(legend)


def test_a_long_caption_is_set_in_lines_and_loses_no_word():
    text = "a man in a red shirt is riding a bike on a dirt road with a dog and a woman"
    lines = wrapped(text, 300, 27)
    assert len(lines) > 2
    assert " ".join(lines) == text


def test_show_draws_the_figure():
    made = explanation(word())
    assert made.show("attention").tobytes() == words_figure(made, "attention").tobytes()
