"""All metrics of a set of captions, which are tokenised once, and the signature that makes scores comparable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, TypeVar

from saywhy.metrics.base import MetricUnavailable, TextOrWords, read_captions
from saywhy.metrics.bleu import BleuScore, bleu
from saywhy.metrics.cider import CiderScore, cider
from saywhy.metrics.java_process import java_version
from saywhy.metrics.meteor import METEOR_VERSION, MeteorScore
from saywhy.metrics.meteor import meteor as meteor_score
from saywhy.metrics.rouge import RougeScore, rouge_l
from saywhy.metrics.signature import Signature
from saywhy.metrics.spice import SPICE_VERSION, SpiceScore
from saywhy.metrics.spice import spice as spice_score

#: Whether to compute a metric that needs Java. If it is unavailable, True raises the error, "auto" makes it a note.
Compute: TypeAlias = bool | Literal["auto"]
T = TypeVar("T")


@dataclass(frozen=True)
class Scores:
    """The metrics of one set of captions; None for a metric that was not computed, which may have a note."""

    bleu: BleuScore
    rouge_l: RougeScore
    cider: CiderScore
    meteor: MeteorScore | None
    spice: SpiceScore | None
    n: int
    signature: Signature
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The numbers as papers print them, in percent (CIDEr-D times 100), ready for JSON."""
        return {
            "bleu": [100 * value for value in self.bleu.bleu],
            "bleu_no_penalty": [100 * value for value in self.bleu.no_penalty],
            "meteor": 100 * self.meteor.meteor if self.meteor else None,
            "rouge_l": 100 * self.rouge_l.rouge_l,
            "cider": 100 * self.cider.cider,
            "spice": 100 * self.spice.spice if self.spice else None,
            "n": self.n,
            "signature": str(self.signature),
            "notes": list(self.notes),
        }


def score(
    candidates: Sequence[TextOrWords],
    references: Sequence[Sequence[TextOrWords]],
    *,
    meteor: Compute = "auto",
    spice: Compute = False,
    signature: Signature | None = None,
) -> Scores:
    """Score candidates by all metrics. SPICE needs a parser that few machines have, and is off by default.

    `signature` has what the captions do not show, such as split and decoding.

    >>> scores = score(["A dog runs."], [["A dog runs.", "The dog."]], meteor=False)
    >>> round(scores.as_dict()["rouge_l"], 3), scores.signature.refs
    (100.0, 2)
    """
    words, groups = read_captions(candidates, references)
    notes: list[str] = []
    meteor_result = _compute(meteor, "METEOR", lambda: meteor_score(words, groups), notes)
    spice_result = _compute(spice, "SPICE", lambda: spice_score(words, groups), notes)
    return Scores(
        bleu=bleu(words, groups),
        rouge_l=rouge_l(words, groups),
        cider=cider(words, groups),
        meteor=meteor_result,
        spice=spice_result,
        n=len(words),
        signature=replace(
            _describe(candidates, references, signature or Signature()),
            meteor=METEOR_VERSION if meteor_result else None,
            spice=SPICE_VERSION if spice_result else None,
            java=java_version() if meteor_result or spice_result else None,
        ),
        notes=tuple(notes),
    )


def _compute(mode: Compute, name: str, metric: Callable[[], T], notes: list[str]) -> T | None:
    if mode is False:
        return None
    try:
        return metric()
    except MetricUnavailable as error:
        if mode is True:
            raise
        notes.append(f"{name} left out: {error}")
        return None


def _describe(
    candidates: Sequence[TextOrWords], references: Sequence[Sequence[TextOrWords]], signature: Signature
) -> Signature:
    """The signature with tokeniser, case, number of references and number of images filled in."""
    text_only = all(isinstance(caption, str) for group in (candidates, *references) for caption in group)
    tok = signature.tok or ("ptb" if text_only else "given")
    sizes = {len(group) for group in references}
    refs = min(sizes) if len(sizes) == 1 else f"{min(sizes)}-{max(sizes)}"
    case = signature.case or ("lower" if tok == "ptb" else None)
    return replace(signature, tok=tok, case=case, refs=refs, n=len(candidates))
