"""``vram serve allow-park PID``: let a process of yours be parked when it is idle and somebody waits."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from vram.cli.arguments import pid_number
from vram.cli.serve_clients import add_socket_argument
from vram.cli.terminal import emit
from vram.errors import ExitCode

_EPILOG = """\
Only the owner of a process can allow this. VRAM_ALLOW_PARK=idle in the environment of a
process says the same at its start. It has an effect only where the administrator has a
policy park-idle. While it is parked, `vram park` lists it and `vram unpark` resumes it."""
HELP = "let your process be parked while it is idle and somebody waits for room"


def add_arguments(parser: ArgumentParser) -> None:
    parser.epilog = _EPILOG
    parser.add_argument("pid", type=pid_number, metavar="PID", help="your process")
    parser.add_argument("--revoke", action="store_true", help="do not allow it any more")
    add_socket_argument(parser)


def run(args: Namespace) -> int:
    from vram.serve.socket.client import ServeClient

    with ServeClient(args.socket) as client:
        client.data("allow-park", pid=args.pid, revoke=args.revoke)
    done = "is not parked by policies any more" if args.revoke else "may be parked while it is idle"
    emit(f"pid {args.pid} {done}\n")
    return ExitCode.OK
