"""The pages of the documentation: those of the repository, and those that the program writes for the site."""

from __future__ import annotations

from pathlib import Path

from generators import reference

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
WRITTEN = {ROOT / path: page.text for path, page in reference.pages().items()}
"""Where each would lie in the repository, and its text."""
READ = [
    ROOT / "README.md",
    *sorted(page for room in ("questions", "guides", "concepts") for page in (DOCS / room).glob("*.md")),
]
"""What users read, from the first page to the last guide."""


def site_page(path: Path) -> Path:
    """Where a link to *path* leads on the site: to the page that is written from it, if there is one."""
    return ROOT / reference.leads().get(path.relative_to(ROOT).as_posix(), path)


def text_of(page: Path) -> str:
    return WRITTEN[page] if page in WRITTEN else page.read_text()
