"""Tables of fine-tuning, as Tables III and IV of Sun et al. 2021 (https://arxiv.org/abs/2001.01037)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import mean, stdev

from saywhy.reports.fine_tuning_runs import LRP, PAPER_LAMBDA, PLAIN, START, FineTuningRun, Setting, Variant
from saywhy.reports.hallucination_tables import explain_measures
from saywhy.reports.results_files import mean_and_deviation
from saywhy.viz.tables import MISSING, Table, code, decimal, escape_markdown, markdown

EXPLANATION = f"""\
A start model is a trained captioner. Each of the other rows is a start model that was trained further, so that it names
fewer objects that are not in the image, as in Tables III and IV of Sun et al. 2021 (https://arxiv.org/abs/2001.01037).

LRP-IFT (LRP-inference fine-tuning) multiplies the inputs of the output layer by weights ω, computed from their
relevance for the predicted word. This changes the model's word probabilities p to p̂. With cross-entropy, the loss is
λ·CE(p) + (1 − λ)·CE(p̂), where λ is {PAPER_LAMBDA:g} unless the row has another; plain fine-tuning is λ = 1. With
self-critical training, captions are sampled from p̂; plain fine-tuning samples them from p. Controls compute ω in
another way: relevance with random signs, the gradient, or the attention gate. The control "sharpened" has a temperature
in place of ω, which makes p̂ as sharp as that of LRP-IFT. A hallucination penalty is subtracted from the reward for
every object that a caption names and no reference does.

With several seeds, cells are mean ± standard deviation. Below a table are the differences between runs with the same
seed and the same start model. Above 0 is better for mAP and CIDEr, below 0 for CHAIR-i.
"""
KINDS = {
    **{START: START, PLAIN: PLAIN, LRP: "LRP-IFT", "random": "control: random signs", "gradient": "control: gradient"},
    **{"gradient-input": "control: gradient × input", "attention": "control: attention"},
    **{"sharpened": "control: sharpened"},
}
"""Kinds of fine-tuning, in the order of their rows, and their names."""
CONTROLS = {PLAIN: PLAIN, "random": "random signs", "sharpened": "sharpened"}
"""What LRP-IFT is compared with below a table."""
NAMES = {"coco": "COCO", "flickr8k": "Flickr8k", "ada-lstm": "Ada-LSTM", "mh-fc": "MH-FC", "vgg16": "VGG-16"}
COLUMNS: dict[str, Callable[[FineTuningRun], float | None]] = {
    "mAP": lambda run: run.hallucination.mean_precision,
    "recall": lambda run: run.hallucination.recall,
    "F1": lambda run: run.hallucination.f1,
    "CHAIR-s": lambda run: run.hallucination.chair_sentence,
    "CHAIR-i": lambda run: run.hallucination.chair_instance,
    "BLEU-4": lambda run: run.result.scores.bleu[3],
    "METEOR": lambda run: run.result.scores.meteor,
    "CIDEr": lambda run: run.result.scores.cider,
}
COMPARED = ("mAP", "CHAIR-i", "CIDEr")

Rows = Mapping[Variant, Sequence[FineTuningRun]]


def fine_tuning_section(runs: Sequence[FineTuningRun]) -> str:
    """A table for each data set, captioner and objective; empty if there are no runs."""
    if not runs:
        return ""
    by_setting: dict[Setting, list[FineTuningRun]] = defaultdict(list)
    for run in runs:
        by_setting[run.setting].append(run)
    measures = escape_markdown(explain_measures([run.hallucination for run in runs]))
    parts = ["## Fine-tuning\n", EXPLANATION, f"{measures}\n"]
    for setting in sorted(by_setting, key=_setting_order):
        group = by_setting[setting]
        for objective in sorted({run.objective for run in group} - {""}) or [""]:
            parts.append(_table(setting, objective, [run for run in group if run.objective in ("", objective)]))
    return "\n".join(parts)


def _setting_order(setting: Setting) -> tuple[object, ...]:
    is_dev = setting.split == "dev"  # dev last
    return setting.data, is_dev, setting.split, setting.captioner, setting.encoder, setting.decoding


def _table(setting: Setting, objective: str, runs: Sequence[FineTuningRun]) -> str:
    """The start model and all runs with one objective, one row per variant, and the differences below."""
    data, captioner, encoder = (NAMES.get(n, n) for n in (setting.data, setting.captioner, setting.encoder))
    title = f"{data} {setting.split}: {captioner} over {encoder}, {objective or 'not fine-tuned'}"
    rows: dict[Variant, list[FineTuningRun]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: (_row_order(run.variant), run.seed)):
        rows[run.variant].append(run)
    table = Table(("model", *COLUMNS, "seeds"), [(_label(variant), *_cells(group)) for variant, group in rows.items()])
    parts = [f"### {escape_markdown(title)}\n", _conditions(setting, runs), markdown(table), *_differences(rows)]
    return "\n".join(parts)


def _conditions(setting: Setting, runs: Iterable[FineTuningRun]) -> str:
    """The number of images and how captions were decoded."""
    counts = sorted({run.result.scores.images for run in runs if run.result.scores.images})
    images = [f"{' or '.join(f'{count:,}' for count in counts)} images"] if counts else []
    decoding = [f"decoding {code(setting.decoding)}"] if setting.decoding else []
    text = ", ".join(images + decoding)
    return f"{text[0].upper()}{text[1:]}.\n" if text else ""


def _row_order(variant: Variant) -> tuple[float, bool, int, str, float]:
    """Runs without a penalty first, then those with λ of the paper."""
    kind = [*KINDS].index(variant.kind) if variant.kind in KINDS else len(KINDS)
    return variant.penalty, variant.cross_entropy != PAPER_LAMBDA, kind, variant.kind, variant.cross_entropy


def _label(variant: Variant) -> str:
    label = KINDS.get(variant.kind, f"control: {variant.kind}")
    if variant.cross_entropy != PAPER_LAMBDA:
        label += f", λ = {variant.cross_entropy:g}"
    return label + _penalty(variant.penalty)


def _penalty(penalty: float) -> str:
    return f", hallucination penalty {penalty:g}" if penalty else ""


def _cells(runs: Sequence[FineTuningRun]) -> list[object]:
    return [*(mean_and_deviation([column(run) for run in runs]) for column in COLUMNS.values()), len(runs)]


def _differences(rows: Rows) -> list[str]:
    """LRP-IFT minus each of `CONTROLS`, one line for each penalty; none without LRP-IFT or controls."""
    lines = []
    for penalty in sorted({variant.penalty for variant in rows}):
        runs = rows.get(Variant(LRP, penalty=penalty), ())
        controls = {name: rows.get(Variant(kind, penalty=penalty), ()) for kind, name in CONTROLS.items()}
        texts = [f"minus {name}{_difference(runs, others)}" for name, others in controls.items() if others]
        if runs and texts:
            lines.append(f"{KINDS[LRP]}{_penalty(penalty)}{',' if penalty else ''} {'; '.join(texts)}.\n")
    return lines


def _difference(runs: Sequence[FineTuningRun], others: Sequence[FineTuningRun]) -> str:
    """The differences of the pairs of runs with the same seed and start model: mean ± standard deviation."""
    by_origin = {(run.seed, run.start): run for run in others}
    pairs = [(run, by_origin[run.seed, run.start]) for run in runs if (run.seed, run.start) in by_origin]
    if not pairs:
        return ": no runs with the same seed and start model"
    texts = [f"{name} {_mean_difference(COLUMNS[name], pairs)}" for name in COMPARED]
    return f" ({len(pairs)} seed{'s' * (len(pairs) > 1)}): {', '.join(texts)}"


def _mean_difference(
    column: Callable[[FineTuningRun], float | None], pairs: Sequence[tuple[FineTuningRun, FineTuningRun]]
) -> str:
    """The mean difference with its sign, and the standard deviation; a dash if a value is missing."""
    values = [(column(run), column(other)) for run, other in pairs]
    known = [a - b for a, b in values if a is not None and b is not None]
    if len(known) < len(pairs):
        return MISSING
    return decimal(mean(known), 2, sign=True) + (f" ± {stdev(known):.2f}" if len(known) > 1 else "")
