"""Tables of attention statistics and of the gate β, from results files."""

from __future__ import annotations

from collections.abc import Sequence

from saywhy.metrics.attention_stats import AttentionStats, Gate, GatedWord
from saywhy.reports.results_files import ModelResults, mean_and_deviation
from saywhy.viz.tables import MISSING, Markdown, Table, bold, decimal, escape_markdown, markdown

SHORT_LIST = 5
STATISTICS = ("entropy", "share", "change", "largest")
ATTENTION = (
    "Means over all words of the generated captions and over heads. L is the number of features. Entropy is in nats; "
    "divided by log L, it is 1 if attention is uniform. Change is the total variation between the attention weights α "
    "of a word and of the next word, 0 to 1."
)
ADMITS_WORDS = (
    "β is the sentinel's share, that is, how much the model relies on earlier words: low for words that it reads off "
    "the image, high for words that follow from the words before."
)
ADMITS_IMAGE = (
    "β lets the image in: a low β means that the image is hardly used. The five words at either end, with their mean β."
)


def attention_section(models: Sequence[ModelResults]) -> str:
    """One row per model with attention statistics; empty if there is none."""
    head = ("model", "L", "entropy", "entropy / log L", "change", "largest α")
    rows = []
    for model in models:
        if statistics := _statistics(model):
            values = [[getattr(seed, name) for seed in statistics] for name in STATISTICS]
            cells = [mean_and_deviation(seeds, digits=2) for seeds in values]
            rows.append((model.name, _feature_count(statistics), *cells))
    return f"### Attention\n\n{markdown(Table(head, rows, caption=ATTENTION))}" if rows else ""


def gate_section(models: Sequence[ModelResults]) -> str:
    """The words with the lowest and the highest mean β; ten at either end where β admits the earlier words, else five.

    Empty if no model has a gate.
    """
    gates = {model.name: _gate(model) for model in models}
    admits = {model.name: next((result.beta_admits for result in model.results), "") for model in models}
    known = {name: gate for name, gate in gates.items() if gate}
    if not known:
        return ""
    long = [_long_table(name, gate) for name, gate in known.items() if admits[name] == "words"]
    short = {name: gate for name, gate in known.items() if admits[name] != "words"}
    least = next(iter(known.values())).least
    text = (
        f"Mean β of words that occur at least {least} times in the generated captions; with several seeds, those of "
        "one seed.\n"
    )
    return "\n".join(["### The gate β\n", text, *long, *([_short_table(short)] if short else [])])


def _statistics(model: ModelResults) -> list[AttentionStats]:
    return [result.attention for result in model.results if result.attention]


def _gate(model: ModelResults) -> Gate | None:
    return next((statistics.gate for statistics in _statistics(model) if statistics.gate), None)


def _feature_count(statistics: Sequence[AttentionStats]) -> str:
    """L; with a decimal if images have different numbers of regions."""
    counts = [seed.features for seed in statistics]
    same = len(set(counts)) == 1 and counts[0] is not None and counts[0] == round(counts[0])
    return decimal(counts[0], 0) if same else mean_and_deviation(counts)


def _long_table(name: str, gate: Gate) -> str:
    length = max(len(gate.lowest), len(gate.highest))
    lowest, highest = (
        [*map(_cells, words), *[("", "", "")] * (length - len(words))] for words in (gate.lowest, gate.highest)
    )
    rows = [(*low, *high) for low, high in zip(lowest, highest, strict=True)]
    head = ("lowest", "β", "count", "highest", "β", "count")
    caption = Markdown(f"{bold(name)}, mean β {decimal(gate.mean, 2)}. {ADMITS_WORDS}")
    table = markdown(Table(head, rows, text_columns=(0, 3), caption=caption))
    common = escape_markdown(_listed(gate.commonest))
    return table + (f"\nThe most frequent words: {common}.\n" if common else "")


def _short_table(gates: dict[str, Gate]) -> str:
    rows = []
    for name, gate in gates.items():
        ends = [_listed(words[:SHORT_LIST]) or MISSING for words in (gate.lowest, gate.highest)]
        rows.append((name, *ends, decimal(gate.mean, 2)))
    head = ("model", "lowest", "highest", "mean β")
    return markdown(Table(head, rows, text_columns=(0, 1, 2), caption=ADMITS_IMAGE))


def _cells(word: GatedWord) -> tuple[str, str, str]:
    return word.word, decimal(word.beta, 2), str(word.count)


def _listed(words: Sequence[GatedWord]) -> str:
    return ", ".join(f"{word.word} {decimal(word.beta, 2)}" for word in words)
