"""Command reference and the sources of manual pages: what the parsers of the commands say.

A page of docs/reference/commands/ has the sections of a manual page, because it is one:
:mod:`generators.manual` writes it as roff.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

import vram
from generators import Page
from vram.cli import grammar
from vram.cli.grammar import CommandSpec
from vram.errors import ExitCode

FOLDER = "docs/reference/commands"
SOURCES = "src/vram/cli/commands"
EXIT_CODES = Path(__file__).resolve().parents[1] / "reference" / "exit-codes.md"
EXIT_ROW = re.compile(r"^\| *(\d+) \| ([^|]+?) \|(?: ([^|]+?) \|)?$", re.MULTILINE)


class Entry(NamedTuple):
    """A file, a variable or an exit code: its name, what it means, and the commands it concerns."""

    name: str
    meaning: str
    commands: tuple[str, ...]


ACTING = ("free", "trim", "park", "unpark", "borrow", "kill", "reset")
STATE = "~/.local/state/vram"
FILES = (
    Entry(
        f"{STATE}/audit.jsonl",
        "What was done to whom, before and after, a JSON object on each line."
        " Where `XDG_STATE_HOME` is set, the folder lies there. No log, no action.",
        ACTING,
    ),
    Entry(
        f"{STATE}/parked-*.json",
        "The processes that this user has parked, so that they come back whatever happens to vram.",
        ("park", "unpark", "borrow", "free"),
    ),
    Entry(
        "/dev/nvidia*, /dev/dxg, /dev/dri/*",
        "The driver's files. A process that has one open may hold memory.",
        ("why", "who", "check", "snapshot"),
    ),
)
VARIABLES = (
    Entry("NO_COLOR, FORCE_COLOR", "No colour anywhere, or colour everywhere.", ("all",)),
    Entry("COLUMNS", "How wide a line may be.", ("all",)),
    Entry("XDG_STATE_HOME", f"Where records lie, instead of {STATE.rpartition('/')[0]}.", ACTING),
    Entry("VRAM_AGENT", "Set to 1, programs that import vram accept `vram trim`.", ("trim", "why")),
)
DESCRIPTION = """\
The lines of `vram why` sum to the total, to the byte; what nobody can explain is a line of its own.
Commands that free memory show a plan first, ask, and measure afterwards.
Where there is no GPU, `vram demo` and `vram virtual` bring one."""


def pages() -> Iterator[Page]:
    commands = grammar.commands()
    names = {command.words[0] for command in commands}
    yield Page("docs/reference/commands.md", "\n".join(_index(commands)) + "\n", (SOURCES,))
    for command in commands:
        name = command.words[0]
        lines = [*_page(command, names), *_see_also_links(command, commands)]
        yield Page(f"{FOLDER}/{name}.md", "\n".join(lines) + "\n", (f"{SOURCES}/{name}.py",))


def manual_sources() -> Iterator[tuple[str, str, str]]:
    """For each manual page its name, what it is about, and its text in Markdown without links."""
    commands = grammar.commands()
    summary = str(vram.__doc__).splitlines()[0].removeprefix("vram: ")
    yield "vram", summary, "\n".join(_front_page(summary, commands))
    for command in commands:
        others = [f"vram-{name}" for name in _mentioned(command, commands)]
        lines = [*_page(command, set()), *_see_also_manuals(["vram", *others])]
        yield f"vram-{command.words[0]}", command.summary, "\n".join(lines)


# ---- pages ----


def _index(commands: tuple[CommandSpec, ...]) -> Iterator[str]:
    yield "# Commands\n"
    yield "One page for each, the same as `vram COMMAND --help` and `man vram-COMMAND`. The"
    yield "[exit codes](exit-codes.md) are the same everywhere, and"
    yield "[TAB](../quick-start.md#completion-and-manual-pages) completes what is typed.\n"
    yield "Sizes and durations have a unit: `512MiB`, `20GiB`; `250ms`, `60s`, `5min`, `2h`, `7d`. A bare"
    yield "number is refused.\n"
    yield "| command | |"
    yield "|---|---|"
    for command in commands:
        yield f"| [{command.title}](commands/{command.words[0]}.md) | {_cell(command.summary)} |"


def _front_page(summary: str, commands: tuple[CommandSpec, ...]) -> Iterator[str]:
    yield "# vram\n"
    yield "## Synopsis\n\n```text\nvram COMMAND [argument ...]\nvram --help | --version | --include\n```\n"
    yield f"## Description\n\n{grammar.sentence(summary)} {DESCRIPTION}\n"
    rows = ((f"vram-{command.words[0]}(1)", command.summary) for command in commands)
    yield from _table("Commands", ("command", "meaning"), rows)
    yield from _concerning("Exit status", "code", exit_codes())
    yield from _concerning("Files", "file", FILES)
    yield from _concerning("Environment", "variable", VARIABLES)
    yield from _see_also_manuals(["nvidia-smi", "fuser", "lsof", "proc"])


def _page(command: CommandSpec, names: set[str]) -> Iterator[str]:
    """A command's page; commands of *names* that it mentions become links."""
    name = command.words[0]
    yield f"# {command.title}\n"
    yield "## Synopsis\n\n```text"
    for each in command.commands or [command]:
        yield synopsis(each)
    yield "```\n"
    yield f"## Description\n\n{_linked(command.summary, name, names)}"
    for text in (command.description, command.epilog):
        yield from _prose(text, name, names)
    yield from _arguments("## Options", command, names)
    for below in command.commands:
        yield f"\n## {below.title}\n\n{_linked(below.summary, name, names)}"
        yield from _prose(below.epilog, name, names)
        yield from _arguments("### Options", below, names)
    yield from _concerning("Exit status", "code", exit_codes(), name)
    yield from _concerning("Files", "file", FILES, name)
    yield from _concerning("Environment", "variable", VARIABLES, name)


def synopsis(command: CommandSpec) -> str:
    """How the command is called, in one or more lines."""
    if command.usage:
        return "\n".join(line.strip() for line in command.usage.splitlines())
    words = [command.title]
    words += ["[options]"] if command.options else []
    words += ["COMMAND"] if command.commands else []
    words += [each.placeholder for each in command.positionals]
    words += ["[-- COMMAND...]"] if command.runs_another else []
    return " ".join(words)


def _arguments(title: str, command: CommandSpec, names: set[str]) -> Iterator[str]:
    rows = [
        (each.spelling, _linked(each.help, command.words[0], names))
        for each in (*command.positionals, *command.options)
    ]
    yield from _table(title, ("argument", "meaning"), rows)


def _concerning(title: str, heading: str, entries: Iterable[Entry], name: str = "") -> Iterator[str]:
    """Those of *entries* that concern the command *name*; all of them without one."""
    rows = [(each.name, each.meaning) for each in entries if not name or {"all", name} & {*each.commands}]
    yield from _table(title, (heading, "meaning"), rows)


def _table(title: str, heads: tuple[str, str], rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    """A section with a table of two columns, its first in code; nothing without rows."""
    found = list(rows)
    if found:
        yield f"\n{title if title.startswith('#') else f'## {title}'}\n"
        yield f"| {heads[0]} | {heads[1]} |"
        yield "|---|---|"
    for name, meaning in found:
        yield f"| `{_cell(name)}` | {_cell(meaning)} |"


def _see_also_links(command: CommandSpec, commands: tuple[CommandSpec, ...]) -> Iterator[str]:
    links = [f"[vram {name}]({name}.md)" for name in _mentioned(command, commands)]
    links += ["[all commands](../commands.md)", "[exit codes](../exit-codes.md)"]
    yield f"\n## See also\n\n{', '.join(links)}"


def _see_also_manuals(names: list[str]) -> Iterator[str]:
    sections = {"proc": 5, "lsof": 8}
    yield "\n## See also\n"
    yield ", ".join(f"**{name}**({sections.get(name, 1)})" for name in names)


def _mentioned(command: CommandSpec, commands: tuple[CommandSpec, ...]) -> list[str]:
    """The other commands that this one's own words name."""
    words = [command.summary, command.description, command.epilog]
    words += [argument.help for each in command.everything() for argument in each.options]
    named = set(re.findall(r"vram ([a-z]+)", " ".join(words)))
    return [each.words[0] for each in commands if each.words[0] in named and each is not command]


def _linked(text: str, own: str, names: set[str]) -> str:
    """Commands of *names* that stand in backquotes become links to their pages."""

    def link(match: re.Match[str]) -> str:
        name = match[1]
        return f"[{match[0]}]({name}.md)" if name in names and name != own else match[0]

    return re.sub(r"`vram ([a-z]+)\b[^`]*`", link, text.replace("``", "`"))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


# ---- exit codes ----


@cache
def exit_codes() -> tuple[Entry, ...]:
    """The table of docs/reference/exit-codes.md; it has exactly the codes that the program has."""
    rows = [
        Entry(number, meaning, tuple((commands or "all").replace("`", "").split(", ")))
        for number, meaning, commands in EXIT_ROW.findall(EXIT_CODES.read_text())
    ]
    listed, known = {int(row.name) for row in rows}, set(map(int, ExitCode))
    if listed != known:
        raise SystemExit(
            f"docs/reference/exit-codes.md and vram.errors.ExitCode differ in {sorted(listed ^ known)}"
        )
    return tuple(rows)


# ---- text of help and docstrings ----


class Block(NamedTuple):
    """Some lines that belong together."""

    kind: Literal["paragraph", "item", "verbatim"]
    lines: list[str]

    @property
    def text(self) -> str:
        return " ".join(line.strip() for line in self.lines).removeprefix("- ")


def _prose(text: str, own: str, names: set[str]) -> Iterator[str]:
    for block in blocks(text):
        if block.kind == "verbatim":
            margin = min(len(line) - len(line.lstrip()) for line in block.lines if line)
            yield "\n```text"
            yield from (line[margin:] for line in block.lines)
            yield "```"
        else:
            yield f"\n{'- ' if block.kind == 'item' else ''}{_linked(block.text, own, names)}"


def blocks(text: str) -> Iterator[Block]:
    """The blocks of *text*: what is indented stays as it is, the rest may flow."""
    current: Block | None = None
    for line in text.expandtabs().splitlines():
        if not line.strip():
            if current is not None and current.kind == "verbatim":
                current.lines.append("")
                continue
            yield from _closed(current)
            current = None
        elif current is not None and _continues(current, line):
            current.lines.append(line)
        else:
            yield from _closed(current)
            current = Block(_kind(line), [line])
    yield from _closed(current)


def _closed(block: Block | None) -> Iterator[Block]:
    if block is not None:
        while not block.lines[-1]:
            block.lines.pop()
        yield block


def _kind(line: str) -> Literal["paragraph", "item", "verbatim"]:
    if line.startswith("- "):
        return "item"
    return "verbatim" if _is_indented(line) else "paragraph"


def _continues(block: Block, line: str) -> bool:
    return _kind(line) == "paragraph" if block.kind == "paragraph" else _is_indented(line)


def _is_indented(line: str) -> bool:
    return line.startswith("  ")
