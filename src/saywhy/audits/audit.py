"""What an audit is: one class, in one file, with its computation, tables, plots and summary.

    @audits.register("caption-length")
    class CaptionLength(Audit):
        title = "Caption length: how many words has a caption?"
        description = "*Words* is the number of words per caption."

        def run(self, context, evidence): ...   # the numbers, which become the results file
        def tables(self, body): ...             # for the page
        def summary(self, body): ...            # for the terminal

`saywhy audit caption-length` then runs it, writes its results file and its page. The file may be in another package,
which names it as an entry point of the group `saywhy.audits`, or be given with `--import`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from saywhy.audits.context import AuditContext
from saywhy.audits.evidence import EvidenceSet
from saywhy.registry import Registry
from saywhy.viz.tables import Table


@dataclass(frozen=True)
class AuditResult:
    """One results file: the numbers of one audit of one model.

    Attributes:
        title: the model, with the rules of LRP and the split if these are not the default.
        body: the contents of the file.
    """

    title: str
    body: dict[str, Any]


@dataclass(frozen=True)
class Plot:
    """A plot.

    Attributes:
        name: becomes a part of its file name; empty for the main plot of an audit.
        alt: what it shows, as text.
        draw: returns a matplotlib figure; called with the style of `viz.plots`.
    """

    name: str
    alt: str
    draw: Callable[[], Any]


class Audit(ABC):
    """An experiment that tests explanations.

    Attributes:
        title: the heading of its page.
        description: what is measured and how to read the columns, in Markdown.
        published: published numbers to compare with, if there are any.
        needs_evidence: whether it reads the evidence; without it, captions are not explained for this audit.
        tests_explanations: whether "all" includes it.
    """

    title: ClassVar[str]
    description: ClassVar[str]
    published: ClassVar[Table | None] = None
    needs_evidence: ClassVar[bool] = True
    tests_explanations: ClassVar[bool] = True

    @abstractmethod
    def run(self, context: AuditContext, evidence: EvidenceSet) -> dict[str, Any]:
        """The numbers of the results file, as JSON values.

        A list `checks` (see `statistics.check`) appears as a table of claims, a list of lines `notes` is printed.
        Raises `NotApplicable` if the data or the model do not allow this audit.
        """

    @abstractmethod
    def tables(self, body: dict[str, Any]) -> list[Table]:
        """The tables of one model."""

    @abstractmethod
    def summary(self, body: dict[str, Any]) -> Table:
        """The main numbers, for a terminal."""

    def plots(self, results: Sequence[AuditResult]) -> list[Plot]:
        """Plots that compare models."""
        return []

    def model_plots(self, body: dict[str, Any]) -> list[Plot]:
        """Plots of one model."""
        return []


audits: Registry[type[Audit]] = Registry(
    "audit",
    entry_points="saywhy.audits",
    builtin=[
        f"saywhy.audits.{module}"
        for module in (
            *("image_ablation", "word_ablation", "localisation", "specificity", "hallucination", "risk", "sanity"),
            "familiarity",
        )
    ],
)
"""All audits, in the order of their pages."""
