"""The documentation is true: links lead somewhere, on a code host and on the site."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, WRITTEN, reference, site_page, text_of

FOLDERS = ("docs", "native", "examples")
PAGES = [*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))]
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)|(?:src|href)=\"([^\"]+)\"")


@pytest.mark.parametrize("page", [*PAGES, *WRITTEN], ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page: Path) -> None:
    """A relative link names a file of the repository, and its fragment a heading in it, or in what is written
    from it. Only pages that the program writes may name each other, which are on the site alone."""
    for link in targets(page):
        path, _, fragment = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists() or (page in WRITTEN and target in WRITTEN), f"{link} leads nowhere"
        assert target.is_relative_to(ROOT), f"{link} leads out of the repository"
        if fragment:
            assert fragment in headings(site_page(target)), f"{link} names no heading"


def test_a_link_to_a_page_that_only_the_site_has_would_be_found() -> None:
    assert WRITTEN
    assert not [page for page in WRITTEN if page.exists()]


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_written_page_has_a_title_text_and_sources(page: Path) -> None:
    text = WRITTEN[page]
    title, *lines = text.splitlines()
    assert re.fullmatch("# .+", title)
    assert len([line for line in lines if line]) > 2
    assert text.count("```") % 2 == 0
    sources = reference.pages()[page.relative_to(ROOT).as_posix()].sources
    assert sources
    assert all((ROOT / source).exists() for source in sources)


def test_no_source_leads_to_two_pages() -> None:
    sources = [source for page in reference.pages().values() for source in page.sources]
    assert len(sources) == len(set(sources))


def targets(page: Path) -> list[str]:
    prose = re.sub(r"```.*?```", "", text_of(page), flags=re.DOTALL)
    links = (first or second for first, second in LINK.findall(prose))
    return [link for link in links if not re.match(r"[a-z]+:", link)]


def headings(page: Path) -> set[str]:
    """The fragments that a code host makes of a page's headings."""
    lines = re.findall(r"^#+ (.+)$", text_of(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in lines}
