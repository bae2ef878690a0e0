"""Manual pages: one for each command, valid for man's own programs, and of the same words as --help."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib

import pytest

from tests.docs.conftest import ROOT
from tests.needs import needs, skip_without
from vram.cli import app, grammar
from vram.cli.app import COMMANDS, main
from vram.cli.commands.help import installed

sys.path.insert(0, str(ROOT / "docs"))

from generators import manual
from generators.commands import manual_sources

FOLDER = ROOT / "share" / "man" / "man1"
PAGES = sorted(FOLDER.glob("*.1"))
# A page names the version it belongs to and no date; Sphinx starts a section with a blank line.
HARMLESS = re.compile(r"missing date|skipping paragraph macro: sp after SH")


def test_every_command_has_a_page() -> None:
    assert {page.name for page in PAGES} == {"vram.1", *(f"vram-{name}.1" for name in COMMANDS)}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_page_has_every_option_and_the_usual_sections(name: str) -> None:
    text = (FOLDER / f"vram-{name}.1").read_text()
    sections = re.findall(r"^\.SH ([A-Z ]+)$", text, re.MULTILINE)
    assert sections[:3] == ["NAME", "SYNOPSIS", "DESCRIPTION"]
    assert sections[-1] == "SEE ALSO"
    assert "EXIT STATUS" in sections
    for command in grammar.command(name).everything():
        for option in command.options:
            assert all(flag.replace("-", "\\-") in text for flag in option.flags), option.flags


def test_examples_keep_their_columns() -> None:
    """What is indented in a docstring stays as it is, also where the docstring begins with it."""
    text = (FOLDER / "vram-completion.1").read_text()
    assert ".EX\nsource <(vram completion bash)      " in text


def test_a_page_that_is_stale_or_edited_is_found_without_sphinx() -> None:
    page, source = (FOLDER / "vram-why.1").read_text(), dict(manual_sources())["vram-why"]
    assert manual.is_current(page, source)
    assert not manual.is_current(page, source + "one more option")
    assert not manual.is_current(page.replace("json", "jsno"), source)
    assert not manual.is_current("", source)


@pytest.mark.usefixtures("needs_sphinx")
def test_sphinx_makes_the_committed_pages_and_stamps_none() -> None:
    """But for a Sphinx that writes other roff than the one that made them."""
    made = manual.build()
    assert {f"{name}.1" for name in made} == {page.name for page in PAGES}
    assert all(re.search(r'^\.TH "VRAM[A-Z-]*" "1" "" "vram ', text, re.MULTILINE) for text in made.values())
    assert not any("Docutils" in text or "reStructuredText" in text for text in made.values())


@needs("mandoc")
def test_mandoc_finds_nothing_to_complain_about() -> None:
    done = subprocess.run(["mandoc", "-T", "lint", "-W", "warning", *PAGES], capture_output=True, text=True)
    assert not [line for line in done.stdout.splitlines() if not HARMLESS.search(line)]


@needs("groff")
def test_groff_finds_nothing_to_complain_about() -> None:
    done = subprocess.run(["groff", "-ww", "-man", "-z", *PAGES], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_everything_in_share_is_installed_by_the_wheel() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    shared = build["targets"]["wheel"]["shared-data"]
    for path in (ROOT / "share").rglob("*"):
        name = path.relative_to(ROOT).as_posix()
        if path.is_file():
            assert any(name == source or name.startswith(f"{source}/") for source in shared), name
    assert all(source == target for source, target in shared.items())


def test_help_is_what_the_option_tells_where_nobody_watches(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "why"]) == 0
    told = capsys.readouterr().out
    assert main(["why", "--help"]) == 0
    assert capsys.readouterr().out == told
    assert main(["help"]) == 0
    assert "More: vram help all" in capsys.readouterr().out


def test_help_about_what_there_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "wyh"]) == 2
    assert "did you mean `vram why`?" in capsys.readouterr().err


@needs("man")
def test_man_shows_the_installed_page() -> None:
    page = installed("why")
    if page is None:
        skip_without("manual-pages", "vram is not installed here with its pages")
    done = subprocess.run(["man", "-P", "cat", page], capture_output=True, text=True)
    if "has been minimized" in done.stdout + done.stderr:
        skip_without("manual-pages", "the man of this system shows nothing")
    assert "--deadline" in done.stdout.replace("\b", "")


def test_every_listed_command_is_one() -> None:
    assert len(set(app.COMMANDS)) == len(app.COMMANDS)
