"""The plots of audits, as SVG.

A method has the same colour everywhere, of a palette that the colour-blind can tell apart (Okabe and Ito, 2008). Bars
around a value are 95 % intervals. The ground is white, also where the page is dark, and letters are drawn as paths, so
that a plot looks the same wherever it is seen. The same numbers give the same file, byte by byte.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from saywhy.errors import UserError
from saywhy.reports.audit_tables import STATISTICS, Audit, Estimate, decimal, most_said, name_of, ordered, value_of

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
DIGITS = {"drop": 3, "dropped": 2}  # drops are small
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


@dataclass(frozen=True)
class Plot:
    """A drawn plot.

    Attributes:
        file: its name.
        alt: what it shows, for those who do not see it.
        svg: the drawing.
    """

    file: str
    alt: str
    svg: str


def of_all(audits: Sequence[Audit]) -> list[Plot]:
    """The plots in which models stand side by side; all audits are the same one."""
    name = audits[0].name
    if name not in TOGETHER:
        return []
    alt, draw = TOGETHER[name]
    return [Plot(f"{name}.svg", f"{alt}, by model.", _drawn(partial(draw, audits)))]


def of_model(audit: Audit, slug: str) -> list[Plot]:
    """The plots of one model; `slug` stands for it in their files' names."""
    found = []
    for what, (alt, wanted, draw) in BY_MODEL.get(audit.name, {}).items():
        with audit.blamed():
            if audit.body.get(wanted):
                svg = _drawn(partial(draw, audit.body))
                found.append(Plot(f"{audit.name}-{what}-{slug}.svg", f"{alt}: {audit.model}.", svg))
    return found


def _drawn(draw: Callable[[], Any]) -> str:
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


def _figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.06, wspace=0.04, hspace=0.06)
    return Figure(figsize=(width, height), layout=layout)


def _panels(count: int, height: float) -> tuple[Any, list[Any]]:
    """A panel a model, three in a row at most, all with the same axes."""
    columns = 2 if count == 4 else min(count, 3)
    rows = -(-count // columns)
    figure = _figure((0, 5.2, 7.4, WIDTH)[columns], rows * height)
    axes = [*figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flat]
    for each in axes[count:]:
        each.remove()
    for each in axes[:count]:
        each.tick_params(labelbottom=True)
    return figure, axes[:count]


def _colour(method: str) -> str:
    return COLOURS.get(method, MUTED)


def _interval(axes: Any, y: float, found: Estimate, colour: str, width: float = 1.1) -> None:
    if found["low"] is not None and found["high"] is not None:
        axes.plot([found["low"], found["high"]], [y, y], color=colour, linewidth=width, solid_capstyle="butt")


def _dot(axes: Any, y: float, found: Estimate | None, colour: str, filled: bool = True, size: float = 4.5) -> None:
    """A value and its interval; nothing where there is none."""
    if found and found["value"] is not None:
        _interval(axes, y, found, colour)
        face = colour if filled else "white"
        axes.plot(found["value"], y, "o", markersize=size, color=colour, markerfacecolor=face, markeredgewidth=1.1)


def _bar(
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


def _names_on_y(axes: Any, methods: Sequence[str]) -> None:
    _rows_on_y(axes, [*map(name_of, methods)])


def _rows_on_y(axes: Any, labels: Sequence[str]) -> None:
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)


def _from_zero(axes: Any, estimates: Sequence[Estimate | None], room: float = 1.2) -> None:
    """Let the axis begin at 0, or below if a value does, and end with room for a number."""
    ends = [each[end] for each in estimates if each for end in ("value", "low", "high") if each[end] is not None]
    most, least = max([0.001, *ends]), min([0, *ends])
    axes.set_xlim(least * room, most * room)
    axes.axvline(0, color=MUTED, linewidth=0.8)
    axes.spines["left"].set_visible(False)


def _union(maps: Sequence[Mapping[str, Any]]) -> list[str]:
    return ordered({method for each in maps for method in each})


def _draw_vanished(audits: Sequence[Audit]) -> Any:
    """Figure 6, left, of the LRP paper."""
    methods, every = _of_methods(audits, None, "vanished")
    figure, axes = _panels(len(audits), len(methods) * ROW + 0.85)
    for audit, panel, found in zip(audits, axes, every, strict=True):
        for y, method in enumerate(methods):
            _bar(panel, y, found.get(method), _colour(method))
        panel.set_title(audit.model)
        panel.set_xlabel(f"share of words that vanished\n({audit.body['words']:,} object words)")
    _names_on_y(axes[0], methods)
    _from_zero(axes[0], [each for found in every for each in found.values()])
    for panel in axes[1:]:
        _bare(panel)
    return figure


def _bare(panel: Any) -> None:
    """A panel whose rows are named further left."""
    panel.axvline(0, color=MUTED, linewidth=0.8)
    panel.spines["left"].set_visible(False)
    panel.grid(axis="y", visible=False)


def _of_methods(audits: Sequence[Audit], part: str | None, key: str) -> tuple[list[str], list[dict[str, Estimate]]]:
    """The methods of any model, and of each model the estimates called `key` by method, in a part of its file."""
    every = []
    for audit in audits:
        with audit.blamed():
            methods = (audit.body[part] if part else audit.body)["methods"]
            every.append({method: found[key] for method, found in methods.items()})
    return _union(every), every


def _draw_curves(body: dict[str, Any]) -> Any:
    curves = body["curves"]
    figure = _figure(WIDTH, 3.1)
    axes = figure.subplots(1, 2, sharey=True)
    titles = {"deletion": ("Deletion", "masked", 1), "insertion": ("Insertion", "uncovered", -1)}
    for panel, (key, (title, done, better)) in zip(axes, titles.items(), strict=True):
        best_first = sorted(ordered(curves[key]), key=lambda each: better * (value_of(curves[key][each]["area"]) or 0))
        for method in best_first:
            label = f"{name_of(method)}  {decimal(value_of(curves[key][method]['area']))}"
            style = {"color": _colour(method), "linestyle": DASHED.get(method, "-"), "label": label}
            panel.plot(curves["fractions"], curves[key][method]["curve"], **style)
        panel.set_title(title)
        panel.set_xlabel(f"share of the picture {done}")
        panel.set_xlim(0, 1)
        panel.set_ylim(bottom=0)
        panel.legend(title="area, best first", **BESIDE)
    axes[0].set_ylabel(f"probability of the word ({curves['words']:,} words)")
    return figure


def _draw_word_ablation(audits: Sequence[Audit]) -> Any:
    """Figure 5 of the LRP paper: a row a model; drop and frequency, of object words and of stop words."""
    columns = [(part, key) for key in ("drop", "dropped") for part in ("object", "stop")]
    found = {(part, key): _of_methods(audits, part, key) for part, key in columns}
    methods = ordered({method for names, _ in found.values() for method in names})
    titles = {"drop": "mean drop of p", "dropped": "share whose p dropped"}
    figure = _figure(WIDTH, len(audits) * (len(methods) * ROW + 1.1))
    for row, (audit, strip) in enumerate(_strips(figure, audits)):
        axes = strip.subplots(1, 4, sharey=True)
        for panel, (part, key) in zip(axes, columns, strict=True):
            for y, method in enumerate(methods):
                _bar(panel, y, found[part, key][1][row].get(method), _colour(method), digits=DIGITS[key])
            _subtitle(panel, f"{part} words ({audit.body[part]['words']:,})")
            panel.set_xlabel(titles[key])
            _bare(panel)
            alike = [each for of in ("object", "stop") for each in found[of, key][1]]  # all on one scale
            _from_zero(panel, [each for estimates in alike for each in estimates.values()], room=1.3)
        _names_on_y(axes[0], methods)
    return figure


def _strips(figure: Any, audits: Sequence[Audit]) -> list[tuple[Audit, Any]]:
    """A strip of the figure for each model, with its name above."""
    strips = figure.subfigures(len(audits), 1, squeeze=False)[:, 0]
    for audit, strip in zip(audits, strips, strict=True):
        strip.suptitle(audit.model, x=0.01, ha="left", fontsize=9.5, fontweight="bold")
    return [*zip(audits, strips, strict=True)]


def _subtitle(panel: Any, text: str) -> None:
    panel.set_title(text, fontsize=8.5, fontweight="normal")


def _draw_localisation(audits: Sequence[Audit]) -> Any:
    """Figure 6, right, of the LRP paper."""
    methods, positive = _of_methods(audits, None, "positive")
    _, negative = _of_methods(audits, None, "negative")
    methods = [each for each in methods if each != "uniform"]
    figure, axes = _panels(len(audits), len(methods) * ROW * 1.5 + 0.95)
    for audit, panel, above, below in zip(audits, axes, positive, negative, strict=True):
        for y, method in enumerate(methods):
            signed = value_of(below.get(method)) is not None
            _bar(panel, y - 0.2 * signed, above.get(method), _colour(method), 0.36)
            if signed:
                _bar(panel, y + 0.2, below[method], _colour(method), 0.36, filled=False)
        if (uniform := value_of(above.get("uniform"))) is not None:
            panel.axvline(uniform, color=INK, linewidth=1, linestyle=(0, (3, 2)))
            panel.annotate(
                f"uniform {decimal(uniform, 2)}",
                *((uniform, 1), (3, 2)),
                xycoords=("data", "axes fraction"),
                textcoords="offset points",
                **{"fontsize": 7.5, "color": MUTED},
            )
        panel.set_title(audit.model, pad=14)
        panel.set_xlabel(f"share inside the boxes ({audit.body['words']:,} words)\nfilled: positive, hollow: negative")
    _names_on_y(axes[0], methods)
    _from_zero(axes[0], [each for found in (*positive, *negative) for each in found.values()])
    for panel in axes[1:]:
        _bare(panel)
    return figure


def _draw_kinds(body: dict[str, Any]) -> Any:
    parts = [("by_kind", "By kind of thing"), ("by_size", "By size of the boxes")]
    parts = [(key, title) for key, title in parts if body.get(key)]
    groups = [group for key, _ in parts for group in body[key].values()]
    methods = [each for each in _union([group["methods"] for group in groups]) if each != "uniform"]
    most = max(len(body[key]) for key, _ in parts)
    figure = _figure(WIDTH if len(parts) > 1 else 5.6, most * (len(methods) * 0.075 + 0.16) + 1.0)
    axes = figure.subplots(1, len(parts), sharex=True, squeeze=False)[0]
    for panel, (key, title) in zip(axes, parts, strict=True):
        for y, group in enumerate(body[key].values()):
            for place, method in enumerate(methods):
                shift = (place - (len(methods) - 1) / 2) * 0.8 / len(methods)
                _dot(panel, y + shift, group["methods"].get(method), _colour(method), size=3.8)
            if (area := value_of(group["area"])) is not None:
                panel.plot([area, area], [y - 0.45, y + 0.45], color=INK, linewidth=1.2)
            panel.axhline(y + 0.5, color=FAINT, linewidth=0.6)
        _rows_on_y(panel, [f"{name}\n{group['words']:,} words" for name, group in body[key].items()])
        panel.set_ylim(len(body[key]) - 0.5, -0.5)
        panel.spines["left"].set_visible(False)
        panel.set_title(title)
        panel.set_xlabel("positive relevance inside the boxes")
    axes[0].set_xlim(left=0)
    _legend_below(figure, axes[0], methods, {"area of the boxes": INK})
    return figure


def _legend_below(figure: Any, axes: Any, methods: Sequence[str], lines: Mapping[str, str]) -> None:
    dots = [axes.plot([], [], "o", color=_colour(each), markersize=4.5, label=name_of(each))[0] for each in methods]
    ticks = [
        axes.plot([], [], "|", color=colour, markersize=9, markeredgewidth=1.4, label=name)[0]
        for name, colour in lines.items()
    ]
    figure.legend(handles=[*dots, *ticks], loc="outside lower center", ncols=4, columnspacing=1.4, handletextpad=0.3)


def _draw_hallucination(audits: Sequence[Audit]) -> Any:
    """A row a model: a panel a statistic, and one of what is not a map. Filled: the frequent words; hollow: every."""
    methods = _union([_statistics(audit) for audit in audits])
    figure = _figure(WIDTH, len(audits) * (len(methods) * ROW + 0.95) + 0.3)
    every = []
    for audit, strip in _strips(figure, audits):
        left, right = strip.subfigures(1, 2, width_ratios=[2.7, 1.15])
        axes, others = left.subplots(1, 4, sharey=True), right.subplots()
        with audit.blamed():
            for panel, name in zip(axes, STATISTICS, strict=True):
                _draw_aucs(
                    panel, audit.body, lambda part, row, key=name: part["statistics"].get(row, {}).get(key), methods
                )
                _subtitle(panel, name)
            names = [*audit.body["frequent"]["others"]]
            _draw_aucs(others, audit.body, lambda part, row: part["others"].get(row), names)
        _names_on_y(axes[0], methods)
        _rows_on_y(others, names)
        _subtitle(others, "not a map")
        every += [*axes, others]
    _same_scale(every)
    text = "AUC, 0.5 is chance; filled: the most frequent object words, hollow: every object word"
    figure.supxlabel(text, fontsize=8.5, color=MUTED)
    return figure


def _same_scale(axes: Sequence[Any]) -> None:
    limits = [panel.get_xlim() for panel in axes]
    for panel in axes:
        panel.set_xlim(min(low for low, _ in limits), max(high for _, high in limits))


def _statistics(audit: Audit) -> Mapping[str, Any]:
    with audit.blamed():
        return {**audit.body["frequent"]["statistics"], **audit.body["every"]["statistics"]}


def _draw_aucs(panel: Any, body: dict[str, Any], find: Callable[..., Estimate | None], rows: Sequence[str]) -> None:
    for y, row in enumerate(rows):
        _dot(panel, y - 0.16, find(body["frequent"], row), COLOURS.get(row, INK))
        _dot(panel, y + 0.16, find(body["every"], row), COLOURS.get(row, INK), filled=False)
    panel.axvline(0.5, color=INK, linewidth=1, linestyle=(0, (3, 2)), zorder=0.9)
    panel.spines["left"].set_visible(False)
    panel.grid(axis="y", visible=False)


def _draw_made_up(body: dict[str, Any]) -> Any:
    rows = most_said(body)
    figure = _figure(6.0, len(rows) * 0.19 + 0.75)
    axes = figure.subplots()
    shares = [row["made_up"] / row["said"] if row["said"] else 0.0 for row in rows]
    axes.barh(range(len(rows)), shares, 0.7, color=ACCENT)
    for y, (row, share) in enumerate(zip(rows, shares, strict=True)):
        text = f"{row['made_up']:,} of {row['said']:,}"
        axes.annotate(text, (share, y), (4, 0), textcoords="offset points", va="center", fontsize=7.5)
    _rows_on_y(axes, [row["word"] for row in rows])
    axes.set_xlim(0, max([0.01, *shares]) * 1.18)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("share of the times it was said that it was made up")
    return figure


def _draw_risk(body: dict[str, Any]) -> Any:
    figure = _figure(WIDTH, max(3.9, len(body["alone"]) * ROW + 1.2))
    left, right = figure.subfigures(1, 2, width_ratios=[1, 1.25])
    curve, counts = left.subplots(2, 1, sharex=True, height_ratios=[3.2, 1])
    bins = [each for each in body["calibration"] if None not in each]
    curve.plot([0, 1], [0, 1], color=MUTED, linewidth=1, linestyle=(0, (3, 2)))
    curve.annotate("dashed: as predicted", (0.97, 0.04), ha="right", color=MUTED, fontsize=7.5)
    curve.plot([each[0] for each in bins], [each[1] for each in bins], "o-", color=ACCENT, markersize=4.5)
    curve.set(xlim=(0, 1), ylim=(0, 1), ylabel="share made up")
    curve.set_title(f"Calibration, ECE {decimal(body['ece'])}")
    counts.bar([each[0] for each in bins], [each[2] for each in bins], 0.05, color=MUTED)
    counts.set(xlabel="predicted risk", ylabel="words")
    _draw_alone(right.subplots(), body)
    return figure


def _draw_alone(axes: Any, body: dict[str, Any]) -> None:
    facts = sorted(body["alone"], key=lambda fact: (-(value_of(body["alone"][fact]) or 0), fact))
    _dot(axes, 0, body["auc"], ACCENT, size=6)
    for y, fact in enumerate(facts, 1):
        _dot(axes, y, body["alone"][fact], MUTED)
    _rows_on_y(axes, ["all together", *facts])
    axes.get_yticklabels()[0].set_fontweight("bold")
    axes.axvline(0.5, color=INK, linewidth=1, linestyle=(0, (3, 2)), zorder=0.9)
    axes.spines["left"].set_visible(False)
    axes.set_title("Facts alone and together")
    axes.set_xlabel(f"AUC, 0.5 is chance ({body['words']:,} words, {body['made_up']:,} made up)")


def _draw_stages(body: dict[str, Any]) -> Any:
    stages = body["randomised"]
    methods = _union([stage["methods"] for stage in stages])
    figure = _figure(7.6, 3.6)
    axes = figure.subplots()
    ends = {}
    for method in methods:
        found = [stage["methods"].get(method) for stage in stages]
        points = [(0, 1.0)] + [(x, each["value"]) for x, each in enumerate(found, 1) if value_of(each) is not None]
        style = {"color": _colour(method), "linestyle": DASHED.get(method, "-")}
        axes.plot(*zip(*points, strict=True), marker="o", markersize=3.5, **style)
        for x, each in enumerate(found, 1):
            if each and each["low"] is not None and each["high"] is not None:
                axes.plot([x, x], [each["low"], each["high"]], color=_colour(method), linewidth=1)
        ends[method] = points[-1]
    names = ["trained", *(stage["down_to"] for stage in stages)]
    axes.set_xticks(range(len(names)), names, **(SLANTED if sum(map(len, names)) > 70 else {}))
    axes.set_xlabel("randomised down to")
    axes.set_ylabel(f"rank correlation with\nthe trained model's maps ({body['altered']['words']:,} words)")
    axes.axhline(0, color=MUTED, linewidth=0.8)
    axes.grid(axis="x", visible=False)
    axes.set_ylim(axes.get_ylim())
    _label_ends(axes, ends, len(stages) * 1.06)
    axes.set_xlim(-0.2, len(stages) * 1.01)
    return figure


def _label_ends(axes: Any, ends: Mapping[str, tuple[float, float]], x: float) -> None:
    """Name the lines where they end, with a hair to each, as names may have to make room for one another."""
    low, high = axes.get_ylim()
    order = sorted(ends, key=lambda method: ends[method][1])
    heights = spread_out([ends[method][1] for method in order], (high - low) * 0.062)
    for method, height in zip(order, heights, strict=True):
        start, level = ends[method]
        style = {"color": _colour(method), "linewidth": 0.8, "clip_on": False}
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


def _draw_agreement(body: dict[str, Any]) -> Any:
    found = body["agreement"]
    methods = ordered({*found, *(method for row in found.values() for method in row)})
    figure = _figure(len(methods) * 0.56 + 1.7, len(methods) * 0.36 + 1.25)
    axes = figure.subplots()
    values = [[_agreement(found, one, other) for other in methods] for one in methods]
    shown = [[float("nan") if each is None else each for each in row] for row in values]
    axes.set_facecolor("#eeeeee")
    axes.pcolormesh(shown, cmap="RdBu", vmin=-1, vmax=1, edgecolor="white", linewidth=1.5)
    for y, row in enumerate(values):
        for x, value in enumerate(row):
            ink = "white" if value is not None and abs(value) > 0.55 else INK
            axes.text(x + 0.5, y + 0.5, decimal(value, 2), ha="center", va="center", color=ink, fontsize=8)
    places = [place + 0.5 for place in range(len(methods))]
    axes.set_yticks(places, [*map(name_of, methods)])
    axes.set_xticks(places, [*map(name_of, methods)], **SLANTED)
    axes.invert_yaxis()
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.set_title("Rank correlation of maps of the same word")
    return figure


def _agreement(found: Mapping[str, Mapping[str, float | None]], one: str, other: str) -> float | None:
    """From either side of the table; a method agrees with itself."""
    value = found.get(one, {}).get(other, found.get(other, {}).get(one))
    return 1.0 if one == other else value


TOGETHER: dict[str, tuple[str, Callable[[Sequence[Audit]], Any]]] = {
    "picture-ablation": ("Share of words that vanish when the most relevant patches are masked", _draw_vanished),
    "word-ablation": (
        "What taking out the three most relevant words does to a word's probability",
        _draw_word_ablation,
    ),
    "localisation": ("Share of relevance inside the boxes", _draw_localisation),
    "hallucination": ("AUC of telling true words from made-up ones", _draw_hallucination),
}
"""Plots of all models together: what they show and what draws them."""

BY_MODEL: dict[str, dict[str, tuple[str, str, Callable[[dict[str, Any]], Any]]]] = {
    "picture-ablation": {"curves": ("Deletion and insertion curves", "curves", _draw_curves)},
    "localisation": {"kinds": ("Positive relevance inside the boxes by kind and size", "by_kind", _draw_kinds)},
    "hallucination": {"words": ("How often frequent words are made up", "by_word", _draw_made_up)},
    "risk": {"calibration": ("Calibration of the risk, and AUC of each fact alone", "calibration", _draw_risk)},
    "sanity": {
        "stages": ("Maps while the model is randomised", "randomised", _draw_stages),
        "agreement": ("Agreement between methods", "agreement", _draw_agreement),
    },
}
"""Plots of one model: what they show, the part of the file they need, and what draws them."""
