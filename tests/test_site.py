"""`make docs`: the site builds without warnings, its links lead somewhere, and it loads nothing from a network."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parents[1]
LOADING = {"img", "script", "link", "iframe", "source", "video", "audio"}

pytestmark = pytest.mark.slow


class Links(HTMLParser):
    """What a page links to, what it loads, and the headings that it has."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.loaded: set[str] = set()
        self.ids: set[str] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.ids.add(value)
            elif name in ("href", "src") and value:
                (self.loaded if tag in LOADING else self.links).add(unquote(value))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("pdoc", reason='the site needs pip install "saywhy[docs]"')
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-W", "error::UserWarning", ROOT / "docs" / "build_site.py", out]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert process.stderr == ""
    return out


def test_search_finds_functions_and_pages(site: Path) -> None:
    index = (site / "search.js").read_text(encoding="utf-8")
    for name in ("saywhy.load", "saywhy.Explanation.map", "saywhy.audits.patches.mask_patches", "docs.tutorial"):
        assert f'"fullname": "{name}"' in index
    assert '"docs.tutorial": "Train your own captioner in four steps"' in index, "pages are found by their titles"
    for name in ("index", "docs/tutorial", "saywhy", "saywhy/audits/patches"):
        page = (site / f"{name}.html").read_text(encoding="utf-8")
        assert '<input type="search"' in page
        assert f'"{"../" * name.count("/")}search.js"' in page


def test_every_public_module_has_a_page(site: Path) -> None:
    package = ROOT / "src" / "saywhy"
    modules = {path.relative_to(package.parent).with_suffix("") for path in package.rglob("*.py")}
    expected = {module.parent if module.name == "__init__" else module for module in modules}
    expected.remove(Path("saywhy/__main__"))
    assert {path for path in expected if not (site / f"{path}.html").is_file()} == set()


def test_links_of_pages_lead_to_headings_and_files_of_the_site(site: Path) -> None:
    pages = [site / "index.html", *site.glob("docs/**/*.html"), site / "CONTRIBUTING.html", site / "CHANGELOG.html"]
    parsed: dict[Path, Links] = {}
    broken = set()
    for page in pages:
        for link in Links(page).links:
            path, _, heading = link.partition("#")
            if re.match("[a-z]+:", link):
                continue
            target = (page.parent / path).resolve() if path else page
            if not target.is_file() or (heading and heading not in parsed.setdefault(target, Links(target)).ids):
                broken.add((page.name, link))
    assert broken == set()


def test_pages_load_only_files_of_the_site(site: Path) -> None:
    for page in site.rglob("*.html"):
        for address in Links(page).loaded:
            assert address.startswith("data:") or (page.parent / address).is_file(), f"{page}: {address}"
        assert not re.search(r"@import|url\(['\"]?https?:", page.read_text(encoding="utf-8"))
