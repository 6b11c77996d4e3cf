"""The audits by name, and the parts that all their results have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from saywhy.audits.statistics import Bootstrap, Estimate
from saywhy.registry import Registry

Audit = Callable[..., dict[str, Any]]
audits: Registry[Audit] = Registry("audit")


class NotApplicable(Exception):
    """An audit that these data or this model do not allow, and why."""


@dataclass(frozen=True)
class Check:
    """A claim: that one is larger than another."""

    claim: str
    one: str
    other: str


def checks_of(sure: Bootstrap, checks: Sequence[Check], values: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    """Each claim, whether it holds, and by how much; values (N,) of the same items by name."""
    return [
        checked(each.claim, sure.difference(values[each.one], values[each.other]))
        for each in checks
        if each.one in values and each.other in values
    ]


def checked(claim: str, difference: Estimate) -> dict[str, Any]:
    """A claim that a difference is above zero: it holds or not where its interval leaves zero out, else it is open."""
    holds = True if difference.low > 0 else False if difference.high < 0 else None
    return {"claim": claim, "holds": holds, "difference": difference.as_dict()}


def estimates(sure: Bootstrap, names: Sequence[str], rows: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Of each name (a column of every table), the mean of each table (N, names)."""
    return {
        name: {what: sure.mean(values[:, column]).as_dict() for what, values in rows.items()}
        for column, name in enumerate(names)
    }
