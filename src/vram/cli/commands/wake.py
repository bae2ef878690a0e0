"""``vram wake``: wake programs that sleep."""

from __future__ import annotations

from argparse import Namespace

from vram.cli.arguments import Parser, add_yes_argument
from vram.cli.parking import add_pids_argument, numbers
from vram.cli.terminal import emit, emit_json
from vram.errors import CannotPark, ExitCode, UsageError

HELP = "wake programs that sleep"
_EPILOG = """\
Where its GPU is full, a program waits until others that sleep and wake have made room, or until there
is room. One that sleeps whenever it is idle (`vram sleep --idle`) does so again, unless --forget is given."""


def add_arguments(parser: Parser) -> None:
    parser.epilog = _EPILOG
    add_pids_argument(parser)
    parser.add_flag("--all", help="all programs that sleep")
    parser.add_flag("--forget", help="and do not put it to sleep again when it is idle")
    add_yes_argument(parser)
    parser.add_flag("--json", help="one JSON object instead of text")


def run(args: Namespace) -> int:
    from vram.host.local import LocalClock
    from vram.report.sleeping import SleepReport, woke_sentence
    from vram.sleeping import client
    from vram.sleeping.protocol import Verb

    pids = numbers(args.pids)
    if bool(pids) == args.all:
        raise UsageError("no pid given", hint="`vram wake PID…` or `vram wake --all`")
    known = {pid for each in client.listed() for pid in each.pids}
    missing = [pid for pid in pids if pid not in known]
    if missing:
        raise CannotPark(f"pid {missing[0]} does not sleep", hint="`vram sleep` lists those that do")
    do: Verb = "forget" if args.forget else "wake"
    found = client.ask(do, [(pid, 0) for pid in pids]) if known else ()
    if args.json:
        emit_json(SleepReport(taken_at=LocalClock().now(), sleeping=found))
    else:
        emit("".join(f"{woke_sentence(each)}\n" for each in found) or "Nothing sleeps.\n")
    return ExitCode.OK
