"""Sweeps over guidance: the files in the subfolder `guidance` of the results, as tables and as plots of the trade-off.

A file is written by `saywhy sweep guidance --out`. The tables follow Table 1 of Kornblith et al. 2023
(https://arxiv.org/abs/2307.16686), with two columns more: what guidance does to hallucination, and the image's share of
the evidence for the words.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from saywhy.audits.guidance_sweep import CLASSIFIER_FREE, LANGUAGE_MODEL, MUTUAL_INFORMATION
from saywhy.files import read_json
from saywhy.reports.json_fields import Fields
from saywhy.reports.results_files import result_paths
from saywhy.viz.plots import ACCENT, INK, MUTED, as_svg, new_figure
from saywhy.viz.tables import Table, decimal, escape_markdown, markdown

FOLDER = "guidance"
EXPLANATION = """\
γ is the strength of guidance: words are chosen by log p(word) + γ (log p(word | image) − log p(word)). In the rows
"p(word) by" a language model takes the place of the captioner without an image; in the rows with α and β words are
chosen by log q(word) + α log p(word | image) − β log p(word). γ = 1 is plain decoding.

R@1, R@5 and R@10: caption → image retrieval, the share of captions for which a model that only judges ranks the
caption's own image first, or among the first 5 or 10, of all images of the table. The row "reference captions" says
how well it does on captions by people. "unique" is the share of different captions. "image share" is the mean over
words of the image's share of the evidence: |image| of |image| + |earlier words| + |initial state|, with the sign of the
image's relevance.
"""
Number = float | None


@dataclass(frozen=True)
class SweptSetting:
    """One row: a setting of guidance and its scores, in percent; None where a measure is missing."""

    kind: str
    gamma: float
    lm: str
    weights: tuple[float, float] | None
    values: Mapping[str, Number]

    @property
    def family(self) -> str:
        """The rows of one line in a plot."""
        return {
            CLASSIFIER_FREE: "classifier-free",
            MUTUAL_INFORMATION: f"p(word) by {self.lm}",
            LANGUAGE_MODEL: f"language model {self.lm}",
        }[self.kind]

    @property
    def label(self) -> str:
        """γ, or α and β."""
        return f"γ = {self.gamma:g}" if self.weights is None else "α = {:g}, β = {:g}".format(*self.weights)


@dataclass(frozen=True)
class GuidanceSweep:
    """One file: a model on a split with several settings.

    Attributes:
        decoding: what all settings have in common.
        retrieval: the model that ranks images; empty without one.
        people: R@1, R@5 and R@10 of captions by people.
    """

    path: Path
    model: str
    data: str
    split: str
    images: int
    explained: int
    decoding: str
    retrieval: str
    people: Mapping[str, Number]
    settings: Sequence[SweptSetting]

    @property
    def title(self) -> str:
        """The model and the images."""
        return f"{self.model} on {self.data} {self.split}, {self.images:,} images"


def _path(*names: str) -> Callable[[Fields], Number]:
    """Reads a number below these names; None where one is missing."""

    def read(fields: Fields) -> Number:
        for name in names[:-1]:
            fields = fields.optional_child(name)
        return fields.get(names[-1], float)

    return read


def _bleu4(fields: Fields) -> Number:
    return fields.child("scores").numbers("bleu", 4)[3]


def _share(name: str) -> Callable[[Fields], Number]:
    return _path("hallucination", "chair", name, "percent")


def _image_share(fields: Fields) -> Number:
    mean = fields.optional_child("image_share").get("mean", float)
    return None if mean is None else 100 * mean


def _recall(name: str) -> Callable[[Fields], Number]:
    """By the judge, or by CLIP where there is no judge."""

    def read(fields: Fields) -> Number:
        by_judge = fields.optional_child("judge").optional_child("captions").get(name, float)
        return (
            fields.optional_child("clip").optional_child("retrieval").get(name, float) if by_judge is None else by_judge
        )

    return read


RECALL = {"R@1": "recall_at_1", "R@5": "recall_at_5", "R@10": "recall_at_10"}
COLUMNS: dict[str, Callable[[Fields], Number]] = {
    "BLEU-4": _bleu4,
    "METEOR": _path("scores", "meteor"),
    "ROUGE-L": _path("scores", "rouge_l"),
    "CIDEr": _path("scores", "cider"),
    **{title: _recall(name) for title, name in RECALL.items()},
    "CLIPScore": _path("clip", "clip_score"),
    "words": _path("diversity", "mean_length"),
    "unique": _path("diversity", "unique_captions", "percent"),
    "mAP": _path("hallucination", "frequent_words", "map"),
    "CHAIR-s": _share("sentence"),
    "CHAIR-i": _share("instance"),
    "image share": _image_share,
}


DIGITS = {"CLIPScore": 3}


def read_sweeps(folder: Path) -> list[GuidanceSweep]:
    """The sweeps in the subfolder `guidance` of a folder of results."""
    sweeps = [read_sweep(path) for path in result_paths(folder / FOLDER)]
    return sorted(sweeps, key=lambda sweep: (sweep.data, sweep.split, sweep.model, sweep.path.name))


def read_sweep(path: Path) -> GuidanceSweep:
    """One file of `saywhy sweep guidance`."""
    fields = Fields(read_json(path), path)
    settings = fields.children("settings")
    judges = [setting.child("judge") for setting in settings if "judge" in setting]
    clips = [setting.child("clip") for setting in settings if "clip" in setting]
    human = {title: judges[0].child("human").get(name, float) for title, name in RECALL.items()} if judges else {}
    return GuidanceSweep(
        path=path,
        model=fields.require("model", str),
        data=fields.require("data", str),
        split=fields.require("split", str),
        images=fields.require("images", int),
        explained=fields.get("explained_images", int) or 0,
        decoding=fields.require("decoding", str),
        retrieval=_judge_name(judges, clips),
        people=human,
        settings=[_setting(setting) for setting in settings],
    )


def _judge_name(judges: Sequence[Fields], clips: Sequence[Fields]) -> str:
    if judges:
        return f"{judges[0].require('judge', str)} over {judges[0].require('encoder', str)}"
    return clips[0].require("model", str) if clips else ""


def _setting(fields: Fields) -> SweptSetting:
    weights = fields.numbers("lm_weight", 2) if "lm_weight" in fields else None
    return SweptSetting(
        kind=fields.require("kind", str),
        gamma=fields.require("guidance", float),
        lm=fields.get("lm", str) or "",
        weights=None if weights is None else (weights[0], weights[1]),
        values={title: read(fields) for title, read in COLUMNS.items()},
    )


def guidance_section(sweeps: Sequence[GuidanceSweep]) -> str:
    """A table and a plot for each sweep; empty if there are none."""
    if not sweeps:
        return ""
    parts = ["## Guidance\n", EXPLANATION]
    for sweep in sweeps:
        parts += [
            f"### {escape_markdown(sweep.title)}\n",
            markdown(sweep_table(sweep)),
            f"![CIDEr against retrieval and hallucination]({plot_name(sweep)})\n",
        ]
    return "\n".join(parts)


def sweep_table(sweep: GuidanceSweep) -> Table:
    """One row per setting, in the order of the sweep."""
    used = [title for title in COLUMNS if any(setting.values[title] is not None for setting in sweep.settings)]
    rows: list[tuple[object, ...]] = [
        (_row_name(setting), *(decimal(setting.values[title], DIGITS.get(title, 1)) for title in used))
        for setting in sweep.settings
    ]
    if any(value is not None for value in sweep.people.values()):
        rows.append(("reference captions", *(decimal(sweep.people.get(title), 1) for title in used)))
    return Table(("guidance", *used), rows, caption=_conditions(sweep))


def _row_name(setting: SweptSetting) -> str:
    return setting.label if setting.kind == CLASSIFIER_FREE else f"{setting.label}, {setting.family}"


def _conditions(sweep: GuidanceSweep) -> str:
    judge = f" Retrieval by {sweep.retrieval}." if sweep.retrieval else ""
    shares = f" Image shares are of {sweep.explained:,} images." if sweep.explained else ""
    return f"{sweep.images:,} images, decoding {sweep.decoding}.{judge}{shares}"


def plot_name(sweep: GuidanceSweep) -> str:
    """The file name of a sweep's plot."""
    return re.sub(r"[^\w.-]+", "-", f"guidance-{sweep.path.stem}") + ".svg"


def sweep_plot(sweep: GuidanceSweep) -> str:
    """The trade-off as SVG: CIDEr against retrieval, or against unique captions without a judge, and hallucination."""
    specific = "R@1" if any(setting.values["R@1"] is not None for setting in sweep.settings) else "unique"
    return as_svg(lambda: _draw(sweep, (specific, "CHAIR-i")))


TITLES = {
    "R@1": "caption → image recall@1, %",
    "unique": "unique captions, %",
    "CHAIR-i": "hallucinated objects (CHAIR-i), %",
}
COLOURS = (ACCENT, "#C2571A", "#2A7F62", MUTED)


def _draw(sweep: GuidanceSweep, columns: Sequence[str]) -> Any:
    families: dict[str, list[SweptSetting]] = defaultdict(list)
    for setting in sweep.settings:
        families[setting.family].append(setting)
    figure = new_figure(8.4, 3.3)
    for axes, column in zip(figure.subplots(1, len(columns), sharey=True), columns, strict=True):
        for (family, settings), colour in zip(families.items(), COLOURS * len(families), strict=False):
            _draw_line(axes, settings, column, family, colour)
        axes.set_xlabel(TITLES[column])
    figure.axes[0].set_ylabel("CIDEr")
    if len(families) > 1:
        figure.axes[-1].legend(loc="best")
    return figure


def _draw_line(axes: Any, settings: Sequence[SweptSetting], column: str, family: str, colour: str) -> None:
    points = [
        (setting, x, y)
        for setting in settings
        if (x := setting.values[column]) is not None and (y := setting.values["CIDEr"]) is not None
    ]
    if not points:
        return
    is_path = settings[0].kind != LANGUAGE_MODEL  # α and β have no order
    axes.plot(
        [x for _, x, _ in points], [y for *_, y in points], "o-" if is_path else "o",
        color=colour, markersize=4, label=family,
    )  # fmt: skip
    for setting, x, y in points:
        text = f"{setting.gamma:g}" if setting.weights is None else "{:g}, {:g}".format(*setting.weights)
        axes.annotate(text, (x, y), (4, 3), textcoords="offset points", fontsize=7.5, color=INK)
