"""``vram sleep``: a program sleeps until it is wanted: its GPU memory lies in host memory meanwhile.

vram sleep 4711               now, until a request, a signal or `vram wake`
vram sleep --idle 10min 4711  whenever it has been idle for so long
vram sleep --check 4711       what would wake it, and what vram cannot see; nothing is done
vram sleep                    lists what sleeps
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING

from vram.cli.arguments import Parser, add_yes_argument
from vram.cli.parking import add_pids_argument, numbers, with_jobs
from vram.cli.prestart import open_host
from vram.cli.terminal import add_terminal_arguments, emit, emit_json, show_report
from vram.errors import ExitCode, UsageError, VramError

if TYPE_CHECKING:
    from vram.host.ports import Host
    from vram.model.sleeping import SleepCheck, SleepOptions

HELP = "a program gives up its GPU memory until a request comes in; without PID, list what sleeps"
_EPILOG = """\
All its GPU memory moves to host memory, and it is stopped, as by `vram park`. A connection to
its port, data on a connection, a pipe or a terminal, a signal or `vram wake` wakes it: the memory
moves back, it runs on, and answers. The kernel keeps what arrives meanwhile; nothing is lost.

vram sees what arrives in its open files. It does not see time-outs of its own, which come late, nor
memory that another process changes: `vram sleep --check PID` tells how many of its threads wait for
these. Probes of Kubernetes or a load balancer are requests: --port names the ports that count.

A process of yours watches what sleeps ("waker"; it ends when nothing is left, and is started anew if
it is killed). When a program is wanted and its GPU is full, others that it watches are put to sleep,
the least recently used first, none that works; what cannot have room waits for it."""


def add_arguments(parser: Parser) -> None:
    parser.epilog = _EPILOG
    add_pids_argument(parser)
    parser.add_flag("--check", help="only say what would wake it, and what is not visible")
    parser.add_duration("--idle", help="put it to sleep whenever it has been idle for so long")
    parser.add_argument(
        "--port",
        action="append",
        type=_port,
        default=[],
        metavar="PORT",
        help="only this port wakes it (repeatable)",
    )
    parser.add_duration("--awake", default=5.0, help="after a wake, leave it awake for so long at least")
    parser.add_flag("--job", help="all that was launched together with it, as one program")
    parser.add_flag("--anyway", help="also while it works, and where systemd's watchdog waits for it")
    add_yes_argument(parser)
    parser.add_flag("--json", help="one JSON object instead of text")
    add_terminal_arguments(parser)


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 1 << 16):
        raise UsageError(f"{text!r} is not a port", hint="write it like 8000")
    return int(text)


def run(args: Namespace) -> int:
    from vram.model.sleeping import SleepOptions

    pids = numbers(args.pids)
    if not pids:
        return _list(args)
    host = open_host(reads_driver=False)
    if args.job:
        pids = with_jobs(host, pids)
    options = SleepOptions(idle_s=args.idle, ports=tuple(args.port), min_awake_s=args.awake)
    programs = [pids] if args.job else [[pid] for pid in pids]
    if args.check:
        return _check(args, host, programs, options)
    return _sleep(args, host, programs, options)


def _list(args: Namespace) -> int:
    option = next((name for name in ("check", "idle", "port", "job", "anyway") if getattr(args, name)), None)
    if option is not None:
        raise UsageError(f"--{option} needs a program", hint=f"vram sleep --{option} ... PID")
    from vram.host.local import LocalClock
    from vram.report.sleeping import SleepReport, sleep_text
    from vram.sleeping import client

    now = LocalClock().now()
    report = SleepReport(taken_at=now, sleeping=client.listed())
    show_report(args, report, lambda options: sleep_text(report.sleeping, now, options))
    return ExitCode.OK


def _check(args: Namespace, host: Host, programs: Sequence[Sequence[int]], options: SleepOptions) -> int:
    from vram.report.sleeping import SleepCheckReport, check_text
    from vram.sleeping.checks import check

    code = ExitCode.OK
    for pids in programs:
        found: SleepCheck = check(host, pids, options)
        report = SleepCheckReport(taken_at=host.clock.now(), checked=found)
        show_report(args, report, lambda options, found=found: check_text(found))  # type: ignore[misc]
        if found.refusal:
            code = ExitCode.CANNOT_PARK
    return code


def _sleep(args: Namespace, host: Host, programs: Sequence[Sequence[int]], options: SleepOptions) -> int:
    from vram.cli.terminal import say
    from vram.host.local import LocalClock
    from vram.reclaim.identity import identify
    from vram.report.sleeping import SleepReport, slept_sentence, watched_sentence
    from vram.sleeping import client, moves
    from vram.sleeping.checks import require_all

    done, code = [], 0
    asleep = {pid for each in client.listed() if each.state != "awake" for pid in each.pids}
    for pids in programs:
        try:
            targets = client.identify(pids)
            waits = moves.read_waits(pids)
            moves.require_may_sleep(waits, anyway=args.anyway)
            if args.idle is not None and not set(pids) <= asleep:
                require_all(host, [identify(host, pid) for pid in pids])
            if args.idle is None:
                (sleeper,) = client.ask("sleep", targets, options, anyway=args.anyway)
            else:
                (sleeper,) = client.ask("watch", targets, options)
        except VramError as error:
            code = code or error.exit_code
            say(f"{error}" + (f" ({error.hint})" if error.hint else ""))
            continue
        done.append(sleeper)
        if not args.json:
            sentence = slept_sentence if args.idle is None else watched_sentence
            emit(sentence(sleeper, waits) + "\n")
    if args.json:
        emit_json(SleepReport(taken_at=LocalClock().now(), sleeping=tuple(done)))
    return code
