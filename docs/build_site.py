"""Write the site: the pages of the documentation, and an API reference from docstrings, with one search box.

    python docs/build_site.py site

The site mirrors the repository: `docs/tutorial.md` becomes `docs/tutorial.html`, `README.md` becomes `index.html`. pdoc
renders modules, so each page is a module without members whose docstring is the page. Nothing is loaded from a network.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path, PurePosixPath
from pkgutil import walk_packages
from types import ModuleType

import pdoc.doc
import pdoc.render
from pdoc.doc_types import resolve_annotations

import saywhy

ROOT = Path(__file__).parents[1]
LAST_PAGES = ("results/README.md", "benchmarks/README.md", "CONTRIBUTING.md", "CHANGELOG.md")
FIGURES = {".jpg", ".png", ".svg"}
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
WEB = re.compile(r"[a-z]+:|#")


def page_paths() -> list[str]:
    """The Markdown files that become pages, relative to the repository, in the order of the links in README.md."""
    targets = [match[3] for match in LINK.finditer((ROOT / "README.md").read_text(encoding="utf-8"))]
    linked = [target for target in targets if target.endswith(".md") and target not in LAST_PAGES]
    others = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
    return list(dict.fromkeys(["README.md", *linked, *others, *LAST_PAGES]))


def address(page: str) -> str:
    """The page's address in the site.

    >>> address("docs/tutorial.md"), address("docs/audits/README.md")
    ('docs/tutorial.html', 'docs/audits/index.html')
    """
    return str(PurePosixPath(page.replace("README.md", "index.md")).with_suffix(".html"))


def with_site_links(text: str, page: str, pages: set[str]) -> str:
    """A page whose links lead to other pages and to figures; links to other files become their text."""

    def rewrite(match: re.Match[str]) -> str:
        is_figure, label, target = match.groups()
        path, hash_, heading = target.partition("#")
        if is_figure or WEB.match(target):
            return match[0]
        linked = os.path.normpath(os.path.join(os.path.dirname(page), path))
        if linked not in pages:
            return label
        relative = os.path.relpath(address(linked), os.path.dirname(page) or ".")
        return f"[{label}]({relative}{hash_}{heading})"

    return LINK.sub(rewrite, text)


def page_module(page: str, pages: set[str]) -> pdoc.doc.Module:
    """A page as a module of which only the docstring is shown."""
    text = (ROOT / page).read_text(encoding="utf-8")
    module = ModuleType(address(page).removesuffix(".html").replace("/", "."))
    module.__doc__ = with_site_links(text, page, pages)
    vars(module)["__docformat__"] = "markdown"
    return pdoc.doc.Module(module)


def api_modules() -> Iterator[pdoc.doc.Module]:
    """All modules of saywhy."""
    names = [found.name for found in walk_packages(saywhy.__path__, "saywhy.")]
    for name in ("saywhy", *names):
        if not name.endswith("__main__"):
            module = import_module(name)
            _import_late_names(module)
            _resolve_named_tuples(module)
            yield pdoc.doc.Module(module)


def _import_late_names(module: ModuleType) -> None:
    """Import public names that a package imports when they are first used; pdoc would not find them."""
    for name in getattr(module, "__all__", ()):
        setattr(module, name, getattr(module, name))


def _resolve_named_tuples(module: ModuleType) -> None:
    """Replace the names of types in constructors of named tuples, which pdoc looks up in the wrong module."""
    for value in list(vars(module).values()):
        if isinstance(value, type) and issubclass(value, tuple) and value.__module__ == module.__name__:
            types = resolve_annotations(value.__annotations__, module, None, value.__qualname__)
            value.__new__.__annotations__ = types


def title(module: pdoc.doc.Module) -> str:
    """The first heading of a page."""
    return module.docstring.partition("\n")[0].strip("# ")


def search_script(modules: dict[str, pdoc.doc.Module], documents: list[pdoc.doc.Module]) -> str:
    """The search of pdoc, with pages before modules."""
    titles = json.dumps({module.fullname: title(module) for module in documents})
    pages_first = (ROOT / "docs" / "templates" / "pages_first.js").read_text(encoding="utf-8")
    return f"{pdoc.render.search_index(modules)}\n{{\nconst pages = {titles};\n{pages_first}}}\n"


def build(out: Path) -> None:
    """Write the site into a folder."""
    pages = page_paths()
    documents = [page_module(page, set(pages)) for page in pages]
    modules = {module.fullname: module for module in (*documents, *api_modules())}
    pdoc.render.configure(
        docformat="google", footer_text=f"saywhy {saywhy_version()}", template_directory=ROOT / "docs" / "templates"
    )
    pdoc.render.env.globals["pages"] = {module.fullname: title(module) for module in documents}
    for name, module in modules.items():
        path = out / f"{name.replace('.', '/')}.html"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(pdoc.render.html_module(module, modules), encoding="utf-8")
    (out / "search.js").write_text(search_script(modules, documents), encoding="utf-8")
    for figure in (ROOT / "docs").rglob("*"):
        if figure.suffix in FIGURES:
            shutil.copyfile(figure, out / figure.relative_to(ROOT))


def saywhy_version() -> str:
    """The version of the documented package."""
    from saywhy.provenance import VERSION

    return VERSION


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path, help="folder to write the site into")
    build(parser.parse_args().out)
