"""One file for each part of the reference that the program itself writes: ``make docs`` puts it on the site.

Each has ``pages()``. None of these pages is in the repository, so the others link to what a page is written
from, which any code host shows; on the site the link leads to the page.
"""

from __future__ import annotations

from typing import NamedTuple


class Page(NamedTuple):
    """A page: its path among those of docs/, its text, and the files and folders that it is written from."""

    path: str
    text: str
    sources: tuple[str, ...]
