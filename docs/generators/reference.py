"""All pages that the program writes itself, and where links to their sources lead."""

from __future__ import annotations

from functools import cache

from generators import Page, codes, commands, files, json_fields, lab, python_api, statements

GENERATORS = (codes, lab, statements, commands, json_fields, python_api, files)


@cache
def pages() -> dict[str, Page]:
    """Each page, by its path from the root of the repository."""
    return {page.path: page for generator in GENERATORS for page in generator.pages()}


@cache
def leads() -> dict[str, str]:
    """The page that each source leads to."""
    return {source: page.path for page in pages().values() for source in page.sources}
