"""A tiny model on trial, with its data."""

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
def heard(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Callable[[str], EvidenceSet]:
    """The cases of the test images by the name of a captioner, heard once; what is kept of them stays as it is."""
    found: dict[str, EvidenceSet] = {}

    def of(name: str) -> EvidenceSet:
        if name not in found:
            found[name] = EvidenceSet(audit_data.bench(data, tmp_path_factory.mktemp(name), name))
        return found[name]

    return of


@pytest.fixture(params=NAMES)
def cases(request: pytest.FixtureRequest, heard: Callable[[str], EvidenceSet]) -> EvidenceSet:
    return heard(request.param)


@pytest.fixture
def soft(heard: Callable[[str], EvidenceSet]) -> EvidenceSet:
    return heard("soft-attention")


@pytest.fixture
def bench(data: Path, tmp_path: Path) -> AuditContext:
    """A bench of its own, of which nothing is known."""
    return audit_data.bench(data, tmp_path / "cache")
