"""Results files and recipes as the page of results takes them: read, and gathered by model."""

from __future__ import annotations

import json
import tomllib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from saywhy.errors import UserError
from saywhy.reports.markdown import MISSING, number

Result = dict[str, Any]
STUDY = "flickr8k-encoder-"  # the name of a recipe of the encoder study begins so
AUDIT = "audit-"  # the name of a file that `saywhy audit` wrote begins so


@dataclass(frozen=True)
class Model:
    """A model's results on one split, decoded one way: a file a seed."""

    name: str
    runs: tuple[Result, ...]

    @property
    def training(self) -> list[dict[str, Any]]:
        """How each run was trained, where that is known."""
        return [run["training"] for run in self.runs if run.get("training")]

    @property
    def recipe(self) -> dict[str, Any]:
        """The recipe; its seed is the first run's."""
        return self.training[0].get("recipe", {}) if self.training else {}

    @property
    def recipe_name(self) -> str:
        """What the recipe calls itself, which need not be its file's name."""
        return self.recipe.get("name", self.name)

    @property
    def in_study(self) -> bool:
        """Whether it belongs to the encoder study."""
        return self.recipe_name.startswith(STUDY)

    @property
    def oracle(self) -> bool:
        """Whether it was shown regions that people drew."""
        return any((run.get("regions") or {}).get("oracle") for run in self.runs)

    @property
    def cider(self) -> float:
        """The mean CIDEr."""
        return mean(run["scores"]["cider"] for run in self.runs)

    @property
    def seeds(self) -> list[int]:
        """The seeds that are known."""
        return [run["recipe"]["seed"] for run in self.training if "seed" in run.get("recipe", {})]


def read_results(folder: Path, pattern: str) -> list[tuple[str, Result]]:
    """The files that match, each with its name; audits, which have pages of their own, are left out."""
    paths = [path for path in sorted(folder.glob(pattern)) if not path.name.startswith(AUDIT)]
    try:
        return [(path.stem, json.loads(path.read_text(encoding="utf-8"))) for path in paths]
    except ValueError as error:
        raise UserError(f"{folder}: a results file is not JSON ({error})") from None


def read_recipes(folder: Path) -> dict[str, str]:
    """The name each recipe gives itself ↦ its file's name without the ending. What else it says is not looked at."""
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder of recipes")
    try:
        tables = {path.stem: tomllib.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.toml"))}
    except ValueError as error:
        raise UserError(f"{folder}: a recipe is not TOML ({error})") from None
    return {table.get("name", stem): stem for stem, table in tables.items()}


def models(results: Sequence[Result]) -> list[Model]:
    """Results of one split by model, the best first, those over oracle regions last.

    The same model decoded in two ways is two models here: a mean over both would be of nothing.
    """
    found: dict[tuple[str, str], list[Result]] = defaultdict(list)
    for result in results:
        found[result["model"], result.get("decoding", "")].append(result)
    ways: dict[str, list[set[str]]] = defaultdict(list)
    for name, decoding in found:
        ways[name].append(set(decoding.split(",")))
    made = []
    for (name, decoding), runs in found.items():
        shared = set.intersection(*ways[name])
        own = ",".join(part for part in decoding.split(",") if part not in shared)
        made.append(Model(f"{name} ({own})" if own else name, tuple(runs)))
    return sorted(made, key=lambda model: (model.oracle, -model.cider, model.name))


def spread(values: Sequence[float | None], digits: int = 1) -> str:
    """The mean with its standard deviation, or the one value there is; a dash if one is missing.

    >>> spread([60.0, 62.0]), spread([60.0]), spread([60.0, None])
    ('61.0 ± 1.4', '60.0', '–')
    """
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return MISSING
    return number(mean(known), digits) + (f" ± {stdev(known):.{digits}f}" if len(known) > 1 else "")
