"""One picture of several photographs with their captions, in rows that fill the width.

Words that are more likely made up than true are underlined.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image, ImageDraw, ImageOps

from saywhy.viz.drawing import INK, MARGIN, PAPER, font, paragraph, shorten, text_width, without_accents

WIDTH, GAP = 1240, 20  # pixels
ROW_HEIGHT, MAX_HEIGHT = 215, 300  # of photographs: the mean of the rows, and the limit where few fill one row
TEXT_SIZE, LINE_HEIGHT = 19, 27
RED, LIKELY = (200, 48, 31), 0.5
HELP = "Underlined: a word that is more likely made up than true, by the model's own estimate."


@dataclass(frozen=True)
class CaptionedImage:
    """A photograph, and the words of its caption with the risk that each is made up, None if unknown."""

    image: Image.Image
    words: Sequence[tuple[str, float | None]]

    @property
    def aspect(self) -> float:
        """Width divided by height on the sheet; extreme photographs are cut, to leave room for their captions."""
        return min(max(self.image.width / self.image.height, 0.7), 2.4)


def caption_sheet(items: Sequence[CaptionedImage]) -> Image.Image:
    """Photographs with their captions, as one picture."""
    rows = [_draw_row(row) for row in arrange(items)]
    if any(is_likely_made_up(risk) for item in items for _, risk in item.words):
        rows.append(paragraph(HELP, WIDTH, 15))
    sheet = Image.new("RGB", (WIDTH + 2 * MARGIN, sum(row.height for row in rows) + 2 * MARGIN), PAPER)
    y = MARGIN
    for row in rows:
        sheet.paste(row, (MARGIN, y))
        y += row.height
    return sheet


def arrange(items: Sequence[CaptionedImage]) -> list[list[CaptionedImage]]:
    """The photographs in rows of similar width."""
    total = sum(item.aspect for item in items)
    count = max(1, round(total * ROW_HEIGHT / WIDTH))
    rows: list[list[CaptionedImage]] = [[] for _ in range(count)]
    left = 0.0
    for item in items:
        rows[int(count * (left + item.aspect / 2) / total)].append(item)
        left += item.aspect
    return [row for row in rows if row]


def is_likely_made_up(risk: float | None) -> bool:
    """Whether a word with this risk is underlined."""
    return risk is not None and risk >= LIKELY


def _draw_row(items: Sequence[CaptionedImage]) -> Image.Image:
    room = WIDTH - GAP * (len(items) - 1)
    height = min(MAX_HEIGHT, int(room / sum(item.aspect for item in items)))
    cards = [_draw_card(item, int(item.aspect * height), height) for item in items]
    row = Image.new("RGB", (WIDTH, max(card.height for card in cards) + GAP), PAPER)
    x = 0
    for card in cards:
        row.paste(card, (x, 0))
        x += card.width + GAP
    return row


def _draw_card(item: CaptionedImage, width: int, height: int) -> Image.Image:
    """A photograph above its caption."""
    lines = _lines(item.words, width)
    card = Image.new("RGB", (width, height + 8 + LINE_HEIGHT * len(lines)), PAPER)
    card.paste(ImageOps.fit(item.image.convert("RGB"), (width, height), Image.Resampling.LANCZOS), (0, 0))
    draw = ImageDraw.Draw(card)
    for number, line in enumerate(lines):
        x, y = 0.0, height + 8 + number * LINE_HEIGHT
        for word, risk in line:
            draw.text((x, y), word, INK, font(TEXT_SIZE))
            end = x + text_width(word, TEXT_SIZE)
            if is_likely_made_up(risk):
                draw.line((x, y + LINE_HEIGHT - 3, end, y + LINE_HEIGHT - 3), RED, 2)
            x = end + text_width(" ", TEXT_SIZE)
    return card


def _lines(words: Sequence[tuple[str, float | None]], width: int) -> list[list[tuple[str, float | None]]]:
    """The words in lines of at most this width."""
    lines: list[list[tuple[str, float | None]]] = [[]]
    for word, risk in words:
        text = shorten(without_accents(word), width, TEXT_SIZE)
        if lines[-1] and text_width(" ".join([*(other for other, _ in lines[-1]), text]), TEXT_SIZE) > width:
            lines.append([])
        lines[-1].append((text, risk))
    return lines
