"""A tiny model to audit, with its data and evidence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import audit_data
from saywhy.audits.context import AuditContext
from saywhy.audits.evidence import EvidenceSet

NAMES = ("soft-attention", "ada-lstm", "mh-fc")


@pytest.fixture(autouse=True, scope="module")
def _one_thread_for_all(one_thread: None) -> None:
    """The models here are tiny."""


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight images in three splits, with captions and boxes."""
    return audit_data.write_data(tmp_path_factory.mktemp("audited") / "data")


@pytest.fixture(scope="session")
def evidence_of(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Callable[[str], EvidenceSet]:
    """The evidence of the test images by captioner, computed once; tests must not change it."""
    by_captioner: dict[str, EvidenceSet] = {}

    def get(name: str) -> EvidenceSet:
        if name not in by_captioner:
            by_captioner[name] = EvidenceSet(audit_data.context(data, tmp_path_factory.mktemp(name), name))
        return by_captioner[name]

    return get


@pytest.fixture(params=NAMES)
def evidence(request: pytest.FixtureRequest, evidence_of: Callable[[str], EvidenceSet]) -> EvidenceSet:
    """The evidence of each recurrent captioner."""
    return evidence_of(request.param)


@pytest.fixture
def soft(evidence_of: Callable[[str], EvidenceSet]) -> EvidenceSet:
    """The evidence of the soft-attention captioner."""
    return evidence_of("soft-attention")


@pytest.fixture
def context(data: Path, tmp_path: Path) -> AuditContext:
    """A context with an empty cache."""
    return audit_data.context(data, tmp_path / "cache")
