"""Command lines in the documentation are ones that the program takes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import READ, ROOT, WRITTEN, text_of
from vram.cli import app, grammar
from vram.cli.app import COMMANDS, RUNNERS
from vram.cli.arguments import Parser
from vram.errors import VramError

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *WRITTEN]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`(vram [a-z][^`\n]*)`")
# What stands for a word of the reader's own.
PLACEHOLDERS = {
    **dict.fromkeys(("PID", "$!", "4711", "N"), "1"),
    **dict.fromkeys(("GPU",), "0"),
    **dict.fromkeys(("SIZE",), "1GiB"),
    **dict.fromkeys(("CODE", "CHECK"), "VR101"),
    **dict.fromkeys(("S", "SECONDS"), "1"),
}
ENDS = ("|", ">", ">>", "<", "&&", "||", ";", "&", "2>&1")


def test_the_pages_have_command_lines() -> None:
    """Or the test below would hold for any page."""
    assert sum(len(list(lines(page))) for page in PAGES) > 200


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_line_is_taken(page: Path) -> None:
    for line in lines(page):
        refused = complaint(line)
        assert refused is None, f"{line}: {refused}"


@pytest.mark.parametrize("page", READ, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_command_is_broken_over_two_lines(page: Path) -> None:
    """It would not be one that the test above reads, and not one that people copy."""
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert [line for line in text.splitlines() if line.count("`") % 2] == []


def lines(page: Path) -> Iterator[str]:
    """Command lines in blocks, behind a prompt where the block has answers too, and in backquotes."""
    text = text_of(page)
    for language, block in BLOCK.findall(text):
        prompt = "" if language == "sh" else r"\$ "
        for line in block.replace("\\\n", " ").splitlines():
            if match := re.match(rf"{prompt}(vram [a-z].*)", line):
                yield match[1]
    yield from INLINE.findall(BLOCK.sub("", text))


def complaint(line: str) -> str | None:
    """Why the program would not take *line*; None where it would."""
    words = meant(line)
    name = words[1]
    if name not in COMMANDS:
        return f"no such command {name}"
    if any("..." in word or "…" in word or "|" in word or "<" in word for word in words):
        return None
    words = words[2:]
    if "--" in words and (name in RUNNERS or grammar.command(name).runs_another):
        words = words[: words.index("--")]
    if len(words) == 0 or words == ["fault"]:
        return None
    parser = Parser(prog=f"vram {name}")
    app._load(name).add_arguments(parser)
    try:
        parser.parse_args(words)
    except VramError as error:
        # A command that is only spoken of may be named with its option alone.
        return None if re.search("required|expected one argument", str(error)) else str(error)
    except SystemExit:  # --help
        return None
    return unknown(name, parser, words)


def meant(line: str) -> list[str]:
    words: list[str] = []
    for word in shlex.split(line, comments=True):
        if word in ENDS:
            break
        words.append(PLACEHOLDERS.get(word, word))
    return words


def unknown(name: str, parser: Parser, words: list[str]) -> str | None:
    """A name that the command itself would not know."""
    known = {word for each in grammar.command(name).positionals for word, _ in each.words}
    given = [word for word in getattr(parser.parse_args(words), "names", []) if word != "NAME"]
    wrong = [word for word in given if word not in known]
    return f"it knows no {wrong[0]}" if known and wrong else None
