"""docs/reference/commands.md and a page per command: what its parser says, linked."""

from __future__ import annotations

import re
from collections.abc import Iterator

from generators import exit_table, prose
from vram.cli import grammar
from vram.cli.grammar import Command

FOLDER = "docs/reference/commands"


def pages() -> Iterator[tuple[str, str]]:
    commands = grammar.commands()
    yield "docs/reference/commands.md", "\n".join(_index(commands)) + "\n"
    names = {command.words[0] for command in commands}
    for command in commands:
        yield f"{FOLDER}/{command.words[0]}.md", "\n".join(_page(command, names)) + "\n"


def _index(commands: tuple[Command, ...]) -> Iterator[str]:
    yield "# Commands\n"
    yield "One page for each, as `vram COMMAND --help` and `man vram-COMMAND` tell it. The"
    yield "[exit codes](exit-codes.md) are the same everywhere, and [TAB](../guides/completion.md) completes"
    yield "what is typed.\n"
    yield "| command | |"
    yield "|---|---|"
    for command in commands:
        yield f"| [{command.title}](commands/{command.words[0]}.md) | {_cell(command.summary)} |"


def _page(command: Command, names: set[str]) -> Iterator[str]:
    yield f"# {command.title}\n"
    yield f"{_linked(command.summary, command.words[0], names)}\n"
    yield from _body(command, names, "##")
    for below in command.commands:
        yield f"\n## {below.title}\n"
        yield f"{_linked(below.summary, command.words[0], names)}\n"
        yield from _body(below, names, "###")
    yield "\n## Exit status\n"
    yield "| code | meaning |"
    yield "|---:|---|"
    for code in exit_table.for_command(command.words[0]):
        yield f"| {code.number} | {_cell(code.meaning)} |"
    yield "\n[All exit codes](../exit-codes.md) · [all commands](../commands.md)"


def _body(command: Command, names: set[str], level: str) -> Iterator[str]:
    yield f"```text\n{synopsis(command)}\n```"
    for text in (command.description, command.epilog):
        yield from _prose(text, command.words[0], names)
    arguments = (*command.positionals, *command.options)
    if arguments:
        yield f"\n{level} Arguments\n"
        yield "| argument | meaning |"
        yield "|---|---|"
    for argument in arguments:
        yield f"| {_code(argument.spelling)} | {_linked(_cell(argument.help), command.words[0], names)} |"


def synopsis(command: Command) -> str:
    """How the command is called, in one or more lines."""
    if command.usage:
        return "\n".join(line.strip() for line in command.usage.splitlines())
    words = [command.title]
    words += ["[options]"] if command.options else []
    words += ["COMMAND"] if command.commands else []
    words += [each.placeholder for each in command.positionals]
    words += ["[-- COMMAND...]"] if command.runs_another else []
    return " ".join(words)


def _prose(text: str, own: str, names: set[str]) -> Iterator[str]:
    for block in prose.blocks(text):
        if block.kind == "verbatim":
            yield "\n```text"
            yield from _dedented(block.lines)
            yield "```"
        else:
            yield f"\n{'- ' if block.kind == 'item' else ''}{_linked(block.text, own, names)}"


def _dedented(lines: list[str]) -> list[str]:
    margin = min(len(line) - len(line.lstrip()) for line in lines if line)
    return [line[margin:] for line in lines]


def _linked(text: str, own: str, names: set[str]) -> str:
    """Commands that are named in backquotes become links to their pages."""

    def link(match: re.Match[str]) -> str:
        name = match[1]
        return f"[{match[0]}]({name}.md)" if name in names and name != own else match[0]

    return re.sub(r"`vram ([a-z]+)\b[^`]*`", link, text.replace("``", "`"))


def _code(text: str) -> str:
    return "`" + text.replace("|", "\\|") + "`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
