"""Manual pages: one for each command, valid for man's own programs, and of the same words as --help."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from generators import manual
from generators.commands import manual_sources

from tests.needs import needs, skip_without
from vram.cli import app, grammar
from vram.cli.app import COMMANDS, main
from vram.cli.commands.help import installed

PAGES = dict(manual.pages())


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The pages in files, as man's own programs read them."""
    folder = tmp_path_factory.mktemp("man1")
    for name, text in PAGES.items():
        (folder / f"{name}.1").write_text(text)
    return sorted(folder.iterdir())


def test_every_command_has_a_page() -> None:
    assert set(PAGES) == {"vram", *(f"vram-{name}" for name in COMMANDS)}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_page_has_every_option_and_the_usual_sections(name: str) -> None:
    text = PAGES[f"vram-{name}"]
    sections = re.findall(r"^\.SH ([A-Z ]+)$", text, re.MULTILINE)
    assert sections[:3] == ["NAME", "SYNOPSIS", "DESCRIPTION"]
    assert sections[-1] == "SEE ALSO"
    assert "EXIT STATUS" in sections
    for command in grammar.command(name).everything():
        for option in command.options:
            assert all(flag.replace("-", "\\-") in text for flag in option.flags), option.flags


def test_examples_keep_their_columns() -> None:
    """What is indented in a docstring stays as it is, also where the docstring begins with it."""
    text = PAGES["vram-completion"]
    assert ".EX\nsource <(vram completion bash)      " in text


@needs("mandoc")
def test_man_shows_the_words_of_the_markdown_page(files: list[Path]) -> None:
    """What roff takes for its own (a dot, a backslash, a quote) is shown as it is written."""
    sources = {name: markdown for name, _, markdown in manual_sources()}
    for file in files:
        done = subprocess.run(["mandoc", "-T", "utf8", file], capture_output=True, text=True, check=True)
        shown = re.sub(r".\x08", "", done.stdout)
        missing = [word for word in plain_words(sources[file.stem]) if word not in squeezed(shown)]
        assert not missing, file.name


def plain_words(markdown: str) -> list[str]:
    """What stands in the lines of a page, but for the marks, headings and heads of tables."""
    lines = [line for line in manual.LEFT_OUT.sub("", markdown).splitlines() if not re.match("#|```", line)]
    text = re.sub(r"`|\*\*|(?<!\\)\| |^- ", " ", "\n".join(lines), flags=re.MULTILINE)
    return [squeezed(word) for word in text.replace("\\|", "|").replace(" |\n", " ").split()]


def squeezed(text: str) -> str:
    """Without spaces: where lines break is man's choice."""
    return re.sub(r"\s", "", text)


@needs("mandoc")
def test_mandoc_finds_nothing_to_complain_about(files: list[Path]) -> None:
    """But that a page has no date: it names the version that it belongs to."""
    done = subprocess.run(["mandoc", "-T", "lint", "-W", "warning", *files], capture_output=True, text=True)
    assert not [line for line in done.stdout.splitlines() if "missing date" not in line]


@needs("groff")
def test_groff_finds_nothing_to_complain_about(files: list[Path]) -> None:
    done = subprocess.run(["groff", "-ww", "-man", "-z", *files], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


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
