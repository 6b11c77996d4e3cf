"""The plots of audits, as SVG: what is drawn of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from saywhy.reports.audit_tables import STATISTICS, Audit, Estimate, decimal, most_said, name_of, ordered, value_of
from saywhy.viz.plots import (
    ACCENT,
    BESIDE,
    COLOURS,
    DASHED,
    FAINT,
    INK,
    MUTED,
    ROW,
    SLANTED,
    WIDTH,
    as_svg,
    bar,
    bare,
    colour_of,
    dot,
    from_zero,
    label_ends,
    legend_below,
    names_on_y,
    new_figure,
    panels,
    rows_on_y,
    same_scale,
    strips,
    subtitle,
)

DIGITS = {"drop": 3, "dropped": 2}  # drops are small


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
    return [Plot(f"{name}.svg", f"{alt}, by model.", as_svg(partial(draw, audits)))]


def of_model(audit: Audit, slug: str) -> list[Plot]:
    """The plots of one model; `slug` stands for it in their files' names."""
    found = []
    for what, (alt, wanted, draw) in BY_MODEL.get(audit.name, {}).items():
        with audit.blamed():
            if audit.body.get(wanted):
                svg = as_svg(partial(draw, audit.body))
                found.append(Plot(f"{audit.name}-{what}-{slug}.svg", f"{alt}: {audit.model}.", svg))
    return found


def _union(maps: Sequence[Mapping[str, Any]]) -> list[str]:
    return ordered({method for each in maps for method in each})


def _draw_vanished(audits: Sequence[Audit]) -> Any:
    """Figure 6, left, of the LRP paper."""
    methods, every = _of_methods(audits, None, "vanished")
    figure, axes = panels(len(audits), len(methods) * ROW + 0.85)
    for audit, panel, found in zip(audits, axes, every, strict=True):
        for y, method in enumerate(methods):
            bar(panel, y, found.get(method), colour_of(method))
        panel.set_title(audit.model)
        panel.set_xlabel(f"share of words that vanished\n({audit.body['words']:,} object words)")
    names_on_y(axes[0], methods)
    from_zero(axes[0], [each for found in every for each in found.values()])
    for panel in axes[1:]:
        bare(panel)
    return figure


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
    figure = new_figure(WIDTH, 3.1)
    axes = figure.subplots(1, 2, sharey=True)
    titles = {"deletion": ("Deletion", "masked", 1), "insertion": ("Insertion", "uncovered", -1)}
    for panel, (key, (title, done, better)) in zip(axes, titles.items(), strict=True):
        best_first = sorted(ordered(curves[key]), key=lambda each: better * (value_of(curves[key][each]["area"]) or 0))
        for method in best_first:
            label = f"{name_of(method)}  {decimal(value_of(curves[key][method]['area']))}"
            style = {"color": colour_of(method), "linestyle": DASHED.get(method, "-"), "label": label}
            panel.plot(curves["fractions"], curves[key][method]["curve"], **style)
        panel.set_title(title)
        panel.set_xlabel(f"share of the image {done}")
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
    figure = new_figure(WIDTH, len(audits) * (len(methods) * ROW + 1.1))
    for row, (audit, strip) in enumerate(strips(figure, audits)):
        axes = strip.subplots(1, 4, sharey=True)
        for panel, (part, key) in zip(axes, columns, strict=True):
            for y, method in enumerate(methods):
                bar(panel, y, found[part, key][1][row].get(method), colour_of(method), digits=DIGITS[key])
            subtitle(panel, f"{part} words ({audit.body[part]['words']:,})")
            panel.set_xlabel(titles[key])
            bare(panel)
            alike = [each for of in ("object", "stop") for each in found[of, key][1]]  # all on one scale
            from_zero(panel, [each for estimates in alike for each in estimates.values()], room=1.3)
        names_on_y(axes[0], methods)
    return figure


def _draw_localisation(audits: Sequence[Audit]) -> Any:
    """Figure 6, right, of the LRP paper."""
    methods, positive = _of_methods(audits, None, "positive")
    _, negative = _of_methods(audits, None, "negative")
    methods = [each for each in methods if each != "uniform"]
    figure, axes = panels(len(audits), len(methods) * ROW * 1.5 + 0.95)
    for audit, panel, above, below in zip(audits, axes, positive, negative, strict=True):
        for y, method in enumerate(methods):
            signed = value_of(below.get(method)) is not None
            bar(panel, y - 0.2 * signed, above.get(method), colour_of(method), 0.36)
            if signed:
                bar(panel, y + 0.2, below[method], colour_of(method), 0.36, filled=False)
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
    names_on_y(axes[0], methods)
    from_zero(axes[0], [each for found in (*positive, *negative) for each in found.values()])
    for panel in axes[1:]:
        bare(panel)
    return figure


def _draw_kinds(body: dict[str, Any]) -> Any:
    parts = [("by_kind", "By kind of thing"), ("by_size", "By size of the boxes")]
    parts = [(key, title) for key, title in parts if body.get(key)]
    groups = [group for key, _ in parts for group in body[key].values()]
    methods = [each for each in _union([group["methods"] for group in groups]) if each != "uniform"]
    most = max(len(body[key]) for key, _ in parts)
    figure = new_figure(WIDTH if len(parts) > 1 else 5.6, most * (len(methods) * 0.075 + 0.16) + 1.0)
    axes = figure.subplots(1, len(parts), sharex=True, squeeze=False)[0]
    for panel, (key, title) in zip(axes, parts, strict=True):
        for y, group in enumerate(body[key].values()):
            for place, method in enumerate(methods):
                shift = (place - (len(methods) - 1) / 2) * 0.8 / len(methods)
                dot(panel, y + shift, group["methods"].get(method), colour_of(method), size=3.8)
            if (area := value_of(group["area"])) is not None:
                panel.plot([area, area], [y - 0.45, y + 0.45], color=INK, linewidth=1.2)
            panel.axhline(y + 0.5, color=FAINT, linewidth=0.6)
        rows_on_y(panel, [f"{name}\n{group['words']:,} words" for name, group in body[key].items()])
        panel.set_ylim(len(body[key]) - 0.5, -0.5)
        panel.spines["left"].set_visible(False)
        panel.set_title(title)
        panel.set_xlabel("positive relevance inside the boxes")
    axes[0].set_xlim(left=0)
    legend_below(figure, axes[0], methods, {"area of the boxes": INK})
    return figure


def _draw_hallucination(audits: Sequence[Audit]) -> Any:
    """A row a model: a panel a statistic, and one of what is not a map. Filled: the frequent words; hollow: every."""
    methods = _union([_statistics(audit) for audit in audits])
    figure = new_figure(WIDTH, len(audits) * (len(methods) * ROW + 0.95) + 0.3)
    every = []
    for audit, strip in strips(figure, audits):
        left, right = strip.subfigures(1, 2, width_ratios=[2.7, 1.15])
        axes, others = left.subplots(1, 4, sharey=True), right.subplots()
        with audit.blamed():
            for panel, name in zip(axes, STATISTICS, strict=True):
                _draw_aucs(
                    panel, audit.body, lambda part, row, key=name: part["statistics"].get(row, {}).get(key), methods
                )
                subtitle(panel, name)
            names = [*audit.body["frequent"]["others"]]
            _draw_aucs(others, audit.body, lambda part, row: part["others"].get(row), names)
        names_on_y(axes[0], methods)
        rows_on_y(others, names)
        subtitle(others, "not a map")
        every += [*axes, others]
    same_scale(every)
    text = "AUC, 0.5 is chance; filled: the most frequent object words, hollow: every object word"
    figure.supxlabel(text, fontsize=8.5, color=MUTED)
    return figure


def _statistics(audit: Audit) -> Mapping[str, Any]:
    with audit.blamed():
        return {**audit.body["frequent"]["statistics"], **audit.body["every"]["statistics"]}


def _draw_aucs(panel: Any, body: dict[str, Any], find: Callable[..., Estimate | None], rows: Sequence[str]) -> None:
    for y, row in enumerate(rows):
        dot(panel, y - 0.16, find(body["frequent"], row), COLOURS.get(row, INK))
        dot(panel, y + 0.16, find(body["every"], row), COLOURS.get(row, INK), filled=False)
    panel.axvline(0.5, color=INK, linewidth=1, linestyle=(0, (3, 2)), zorder=0.9)
    panel.spines["left"].set_visible(False)
    panel.grid(axis="y", visible=False)


def _draw_made_up(body: dict[str, Any]) -> Any:
    rows = most_said(body)
    figure = new_figure(6.0, len(rows) * 0.19 + 0.75)
    axes = figure.subplots()
    shares = [row["made_up"] / row["said"] if row["said"] else 0.0 for row in rows]
    axes.barh(range(len(rows)), shares, 0.7, color=ACCENT)
    for y, (row, share) in enumerate(zip(rows, shares, strict=True)):
        text = f"{row['made_up']:,} of {row['said']:,}"
        axes.annotate(text, (share, y), (4, 0), textcoords="offset points", va="center", fontsize=7.5)
    rows_on_y(axes, [row["word"] for row in rows])
    axes.set_xlim(0, max([0.01, *shares]) * 1.18)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("share of the times it was said that it was made up")
    return figure


def _draw_risk(body: dict[str, Any]) -> Any:
    figure = new_figure(WIDTH, max(3.9, len(body["alone"]) * ROW + 1.2))
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
    dot(axes, 0, body["auc"], ACCENT, size=6)
    for y, fact in enumerate(facts, 1):
        dot(axes, y, body["alone"][fact], MUTED)
    rows_on_y(axes, ["all together", *facts])
    axes.get_yticklabels()[0].set_fontweight("bold")
    axes.axvline(0.5, color=INK, linewidth=1, linestyle=(0, (3, 2)), zorder=0.9)
    axes.spines["left"].set_visible(False)
    axes.set_title("Facts alone and together")
    axes.set_xlabel(f"AUC, 0.5 is chance ({body['words']:,} words, {body['made_up']:,} made up)")


def _draw_stages(body: dict[str, Any]) -> Any:
    stages = body["randomised"]
    methods = _union([stage["methods"] for stage in stages])
    figure = new_figure(7.6, 3.6)
    axes = figure.subplots()
    ends = {}
    for method in methods:
        found = [stage["methods"].get(method) for stage in stages]
        points = [(0, 1.0)] + [(x, each["value"]) for x, each in enumerate(found, 1) if value_of(each) is not None]
        style = {"color": colour_of(method), "linestyle": DASHED.get(method, "-")}
        axes.plot(*zip(*points, strict=True), marker="o", markersize=3.5, **style)
        for x, each in enumerate(found, 1):
            if each and each["low"] is not None and each["high"] is not None:
                axes.plot([x, x], [each["low"], each["high"]], color=colour_of(method), linewidth=1)
        ends[method] = points[-1]
    names = ["trained", *(stage["down_to"] for stage in stages)]
    axes.set_xticks(range(len(names)), names, **(SLANTED if sum(map(len, names)) > 70 else {}))
    axes.set_xlabel("randomised down to")
    axes.set_ylabel(f"rank correlation with\nthe trained model's maps ({body['altered']['words']:,} words)")
    axes.axhline(0, color=MUTED, linewidth=0.8)
    axes.grid(axis="x", visible=False)
    axes.set_ylim(axes.get_ylim())
    label_ends(axes, ends, len(stages) * 1.06)
    axes.set_xlim(-0.2, len(stages) * 1.01)
    return figure


def _draw_agreement(body: dict[str, Any]) -> Any:
    found = body["agreement"]
    methods = ordered({*found, *(method for row in found.values() for method in row)})
    figure = new_figure(len(methods) * 0.56 + 1.7, len(methods) * 0.36 + 1.25)
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
    "image-ablation": ("Share of words that vanish when the most relevant patches are masked", _draw_vanished),
    "word-ablation": (
        "What taking out the three most relevant words does to a word's probability",
        _draw_word_ablation,
    ),
    "localisation": ("Share of relevance inside the boxes", _draw_localisation),
    "hallucination": ("AUC of telling true words from made-up ones", _draw_hallucination),
}
"""Plots of all models together: what they show and what draws them."""
BY_MODEL: dict[str, dict[str, tuple[str, str, Callable[[dict[str, Any]], Any]]]] = {
    "image-ablation": {"curves": ("Deletion and insertion curves", "curves", _draw_curves)},
    "localisation": {"kinds": ("Positive relevance inside the boxes by kind and size", "by_kind", _draw_kinds)},
    "hallucination": {"words": ("How often frequent words are made up", "by_word", _draw_made_up)},
    "risk": {"calibration": ("Calibration of the risk, and AUC of each fact alone", "calibration", _draw_risk)},
    "sanity": {
        "stages": ("Maps while the model is randomised", "randomised", _draw_stages),
        "agreement": ("Agreement between methods", "agreement", _draw_agreement),
    },
}
"""Plots of one model: what they show, the part of the file they need, and what draws them."""
