"""What `saywhy explain` does: explanations of images, each in its folder, and what is printed of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from saywhy.captioners.model_folder import VOCABULARY, read_config
from saywhy.cli.common import Failures, OutputPaths, print_error
from saywhy.cli.progress import counting
from saywhy.data.region_inputs import find_regions
from saywhy.data.vocabulary import Vocabulary
from saywhy.decoding import Decoding
from saywhy.errors import UserError
from saywhy.explain import METHODS, Explanation, Word
from saywhy.explain.composites import composite
from saywhy.explain.explanation import FIGURE, JSON, MAPS, PAGE
from saywhy.explain.methods import known
from saywhy.explain.request import Ask
from saywhy.files import write_text
from saywhy.reports.explanation_index import explanations_index, thumbnail
from saywhy.viz.explanation_figure import held_against

FILES = (PAGE, FIGURE, JSON, MAPS)
INDEX = "index.html"


@dataclass(frozen=True)
class Done:
    """An explanation that is written: what is told of it, without its maps, and its folder."""

    explanation: Explanation
    folder: Path


def folders(out: Path, images: Sequence[Path], is_one: bool) -> Callable[[str], Path]:
    """The folder of each image's explanation: `out` itself for one image, else one within it."""
    if not is_one:
        return OutputPaths(out, [*images, out / INDEX], inside=FILES)
    if any((out / name).resolve() == images[0].resolve() for name in FILES):
        raise UserError(f"--out {out}: {images[0].name} there would be written over; choose another folder")
    return lambda _: out


def chosen(methods: Sequence[str] | None, rules: str, epsilon: float | None, relative: bool) -> dict[str, Any]:
    """The methods, separated by commas, and the rules of LRP."""
    names = [name.strip().lower() for each in methods or METHODS for name in each.split(",")]
    return {"methods": known(filter(None, names)), "composite": composite(rules, epsilon, relative)}


def decoding(**asked: Any) -> dict[str, Any]:
    """How captions are to be decoded, where that is said."""
    asked = {name: value for name, value in asked.items() if value is not None}
    Decoding(**asked)
    return asked


def refuse_impossible(model: str | None, **asked: Any) -> None:
    """Raise a `UserError` if this cannot be asked of a model; of the model, its vocabulary alone is read."""
    from saywhy.inference.model import locate

    folder = locate(model)
    most = read_config(folder).get("decoding", {}).get("max_words", Decoding.max_words)
    Ask.read(Vocabulary.load(folder / VOCABULARY), most, **asked)


def explain(
    images: Sequence[Path],
    folder_of: Callable[[str], Path],
    model: str | None,
    regions: Path | None,
    device: str,
    faults: Failures,
    done: list[Done],
    **asked: Any,
) -> None:
    """Explain images, and write what is found; `done` grows by each."""
    from saywhy.inference.model import load

    loaded = load(model, device)
    if loaded.why_no_risk is not None:
        print_error(f"no risks are told: {loaded.why_no_risk}")
    given = find_regions(loaded.regions, regions, f"model {loaded.name}")
    if given:
        given.table.require(path.name for path in images)
    unfit = faults.count
    with counting("explaining") as progress:
        progress(0, len(images))
        table = given.table if given else None
        for found in loaded.explanations(images, regions=table, on_unreadable=faults, **asked):
            folder = folder_of(found.source)
            found.save(folder)
            done.append(Done(replace(found, maps={}, image=thumbnail(found)), folder))
            progress(len(done) + faults.count - unfit, len(images))


def save_index(out: Path, done: Sequence[Done]) -> None:
    """A page that leads to all reports."""
    pages = [(f"{each.folder.name}/{PAGE}", each.explanation) for each in done]
    write_text(out / INDEX, explanations_index(pages))


def show(done: Sequence[Done]) -> None:
    """Print captions, tables of their words, and where the files are."""
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = 120  # a file has no edge to wrap words at
    for number, each in enumerate(done):
        if number:
            console.print()
        _show(each, console)


def _show(done: Done, console: Console) -> None:
    told = done.explanation
    console.print(f"{told.source}: {told.caption}", soft_wrap=True)
    weighing = next((method for method in told.methods if method in told.words[0].earlier), "lrp")
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("word", no_wrap=True)
    table.add_column("probability", justify="right")
    table.add_column("from image", justify="right")
    if has_risk := any(word.risk is not None for word in told.words):
        table.add_column("made up", justify="right")
    table.add_column(f"strongest earlier word ({weighing})", no_wrap=True)
    for word in told.words:
        probability = f"{word.probability:.1%}" if word.probability >= 0.001 else "< 0.1%"
        strongest = _strongest(word, told.tokens, weighing)
        risk = [""] if word.risk is None else [f"{word.risk:.0%}"]
        table.add_row(_asked(word), probability, f"{word.budget.share:.0%}", *(risk if has_risk else ()), strongest)
    console.print(table)
    console.print(f"{done.folder / PAGE}, and {', '.join(FILES[1:])} beside it", soft_wrap=True)


def _asked(word: Word) -> str:
    """The word in question, what it is held against, and what was said in its place."""
    return held_against(word) if word.word == word.said else f"{held_against(word)} (said: {word.said})"


def _strongest(word: Word, tokens: Sequence[str], method: str) -> str:
    """The earlier word with the largest weight, for or against."""
    weights = word.earlier[method]
    if not weights:
        return ""
    strongest = max(range(len(weights)), key=lambda i: abs(weights[i]))
    return f"{tokens[strongest]} {weights[strongest]:+.2f}"
