"""Manual pages: one for each command, valid for man's own programs, and of the same words as --help."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.docs.conftest import ROOT
from vram.cli import app, grammar, manual
from vram.cli.app import COMMANDS, main

sys.path.insert(0, str(ROOT / "docs"))

from generators import roff

FOLDER = ROOT / "share" / "man" / "man1"
PAGES = sorted(FOLDER.glob("*.1"))
MACROS = {"TH", "SH", "SS", "PP", "TP", "IP", "RS", "RE", "nf", "fi", "br", '\\"'}
ESCAPES = re.compile(r"\\(?:[&e-]|f[BIR]|\((?:aq|ga|ha|ti|dq|bu)|\[u[0-9A-F]{4,6}\])")
UNDATED = re.compile(r"missing date")


def test_every_command_has_a_page() -> None:
    assert {page.name for page in PAGES} == {"vram.1", *(f"vram-{name}.1" for name in COMMANDS)}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_page_has_every_option_and_the_usual_sections(name: str) -> None:
    text = (FOLDER / f"vram-{name}.1").read_text()
    sections = re.findall(r'^\.SH "?([A-Z ]+)"?$', text, re.MULTILINE)
    assert sections[:3] == ["NAME", "SYNOPSIS", "DESCRIPTION"]
    assert sections[-1] == "SEE ALSO"
    assert "EXIT STATUS" in sections
    for command in grammar.command(name).everything():
        for option in command.options:
            assert all(roff.bold(flag) in text for flag in option.flags), option.flags


def test_examples_keep_their_columns() -> None:
    """What is indented in a docstring stays as it is, also where the docstring begins with it."""
    text = (FOLDER / "vram-completion.1").read_text()
    assert ".nf\nsource <(vram completion bash)      " in text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_uses_only_what_every_man_knows(page: Path) -> None:
    """Known requests, known escapes, ASCII: what holds where neither groff nor mandoc is at hand."""
    text = page.read_text()
    assert text.isascii()
    for line in text.splitlines():
        if line.startswith((".", "'")):
            assert re.match(r"\.(\\\"|[A-Za-z]+)", line)[1] in MACROS, line  # type: ignore[index]
        if not line.startswith('.\\"'):
            assert "\\" not in ESCAPES.sub("", line), line


@pytest.mark.skipif(shutil.which("mandoc") is None, reason="there is no mandoc here")
def test_mandoc_finds_nothing_to_complain_about() -> None:
    """But for the date: a page says which version it belongs to."""
    done = subprocess.run(["mandoc", "-T", "lint", "-W", "warning", *PAGES], capture_output=True, text=True)
    assert not [line for line in done.stdout.splitlines() if not UNDATED.search(line)]


@pytest.mark.skipif(shutil.which("groff") is None, reason="there is no groff here")
def test_groff_finds_nothing_to_complain_about() -> None:
    done = subprocess.run(["groff", "-ww", "-man", "-z", *PAGES], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("groff") is None, reason="there is no groff here")
@pytest.mark.parametrize(
    "text",
    [".SH EVIL", "'br", r"a\nb \fBc \*d", "--json `x` 'y' \"z\" ^ ~", "\\", "50 % of … and µs", ".", "-"],
)
def test_any_text_comes_out_as_it_went_in(text: str) -> None:
    """Help may hold anything; backquotes alone are read, as bold."""
    source = f".TH X 1\n.SH NAME\n{roff.line(text)}\n"
    done = subprocess.run(
        ["groff", "-ww", "-man", "-Tutf8", "-P-cbou", "-rLL=200n"],
        input=source,
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""
    assert text in done.stdout


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
    assert "commands:" in capsys.readouterr().out


def test_help_about_what_there_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "wyh"]) == 2
    assert "did you mean `vram why`?" in capsys.readouterr().err


@pytest.mark.skipif(shutil.which("man") is None, reason="there is no man here")
def test_man_shows_the_installed_page() -> None:
    page = manual.installed("why")
    if page is None:
        pytest.skip("vram is not installed here with its pages")
    done = subprocess.run(["man", "-P", "cat", page], capture_output=True, text=True)
    if "has been minimized" in done.stdout + done.stderr:
        pytest.skip("the man of this system shows nothing")
    assert "--deadline" in done.stdout.replace("\b", "")


def test_every_listed_command_is_one() -> None:
    assert len(set(app.COMMANDS)) == len(app.COMMANDS)
