"""The packages that are published: they install, and are complete without the checkout.

The environment is empty but for the wheel and the packages that it requires, which are links to those installed here.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from saywhy.provenance import VERSION

ROOT = Path(__file__).parents[1]
PHOTO = ROOT / "examples" / "images" / "chelsea.jpg"

pytestmark = pytest.mark.slow


def run(*command: object, cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    process = subprocess.run([str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


def build(source: Path, out: Path, *targets: str) -> None:
    pytest.importorskip("hatchling", reason="building packages needs hatchling")
    options = [option for target in targets for option in ("-t", target)]
    run(sys.executable, "-m", "hatchling", "build", "-d", out, *options, cwd=source)


def only(folder: Path, pattern: str) -> Path:
    (path,) = folder.glob(pattern)
    return path


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and the wheel."""
    out = tmp_path_factory.mktemp("dist")
    build(ROOT, out, "sdist", "wheel")
    return out


def required(package: Distribution, names: set[str]) -> set[str]:
    """Add the names of all installed packages that this one requires without extras."""
    for requirement in map(Requirement, package.requires or ()):
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        if name not in names and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            names.add(name)
            required(distribution(name), names)
    return names


def link(name: str, site: Path) -> None:
    """Make an installed package importable from another folder."""
    package = distribution(name)
    for top in {file.parts[0] for file in package.files or ()} - {"..", "__pycache__"}:
        if not (site / top).exists() and not top.endswith(".pth"):
            (site / top).symlink_to(Path(str(package.locate_file(top))))


@pytest.fixture(scope="module")
def environment(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment in which the wheel is installed."""
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder)
    site = only(folder, "lib/python*/site-packages")
    python, wheel = folder / "bin" / "python", only(packages, "*.whl")
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index", "--no-deps")
    run(*pip, wheel, cwd=folder)
    (installed,) = distributions(name="saywhy", path=[str(site)])
    for name in required(installed, set()):
        link(name, site)
    return folder / "bin"


def test_installed_wheel_says_its_version(environment: Path) -> None:
    assert run(environment / "saywhy", "--version", cwd=environment).split()[-1] == VERSION


def test_installed_wheel_captions_and_explains_from_its_own_files(environment: Path, tmp_path: Path) -> None:
    where = run(environment / "python", "-c", "import saywhy; print(saywhy.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(environment.parent)
    assert "a cat is standing in front of a window" in run(environment / "saywhy", "caption", PHOTO, cwd=tmp_path)
    explain = ("explain", PHOTO, "--method", "lrp", "--word", "cat", "--out", "why")
    run(environment / "saywhy", *explain, cwd=tmp_path)
    assert list(tmp_path.glob("why/**/report.html"))  # its style sheet, script and page are files of the package


def contents(wheel: Path) -> dict[str, int]:
    with zipfile.ZipFile(wheel) as archive:
        return {file.filename: file.CRC for file in archive.infolist()}


def test_sdist_builds_the_same_wheel(packages: Path, tmp_path: Path) -> None:
    with tarfile.open(only(packages, "*.tar.gz")) as archive:
        archive.extractall(tmp_path, filter="data")
    build(only(tmp_path, "saywhy-*"), tmp_path / "dist", "wheel")
    wheel = contents(only(packages, "*.whl"))
    assert contents(only(tmp_path / "dist", "*.whl")) == wheel
    package = ROOT / "src" / "saywhy"
    written = {path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert {f"saywhy/{path.relative_to(package).as_posix()}" for path in written} <= set(wheel)
