"""A tiny model on trial, with its data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import trials
from saywhy.audits.bench import Bench
from saywhy.audits.cases import Cases

NAMES = ("soft-attention", "ada-lstm", "mh-fc")


@pytest.fixture(autouse=True, scope="module")
def _one_thread_for_all(one_thread: None) -> None:
    """The models here are tiny."""


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight pictures in three splits, with captions and boxes."""
    return trials.write_data(tmp_path_factory.mktemp("audited") / "data")


@pytest.fixture(scope="session")
def heard(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Callable[[str], Cases]:
    """The cases of the test pictures by the name of a captioner, heard once; what is kept of them stays as it is."""
    found: dict[str, Cases] = {}

    def of(name: str) -> Cases:
        if name not in found:
            found[name] = Cases(trials.bench(data, tmp_path_factory.mktemp(name), name))
        return found[name]

    return of


@pytest.fixture(params=NAMES)
def cases(request: pytest.FixtureRequest, heard: Callable[[str], Cases]) -> Cases:
    return heard(request.param)


@pytest.fixture
def soft(heard: Callable[[str], Cases]) -> Cases:
    return heard("soft-attention")


@pytest.fixture
def bench(data: Path, tmp_path: Path) -> Bench:
    """A bench of its own, of which nothing is known."""
    return trials.bench(data, tmp_path / "cache")
