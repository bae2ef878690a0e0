"""The site is whole: strict, complete, searched offline, and it fetches nothing from anywhere."""

from __future__ import annotations

import json
import os.path
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import get_args

import pytest

import vram
from tests.browser import chromium
from tests.docs.conftest import sphinx
from tests.docs.pages import DOCS, ROOT, WRITTEN, site_page
from tests.needs import needs
from tests.patience import PATIENCE_S
from vram.cli import manual
from vram.cli.app import COMMANDS
from vram.model.hold import STATES
from vram.model.ledger import Kind
from vram.virtualgpu.demos import DEMOS

BROWSER = chromium.find()
FETCHED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}


def test_the_site_is_whole(site: Path) -> None:
    """One test, so that no worker of pytest waits while another one builds."""
    _what_describes_itself_has_a_page(site)
    _everything_that_can_be_imported_is_described(site)
    _the_menu_begins_with_the_quick_start_and_has_every_guide(site)
    _guides_are_in_the_menu_by_section(site)
    _the_menu_leaves_out_what_lists_lead_to(site)
    _the_front_page_has_a_picture_for_each_question(site)
    _every_link_of_a_menu_leads_to_a_page(site)
    _nothing_is_fetched_from_elsewhere(site)
    _the_index_of_the_search_is_a_script_of_its_own(site)


def _what_describes_itself_has_a_page(site: Path) -> None:
    """Every command and every rule, under an address that does not change."""
    for name in COMMANDS:
        assert f"vram {name}" in (site / f"reference/commands/{name}.html").read_text()
    for code, summary in manual.summaries(manual.rules()):
        assert summary.partition(":")[0] in (site / f"reference/rules/{code}.html").read_text()


def _everything_that_can_be_imported_is_described(site: Path) -> None:
    page = (site / "reference/python.html").read_text()
    for name in vram._PUBLIC:
        assert f"vram.{name}" in page, name


def _the_menu_begins_with_the_quick_start_and_has_every_guide(site: Path) -> None:
    links = menu(site / "index.html")
    assert links[:3] == ["quick-start.html", "which-command.html", "questions/index.html"]
    for path in (ROOT / "docs" / "guides").glob("*.md"):
        assert f"guides/{path.stem}.html" in links, path.name


def _guides_are_in_the_menu_by_section(site: Path) -> None:
    links = menu(site / "index.html")
    at = {name: links.index(f"guides/{name}.html") for name in ("find-out", "why", "get-memory-back", "free")}
    assert list(at.values()) == sorted(at.values())


def _the_menu_leaves_out_what_lists_lead_to(site: Path) -> None:
    """Decisions, evidence and a page for each code would hide what a reader looks for."""
    folders = ("decisions/", "evidence/", "reference/rules/", "reference/commands/", "reference/lab/")
    for page in ("index.html", "reference/rules/VR101.html", "decisions/index.html"):
        links = [link.lstrip("./") for link in menu(site / page)]
        assert links
        assert not [link for link in links if link.startswith(folders)], page


def _the_front_page_has_a_picture_for_each_question(site: Path) -> None:
    page = (site / "index.html").read_text()
    text = re.sub(r"<[^>]+>", "", page)
    for demo in DEMOS:
        assert f"vram demo {demo.name}" in text
        assert (site / "_images" / f"{demo.name}.svg").exists()
        assert f"_images/{demo.name}.svg" in page


def _every_link_of_a_menu_leads_to_a_page(site: Path) -> None:
    """Also where a menu was rendered for another page of the folder."""
    pages = {str(page) for page in site.rglob("*.html")}
    for page in pages:
        for link in menu(Path(page)):
            target = os.path.normpath(f"{os.path.dirname(page)}/{link.partition('#')[0]}")
            assert target in pages, f"{link} of {page}"


GUIDES = sorted(path for path in (ROOT / "docs" / "guides").glob("*.md") if path.name != "index.md")


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.stem)
def test_a_guide_begins_with_what_it_is_for_and_how(guide: Path) -> None:
    """A sentence, and the command or call, before any further heading."""
    title, *beginning = guide.read_text().partition("\n## ")[0].split("\n\n")
    assert title.startswith("# ")
    assert not beginning[0].startswith(("```", "|", "- ", "![")), "begin with a sentence"
    assert re.search(r"\bvram\b", "\n\n".join(beginning[:4])), "name the command"


@pytest.mark.parametrize("folder", ["questions", "guides", "concepts", "reference"])
def test_an_index_names_every_page_of_its_folder(folder: str) -> None:
    """Whoever reads the index finds them all, on a code host too."""
    index = DOCS / folder / "index.md"
    links = re.findall(r"\]\(([^)#]+)", index.read_text())
    named = {site_page((index.parent / link).resolve()) for link in links if ":" not in link}
    pages = {page for page in (*index.parent.glob("*.md"), *WRITTEN) if page.parent == index.parent}
    assert pages - {index} <= named


def test_every_line_of_a_ledger_is_explained() -> None:
    """A kind that is added later needs its row on the page about bytes."""
    page = (ROOT / "docs" / "concepts" / "where-do-my-bytes-go.md").read_text()
    told = {kind for row in re.findall(r"^\| ([a-z, ]+) \|", page, re.MULTILINE) for kind in row.split(", ")}
    assert set(get_args(Kind)) == told - {"line"}


def test_every_state_of_the_screen_is_explained() -> None:
    page = (ROOT / "docs" / "guides" / "why.md").read_text()
    rows = re.findall(r"^  - ((?:`\w+`(?:, )?)+): ", page, re.MULTILINE)
    explained = {word for row in rows for word in re.findall(r"`(\w+)`", row)}
    assert {state.label for state in STATES.values()} <= explained


def _nothing_is_fetched_from_elsewhere(site: Path) -> None:
    """Scripts, styles, fonts and pictures all lie beside the page."""
    for page in site.rglob("*.html"):
        text = page.read_text()
        # A page without such an attribute need not be parsed to know.
        if re.search(r"=\s*[\"']?(https?:)?//", text):
            fetching = Fetching()
            fetching.feed(text)
            assert not fetching.foreign, page
    for style in (*site.rglob("*.css"), *site.rglob("*.svg")):
        assert not re.search(r"(url\(|@import)\s*[\"']?(https?:)?//", style.read_text()), style


@pytest.mark.usefixtures("needs_sphinx")
def test_what_leads_nowhere_fails_the_build(tmp_path: Path) -> None:
    """Links, headings and pictures that are not there, and a page that no menu has: each has its warning."""
    lines = (
        "[nowhere](missing.md)",
        "[no such heading](index.md#elsewhere)",
        "![no such picture](missing.svg)",
    )
    source = small(tmp_path, index="# Start\n\n" + "\n\n".join(lines) + "\n")
    (source / "forgotten.md").write_text("# Forgotten\n")
    done = sphinx(source, tmp_path / "site")
    assert done.returncode != 0
    for complaint in ("missing.md", "elsewhere", "missing.svg", "forgotten"):
        assert re.search(rf"WARNING: .*{complaint}|{complaint}\.md: WARNING", done.stderr), complaint


@pytest.mark.usefixtures("needs_sphinx")
def test_a_menu_that_pages_share_is_the_one_that_each_would_have(tmp_path: Path) -> None:
    """With every mark of the page that it stands on, and of what that page lies in."""
    toctree = "\n\n```{{toctree}}\n:hidden:\n\n{}\n```\n"
    source = small(tmp_path, index="# Start\n" + toctree.format("guides/index\nend"))
    pages = {
        "end.md": "# End\n",
        "guides/index.md": "# Guides\n" + toctree.format("one\nmore"),
        "guides/one.md": "# One\n",
        "guides/more.md": "# More\n" + toctree.format("two"),
        "guides/two.md": "# Two\n",
        "guides/aside.md": "---\norphan: true\n---\n\n# Aside\n",
    }
    for name, text in pages.items():
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_text(text)
    conf = source / "conf.py"
    shared = built(source, tmp_path / "shared")
    settings = conf.read_text()
    assert ', "menu"' in settings
    conf.write_text(settings.replace(', "menu"', ""))
    alone = built(source, tmp_path / "alone")
    assert "guides/two.html" in alone
    assert shared == alone


def built(source: Path, target: Path) -> dict[str, str]:
    """The pages of a small site, by their names."""
    done = sphinx(source, target)
    assert done.returncode == 0, done.stderr
    return {page.relative_to(target).as_posix(): page.read_text() for page in target.rglob("*.html")}


@needs("browser", there=BROWSER is not None)
@pytest.mark.parametrize(
    ("word", "page"),
    [("orphaned", "reference/rules/VR101.html"), ("fragmented", "concepts/where-do-my-bytes-go.html")],
)
def test_search_works_from_disk_in_a_browser(word: str, page: str, site: Path, tmp_path: Path) -> None:
    """Opened as a file, with every name on the network unknown."""
    command = [BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}"]
    command += ["--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=15000", "--dump-dom"]
    address = f"{(site / 'search.html').as_uri()}?q={word}"
    done = subprocess.run([*command, address], capture_output=True, text=True, timeout=PATIENCE_S)
    found = done.stdout.partition('id="search-results"')[2]
    assert f'href="{page}"' in found, done.stdout[-2000:] + done.stderr[-2000:]


def _the_index_of_the_search_is_a_script_of_its_own(site: Path) -> None:
    """A page from disk may load scripts, and nothing else: where there is no browser, this much is told."""
    text = (site / "searchindex.js").read_text()
    index = json.loads(text.removeprefix("Search.setIndex(").removesuffix(")"))
    assert "orphan" in index["terms"]
    assert "reference/rules/VR101" in index["docnames"]


class Fetching(HTMLParser):
    """What a page makes a browser fetch from other places."""

    def __init__(self) -> None:
        super().__init__()
        self.foreign: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        value = dict(attrs).get(FETCHED.get(tag, "")) or ""
        if re.match(r"(https?:)?//", value):
            self.foreign.append(value)


def menu(page: Path) -> list[str]:
    """The links of a page's menu, in their order."""
    tree = page.read_text().partition('class="sidebar-tree"')[2].partition("</aside>")[0]
    return [link for link in re.findall(r'class="reference internal" href="([^"]+)"', tree) if link != "#"]


def small(folder: Path, index: str) -> Path:
    """A site of one page, with the settings of the real one."""
    source = folder / "source"
    shutil.copytree(
        ROOT / "docs" / "sphinx", source, ignore=shutil.ignore_patterns("collect.py", "__pycache__")
    )
    (source / "index.md").write_text(index)
    return source
