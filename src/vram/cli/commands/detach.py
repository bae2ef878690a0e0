"""``vram detach``: stop recording a process, whoever began it: `vram attach` or `vram run`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from vram.cli.arguments import add_attach_arguments, add_yes_argument, pid_number, wanted_via
from vram.cli.prestart import open_host
from vram.errors import ExitCode

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
    add_attach_arguments(parser, DEADLINE_S)
    add_yes_argument(parser)


def run(args: Namespace) -> int:
    host = open_host(reads_driver=False)
    from vram.cli.tracing import say, trace_line
    from vram.trace.attach import detach

    receipt = detach(host, args.pid, via=wanted_via(args), deadline_s=args.deadline)
    say(f"pid {args.pid} is no longer recorded")
    say(trace_line(receipt.answer.file))
    return ExitCode.OK
