"""Puts together what Sphinx reads: docs/, pages that the program writes, a few others, and where each stands.

python docs/sphinx/collect.py FOLDER

Links are written as files of the repository, so that they work on a code host too. Here each is
resolved there and then led to where its target lies on the site. What a page of the reference is
written from leads to that page; any other linked source file becomes a page of its own under
source/. A link to what does not exist stays as it is, and Sphinx
refuses it; so it does with a page that no folder's index leads to.

The theme writes the whole menu into every page, so the menu has what readers choose from. Pages that
are reached from a list (a code, a command, an experiment, a decision, evidence) are left out of it.
"""

from __future__ import annotations

import os.path
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from generators import reference

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
OUTSIDE = {
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "docs/architecture.md": "project/architecture.md",
    "native/virtualgpu/DESIGN.md": "project/virtual-gpu.md",
}
# The menu, in this order. A part that is a folder's index has the folder's pages below it.
PARTS = (
    "quick-start",
    "which-command",
    "questions/index",
    "guides/index",
    "concepts/index",
    "install",
    "reference/index",
    "further-reading",
    "project/index",
)
# Pages that their folder's list leads to, and the menu does not.
LISTED = ("reference/commands/", "reference/rules/", "reference/lab/", "decisions/", "evidence/")
# Runs on hardware add pages to this folder, and no line to its index.
RUNS = "evidence/index.md"
# Too many for one level of the menu: each section of this index is a page with its guides below it.
SECTIONED = "guides/index.md"

FENCED = re.compile(r"(^```.*?^```|`[^`\n]+`)", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")
FOREIGN = re.compile(r"[a-z][a-z+.-]*:")
LANGUAGES = {".py": "python", ".c": "c", ".h": "c", ".json": "json", ".sh": "sh"}


def main(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(DOCS / "sphinx", folder, ignore=shutil.ignore_patterns("collect.py", "__pycache__"))
    pages = dict(_pages())
    sources = sorted({path for path in pages for path in _sources(path)})
    for path, name in pages.items():
        text = _led(path, name) + (_runs(pages) if name == RUNS else "")
        _write(folder / name, _outside_the_menu(name, pages) + text + _menu(name, pages))
    for name, text in _sections(pages):
        _write(folder / name, text)
    for path in sources:
        _write(folder / _source_page(path), _source(path))
    for path in DOCS.rglob("*"):
        if path.suffix in (".svg", ".png"):
            _copy(path, folder / path.relative_to(DOCS))


def _pages() -> Iterator[tuple[Path, str]]:
    """Every page that the site shows: where it lies, or would lie, in the repository, and its name there."""
    for name, place in OUTSIDE.items():
        yield ROOT / name, place
    for path in sorted({*DOCS.rglob("*.md"), *(ROOT / path for path in reference.pages())}):
        name = path.relative_to(DOCS).as_posix()
        if f"docs/{name}" not in OUTSIDE:
            yield path, re.sub(r"README\.md$", "index.md", name)


# ---- the menu ----


def _menu(name: str, pages: dict[Path, str]) -> str:
    """What a page leads to in the menu: nothing, unless it is the index of a folder."""
    if name == "index.md":
        return _toctree(list(PARTS))
    if name == SECTIONED:
        return _toctree([os.path.basename(section) for section, _ in _sections(pages)])
    below = [each for each in pages.values() if _parent(each, pages) == name and not _is_listed(each)]
    linked = _linked(name, pages)
    order = dict.fromkeys([*(each for each in linked if each in below), *sorted(below)])
    return _toctree([os.path.relpath(each, os.path.dirname(name) or ".") for each in order])


def _sections(pages: dict[Path, str]) -> Iterator[tuple[str, str]]:
    """A page for each section of the index of guides, which leads to what the section links to."""
    path = next(path for path, each in pages.items() if each == SECTIONED)
    for section in _led(path, SECTIONED).split("\n## ")[1:]:
        title, _, text = section.partition("\n")
        slug = re.sub(r"[^a-z]+", "-", title.lower())
        linked = [link[2] for link in LINK.finditer(text)]
        yield f"{os.path.dirname(SECTIONED)}/{slug}.md", f"# {title}\n{text}{_toctree(linked)}"


def _outside_the_menu(name: str, pages: dict[Path, str]) -> str:
    """What says so to Sphinx. It refuses a page that neither the menu nor a list leads to."""
    list_of_it = _parent(name, pages) or "project/index.md"
    found = _is_listed(name) and (list_of_it == RUNS or name in _linked(list_of_it, pages))
    return "---\norphan: true\n---\n\n" if found else ""


def _runs(pages: dict[Path, str]) -> str:
    names = sorted(os.path.basename(name) for name in pages.values() if _parent(name, pages) == RUNS)
    return "\n## Runs\n\n" + "\n".join(f"- [{name.removesuffix('.md')}]({name})" for name in names) + "\n"


def _is_listed(name: str) -> bool:
    return name.startswith(LISTED)


def _linked(name: str, pages: dict[Path, str]) -> list[str | None]:
    path = next(path for path, each in pages.items() if each == name)
    return [_on_site(target) for target in _targets(path)]


def _parent(name: str, pages: dict[Path, str]) -> str | None:
    """The page that leads the folder in which *name* lies."""
    folder = os.path.dirname(os.path.dirname(name) if name.endswith("/index.md") else name)
    if name.endswith("/index.md"):
        return f"{folder}/index.md" if folder else None
    leaders = (f"{folder}.md", f"{folder}/index.md")
    return next((leader for leader in leaders if leader in pages.values() and leader != name), None)


def _toctree(names: list[str]) -> str:
    if not names:
        return ""
    return (
        "\n\n```{toctree}\n:hidden:\n\n" + "\n".join(name.removesuffix(".md") for name in names) + "\n```\n"
    )


# ---- links ----


def _led(path: Path, name: str) -> str:
    """The text of a page, with links that fit the place where it stands."""

    def lead(link: re.Match[str]) -> str:
        target = None if FOREIGN.match(link[2]) else _on_site((path.parent / link[2]).resolve())
        if target is None:
            return link[0]
        return f"{link[1]}{os.path.relpath(target, os.path.dirname(name) or '.')}{link[3] or ''}{link[4]}"

    parts = FENCED.split(_text(path))
    parts[::2] = [LINK.sub(lead, part) for part in parts[::2]]
    return "".join(parts)


def _text(page: Path) -> str:
    written = reference.pages().get(page.relative_to(ROOT).as_posix())
    return written.text if written else page.read_text()


def _on_site(path: Path) -> str | None:
    """The name on the site of a file or folder of the repository, or of a page that the program writes."""
    if path.is_relative_to(ROOT):
        path = ROOT / reference.leads().get(path.relative_to(ROOT).as_posix(), path)
    if path.is_dir() and (index := next(filter(Path.exists, (path / "index.md", path / "README.md")), None)):
        path = index
    if not path.is_relative_to(ROOT):
        return None
    name = path.relative_to(ROOT).as_posix()
    if not path.exists() and name not in reference.pages():
        return None
    if name in OUTSIDE:
        return OUTSIDE[name]
    if path.is_relative_to(DOCS) and path.suffix in (".md", ".svg", ".png"):
        return re.sub(r"README\.md$", "index.md", path.relative_to(DOCS).as_posix())
    return _source_page(path)


def _targets(page: Path) -> Iterator[Path]:
    for part in FENCED.split(_text(page))[::2]:
        yield from (
            (page.parent / link[2]).resolve() for link in LINK.finditer(part) if not FOREIGN.match(link[2])
        )


# ---- linked sources ----


def _sources(page: Path) -> Iterator[Path]:
    yield from (path for path in _targets(page) if (_on_site(path) or "").startswith("source/"))


def _source_page(path: Path) -> str:
    return f"source/{path.relative_to(ROOT).as_posix()}.md"


def _source(path: Path) -> str:
    """A page with the text of a file, or of all files of a folder. It stands in no menu."""
    files = sorted(each for each in path.glob("*.*") if each.is_file()) if path.is_dir() else [path]
    blocks = "\n\n".join(_block(each, titled=path.is_dir()) for each in files)
    return f"---\norphan: true\nnosearch: true\n---\n\n# {path.relative_to(ROOT).as_posix()}\n\n{blocks}\n"


def _block(path: Path, *, titled: bool) -> str:
    title = f"## {path.name}\n\n" if titled else ""
    return f"{title}````{LANGUAGES.get(path.suffix, 'text')}\n{path.read_text().rstrip()}\n````"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _copy(path: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, target)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
