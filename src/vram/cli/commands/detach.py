"""``vram detach``: stop recording a process, whoever began it: `vram attach` or `vram run`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import get_args

from vram.cli.arguments import pid_number, seconds
from vram.cli.prestart import open_host
from vram.errors import ExitCode
from vram.model.inside import Via

NAME = "detach"
HELP = "stop recording a process"

DEADLINE_S = 30.0
EPILOG = """\
The process continues. Its trace is complete then; one of `vram run` is put together with the
others of that run when the command ends. Only Python processes can be detached from outside.
"""


def add_arguments(parser: ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument("pid", type=pid_number, metavar="PID", help="the process that is being recorded")
    parser.add_argument(
        "--via",
        choices=("auto", *get_args(Via)),
        default="auto",
        help="how to attach (default: the safest that works)",
    )
    parser.add_argument(
        "--deadline",
        type=seconds,
        default=DEADLINE_S,
        metavar="S",
        help="give up after S seconds (default: %(default)g)",
    )


def run(args: Namespace) -> int:
    host = open_host(reads_driver=False)
    from vram.cli.tracing import say, trace_line
    from vram.trace.attach import detach

    via = None if args.via == "auto" else args.via
    receipt = detach(host, args.pid, via=via, deadline_s=args.deadline)
    say(f"pid {args.pid} is no longer recorded")
    say(trace_line(receipt.answer.file))
    return ExitCode.OK
