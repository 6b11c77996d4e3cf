"""A tiny model, images and a dataset, and a way to run a command without a new process."""

from __future__ import annotations

import csv
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import tiny
from saywhy.captioners.model_folder import SavedModel
from saywhy.cli import main
from saywhy.data.preprocess import Preprocessing
from saywhy.encoders.base import build
from saywhy.judges import DualEncoder, DualEncoderSettings, SavedJudge

SPLITS = ("train", "train", "train", "train", "dev", "dev", "test", "test", "test")


@dataclass(frozen=True)
class Result:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The one line of a command that was refused as a user's mistake."""
        return self.one_line(code=2)

    def one_line(self, code: int) -> str:
        """The only line on stderr of a command that failed with this exit code and printed nothing else."""
        assert (self.code, self.out) == (code, ""), self.err
        assert "Traceback" not in self.err
        assert self.err.startswith("saywhy: ")
        assert self.err.count("\n") == 1, self.err
        return self.err.strip()


Run = Callable[..., Result]


@pytest.fixture(autouse=True, scope="module")
def _one_thread(one_thread: None) -> None:
    """The commands here run tiny networks."""


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `saywhy` with these arguments in this process."""

    def call(*arguments: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["saywhy", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_:
            main()
        out, err = capsys.readouterr()
        return Result(exit_.value.code or 0, out, err)  # type: ignore[arg-type]

    return call


@pytest.fixture
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if a model is loaded: the mistake should have been found before."""

    def load(*_: object) -> None:
        raise AssertionError("a model is loaded")

    monkeypatch.setattr("saywhy.inference.model.load", load)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with random weights whose captions differ between images; tests must not change it."""
    folder = tmp_path_factory.mktemp("models") / "small"
    decoding = {"beam": 2, "max_words": 6}
    SavedModel("tiny", tiny.sensitive_captioner(), tiny.vocabulary(), Preprocessing(tiny.SIDE), decoding).save(folder)
    return folder


@pytest.fixture(scope="session")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A judge with random weights over another encoder than that of `model`; tests must not change it."""
    folder = tmp_path_factory.mktemp("judges") / "judge"
    tiny.torch.manual_seed(0)
    encoder = build("timm:test_resnet", weights=None, size=tiny.SIDE)
    network = DualEncoder(encoder, tiny.WORDS, DualEncoderSettings(embedding=8, width=8, layers=1, heads=2))
    saved = tiny.saved_judge()
    SavedJudge("random-judge", network.eval(), saved.vocabulary, saved.preprocessing).save(folder)
    return folder


@pytest.fixture
def model_copy(model: Path, tmp_path: Path) -> Path:
    """A copy of the model, for tests that change it."""
    return Path(shutil.copytree(model, tmp_path / "copy"))


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
        (path.name, f"word{n % 3} word{n % 2} word{last}", split)
        for n, (path, split) in enumerate(zip(tiny.image_files(folder, len(SPLITS)), SPLITS, strict=True))
        for last in (4, 5)
    ]
    with (folder / "captions.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("image", "caption", "split"), *rows])
    return folder
