"""share/man/man1: vram(1) and a page for each command, from the same parsers as its --help."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import vram
from generators import exit_table, roff
from generators.command_pages import synopsis
from vram.cli import grammar
from vram.cli.grammar import Argument, Command

FOLDER = "share/man/man1"
NOTE = r".\" Written by docs/generate.py: change the source, then run `make reference`."


class Place(NamedTuple):
    """A file or a variable, and the commands it matters to."""

    name: str
    text: str
    commands: tuple[str, ...]


ACTING = ("free", "trim", "park", "unpark", "parked", "borrow", "kill", "reset")
STATE = "~/.local/state/vram"
FILES = (
    Place(
        f"{STATE}/audit.jsonl",
        "What was done to whom, before and after, a JSON object on each line."
        " Where `XDG_STATE_HOME` is set, the folder lies there. No log, no action.",
        ACTING,
    ),
    Place(
        f"{STATE}/parked-*.json",
        "Whom this user has parked, so that they come back whatever happens to vram.",
        ("park", "unpark", "parked", "borrow", "free"),
    ),
    Place(
        "/dev/nvidia*, /dev/dxg, /dev/dri/*",
        "The driver's files. Who has one open may be keeping memory.",
        ("why", "who", "check", "snapshot"),
    ),
)
VARIABLES = (
    Place("NO_COLOR, FORCE_COLOR", "No colour anywhere, or colour everywhere.", ("all",)),
    Place("COLUMNS", "How wide a line may be.", ("all",)),
    Place("XDG_STATE_HOME", f"Where records lie, instead of {STATE.rpartition('/')[0]}.", ACTING),
    Place("VRAM_AGENT", "Set to 1, programs that import vram let `vram trim` in.", ("trim", "why")),
)


def pages() -> Iterator[tuple[str, str]]:
    commands = grammar.commands()
    yield f"{FOLDER}/vram.1", "\n".join(_front(commands)) + "\n"
    for command in commands:
        yield f"{FOLDER}/vram-{command.words[0]}.1", "\n".join(_page(command, commands)) + "\n"


def _front(commands: tuple[Command, ...]) -> Iterator[str]:
    summary = str(vram.__doc__).splitlines()[0].removeprefix("vram: ").rstrip(".")
    yield from _head("vram", summary)
    yield from (".SH SYNOPSIS", rf"{roff.bold('vram')} \fICOMMAND\fR [\fIargument\fR ...]", ".br")
    yield rf"{roff.bold('vram')} \fB\-\-help\fR | \fB\-\-version\fR"
    yield from (".SH DESCRIPTION", roff.prose(_FRONT))
    yield ".SH COMMANDS"
    pairs = ((rf"\fBvram\-{command.words[0]}\fR(1)", command.summary) for command in commands)
    yield from roff.terms(pairs)
    yield from _exit_status(exit_table.codes())
    yield from _places("FILES", FILES)
    yield from _places("ENVIRONMENT", VARIABLES)
    yield from _see_also(["nvidia-smi", "fuser", "lsof", "proc"])


_FRONT = (
    "`vram` accounts for every byte of GPU memory: who keeps it, how that is known, and how it comes back."
    " The lines of `vram why` sum to the total, to the byte; what nobody can explain is a line of its own."
    " Commands that give memory back show a plan first, ask, and measure afterwards."
    " Where there is no GPU, `vram demo` and `vram virtual` bring one."
)


def _page(command: Command, commands: tuple[Command, ...]) -> Iterator[str]:
    name = command.words[0]
    yield from _head(f"vram-{name}", command.summary.rstrip("."))
    yield from (".SH SYNOPSIS", ".nf")
    for each in [command, *command.commands] if not command.commands else command.commands:
        yield from (_usage(line) for line in synopsis(each).splitlines())
    yield from (".fi", ".SH DESCRIPTION", roff.prose(command.summary))
    for text in (command.description, command.epilog):
        yield from roff.paragraphs(text)
    yield from _arguments(command)
    for below in command.commands:
        yield from (f'.SS "{roff.plain(below.title)}"', roff.prose(below.summary))
        yield from roff.paragraphs(below.epilog)
        yield from roff.terms(_terms(below))
    yield from _exit_status(exit_table.for_command(name))
    yield from _places("FILES", [place for place in FILES if name in place.commands])
    yield from _places("ENVIRONMENT", [place for place in VARIABLES if {"all", name} & {*place.commands}])
    yield from _see_also(["vram", *(f"vram-{each}" for each in _mentioned(command, commands))])


def _head(name: str, summary: str) -> Iterator[str]:
    yield NOTE
    yield f'.TH {roff.plain(name.upper())} 1 "" "vram {vram.__version__}" "User Commands"'
    yield ".SH NAME"
    yield rf"{roff.plain(name)} \- {roff.plain(summary[:1].lower() + summary[1:])}"


def _usage(line: str) -> str:
    head = re.match(r"vram( [a-z]+)*", line)
    cut = head.end() if head else 0
    return f"{roff.bold(line[:cut])}{roff.line(line[cut:])}"


def _arguments(command: Command) -> Iterator[str]:
    pairs = _terms(command)
    if pairs:
        yield ".SH OPTIONS"
        yield from roff.terms(pairs)


def _terms(command: Command) -> list[tuple[str, str]]:
    return [(_term(each), each.help) for each in (*command.positionals, *command.options)]


def _term(argument: Argument) -> str:
    flags = ", ".join(map(roff.bold, argument.flags))
    return " ".join(filter(None, [flags, roff.italic(argument.placeholder) if argument.value else ""]))


def _exit_status(codes: tuple[exit_table.Code, ...] | list[exit_table.Code]) -> Iterator[str]:
    yield ".SH EXIT STATUS"
    yield from roff.terms((roff.bold(str(code.number)), code.meaning) for code in codes)


def _places(title: str, places: tuple[Place, ...] | list[Place]) -> Iterator[str]:
    if places:
        yield f'.SH "{title}"'
        yield from roff.terms((roff.italic(place.name), place.text) for place in places)


def _mentioned(command: Command, commands: tuple[Command, ...]) -> list[str]:
    """The other commands that this one's own words name."""
    words = [command.summary, command.description, command.epilog]
    words += [argument.help for each in command.everything() for argument in each.options]
    named = set(re.findall(r"vram ([a-z]+)", " ".join(words)))
    return [each.words[0] for each in commands if each.words[0] in named and each is not command]


def _see_also(names: list[str]) -> Iterator[str]:
    sections = {"proc": 5, "lsof": 8}
    yield ".SH SEE ALSO"
    yield ",\n".join(rf"\fB{roff.plain(name)}\fR({sections.get(name, 1)})" for name in names)
