"""What plots are drawn with: one style, and the marks and panels that drawings are made of.

A method has the same colour everywhere, of a palette that the colour-blind can tell apart (Okabe and Ito, 2008). Bars
around a value are 95 % intervals. The ground is white, also where the page is dark, and letters are drawn as paths, so
that a plot looks the same wherever it is seen. The same numbers give the same file, byte by byte.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from saywhy.errors import UserError
from saywhy.reports.audit_tables import Audit, Estimate, decimal, name_of, value_of

INK, MUTED, FAINT = "#24292f", "#57606a", "#d8dee4"
ACCENT = "#4B3F8F"  # of what is no method
COLOURS = {
    "lrp": "#D55E00",
    "gradcam": "#0072B2",
    "guided-gradcam": "#56B4E9",
    "guided-backprop": "#009E73",
    "gradient-input": "#CC79A7",
    "gradient": "#0072B2",  # which stands for Grad-CAM
    "gradient-size": "#7FB8DA",
    "attention": "#E69F00",
    "last": "#F0E442",
    "random": "#999999",
    "uniform": "#BBBBBB",
}
DASHED = {"random": (0, (4, 2)), "uniform": (0, (1, 1.5))}
WIDTH = 9.0  # inches, of which a browser makes 96 pixels each
ROW = 0.24  # inches a method
HASHED = re.compile(r"\b[pmh][0-9a-f]{10}\b")
MINUS_ZERO = re.compile(r"(?<![\w.])-0(?![\w.])")
SLANTED: dict[str, Any] = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"}  # names that are long
BESIDE: dict[str, Any] = {
    **{"loc": "center left", "bbox_to_anchor": (1, 0.5), "alignment": "left"},
    **{"handlelength": 1.4, "fontsize": 8, "title_fontsize": 8},
}
"""How a legend stands beside its panel."""
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
    """What is drawn, as SVG."""
    with _style():
        figure, written = draw(), io.BytesIO()
        figure.savefig(written, format="svg", metadata={"Date": None, "Creator": "saywhy"})
    return settled(written.getvalue().decode())


def settled(svg: str) -> str:
    """The drawing with its marks and clips named by their order, and without a minus before a zero.

    matplotlib names them by a hash of their places, and the solver of its layouts finds those only up to 1e-13.

    >>> settled('<use href="#m0123456789"/> <path d="M -0 -0.5" clip-path="url(#pabcdef0123)"/>')
    '<use href="#m1"/> <path d="M 0 -0.5" clip-path="url(#p2)"/>'
    """
    svg = MINUS_ZERO.sub("0", svg)
    names = {name: f"{name[0]}{place}" for place, name in enumerate(dict.fromkeys(HASHED.findall(svg)), 1)}
    return HASHED.sub(lambda found: names[found[0]], svg)


@contextmanager
def _style() -> Iterator[None]:
    """matplotlib as we like it, whatever the user's own settings are, which come back afterwards."""
    try:
        import matplotlib
    except ImportError:
        raise UserError("plots need matplotlib: pip install 'saywhy[audit]'") from None
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)  # type: ignore[arg-type]
        yield


def new_figure(width: float, height: float) -> Any:
    """An empty figure, of so many inches."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.06, wspace=0.04, hspace=0.06)
    return Figure(figsize=(width, height), layout=layout)


def panels(count: int, height: float) -> tuple[Any, list[Any]]:
    """A panel a model, three in a row at most, all with the same axes."""
    columns = 2 if count == 4 else min(count, 3)
    rows = -(-count // columns)
    figure = new_figure((0, 5.2, 7.4, WIDTH)[columns], rows * height)
    axes = [*figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flat]
    for each in axes[count:]:
        each.remove()
    for each in axes[:count]:
        each.tick_params(labelbottom=True)
    return figure, axes[:count]


def colour_of(method: str) -> str:
    """The colour of a method."""
    return COLOURS.get(method, MUTED)


def _interval(axes: Any, y: float, found: Estimate, colour: str, width: float = 1.1) -> None:
    if found["low"] is not None and found["high"] is not None:
        axes.plot([found["low"], found["high"]], [y, y], color=colour, linewidth=width, solid_capstyle="butt")


def dot(axes: Any, y: float, found: Estimate | None, colour: str, filled: bool = True, size: float = 4.5) -> None:
    """A value and its interval; nothing where there is none."""
    if found and found["value"] is not None:
        _interval(axes, y, found, colour)
        face = colour if filled else "white"
        axes.plot(found["value"], y, "o", markersize=size, color=colour, markerfacecolor=face, markeredgewidth=1.1)


def bar(
    axes: Any, y: float, found: Estimate | None, colour: str, height: float = 0.68, filled: bool = True, digits: int = 2
) -> None:
    """A bar with its interval and its number; a dash where there is none."""
    value = value_of(found)
    if found is None or value is None:
        axes.annotate("–", (0, y), (4, 0), textcoords="offset points", va="center", color=MUTED)
        return
    face = colour if filled else "white"
    axes.barh(y, value, height, color=face, edgecolor=colour, linewidth=0.9)
    _interval(axes, y, found, INK)
    end = max(value, found["high"] if found["high"] is not None else value, 0)
    text = decimal(value, digits)
    number = axes.annotate(text, (end, y), (4, 0), textcoords="offset points", va="center", fontsize=7.5)
    number.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.6})  # no line goes through it


def names_on_y(axes: Any, methods: Sequence[str]) -> None:
    """Methods as the rows of a panel."""
    rows_on_y(axes, [*map(name_of, methods)])


def rows_on_y(axes: Any, labels: Sequence[str]) -> None:
    """The rows of a panel, the first at the top."""
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)


def from_zero(axes: Any, estimates: Sequence[Estimate | None], room: float = 1.2) -> None:
    """Let the axis begin at 0, or below if a value does, and end with room for a number."""
    ends = [each[end] for each in estimates if each for end in ("value", "low", "high") if each[end] is not None]
    most, least = max([0.001, *ends]), min([0, *ends])
    axes.set_xlim(least * room, most * room)
    axes.axvline(0, color=MUTED, linewidth=0.8)
    axes.spines["left"].set_visible(False)


def bare(panel: Any) -> None:
    """A panel whose rows are named further left."""
    panel.axvline(0, color=MUTED, linewidth=0.8)
    panel.spines["left"].set_visible(False)
    panel.grid(axis="y", visible=False)


def strips(figure: Any, audits: Sequence[Audit]) -> list[tuple[Audit, Any]]:
    """A strip of the figure for each model, with its name above."""
    strips = figure.subfigures(len(audits), 1, squeeze=False)[:, 0]
    for audit, strip in zip(audits, strips, strict=True):
        strip.suptitle(audit.model, x=0.01, ha="left", fontsize=9.5, fontweight="bold")
    return [*zip(audits, strips, strict=True)]


def subtitle(panel: Any, text: str) -> None:
    """A panel's name under that of its strip."""
    panel.set_title(text, fontsize=8.5, fontweight="normal")


def legend_below(figure: Any, axes: Any, methods: Sequence[str], lines: Mapping[str, str]) -> None:
    """A legend under the figure: a dot a method, and a tick for each of `lines`."""
    dots = [axes.plot([], [], "o", color=colour_of(each), markersize=4.5, label=name_of(each))[0] for each in methods]
    ticks = [
        axes.plot([], [], "|", color=colour, markersize=9, markeredgewidth=1.4, label=name)[0]
        for name, colour in lines.items()
    ]
    figure.legend(handles=[*dots, *ticks], loc="outside lower center", ncols=4, columnspacing=1.4, handletextpad=0.3)


def same_scale(axes: Sequence[Any]) -> None:
    """Let panels have the same axis from left to right."""
    limits = [panel.get_xlim() for panel in axes]
    for panel in axes:
        panel.set_xlim(min(low for low, _ in limits), max(high for _, high in limits))


def label_ends(axes: Any, ends: Mapping[str, tuple[float, float]], x: float) -> None:
    """Name the lines where they end, with a hair to each, as names may have to make room for one another."""
    low, high = axes.get_ylim()
    order = sorted(ends, key=lambda method: ends[method][1])
    heights = spread_out([ends[method][1] for method in order], (high - low) * 0.062)
    for method, height in zip(order, heights, strict=True):
        start, level = ends[method]
        style = {"color": colour_of(method), "linewidth": 0.8, "clip_on": False}
        axes.plot([start, x - 0.05], [level, height], **style)
        axes.text(x, height, name_of(method), va="center")


def spread_out(values: Sequence[float], gap: float) -> list[float]:
    """Ascending values moved as little as can be, by least squares, so that neighbours are `gap` apart.

    >>> spread_out([0.0, 1.0, 1.0], 0.5)
    [0.0, 0.75, 1.25]
    """
    blocks: list[list[float]] = []  # of values less what the gaps before them take up; pooled until they ascend
    for place, value in enumerate(values):
        blocks.append([value - place * gap])
        while len(blocks) > 1 and _mean(blocks[-2]) > _mean(blocks[-1]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    flat = [_mean(block) for block in blocks for _ in block]
    return [each + place * gap for place, each in enumerate(flat)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
