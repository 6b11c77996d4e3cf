"""A sheet of maps: the same image and words with the default map of saywhy 0.2, with `why` and with `apart`.

    python benchmarks/map_sheet.py IMAGE [IMAGE …] --out FILE [--model DIR] [--words 3]

Each row is one word of a caption: object words first, then a function word, whose map should be nearly empty. The three
maps of a word share no scale; the maps of one column do, over all words of the caption.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

import saywhy
from saywhy.data.stop_words import STOP_WORDS
from saywhy.explain import Explanation
from saywhy.viz.drawing import (
    GAP,
    INK,
    MARGIN,
    PANEL,
    PAPER,
    blur_map,
    map_maximum,
    normalise_map,
    overlay_map,
    panel_label,
    paragraph,
)

COLUMNS = ("the image and a word", "default of 0.2 (epsilon-plus, seen)", "why (default)", "apart")
BLUR = 0.005  # σ, as a fraction of a panel
ONE_COLUMN = 4  # sections
Maps = list[np.ndarray]
Section = tuple[str, list[list[Image.Image]]]


def chosen_words(explanation: Explanation, count: int) -> list[int]:
    """At most `count` words: the first object words, the last one, and the last function word."""
    objects = [i for i, word in enumerate(explanation.words) if word.risk is not None]
    function = [i for i, word in enumerate(explanation.words) if word.word in STOP_WORDS]
    return [*objects[: count - 2], *objects[count - 2 :][-1:], *function[-1:]]


def maps_of(explanation: Explanation, method: str) -> Maps:
    size = (PANEL, PANEL)
    maps = [explanation.map(i, method, size=size) for i in range(len(explanation.words))]
    return [blur_map(values, BLUR * PANEL) for values in maps]


def panels(image: Image.Image, maps: Maps, words: Sequence[int]) -> list[Image.Image]:
    """Maps over the image, on the scale of the strongest of all words."""
    maximum = max(map(map_maximum, maps))
    return [overlay_map(image, normalise_map(maps[i], True, maximum), True) for i in words]


def rows(model: saywhy.Model, path: Path, count: int) -> Section:
    """The caption of an image, and for each chosen word the panels of its row."""
    new = model.explain(path, methods=["lrp", "lrp-apart"])
    old = model.explain(path, methods=["lrp"], caption=new.caption, composite="epsilon-plus")
    words = chosen_words(new, count)
    assert new.image is not None
    image = new.image.convert("RGB").resize((PANEL, PANEL), Image.Resampling.LANCZOS)
    columns = [panels(image, maps_of(*source), words) for source in ((old, "lrp"), (new, "lrp"), (new, "lrp-apart"))]
    first = [labelled(image, new.words[i].word) for i in words]
    return new.caption, [list(row) for row in zip(first, *columns, strict=True)]


def labelled(image: Image.Image, word: str) -> Image.Image:
    """The image in a small size above its word in large letters."""
    panel = Image.new("RGB", (PANEL, PANEL), PAPER)
    small = ImageOps.contain(image, (PANEL, PANEL - 50))
    panel.paste(small, (0, 0))
    panel.paste(panel_label(word, " "), (0, small.height + 4))
    return panel


def draw(sections: Sequence[Section]) -> Image.Image:
    """All sections, in two columns where there are more than four."""
    half = len(sections) if len(sections) <= ONE_COLUMN else (len(sections) + 1) // 2
    columns = [_column(sections[start : start + half]) for start in range(0, len(sections), half)]
    width, height = sum(part.width for part in columns), max(part.height for part in columns)
    sheet = Image.new("RGB", (width, height), PAPER)
    for number, part in enumerate(columns):
        sheet.paste(part, (number * part.width, 0))
    return sheet


def _column(sections: Sequence[Section]) -> Image.Image:
    width = 2 * MARGIN + len(COLUMNS) * (PANEL + GAP) - GAP
    parts: list[list[Image.Image]] = [[paragraph(name, PANEL, 15, below=4) for name in COLUMNS]]
    for caption, words in sections:
        parts += [[paragraph(caption, width - 2 * MARGIN, 22, INK, below=8)], *words]
    heights = [max(part.height for part in row) + GAP for row in parts]
    sheet = Image.new("RGB", (width, sum(heights) + 2 * MARGIN), PAPER)
    y = MARGIN
    for row, height in zip(parts, heights, strict=True):
        for column, part in enumerate(row):
            sheet.paste(part, (MARGIN + column * (PANEL + GAP), y))
        y += height
    return sheet


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("images", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model")
    parser.add_argument("--words", type=int, default=3)
    args = parser.parse_args()
    model = saywhy.load(args.model)
    draw([rows(model, path, args.words) for path in args.images]).save(args.out)


if __name__ == "__main__":
    main()
