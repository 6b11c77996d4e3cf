"""One picture of photographs with their captions."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from saywhy.viz.caption_sheet import GAP, RED, WIDTH, CaptionedImage, arrange, caption_sheet
from saywhy.viz.drawing import MARGIN

WORDS = (("a", None), ("dog", 0.1), ("on", None), ("grass", 0.2))


def item(width: int = 60, height: int = 40, colour: str = "lime", words=WORDS) -> CaptionedImage:
    return CaptionedImage(Image.new("RGB", (width, height), colour), words)


def has_colour(sheet: Image.Image, colour: tuple[int, int, int]) -> np.ndarray:
    return (np.asarray(sheet) == colour).all(axis=2)


def test_every_photograph_is_drawn_and_rows_fill_the_width():
    colours = ["red", "lime", "blue", "yellow", "cyan", "magenta", "orange"]
    items = [item(60 + 20 * n, 70, colour) for n, colour in enumerate(colours)]
    rows = arrange(items)
    assert [one for row in rows for one in row] == items, "in their order"
    assert len(rows) == 2
    sheet = caption_sheet(items)
    assert sheet.width == WIDTH + 2 * MARGIN
    for one in items:
        assert has_colour(sheet, one.image.getpixel((0, 0))).any()
    last_of_row = has_colour(sheet, rows[0][-1].image.getpixel((0, 0)))
    assert last_of_row.any(axis=0).nonzero()[0].max() > MARGIN + WIDTH - GAP


def test_a_photograph_keeps_its_shape():
    drawn = has_colour(caption_sheet([item(60, 40)]), (0, 255, 0))
    width, height = (int(drawn.any(axis=axis).sum()) for axis in (0, 1))
    assert width / height == pytest.approx(1.5, abs=0.02)


def test_words_that_are_likely_made_up_are_underlined_and_the_line_is_explained():
    plain = caption_sheet([item()])
    marked = caption_sheet([item(words=(("a", None), ("dog", 0.75)))])
    assert not has_colour(plain, RED).any()
    assert has_colour(marked, RED).any()
    assert marked.height > plain.height


def test_a_long_caption_takes_more_lines():
    short, long = caption_sheet([item()]), caption_sheet([item(words=WORDS * 8)])
    assert long.height > short.height


@pytest.mark.parametrize("size", [(1000, 10), (10, 1000), (1, 1)])
def test_photographs_of_extreme_shapes_can_be_drawn(size):
    assert caption_sheet([item(*size, words=(("x" * 500, None),)), item()]).width == WIDTH + 2 * MARGIN
