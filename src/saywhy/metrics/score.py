"""All metrics at once, from captions cut once, with the signature that makes the numbers comparable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, TypeVar

from saywhy.metrics.base import CaptionLike, MetricUnavailable, read
from saywhy.metrics.bleu import BleuScore, bleu
from saywhy.metrics.cider import CiderScore, cider
from saywhy.metrics.java_process import java_version
from saywhy.metrics.meteor import METEOR_VERSION, MeteorScore
from saywhy.metrics.meteor import meteor as meteor_score
from saywhy.metrics.rouge import RougeScore, rouge_l
from saywhy.metrics.signature import Signature
from saywhy.metrics.spice import SPICE_VERSION, SpiceScore
from saywhy.metrics.spice import spice as spice_score

#: A metric that needs Java: True insists on it, False leaves it out, "auto" takes it if it can be had.
Wanted: TypeAlias = bool | Literal["auto"]
T = TypeVar("T")


@dataclass(frozen=True)
class Scores:
    """Every metric of one set of captions."""

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
    candidates: Sequence[CaptionLike],
    references: Sequence[Sequence[CaptionLike]],
    *,
    meteor: Wanted = "auto",
    spice: Wanted = "auto",
    signature: Signature | None = None,
) -> Scores:
    """Score candidates by every metric; `signature` may tell what cannot be seen from here (split, decoding).

    >>> scores = score(["A dog runs."], [["A dog runs.", "The dog."]], meteor=False, spice=False)
    >>> round(scores.as_dict()["rouge_l"], 3), scores.signature.refs
    (100.0, 2)
    """
    words, groups = read(candidates, references)
    notes: list[str] = []
    by_meteor = _if_wanted(meteor, "METEOR", lambda: meteor_score(words, groups), notes)
    by_spice = _if_wanted(spice, "SPICE", lambda: spice_score(words, groups), notes)
    return Scores(
        bleu=bleu(words, groups),
        rouge_l=rouge_l(words, groups),
        cider=cider(words, groups),
        meteor=by_meteor,
        spice=by_spice,
        n=len(words),
        signature=replace(
            _describe(candidates, references, signature or Signature()),
            meteor=METEOR_VERSION if by_meteor else None,
            spice=SPICE_VERSION if by_spice else None,
            java=java_version() if by_meteor or by_spice else None,
        ),
        notes=tuple(notes),
    )


def _if_wanted(wanted: Wanted, name: str, compute: Callable[[], T], notes: list[str]) -> T | None:
    if wanted is False:
        return None
    try:
        return compute()
    except MetricUnavailable as reason:
        if wanted is True:
            raise
        notes.append(f"{name} left out: {reason}")
        return None


def _describe(
    candidates: Sequence[CaptionLike], references: Sequence[Sequence[CaptionLike]], given: Signature
) -> Signature:
    """Fill in what the captions themselves tell; what was said beforehand stands."""
    text_only = all(isinstance(caption, str) for group in (candidates, *references) for caption in group)
    tok = given.tok or ("ptb" if text_only else "given")
    sizes = {len(group) for group in references}
    refs = min(sizes) if len(sizes) == 1 else f"{min(sizes)}-{max(sizes)}"
    case = given.case or ("lower" if tok == "ptb" else None)
    return replace(given, tok=tok, case=case, refs=refs, n=len(candidates))
