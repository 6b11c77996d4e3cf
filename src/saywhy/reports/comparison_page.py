"""`comparison.html`: two sets of captions side by side, on one page that needs neither a network nor other files.

The page has the scores with their intervals, the images that changed most with both captions and their references, and
the words gained and lost. Its template is `viz/comparison.html`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from difflib import SequenceMatcher
from html import escape
from pathlib import Path

from saywhy.data.images import open_image
from saywhy.data.tokenizer import as_text
from saywhy.errors import UserError
from saywhy.metrics.rarity import Rarity
from saywhy.provenance import saywhy_version
from saywhy.reports.comparison import Comparison, ImageChange, ScoredCaption, WordChange
from saywhy.reports.score_differences import ScoreDifference
from saywhy.viz.explanation_page import fill_template, jpeg_url

IMAGE_SIDE = 480  # pixels along the longer side
VERDICT_CLASSES = {"A better": "a-better", "B better": "b-better", "higher": "changed", "lower": "changed"}
IMAGE_HELP = """<p class="legend muted"><span><del>only in A</del></span> <span><ins>only in B</ins></span>
  <span><span class="made-up">wavy line</span>: an object that the image does not have</span>
  <span>The number beside a caption is its CIDEr</span> <span>Next and previous image: → ←</span></p>"""


def comparison_page(comparison: Comparison, paths: Mapping[str, Path]) -> str:
    """The HTML page of a comparison; `paths` has the file of each image that it lists."""
    better = _image_section("better", "Images that are better in B, most first", comparison.better, paths)
    worse = _image_section("worse", "Images that are worse in B, most first", comparison.worse, paths)
    nav = {"scores": "Scores", "better": "Better in B", "worse": "Worse in B", "words": "Words gained and lost"}
    absent = {name for name, section in (("better", better), ("worse", worse)) if not section}
    values = {
        "title": escape(f"{comparison.names[0]} and {comparison.names[1]} on {comparison.data} {comparison.split}"),
        "sides": "".join(map(_side, "AB", comparison.names, comparison.decoding)),
        "nav": "".join(f'<a href="#{name}">{title}</a>' for name, title in nav.items() if name not in absent),
        "facts": _facts(comparison),
        "scores": _score_table(comparison.scores),
        "images": better + worse,
        "words": _word_tables(comparison),
        "objects": escape(comparison.objects),
        "samples": f"{comparison.samples:,}",
        "notes": "".join(f"<p>{escape(note)}</p>" for note in comparison.notes),
        "version": escape(saywhy_version()),
    }
    return fill_template("comparison.html", values)


def signed(value: float, digits: int = 2) -> str:
    """A number with its sign; one that is rounded to 0 has none.

    >>> signed(1.256), signed(-0.5), signed(-0.001)
    ('+1.26', '−0.50', '0.00')
    """
    text = f"{value:+z.{digits}f}".replace("-", "−")
    return text if any(digit in text for digit in "123456789") else text.removeprefix("+")


def marked_caption(caption: ScoredCaption, other: ScoredCaption, tag: str) -> str:
    """A caption as HTML: runs of words that the other caption does not have in `tag`, hallucinated objects underlined.

    >>> a, b = (ScoredCaption(tuple(text.split()), 0.0) for text in ("a dog 's red ball", "a dog 's ball"))
    >>> marked_caption(a, b, "del")
    'a dog&#x27;s <del>red</del> ball'
    """
    changed = _changed_positions(caption.words, other.words)
    parts, spaces = [], _spaces(caption.words)
    for position, word in enumerate(caption.words):
        text = escape(word)
        if position in caption.hallucinated:
            text = f'<span class="made-up">{text}</span>'
        begins = position in changed and position - 1 not in changed
        ends = position in changed and position + 1 not in changed
        parts.append(spaces[position] + f"<{tag}>" * begins + text + f"</{tag}>" * ends)
    return "".join(parts)


def _changed_positions(words: Sequence[str], other: Sequence[str]) -> Collection[int]:
    """The positions of words that are not part of what two captions have in common, in order."""
    blocks = SequenceMatcher(None, words, other, autojunk=False).get_matching_blocks()
    return set(range(len(words))) - {position for block in blocks for position in range(block.a, block.a + block.size)}


def _spaces(words: Sequence[str]) -> list[str]:
    """What stands before each word in a sentence: a space, or nothing at the beginning and before clitics."""
    text, end, spaces = as_text(words), 0, []
    for word in words:
        start = text.index(word, end)
        spaces.append(text[end:start])
        end = start + len(word)
    return spaces


def _side(side: str, name: str, decoding: str) -> str:
    settings = "a file of captions" if decoding == "given" else decoding
    text = f'{escape(name)} <span class="muted">{escape(settings)}</span>'
    return f'<dt class="side {side.lower()}">{side}</dt><dd>{text}</dd>'


def _facts(comparison: Comparison) -> str:
    used = comparison.vocabulary
    facts = {
        "Images": f"{comparison.n:,}",
        "Same caption in A and B": f"{comparison.unchanged:,} ({100 * comparison.unchanged / comparison.n:.1f} %)",
        "Distinct words used, A → B": f"{used[0]:,} → {used[1]:,}",
    }
    if comparison.rarity:
        facts["Training count of the rarest reference word, better and worse images"] = rarity_text(comparison.rarity)
    return "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in facts.items())


def rarity_text(rarity: Rarity) -> str:
    """The means of both groups of images.

    >>> rarity_text(Rarity(115.86, None, 1517, 0, 20))
    '115.9 (1,517), – (0)'
    """
    groups = ((rarity.improved, rarity.improved_images), (rarity.degraded, rarity.degraded_images))
    return ", ".join(f"{'–' if mean is None else f'{mean:.1f}'} ({images:,})" for mean, images in groups)


def _score_table(scores: Sequence[ScoreDifference]) -> str:
    titles = ("", '<span class="side a">A</span>', '<span class="side b">B</span>', "B − A", "95 % interval")
    head = "".join(f'<th scope="col">{title}</th>' for title in titles) + '<th class="plot"></th><th></th>'
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(map(_score_row, scores))}</tbody></table>"


def _score_row(score: ScoreDifference) -> str:
    difference = score.difference
    verdict = VERDICT_CLASSES.get(score.verdict, "")
    interval = f"{signed(difference.low)} … {signed(difference.high)}"
    cells = (f"{score.a:.1f}", f"{score.b:.1f}", signed(difference.value), interval)
    row = "".join(f"<td>{cell}</td>" for cell in cells) + f'<td class="plot">{_interval_plot(score, verdict)}</td>'
    text = f'<td class="text {verdict}">{score.verdict or "undecided"}</td>'
    return f'<tr><th scope="row">{escape(score.name)}</th>{row}{text}</tr>'


def _interval_plot(score: ScoreDifference, verdict: str) -> str:
    """The interval as a line with a dot for the difference, around 0 in the middle."""
    values = (score.difference.low, score.difference.high, score.difference.value)
    largest = max(map(abs, values)) or 1.0
    low, high, value = (f"{50 + 48 * number / largest:.1f}%" for number in values)
    style = f"--low: {low}; --high: {high}; --value: {value}"
    return f'<span class="interval {verdict}" style="{style}" aria-hidden="true"><i></i><b></b></span>'


def _image_section(name: str, title: str, changes: Sequence[ImageChange], paths: Mapping[str, Path]) -> str:
    if not changes:
        return ""
    cards = "\n".join(_image_card(change, paths.get(change.name)) for change in changes)
    heading = f'<h2 id="{name}">{title}</h2>'
    return f'<section aria-labelledby="{name}">{heading}{IMAGE_HELP}<ul class="cards">{cards}</ul></section>'


def _image_card(change: ImageChange, path: Path | None) -> str:
    a, b = change.a, change.b
    rows = (("A", marked_caption(a, b, "del"), a.cider), ("B", marked_caption(b, a, "ins"), b.cider))
    pair = "".join(
        f'<span class="side {side.lower()}">{side}</span><span class="caption">{caption}</span>'
        f'<span class="score">{score:.0f}</span>'
        for side, caption, score in rows
    )
    references = "".join(f"<li>{escape(reference.strip())}</li>" for reference in change.references)
    label = escape(f"{change.name}: CIDEr {signed(change.difference, 0)}", quote=True)
    name = f'<p class="muted name">{escape(change.name)} · CIDEr {signed(change.difference, 0)}</p>'
    return (
        f'<li tabindex="0" aria-label="{label}">{_image(change, path)}<div><div class="pair">{pair}</div>'
        f'<ul class="references" aria-label="References">{references}</ul>{name}</div></li>'
    )


def _image(change: ImageChange, path: Path | None) -> str:
    """The image in small; a note in its place if it cannot be read, as captions may come from another machine."""
    try:
        if path is None:
            raise UserError("no file")
        image = open_image(path, IMAGE_SIDE)
    except UserError:
        return '<p class="no-image muted">The image file cannot be read</p>'
    image.thumbnail((IMAGE_SIDE, IMAGE_SIDE))
    return f'<img alt="{escape(change.name, quote=True)}" src="{jpeg_url(image, quality=80)}">'


def _word_tables(comparison: Comparison) -> str:
    tables = {
        "Objects gained": _of_kind(comparison.gained, True),
        "Objects lost": _of_kind(comparison.lost, True),
        "Other words gained": _of_kind(comparison.gained, False),
        "Other words lost": _of_kind(comparison.lost, False),
    }
    none = '<p class="muted">None.</p>'
    return "".join(f"<div><h3>{title}</h3>{_word_table(changes) or none}</div>" for title, changes in tables.items())


def _of_kind(changes: Sequence[WordChange], is_object: bool) -> list[WordChange]:
    return [change for change in changes if change.is_object == is_object]


def _word_table(changes: Sequence[WordChange]) -> str:
    if not changes:
        return ""
    has_objects = changes[0].is_object
    titles = ["", '<span class="side a">A</span>', '<span class="side b">B</span>', "B − A"]
    titles += ["not in the image, A → B"] if has_objects else []
    rows = []
    for change in changes:
        cells = [f"{change.a:,}", f"{change.b:,}", signed(change.b - change.a, 0)]
        cells += [f"{change.a_hallucinated:,} → {change.b_hallucinated:,}"] if has_objects else []
        row = "".join(f"<td>{cell}</td>" for cell in cells)
        rows.append(f'<tr><th scope="row">{escape(change.word)}</th>{row}</tr>')
    head = "".join(f'<th scope="col">{title}</th>' for title in titles)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
