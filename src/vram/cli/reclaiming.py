"""What ``free``, ``kill`` and ``serve free`` share: plan, ask, run exactly that, show what was freed."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from vram.cli.arguments import (
    Parser,
    accept_old_option,
    add_deadline_argument,
    gpu_numbers,
)
from vram.cli.terminal import add_terminal_arguments, ask, emit, is_dialogue, show
from vram.errors import ExitCode, NotPermitted, Protected, UsageError, WorldChanged

if TYPE_CHECKING:
    from vram.host.local import LocalHost
    from vram.model.plan import Draft, Outcome, Receipt, Skipped

MIN_DIGEST_LENGTH = 8
# As reclaim.actions has it, which is imported only where something is planned.
GENTLE = ("release", "trim")


def add_plan_arguments(parser: Parser) -> None:
    """Add what says which memory is meant, and what may be done for it."""
    option = parser.add_argument
    parser.add_size("size", nargs="?", help="how much should be available on one GPU, e.g. 20GiB")
    parser.add_size("--more", help="free SIZE more than is available now")
    option("--gpu", action="append", metavar="N[,N...]", help="only memory on these GPUs (repeatable)")
    parser.add_flag("--orphans", help="also end jobs whose launcher is dead (VR208)")
    parser.add_flag("--release", help="also ask servers of yours to release their memory")
    parser.add_flag("--caches", help="also release unused caches of running processes")
    parser.add_flag("--park-idle", help="also park idle processes of yours")
    option("--up-to", choices=("trim", "park", "kill"), help="the most harmful action allowed")
    option(
        "--finding",
        action="append",
        default=[],
        metavar="CODE",
        help="only what this finding of `vram why` names (repeatable)",
    )
    pid = parser.add_pid(
        "--pid", action="append", default=[], help="only this process, even if it is in use (repeatable)"
    )
    accept_old_option(parser, pid, "--from")
    add_alone_argument(parser)


def add_alone_argument(parser: Parser) -> None:
    parser.add_flag(
        "--only", help="this process alone, although others hold the same ghost and keep its memory"
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
        "orphans": args.orphans,
        "caches": args.caches,
        "release": args.release,
        "park_idle": args.park_idle,
        "alone": args.only,
    }
    # A size of 0 was given, too.
    return {name: value for name, value in words.items() if value or (value == 0 and value is not False)}


def add_reclaim_arguments(parser: Parser) -> None:
    parser.add_flag("--dry-run", help="only show the plan and touch nothing")
    parser.add_flag(
        "--yes",
        "-y",
        help="run the plan without asking; without it and without a terminal, the plan is only shown",
    )
    parser.add_argument(
        "--digest",
        type=_digits,
        metavar="HEX",
        help="run the plan only if it has this digest (8 digits or more), as an earlier --dry-run showed",
    )
    parser.add_flag("--json", help="one JSON object instead of text; never asks")
    parser.add_flag("--verbose", "-v", help="every step and every process skipped")
    parser.add_duration("--grace", default=10.0, help="wait this long after SIGTERM before SIGKILL")
    add_deadline_argument(parser)
    add_terminal_arguments(parser)


class Reclaimed(NamedTuple):
    """A plan and what came of it; ``left`` is memory of dead owners that is still held."""

    draft: Draft
    receipt: Receipt | None = None
    left: tuple[Skipped, ...] = ()


class Reclaimer(Protocol):
    """Where a plan is made and carried out: in this process, or by the service."""

    def plan(self) -> Draft: ...
    def run(self, draft: Draft, on_outcome: Callable[[Outcome], None]) -> Reclaimed: ...


class LocalReclaimer:
    """Makes a plan by *make*, and carries it out in this process."""

    def __init__(self, args: Namespace, host: LocalHost, make: Callable[[], Draft]) -> None:
        self._args, self._host, self._make = args, host, make

    def plan(self) -> Draft:
        try:
            return self._make()
        except (NotPermitted, Protected) as error:
            if not self._args.dry_run and (self._args.yes or _person(self._args)):
                from vram.reclaim import audit

                audit.log_refusal({"message": str(error), "pids": list(self._args.pid or ())})
            raise

    def run(self, draft: Draft, on_outcome: Callable[[Outcome], None]) -> Reclaimed:
        from vram.reclaim import execute

        receipt = execute(
            draft.plan,
            host=self._host,
            deadline_s=self._args.deadline,
            patience_s={"kill": self._args.grace},
            on_outcome=on_outcome,
            together=_ends_as_one(self._args, draft),
        )
        return Reclaimed(draft, receipt, self._left(draft, receipt))

    def _left(self, draft: Draft, receipt: Receipt) -> tuple[Skipped, ...]:
        """Who still holds memory whose owner is dead, where neither a size nor a process was named.

        Read again only where less was freed than promised.
        """
        if draft.plan.goal_bytes is not None or self._args.pid:
            return ()
        known = any(each.leftover for each in draft.skipped)
        returned, promised = receipt.returned_bytes, receipt.promised_bytes
        if not known and returned is not None and promised is not None and returned >= promised:
            return ()
        from vram.reclaim import remaining

        findings = tuple(getattr(self._args, "finding", ()))
        return remaining(draft.plan, findings, host=self._host, deadline_s=self._args.deadline)


def _ends_as_one(args: Namespace, draft: Draft) -> bool:
    from vram.reclaim import ends_orphans_alone

    return getattr(args, "job", False) or ends_orphans_alone(draft.plan)


def reclaim(args: Namespace, where: Reclaimer) -> int:
    """Make a plan, and run it where that is wanted. Returns the exit code."""
    draft = where.plan()
    if args.digest is not None and not draft.plan.digest.startswith(args.digest):
        raise WorldChanged(
            f"the plan is now {draft.plan.digest[:12]}, not {args.digest[:12]}: the machine has changed",
            hint="check the new plan first: --dry-run",
        )
    if not args.json:
        from vram.report.plan import draft as plan_text

        show(args, lambda options: plan_text(draft, options, verbose=args.verbose))
    done = Reclaimed(draft)
    if draft.plan.steps and not args.dry_run and (args.yes or (_person(args) and ask("Proceed?"))):
        if not args.json:
            emit("\n")
        with _shown_outcomes(args, draft) as on_outcome:
            done = where.run(draft, on_outcome)
    _show_end(args, done)
    return _exit_code(args, done)


@contextmanager
def _shown_outcomes(args: Namespace, draft: Draft) -> Iterator[Callable[[Outcome], None]]:
    """Print a line for each step as soon as it is over; for many, or a job, one for each kind, at the end."""
    from vram.report import plan

    folded: list[Outcome] = []
    folds = len(draft.plan.steps) > plan.FEW_STEPS or _ends_as_one(args, draft)

    def add(outcome: Outcome) -> None:
        if args.json:
            return
        if args.verbose or not folds:
            show(args, lambda options: plan.outcome(outcome, options))
        else:
            folded.append(outcome)

    try:
        yield add
    finally:
        if folded:
            show(args, lambda options: plan.outcomes(folded, options))


def _show_end(args: Namespace, done: Reclaimed) -> None:
    receipt, left = done.receipt, done.left
    if args.json:
        from vram.report import json_reports

        emit(json_reports.reclaim(*done))
    elif receipt is not None:
        from vram.report import plan

        emit("\n")
        show(args, lambda options: plan.receipt(receipt, options))
        if left:
            show(args, lambda options: plan.still_held(left, options))
    elif done.draft.plan.steps:
        emit("\nNothing was touched.\n" if args.dry_run else "\nNothing was touched. --yes runs this plan.\n")


def _exit_code(args: Namespace, done: Reclaimed) -> int:
    """OK only where the goal was measured to be met, or nothing was asked and no leftover is left.

    So that ``vram free 20GiB && train`` is safe: a plan that was only shown, or declined, has freed
    nothing.
    """
    receipt = done.receipt
    if receipt is None:
        waits = not args.pid and any(each.leftover for each in done.draft.skipped)
        return ExitCode.HELD if done.draft.plan.steps or waits else ExitCode.OK
    if any(each.step.kind in GENTLE and each.status == "failed" for each in receipt.outcomes):
        return ExitCode.PARTIAL  # a program was harmed: no number of bytes makes up for that
    goal, returned = receipt.goal_bytes, receipt.returned_bytes
    if goal is not None and returned is not None and returned >= goal:
        return ExitCode.OK
    # Caches are a welcome extra: that one of many Pythons does not answer is said, and no failure.
    required = [each for each in receipt.outcomes if each.step.kind not in GENTLE or args.pid]
    if any(each.status in ("refused", "failed", "unkillable") for each in required):
        return ExitCode.PARTIAL
    return ExitCode.HELD if goal is not None or done.left else ExitCode.OK


def _digits(text: str) -> str:
    # An empty word too is no digest: it is what a script hands over whose variable is unset.
    if len(text) < MIN_DIGEST_LENGTH or set(text.lower()) - set("0123456789abcdef"):
        raise UsageError("8 hexadecimal digits or more are needed", hint="a --dry-run shows them")
    return text.lower()


def _person(args: Namespace) -> bool:
    return not args.json and is_dialogue()
