"""The command line's entry point: finds the command, prints errors, picks the exit code."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn, Protocol, TextIO, cast

from vram.cli import prestart
from vram.errors import ExitCode, UsageError, VramError, WrongSystem, require_linux
from vram.interrupts import raise_if_interrupted, was_interrupted

if TYPE_CHECKING:
    from argparse import Namespace

    from vram.cli.arguments import Parser

# Every command, in the order and under the headings of the help.
GROUPS = {
    "Look": ("why", "ps", "top", "who", "watch", "inside", "oom"),
    "Free": ("free", "release", "trim", "park", "unpark", "sleep", "wake", "kill", "wait", "borrow"),
    "Record": ("run", "attach", "report"),
    "Serve": ("serve", "history", "fleet", "slurm"),
    "Check": ("check", "limit", "doctor", "explain"),
    "More": ("reset", "snapshot", "lab", "demo", "virtual", "help", "completion"),
}
COMMANDS = tuple(name for names in GROUPS.values() for name in names)
# What the one screen of help shows with a command's name.
_WITH_NAME = {
    "why": "(default)",
    "inside": "PID",
    "oom": "LOG",
    "release": "PID",
    "trim": "PID",
    "kill": "PID",
    "wait": "SIZE",
    "borrow": "SIZE",
}

# Old names, and the words that they stand for now: they work as before, and are listed nowhere.
ALIASES = {
    "flush": ("trim",),
    "parked": ("park",),
    "detach": ("attach", "--stop"),
    "fit": ("report", "fit"),
}

DEFAULT = "why"
_ABOUT_THE_PROGRAM = ("-h", "--help", "--version", "--include")
EPILOG = """\
`vram COMMAND --help` has more about a command.
No GPU here? `vram demo` needs none."""


class CommandModule(Protocol):
    """What every module in ``commands/`` offers."""

    HELP: str

    def add_arguments(self, parser: Parser) -> None: ...
    def run(self, args: Namespace) -> int: ...


# Names and options of these may stand in any order: `vram lab run --json kill-nine`.
MIXED = frozenset(("fleet", "history", "lab", "report"))
# What follows the first -- of these is a command to run, and none of our own words.
RUNNERS = frozenset(("borrow", "run", "serve", "wait"))


def entry() -> NoReturn:
    """Run as a program: as :func:`main`, and gone as soon as the answer is out."""
    # Before anything else: prestart begins processes, and imports what Windows' Python does not have.
    try:
        require_linux(sys.platform)
    except WrongSystem as error:
        _complain(str(error), error.hint)
        sys.exit(error.exit_code)
    is_short = prestart.begin(without_alias(with_command(sys.argv[1:])))
    try:
        code = main()
    finally:
        _flush_or_silence()
    if is_short:
        # A full shutdown of the interpreter takes longer, and waits for a driver call that hangs in a thread.
        os._exit(code)
    # Threads are waited for and exit handlers run as ever. Only garbage is not looked for any more: that
    # takes a seventh of `vram free`.
    gc.freeze()
    sys.exit(code)


@contextmanager
def exit_on_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise SystemExit, so that they pass every clean-up as Ctrl-C does."""
    import signal

    def leave(number: int, _: object) -> NoReturn:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Never raises for what a user can cause."""
    try:
        code = _dispatch(list(sys.argv[1:] if argv is None else argv))
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except VramError as error:
        _complain(str(error), error.hint)
        return error.exit_code
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        _silence(sys.stdout)
        return ExitCode.BROKEN_PIPE
    except Exception:
        if was_interrupted():
            return ExitCode.INTERRUPTED
        # Python would exit 1, which `vram check` uses to say that a GPU is held.
        sys.excepthook(*sys.exc_info())
        _complain("this is a bug in vram", "please report it, with the lines above")
        return ExitCode.INTERNAL


def with_command(argv: list[str]) -> list[str]:
    """Return *argv* beginning with a command: bare `vram`, with options or without, is `vram why`."""
    if argv and (not argv[0].startswith("-") or argv[0] in _ABOUT_THE_PROGRAM):
        return argv
    return [DEFAULT, *argv]


def without_alias(argv: list[str]) -> list[str]:
    """Return *argv* with the old name of a command replaced by the words of today."""
    return [*ALIASES[argv[0]], *argv[1:]] if argv[0] in ALIASES else argv


def _dispatch(argv: list[str]) -> int:
    said = with_command(argv)
    argv = without_alias(said)
    name = argv[0]
    if name in _ABOUT_THE_PROGRAM:
        return _about_the_program(argv)
    if name not in COMMANDS:
        from difflib import get_close_matches

        close = get_close_matches(name.lower(), COMMANDS, n=1)
        hint = f"did you mean `vram {close[0]}`?" if close else "see `vram --help`"
        raise UsageError(f"no such command: {name!r}", hint=hint)
    from argparse import Namespace

    from vram.cli.arguments import Parser

    command = _load(name)
    description = _sentence(command.HELP)
    if said[0] in ALIASES:
        today = " ".join(("vram", *ALIASES[said[0]]))
        description = f"`vram {said[0]}` is the old name of `{today}`.\n\n{description}"
    parser = Parser(prog=f"vram {name}", description=description)
    command.add_arguments(parser)
    # Parted at the first --, since argparse takes options of both sides for ours.
    words, rest = argv[1:], []
    if name in RUNNERS and "--" in words:
        at = words.index("--")
        words, rest = words[:at], words[at + 1 :]
    try:
        parse = parser.parse_intermixed_args if name in MIXED else parser.parse_args
        args = parse(words, Namespace(command=rest, said=said[0]))
    except SystemExit:
        return ExitCode.OK
    raise_if_interrupted()
    return command.run(args)


def _about_the_program(argv: list[str]) -> int:
    import vram
    from vram.cli.arguments import Parser

    parser = Parser(prog="vram", usage="vram [COMMAND] [...]", epilog=EPILOG)
    parser.add_argument("--version", action="version", version=f"vram {vram.__version__}")
    # As `pybind11 --includes`: what a compiler takes. argparse would wrap a long path.
    parser.add_flag("--include", help="print the compiler option that finds vram.hpp, and exit")
    if argv == ["--include"]:
        print(f"-I{os.path.join(os.path.dirname(os.path.abspath(vram.__file__)), 'include')}")
        return ExitCode.OK
    if argv[0] in ("-h", "--help"):
        summary = str(vram.__doc__).splitlines()[0].removeprefix("vram: ")
        parser.description = f"{_sentence(summary)}\n\n{overview()}"
    try:
        parser.parse_args(argv)
    except SystemExit:
        return ExitCode.OK
    raise UsageError("a command comes first", hint="see `vram --help`")


def overview() -> str:
    """The commands by group, on one small screen; no command is imported for it."""
    from textwrap import fill

    from vram.cli.terminal import carries_unicode, columns

    between = " · " if carries_unicode() else ", "
    lines = []
    for group, names in GROUPS.items():
        if group == "More":
            continue
        # A name and the word after it stay on one line: textwrap breaks at no other space.
        words = between.join(f"{name}\xa0{_WITH_NAME.get(name, '')}".rstrip("\xa0") for name in names)
        line = fill(words, min(columns(), 100), initial_indent=f"  {group:<10}", subsequent_indent=" " * 12)
        lines.append(line.replace("\xa0", " "))
    return "\n".join([*lines, "  More: vram help all"])


def listing() -> str:
    """Every command with its line, by group."""
    from textwrap import fill

    from vram.cli.terminal import columns

    margin = max(map(len, COMMANDS)) + 4
    lines = []
    for group, names in GROUPS.items():
        lines.append(f"{group}:")
        for name in names:
            start = f"  {name}".ljust(margin)
            indent = " " * margin
            width = min(columns(), 100)
            lines.append(fill(_load(name).HELP, width, initial_indent=start, subsequent_indent=indent))
    return "\n".join(lines) + "\n"


def _load(name: str) -> CommandModule:
    from importlib import import_module

    return cast("CommandModule", import_module(f"vram.cli.commands.{name}"))


def _sentence(text: str) -> str:
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def _complain(message: str, hint: str) -> None:
    from vram.cli.terminal import say

    say(message, [f"  hint: {hint}"] if hint else [])


def _flush_or_silence() -> None:
    """Write what is left; after a failure the interpreter must not try again, or it exits with 120."""
    for stream in (sys.stdout, sys.stderr):
        if stream is None:  # closed before we were started
            continue
        try:
            stream.flush()
        except OSError:
            _silence(stream)


def _silence(stream: TextIO) -> None:
    from vram.cli.terminal import silence

    silence(stream)
