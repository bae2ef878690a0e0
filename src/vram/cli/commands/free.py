"""``vram free``: free memory with the least harm, and read the device again to prove it."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from vram.cli.arguments import Parser
from vram.cli.prestart import open_host
from vram.cli.reclaiming import (
    LocalReclaimer,
    add_plan_arguments,
    add_reclaim_arguments,
    plan_words,
    reclaim,
)
from vram.errors import UsageError

if TYPE_CHECKING:
    from vram.host.local import LocalHost
    from vram.model.plan import Draft

HELP = "free memory with the least harm: plan, ask, run, measure"

_EPILOG = """\
What it does, least harm first:
  kill     terminates holders of memory whose owner is dead (SIGTERM, then SIGKILL)
  release  with --release: asks servers of yours (vLLM, ollama and others) for their memory
  trim     with --caches: makes running processes release their unused cached memory
  park     pauses a process and moves its GPU memory to host memory, until `vram unpark`
Without SIZE: all memory of dead owners. With SIZE: the smallest plan after which SIZE is
available on one GPU; where it is already, nothing is done. A process in use is parked or
terminated only if --pid names it, an idle one of yours is parked only with --park-idle, and
a stopped one (Ctrl-Z) never is.
Exit code 0: measured, the goal is met; or without SIZE, nothing is left to free.
1: memory is still held (missed, declined, or only shown). See `vram help` for the rest."""


def add_arguments(parser: Parser) -> None:
    parser.epilog = _EPILOG
    add_plan_arguments(parser)
    option = parser.add_argument
    option("--save", type=_file, metavar="FILE", help="also save the plan, for --plan")
    option(
        "--plan",
        type=_file,
        metavar="FILE",
        help="run a saved plan; refused if the machine has changed since",
    )
    add_reclaim_arguments(parser)


def _file(text: str) -> str:
    # An empty word comes from a script whose variable is unset: it must not mean "no file".
    if not text:
        raise UsageError("file name is empty", hint="--plan FILE runs a plan that --save FILE has written")
    return text


def run(args: Namespace) -> int:
    if args.plan and (args.save or plan_words(args)):
        raise UsageError(
            "--plan cannot be combined with other options", hint="give --plan FILE alone, or with --yes"
        )
    host = open_host(read_ahead_s=args.deadline)
    return reclaim(args, LocalReclaimer(args, host, lambda: _make_draft(args, host)))


def _make_draft(args: Namespace, host: LocalHost) -> Draft:
    from vram.model.plan import Draft, PlanRequest
    from vram.reclaim import plan_file, plan_request

    if args.plan:
        return Draft(plan=plan_file.load(args.plan, host.limits.boot_id()))
    draft = plan_request(PlanRequest(**plan_words(args)), host=host, deadline_s=args.deadline)
    if args.save:
        plan_file.save(draft.plan, args.save)
    return draft
