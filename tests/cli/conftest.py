"""A model, images and a data set, all tiny, and a way to run a command without a new process."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import tiny
from saywhy.captioners.model_folder import SavedModel
from saywhy.cli import main
from saywhy.data.preprocess import Preprocessing

SPLITS = ("train", "train", "train", "train", "dev", "dev", "test", "test", "test")


@dataclass(frozen=True)
class Result:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """The one line of a command that was refused."""
        assert self.code == 2
        assert self.out == ""
        assert "Traceback" not in self.err
        assert self.err.startswith("saywhy: ")
        assert self.err.count("\n") == 1, self.err
        return self.err.strip()


Trainer = Callable[..., Result]


@pytest.fixture(autouse=True, scope="module")
def _one_thread_for_all(one_thread: None) -> None:
    """The commands here run tiny networks."""


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Trainer:
    """Trainer `saywhy` with these arguments in this process."""

    def call(*arguments: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["saywhy", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return Result(ended.value.code or 0, out, err)  # type: ignore[arg-type]

    return call


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of random weights that says other words of other images."""
    folder = tmp_path_factory.mktemp("models") / "small"
    decoding = {"beam": 2, "max_words": 6}
    SavedModel("tiny", tiny.opinionated(), tiny.vocabulary(), Preprocessing(tiny.SIDE), decoding).save(folder)
    return folder


@pytest.fixture
def photos(tmp_path: Path) -> list[Path]:
    folder = tmp_path / "photos"
    folder.mkdir()
    return tiny.image_files(folder, 3)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Nine captioned images in three splits."""
    folder = tmp_path / "data"
    folder.mkdir()
    rows = [
        (path.name, f"word{n % 3} word{n % 2} word{more}", split)
        for n, (path, split) in enumerate(zip(tiny.image_files(folder, len(SPLITS)), SPLITS, strict=True))
        for more in (4, 5)
    ]
    write_csv(folder / "captions.csv", ["image", "caption", "split"], rows)
    return folder


def write_csv(path: Path, header: list[str], rows: list[tuple[str, ...]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
