"""``vram kill``: terminate processes by pidfd, their identity checked, and read the device again."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from vram.cli.arguments import Parser
from vram.cli.prestart import open_host
from vram.cli.reclaiming import LocalReclaimer, add_alone_argument, add_reclaim_arguments, reclaim
from vram.errors import UsageError

if TYPE_CHECKING:
    from vram.model.plan import Draft

HELP = "terminate processes and measure the freed memory"

_EPILOG = """\
Every signal goes through a pidfd, after a check that it is still the same process as in the
plan. Never touched: parts of the system (display servers, driver services, container
runtimes, sshd ...), vram itself and the program that started it. For a dead pid that the
driver still lists, the processes that hold its memory now are terminated. Where several
hold memory of a dead process together, naming one means all: --only means that one alone.
--job PID: the ranks or workers that were launched together (torchrun, deepspeed, mpirun,
multiprocessing, vLLM, SGLang) and the launcher, which would start them again."""


def add_arguments(parser: Parser) -> None:
    parser.epilog = _EPILOG
    parser.add_pid("pid", nargs="+", help="the process to terminate")
    parser.add_flag("--job", help="all that was launched together with them, the launcher first")
    parser.add_flag("--tree", help="also terminate their descendants that are on a GPU")
    add_alone_argument(parser)
    add_reclaim_arguments(parser)


def run(args: Namespace) -> int:
    from vram.reclaim import plan

    host = open_host(read_ahead_s=args.deadline)
    pids = tuple(dict.fromkeys(args.pid))

    if args.job and (args.tree or args.only):
        raise UsageError("--job cannot be combined with --tree or --only", hint="give one of them")

    def make() -> Draft:
        return plan(
            only="kill",
            pids=pids,
            alone=args.only,
            tree=args.tree,
            job=args.job,
            host=host,
            deadline_s=args.deadline,
        )

    return reclaim(args, LocalReclaimer(args, host, make))
