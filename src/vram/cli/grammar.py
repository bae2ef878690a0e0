"""The command line as data, read from its own parsers: what completion and the manual are made of."""

from __future__ import annotations

import argparse
from argparse import ArgumentParser
from collections.abc import Iterator
from importlib import import_module
from inspect import cleandoc
from typing import Literal

from msgspec import Struct

Kind = Literal["none", "words", "pid", "parked", "gpu", "file", "folder"]

# Words that can stand somewhere, each with what it means.
Words = tuple[tuple[str, str], ...]

# The placeholder in an argument's help says what can stand there.
_KINDS: dict[str, Kind] = {
    "PID": "pid",
    "GPU": "gpu",
    "FILE": "file",
    "PATH": "file",
    "FOLDER": "folder",
    "DIR": "folder",
}
# Here stands what the command's own ``known_names`` lists.
_NAMED = ("NAME", "COMMAND", "CODE", "VIEW")
# ... or a file.
_NAMED_OR_FILE = ("VIEW",)
# Processes that are parked hold nothing on a GPU, so no list of holders has them.
_OF_THE_PARKED = frozenset(("unpark",))
# A trace's processes have mostly ended: none can be listed.
_OF_TRACES = frozenset(("report",))


class Argument(Struct, frozen=True):
    """One word, or one option with its value."""

    flags: tuple[str, ...]
    value: str
    help: str
    kind: Kind = "none"
    words: Words = ()
    or_file: bool = False
    """A file may stand in the words' place."""
    optional: bool = False
    repeats: bool = False

    @property
    def takes_value(self) -> bool:
        return bool(self.value)

    @property
    def placeholder(self) -> str:
        """The value as it is written in a synopsis."""
        shown = f"{self.value}..." if self.repeats and not self.flags else self.value
        return f"[{shown}]" if self.optional and shown else shown

    @property
    def spelling(self) -> str:
        return " ".join(filter(None, [", ".join(self.flags), self.placeholder]))


class CommandSpec(Struct, frozen=True):
    """A command, or one of its own: ``lab`` and ``lab run``."""

    words: tuple[str, ...]
    summary: str
    description: str
    epilog: str
    usage: str
    options: tuple[Argument, ...]
    positionals: tuple[Argument, ...]
    commands: tuple[CommandSpec, ...] = ()
    runs_another: bool = False

    @property
    def title(self) -> str:
        return " ".join(("vram", *self.words))

    @property
    def valued_options(self) -> tuple[Argument, ...]:
        """The options that the next word belongs to."""
        return tuple(each for each in self.options if each.takes_value and not each.optional)

    def everything(self) -> Iterator[CommandSpec]:
        """This command and all below it."""
        yield self
        for command in self.commands:
            yield from command.everything()


def commands() -> tuple[CommandSpec, ...]:
    """Every command of the program, in the order of its own list."""
    from vram.cli.app import COMMANDS

    return tuple(map(command, COMMANDS))


def command(name: str) -> CommandSpec:
    """The command *name*, as its parser describes it."""
    from vram.cli.app import RUNNERS
    from vram.cli.arguments import Parser

    module = import_module(f"vram.cli.commands.{name}")
    parser = Parser(prog=f"vram {name}")
    module.add_arguments(parser)
    story = cleandoc(module.__doc__ or "").partition("\n")[2].strip("\n")
    names: Words = module.known_names() if hasattr(module, "known_names") else ()
    return _Reader(names).read((name,), module.HELP, story, parser, runner=name in RUNNERS)


class _Reader:
    """Reads one command's parser, and the parsers below it."""

    def __init__(self, names: Words) -> None:
        self._names = names

    def read(
        self,
        words: tuple[str, ...],
        summary: str,
        story: str,
        parser: ArgumentParser,
        *,
        runner: bool = False,
    ) -> CommandSpec:
        shown = [each for each in parser._actions if each.help != argparse.SUPPRESS or _is_rest(each)]
        below = [each for each in shown if isinstance(each, argparse._SubParsersAction)]
        plain = [each for each in shown if each not in below and not _is_rest(each)]
        return CommandSpec(
            words=words,
            summary=sentence(summary),
            description=story,
            epilog=(parser.epilog or "").strip("\n"),
            # What the parser was given; argparse's own line differs from one Python to the next.
            usage=parser.usage or "",
            options=tuple(self._argument(words, each) for each in plain if each.option_strings),
            positionals=tuple(self._argument(words, each) for each in plain if not each.option_strings),
            commands=tuple(each for action in below for each in self._below(words, action)),
            runs_another=runner or any(map(_is_rest, shown)),
        )

    def _below(
        self, words: tuple[str, ...], action: argparse._SubParsersAction[ArgumentParser]
    ) -> list[CommandSpec]:
        helps = {each.dest: each.help or "" for each in action._choices_actions}
        return [
            self.read((*words, name), helps.get(name) or parser.description or "", "", parser)
            for name, parser in action.choices.items()
            if name in helps  # an old name has none
        ]

    def _argument(self, words: tuple[str, ...], action: argparse.Action) -> Argument:
        value = "" if action.nargs == 0 else _value(action)
        known = self._words(action, value)
        return Argument(
            flags=tuple(action.option_strings),
            value=value,
            help=(action.help or "") % {**vars(action), "prog": " ".join(("vram", *words))},
            kind="words" if known else _kind(words, action, value),
            words=known,
            or_file=bool(known) and value in _NAMED_OR_FILE,
            optional=action.nargs in ("?", "*"),
            repeats=action.nargs in ("*", "+") or isinstance(action, argparse._AppendAction),
        )

    def _words(self, action: argparse.Action, value: str) -> Words:
        if action.choices:
            return tuple((str(choice), "") for choice in action.choices)
        if value == "CODE" and not self._names:
            from vram.cli import manual

            codes = manual.summaries(manual.rules())
            return codes if action.option_strings else (*codes, *manual.summaries(manual.checks()))
        if value.partition("[")[0] == "EVENT":
            from vram.model.change import GROUPS, MEANINGS

            groups = ((name, ", ".join(events)) for name, events in GROUPS.items())
            return (*groups, *MEANINGS.items())
        return self._names if value in _NAMED else ()


def _value(action: argparse.Action) -> str:
    if isinstance(action.metavar, str):
        return action.metavar
    return "|".join(map(str, action.choices)) if action.choices else action.dest.upper()


def _kind(words: tuple[str, ...], action: argparse.Action, value: str) -> Kind:
    bare = value.partition("[")[0].partition("|")[0]
    if words[0] in _OF_TRACES and bare in ("PID", "N"):
        return "none"
    if bare == "N" and action.dest == "gpu":
        return "gpu"
    if bare == "PID" and words[0] in _OF_THE_PARKED:
        return "parked"
    return _KINDS.get(bare, "none")


def _is_rest(action: argparse.Action) -> bool:
    return action.nargs == argparse.REMAINDER


def sentence(text: str) -> str:
    """*text* with a capital and a full stop."""
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "?")) else ".")
