"""Plots as SVG: one style, and the marks and panels of which audit plots are made.

A method has the same colour in every plot (`viz.method_styles`). Error bars are 95 % intervals. The background is
white on dark pages too, and letters are drawn as paths, so that a plot looks the same everywhere. The same numbers give
the same file, byte by byte.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from saywhy.errors import UserError
from saywhy.viz.method_styles import METHOD_STYLES
from saywhy.viz.tables import Estimate, decimal, value_of

INK, MUTED, FAINT = "#24292f", "#57606a", "#d8dee4"
ACCENT = "#4B3F8F"  # the colour of what is not a method
DASHED = {"random": (0, (4, 2)), "uniform": (0, (1, 1.5))}  # line styles of baselines
WIDTH = 9.0  # inches; a browser draws 96 pixels per inch
ROW = 0.24  # inches per method
HASHED_ID = re.compile(r"\b[pmh][0-9a-f]{10}\b")
MINUS_ZERO = re.compile(r"(?<![\w.])-0(?![\w.])")
SLANTED: dict[str, Any] = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"}  # for long tick labels
LEGEND_BESIDE: dict[str, Any] = {
    **{"loc": "center left", "bbox_to_anchor": (1, 0.5), "alignment": "left"},
    **{"handlelength": 1.4, "fontsize": 8, "title_fontsize": 8},
}
"""Options of a legend to the right of its panel."""
STYLE: dict[str, Any] = {
    "svg.hashsalt": "saywhy",
    "svg.fonttype": "path",
    "font.family": "DejaVu Sans",  # comes with matplotlib
    "font.size": 8.5,
    "text.color": INK,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "axes.edgecolor": MUTED,
    "axes.labelcolor": MUTED,
    "axes.labelsize": 8.5,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.linewidth": 0.8,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 8,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.6,
}


def as_svg(draw: Callable[[], Any]) -> str:
    """The figure that `draw` returns, as SVG."""
    with _style():
        figure, buffer = draw(), io.BytesIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": "saywhy"})
    return reproducible(buffer.getvalue().decode())


def reproducible(svg: str) -> str:
    """The SVG with ids numbered in order of appearance, and without a minus before a zero.

    matplotlib hashes coordinates into ids, and its layout solver finds coordinates only up to 1e-13.

    >>> reproducible('<use href="#m0123456789"/> <path d="M -0 -0.5" clip-path="url(#pabcdef0123)"/>')
    '<use href="#m1"/> <path d="M 0 -0.5" clip-path="url(#p2)"/>'
    """
    svg = MINUS_ZERO.sub("0", svg)
    ids = {old: f"{old[0]}{number}" for number, old in enumerate(dict.fromkeys(HASHED_ID.findall(svg)), 1)}
    return HASHED_ID.sub(lambda match: ids[match[0]], svg)


@contextmanager
def _style() -> Iterator[None]:
    """Use the style of this module in place of the user's matplotlib settings, which are restored afterwards."""
    try:
        import matplotlib
    except ImportError:
        raise UserError("plots need matplotlib: pip install 'saywhy[audit]'") from None
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)  # type: ignore[arg-type]
        yield


def new_figure(width: float, height: float) -> Any:
    """An empty figure; sizes in inches."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.06, wspace=0.04, hspace=0.06)
    return Figure(figsize=(width, height), layout=layout)


def panels(count: int, height: float) -> tuple[Any, list[Any]]:
    """A figure and its panels, one per model, at most three per row, with shared axes."""
    columns = 2 if count == 4 else min(count, 3)
    rows = -(-count // columns)
    figure = new_figure((0, 5.2, 7.4, WIDTH)[columns], rows * height)
    axes = [*figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flat]
    for panel in axes[count:]:
        panel.remove()
    for panel in axes[:count]:
        panel.tick_params(labelbottom=True)
    return figure, axes[:count]


def model_title(panel: Any, text: str, pad: float | None = None) -> None:
    """Write the name of a model and its settings above a panel, in two lines, which fit beside other panels."""
    panel.set_title(text.replace(", ", ",\n", 1), pad=pad)


def colour_of(method: str) -> str:
    """The colour of a method."""
    return METHOD_STYLES[method].colour


def _draw_interval(axes: Any, y: float, estimate: Estimate, colour: str, width: float = 1.1) -> None:
    low, high = estimate["low"], estimate["high"]
    if low is not None and high is not None:
        axes.plot([low, high], [y, y], color=colour, linewidth=width, solid_capstyle="butt")


def dot(axes: Any, y: float, estimate: Estimate | None, colour: str, filled: bool = True, size: float = 4.5) -> None:
    """Draw a value with its interval; a missing value is not drawn."""
    if estimate and estimate["value"] is not None:
        _draw_interval(axes, y, estimate, colour)
        face = colour if filled else "white"
        axes.plot(estimate["value"], y, "o", markersize=size, color=colour, markerfacecolor=face, markeredgewidth=1.1)


def bar(
    axes: Any,
    y: float,
    estimate: Estimate | None,
    colour: str,
    height: float = 0.68,
    filled: bool = True,
    digits: int = 2,
) -> None:
    """Draw a bar with its interval and its number; a dash if the value is missing."""
    value = value_of(estimate)
    if estimate is None or value is None:
        axes.annotate("–", (0, y), (4, 0), textcoords="offset points", va="center", color=MUTED)
        return
    face = colour if filled else "white"
    axes.barh(y, value, height, color=face, edgecolor=colour, linewidth=0.9)
    _draw_interval(axes, y, estimate, INK)
    end = max(value, estimate["high"] if estimate["high"] is not None else value, 0)
    text = decimal(value, digits)
    number = axes.annotate(text, (end, y), (4, 0), textcoords="offset points", va="center", fontsize=7.5)
    number.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.6})  # hides grid lines behind the number


def methods_on_y(axes: Any, methods: Sequence[str]) -> None:
    """Name the rows of a panel by method."""
    labels_on_y(axes, [METHOD_STYLES[method].name for method in methods])


def labels_on_y(axes: Any, labels: Sequence[str]) -> None:
    """Name the rows of a panel, the first at the top."""
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)


def start_at_zero(axes: Any, estimates: Sequence[Estimate | None], room: float = 1.2) -> None:
    """Start the x axis at 0, or below if a value is negative, and leave room for the numbers at its end."""
    known = [estimate for estimate in estimates if estimate]
    ends = [estimate[end] for estimate in known for end in ("value", "low", "high") if estimate[end] is not None]
    highest, lowest = max([0.001, *ends]), min([0, *ends])
    axes.set_xlim(lowest * room, highest * room)
    axes.axvline(0, color=MUTED, linewidth=0.8)
    axes.spines["left"].set_visible(False)


def hide_y_axis(panel: Any) -> None:
    """Hide the y axis of a panel whose rows are named in a panel further left."""
    panel.axvline(0, color=MUTED, linewidth=0.8)
    panel.spines["left"].set_visible(False)
    panel.grid(axis="y", visible=False)


def strips(figure: Any, titles: Sequence[str]) -> list[Any]:
    """Horizontal strips of a figure, each under its title."""
    subfigures = figure.subfigures(len(titles), 1, squeeze=False)[:, 0]
    for title, subfigure in zip(titles, subfigures, strict=True):
        subfigure.suptitle(title, x=0.01, ha="left", fontsize=9.5, fontweight="bold")
    return [*subfigures]


def subtitle(panel: Any, text: str) -> None:
    """Write the title of a panel within a strip."""
    panel.set_title(text, fontsize=8.5, fontweight="normal")


def legend_below(figure: Any, axes: Any, methods: Sequence[str], lines: Mapping[str, str]) -> None:
    """Draw a legend under the figure: a dot per method, and a tick per line; `lines` maps names to colours."""
    dots = [
        axes.plot([], [], "o", color=colour_of(method), markersize=4.5, label=METHOD_STYLES[method].name)[0]
        for method in methods
    ]
    ticks = [
        axes.plot([], [], "|", color=colour, markersize=9, markeredgewidth=1.4, label=name)[0]
        for name, colour in lines.items()
    ]
    figure.legend(handles=[*dots, *ticks], loc="outside lower center", ncols=4, columnspacing=1.4, handletextpad=0.3)


def same_scale(axes: Sequence[Any]) -> None:
    """Give panels the same x axis."""
    limits = [panel.get_xlim() for panel in axes]
    for panel in axes:
        panel.set_xlim(min(low for low, _ in limits), max(high for _, high in limits))


def label_line_ends(axes: Any, ends: Mapping[str, tuple[float, float]], x: float) -> None:
    """Name lines where they end; thin connectors lead to names that were moved so as not to overlap."""
    low, high = axes.get_ylim()
    order = sorted(ends, key=lambda method: ends[method][1])
    heights = spread_out([ends[method][1] for method in order], (high - low) * 0.062)
    for method, height in zip(order, heights, strict=True):
        start, level = ends[method]
        style = {"color": colour_of(method), "linewidth": 0.8, "clip_on": False}
        axes.plot([start, x - 0.05], [level, height], **style)
        axes.text(x, height, METHOD_STYLES[method].name, va="center")


def spread_out(values: Sequence[float], gap: float) -> list[float]:
    """Ascending values, moved as little as possible (least squares) so that neighbours are at least `gap` apart.

    >>> spread_out([0.0, 1.0, 1.0], 0.5)
    [0.0, 0.75, 1.25]
    """
    blocks: list[list[float]] = []  # values minus the gaps before them, pooled until the blocks' means ascend
    for place, value in enumerate(values):
        blocks.append([value - place * gap])
        while len(blocks) > 1 and _mean(blocks[-2]) > _mean(blocks[-1]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    means = [_mean(block) for block in blocks for _ in block]
    return [value + place * gap for place, value in enumerate(means)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
