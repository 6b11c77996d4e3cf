"""The pages of audits, made from the files that `saywhy audit` wrote and never typed: one page an audit."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from saywhy.errors import UserError, closest
from saywhy.files import write_text
from saywhy.reports.audit_plots import Plot, of_all, of_model
from saywhy.reports.audit_tables import TABLES, Audit, checks, made, published, tables
from saywhy.reports.results_files import AUDIT

MADE = "Made by `saywhy results` from results/audit-*.json; do not edit."
INTERVALS = (
    "Square brackets and bars are 95 % intervals, bootstraps over images. ↑ higher is better, ↓ lower is; the best "
    "of a column is bold, and a dash is a number that could not be had."
)
TITLES = {
    "image-ablation": "CaptionedImage ablation: does the word go when its evidence goes?",
    "word-ablation": "Word ablation: does the word need the words it is said to need?",
    "localisation": "Localisation: does relevance lie on the thing that is named?",
    "hallucination": "Hallucination: do explanations tell made-up words from true ones?",
    "risk": "Risk: how well is it foreseen that a word is made up?",
    "sanity": "Sanity: do maps depend on the model, the image and the word?",
}
CHECKS = "Each claims a difference above zero: ✓ its whole interval is above zero, ✗ below, – neither.\n"
ABOUT = {
    "image-ablation": (
        "For each object word of the model's own caption, the patches of the image to which a method gives the most "
        "relevance are masked with ImageNet's mean colour, and the model looks again. *Vanished* is the share of words "
        "whose thing the new caption no longer names; *mean drop of p* is the word's probability before less that "
        "after, in its place and after the same words; *dropped* is the share of words whose probability fell. Higher "
        "is better in all three. *Random* masks as many patches anywhere. Twenty patches are a smaller part of a "
        "larger input, so models of different inputs do not compare.\n\n"
        "The curves are of one object word an image: its probability while "
        "patches are masked, the most relevant first (deletion: a small area is better), or shown in that order in a "
        "image that is all mask (insertion: a large area is better)."
    ),
    "word-ablation": (
        "Of the words before a word, six or more, the three to which a method gives the most relevance are taken out; "
        "the image stays, and the model reads the rest and is asked for the word again. *Mean drop of p* is the "
        "word's probability before less that after; *dropped* is the share of words whose probability fell. Higher is "
        "better in both.\n\n"
        "*Gradient* stands for Grad-CAM, Guided Grad-CAM and guided backprop, which weigh earlier words by the "
        "sum of their gradients; *unsigned gradient* is the size of that sum. "
        "*Attention* weighs an earlier word by how much what was looked at for it resembles what is looked at now. "
        "*Last three words* takes out the three just before, *random* any three."
    ),
    "localisation": (
        "For each object word that also heads a phrase people drew boxes for, *positive inside* is the share of a "
        "map's positive relevance that lies in the boxes, and *negative inside* that of its negative relevance. "
        "*Uniform* is a map alike everywhere: what the area of the boxes alone gives. A method whose sign means "
        "something has the first above it and the second below. *Highest inside* is how often the map's highest pixel "
        "lies in a box (the pointing game), *lowest inside* how often its lowest does. Area is the boxes' share of the "
        "image. A map without a positive (or negative) part has no such share and is left out; the checks compare "
        "words that have both."
    ),
    "hallucination": (
        "An object word is made up if no reference of the image has it, its singular or plural, a synonym or a "
        "narrower word. Each word has a statistic of its map, and the AUC is the probability that the statistic is "
        "higher for a true word than for a made-up one: 0.5 is chance, 1 tells all of them apart, and below 0.5 "
        "made-up words have the higher values. The same for numbers that are not maps: what the gate lets in of the "
        "image (1 − β where β is the share of the words, else β), the entropy of attention, the word's probability, "
        "and the image's share of the evidence."
    ),
    "risk": (
        "The risk is a logistic model of what is known of an object word when it is said; it foretells whether the "
        "word is made up. It is fitted on one split and tried on another. The AUC is the probability that a made-up "
        "word has a higher risk than a true one (0.5 is chance, 1 is best); ECE is how far what was predicted and what "
        "was true lie apart on average, over ten bins of the risk (0 is best). Weights are for facts in units of their "
        "standard deviation, those above zero raise the risk; *AUC alone* is that of a single fact, in its better "
        "direction.\n\n"
        "The facts: p is the probability of the word; *its names* are all words that would make it true; *unseen* is "
        "p without an image; *entropy* that of the next word; *relevance* LRP over places, its 5 % quantile and the "
        "part that speaks against the word; *habit* how often the thing was made up where the risk was fitted."
    ),
    "sanity": (
        "All numbers are rank correlations of the strength of maps, summed over patches. The model is *randomised*, "
        "the numbers of each tensor put in another order, first the decoder's, then the encoder's from the last "
        "layers to the first, and its maps are compared with those of the trained model: maps that explain the model "
        "must change, so lower is better.\n\n"
        "*Shifted*: a constant is added to all pixels and taken off again before the first layer; *moved*: the image "
        "is moved one place to the right, and its map back. The map should stay as it was, so higher is better. *Two "
        "words*: maps of two object words of one caption, which should differ, so lower is better. Agreement is "
        "between the methods' maps of the same word; it is neither good nor bad."
    ),
}


def write_pages(results: Path, out: Path) -> list[Path]:
    """Write a page an audit, and its plots, into the folder `out`; give the files. Nothing is written if one fails."""
    files: dict[str, str] = {}
    for name, audits in _read(results).items():
        told = [_told(audit) for audit in audits]  # before anything is drawn, as it finds what is damaged
        measured = [audit for audit in audits if not audit.not_applicable]
        together = of_all(measured) if measured else []
        alone = [[] if audit.not_applicable else of_model(audit, _slug(audit)) for audit in audits]
        sections = [_section(*each) for each in zip(audits, told, alone, strict=True)]
        files[f"{name}.md"] = _page(name, measured, together, sections)
        files |= {plot.file: plot.svg for plots in (together, *alone) for plot in plots}
    for file, text in files.items():
        write_text(out / file, text)
    return [out / file for file in sorted(files)]


def _read(folder: Path) -> dict[str, list[Audit]]:
    """The audits of a folder by their name, models by theirs, in an order that does not depend on the disk."""
    audits = [_read_one(path) for path in sorted(folder.glob(f"{AUDIT}*.json"))]
    if not audits:
        raise UserError(f"{folder}: no audits; `saywhy audit NAME --out {folder}` writes one")
    audits.sort(key=lambda audit: (audit.model, audit.path.name))
    found = {name: [audit for audit in audits if audit.name == name] for name in TABLES}
    return {name: of for name, of in found.items() if of}


def _read_one(path: Path) -> Audit:
    try:
        body = json.loads(path.read_text(encoding="utf-8"), parse_constant=lambda _: None)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: a damaged audit, not JSON ({error}); run `saywhy audit` again") from None
    audit = Audit(path, body)
    with audit.blamed():
        if not all(isinstance(each, str) for each in (audit.name, audit.model)):
            raise TypeError("the audit or the model has no name")
    if audit.name not in TABLES:
        raise UserError(f"{path}: unknown audit {audit.name!r}: {closest(audit.name, TABLES)}")
    return audit


def _slug(audit: Audit) -> str:
    """The model as a part of a file's name: a path in Markdown has no spaces."""
    stem = audit.path.stem.removeprefix(AUDIT).removesuffix(f"-{audit.name}")
    return re.sub(r"[^\w.-]+", "-", stem)


def _told(audit: Audit) -> str:
    """A model's tables, or why there are none."""
    if audit.not_applicable:
        return f"Left out: {audit.not_applicable}\n"
    with audit.blamed():
        return tables(audit)


def _section(audit: Audit, told: str, plots: Sequence[Plot]) -> str:
    """A model by itself."""
    return "\n".join([f"## {audit.model}\n", told, *map(_shown, plots)])


def _page(name: str, measured: Sequence[Audit], together: Sequence[Plot], sections: Sequence[str]) -> str:
    """A page: what was done, all models together, the checks, each model by itself, and how it was made."""
    parts = [f"# {TITLES[name]}\n", f"{MADE}\n", f"{ABOUT[name]}\n", f"{INTERVALS}\n", *map(_shown, together)]
    if claims := checks(measured):
        parts += ["## Checks\n", CHECKS, claims]
    parts += sections
    parts += [published()] if name == "hallucination" else []
    parts += ["## How it was made\n", made(measured)] if measured else []
    return "\n".join(parts)


def _shown(plot: Plot) -> str:
    return f"![{plot.alt}]({plot.file})\n"
