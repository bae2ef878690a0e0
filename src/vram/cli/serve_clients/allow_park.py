"""``vram serve allow-park PID``: let a process of yours be parked when it is idle and somebody waits."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from vram.cli.arguments import pid_number
from vram.cli.serve_clients import add_socket_argument
from vram.cli.terminal import emit
from vram.errors import ExitCode

HELP = "let your process be parked while it is idle and somebody waits for room"


def add_arguments(parser: ArgumentParser) -> None:
    parser.epilog = (
        "Only the owner of a process can allow this. The same is said at its start by VRAM_ALLOW_PARK=idle in"
        " its environment. It has an effect only where the administrator has a policy park-idle."
    )
    parser.add_argument("pid", type=pid_number, metavar="PID", help="your process")
    parser.add_argument("--revoke", action="store_true", help="do not allow it any more")
    add_socket_argument(parser)


def run(args: Namespace) -> int:
    from vram.serve.client import ServeClient

    with ServeClient(args.socket) as client:
        client.data("allow-park", pid=args.pid, revoke=args.revoke)
    done = "is not parked by policies any more" if args.revoke else "may be parked while it is idle"
    emit(f"pid {args.pid} {done}\n")
    return ExitCode.OK
