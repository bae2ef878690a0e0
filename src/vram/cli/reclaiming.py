"""What ``free`` and ``kill`` share: plan, show, ask, run exactly that, and show what was freed."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vram.cli.arguments import (
    accept_old_option,
    add_deadline_argument,
    gpu_numbers,
    pid_number,
    read_duration,
)
from vram.cli.terminal import add_terminal_arguments, emit, is_terminal, render_options, show
from vram.errors import ExitCode, NotPermitted, Protected, UsageError, WorldChanged
from vram.units import parse_size

if TYPE_CHECKING:
    from vram.host.local import LocalHost
    from vram.model.plan import Draft, Outcome, Receipt, Skipped

MIN_DIGEST_LENGTH = 8


def add_plan_arguments(parser: ArgumentParser) -> None:
    """Add what says which memory is meant, and what may be done for it."""
    option = parser.add_argument
    option(
        "size",
        nargs="?",
        type=parse_size,
        metavar="SIZE",
        help="how much should be available on one GPU, e.g. 20GiB",
    )
    option("--more", type=parse_size, metavar="SIZE", help="free SIZE more than is available now")
    option("--gpu", action="append", metavar="N[,N...]", help="only memory on these GPUs (repeatable)")
    option("--caches", action="store_true", help="also release unused caches of running Python processes")
    option("--park-idle", action="store_true", help="also park idle processes of yours")
    option("--up-to", choices=("trim", "park", "kill"), help="the most harmful action allowed")
    option(
        "--finding",
        action="append",
        default=[],
        metavar="CODE",
        help="only what this finding of `vram why` names (repeatable)",
    )
    pid = option(
        "--pid",
        action="append",
        type=pid_number,
        default=[],
        metavar="PID",
        help="only this process, even if it is in use (repeatable)",
    )
    accept_old_option(parser, pid, "--from")
    add_alone_argument(parser)


def add_alone_argument(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--only",
        action="store_true",
        help="this process alone, although others hold the same leftover and keep its memory",
    )


def plan_words(args: Namespace) -> dict[str, Any]:
    """The fields of a :class:`vram.model.plan.PlanRequest`, as far as they were given."""
    words = {
        "available_bytes": args.size,
        "goal_bytes": args.more,
        "gpus": tuple(sorted(gpu_numbers(args.gpu or []))),
        "up_to": args.up_to,
        "findings": tuple(args.finding),
        "pids": tuple(args.pid),
        "caches": args.caches,
        "park_idle": args.park_idle,
        "alone": args.only,
    }
    # A size of 0 was given, too.
    return {name: value for name, value in words.items() if value or (value == 0 and value is not False)}


def add_reclaim_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="only show the plan and touch nothing")
    parser.add_argument(
        "--yes",
        "-y",
        action="store_true",
        help="run the plan without asking; without it and without a terminal, the plan is only shown",
    )
    parser.add_argument(
        "--digest",
        type=_digits,
        metavar="HEX",
        help="run the plan only if it has this digest (8 digits or more), as an earlier --dry-run showed",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text; never asks")
    parser.add_argument("--verbose", "-v", action="store_true", help="every step and every process skipped")
    parser.add_argument(
        "--grace",
        type=read_duration,
        default=10.0,
        metavar="DURATION",
        help="wait this long after SIGTERM before SIGKILL (default: 10s)",
    )
    add_deadline_argument(parser)
    add_terminal_arguments(parser)


def reclaim(args: Namespace, host: LocalHost, make: Callable[[], Draft]) -> int:
    """Make a plan, and run it where that is wanted. Returns the exit code."""
    draft = _drafted(args, make)
    require_digest(args, draft)
    if not args.json:
        from vram.report.plan import draft as shown

        look = render_options(args)
        show(shown(draft, look, verbose=args.verbose), args, look)
    receipt = None
    if draft.plan.steps and consent(args, "Proceed?"):
        receipt = _executed(args, host, draft)
    return _ended(args, host, draft, receipt)


def _drafted(args: Namespace, make: Callable[[], Draft]) -> Draft:
    try:
        return make()
    except (NotPermitted, Protected) as error:
        if _may_act(args):
            from vram.reclaim import audit

            audit.log_refusal({"message": str(error), "pids": list(args.pid or ())})
        raise


def require_digest(args: Namespace, draft: Draft) -> None:
    """Raise where --digest names another plan."""
    if args.digest is not None and not draft.plan.digest.startswith(args.digest):
        raise WorldChanged(
            f"the plan is now {draft.plan.digest[:12]}, not {args.digest[:12]}: the machine has changed",
            hint="check the new plan first: --dry-run",
        )


def _executed(args: Namespace, host: LocalHost, draft: Draft) -> Receipt:
    from vram.reclaim import execute

    if not args.json:
        emit("\n")
    shown = ShownOutcomes(args, len(draft.plan.steps))
    patience_s = {"kill": args.grace}
    receipt = execute(
        draft.plan,
        host=host,
        deadline_s=args.deadline,
        patience_s=patience_s,  # type: ignore[arg-type]
        on_outcome=shown.add,
    )
    shown.finish()
    return receipt


class ShownOutcomes:
    """A line for each step as soon as it is over; for many steps a line for each kind, at the end."""

    def __init__(self, args: Namespace, steps: int) -> None:
        from vram.report.plan import FEW_STEPS

        self._args = args
        self._one_by_one = args.verbose or steps <= FEW_STEPS
        self._folded: list[Outcome] = []

    def add(self, outcome: Outcome) -> None:
        from vram.report.plan import outcome as shown

        if self._args.json:
            return
        if self._one_by_one:
            look = render_options(self._args)
            show(shown(outcome, look), self._args, look)
        else:
            self._folded.append(outcome)

    def finish(self) -> None:
        from vram.report.plan import outcomes as shown

        if self._folded:
            look = render_options(self._args)
            show(shown(self._folded, look), self._args, look)


def _ended(args: Namespace, host: LocalHost, draft: Draft, receipt: Receipt | None) -> int:
    left = _left(args, host, draft, receipt) if receipt and _asks_for_everything(args, draft) else ()
    if args.json:
        from vram.report import json_reports

        emit(json_reports.reclaim(draft, receipt, left))
    elif receipt is not None:
        from vram.report.plan import receipt as shown
        from vram.report.plan import still_held

        look = render_options(args)
        emit("\n")
        show(shown(receipt, look), args, look)
        if left:
            show(still_held(left, look), args, look)
    elif draft.plan.steps:
        emit(
            "\nNothing was touched. --yes runs this plan.\n"
            if not args.dry_run
            else "\nNothing was touched.\n"
        )
    return exit_code(args, draft, receipt, left)


def _asks_for_everything(args: Namespace, draft: Draft) -> bool:
    """Whether neither a size nor a process was named: then all leftovers are meant."""
    return draft.plan.goal_bytes is None and not args.pid


def _left(args: Namespace, host: LocalHost, draft: Draft, receipt: Receipt) -> tuple[Skipped, ...]:
    """Who still holds memory whose owner is dead; read again where less was freed than promised."""
    known = tuple(each for each in draft.skipped if each.leftover)
    returned, promised = receipt.returned_bytes, receipt.promised_bytes
    if not known and returned is not None and promised is not None and returned >= promised:
        return ()
    from vram.reclaim import remaining

    findings = tuple(getattr(args, "finding", ()))
    return remaining(draft.plan, findings, host=host, deadline_s=args.deadline)


def exit_code(args: Namespace, draft: Draft, receipt: Receipt | None, left: tuple[Skipped, ...]) -> int:
    """OK only where the goal was measured to be met, or nothing was asked and no leftover is left.

    So that ``vram free 20GiB && train`` is safe: a plan that was only shown, or declined, has freed
    nothing.
    """
    if receipt is None:
        waits = not args.pid and any(each.leftover for each in draft.skipped)
        return ExitCode.HELD if draft.plan.steps or waits else ExitCode.OK
    if any(each.step.kind == "trim" and each.status == "failed" for each in receipt.outcomes):
        return ExitCode.PARTIAL  # a program was harmed: no number of bytes makes up for that
    goal, returned = receipt.goal_bytes, receipt.returned_bytes
    if goal is not None and returned is not None and returned >= goal:
        return ExitCode.OK
    # Caches are a welcome extra: that one of many Pythons does not answer is said, and no failure.
    required = [each for each in receipt.outcomes if each.step.kind != "trim" or args.pid]
    if any(each.status in ("refused", "failed", "unkillable") for each in required):
        return ExitCode.PARTIAL
    return ExitCode.HELD if goal is not None or left else ExitCode.OK


def _digits(text: str) -> str:
    # An empty word too is no digest: it is what a script hands over whose variable is unset.
    if len(text) < MIN_DIGEST_LENGTH or set(text.lower()) - set("0123456789abcdef"):
        raise UsageError("8 hexadecimal digits or more are needed", hint="a --dry-run shows them")
    return text.lower()


def _may_act(args: Namespace) -> bool:
    """Whether this call may run a plan at all."""
    return not args.dry_run and (args.yes or _person(args))


def consent(args: Namespace, question: str) -> bool:
    """Whether to run the plan: ``--yes`` says so, and a person at a terminal is asked."""
    if args.dry_run:
        return False
    return bool(args.yes) or (_person(args) and _ask(question))


def _person(args: Namespace) -> bool:
    return not args.json and is_terminal() and sys.stdin is not None and sys.stdin.isatty()


def _ask(question: str) -> bool:
    emit(f"\n{question} [y/N] ")
    return sys.stdin.readline().strip().lower() in ("y", "yes")
