"""``vram serve free``: as ``vram free``, planned and run by the service with your rights."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from vram.cli.reclaiming import (
    ShownOutcomes,
    add_plan_arguments,
    add_reclaim_arguments,
    consent,
    exit_code,
    plan_words,
    require_digest,
)
from vram.cli.serve_clients import add_socket_argument
from vram.cli.terminal import emit, render_options, show

if TYPE_CHECKING:
    from vram.model.plan import Draft
    from vram.report.json_reports import ReclaimReport
    from vram.serve.socket.client import ServeClient

HELP = "as `vram free`, planned and run by the service with your rights"


def add_arguments(parser: ArgumentParser) -> None:
    add_plan_arguments(parser)
    add_reclaim_arguments(parser)
    add_socket_argument(parser)


def run(args: Namespace) -> int:
    from vram.model.plan import Draft
    from vram.serve.socket.client import ServeClient

    with ServeClient(args.socket) as client:
        report = _report(client.data("plan", words=plan_words(args), deadline_s=args.deadline))
        draft = Draft(plan=report.plan, skipped=report.skipped)
        require_digest(args, draft)
        if not args.json:
            from vram.report.plan import draft as shown

            look = render_options(args)
            show(shown(draft, look, verbose=args.verbose), args, look)
        if draft.plan.steps and consent(args, "Proceed?"):
            report = _run(client, args, draft)
    _show_end(args, report)
    return exit_code(args, draft, report.receipt, report.left)


def _report(data: bytes) -> ReclaimReport:
    from vram.report.json_reports import ReclaimReport
    from vram.untrusted import decode

    return decode(data, ReclaimReport)


def _run(client: ServeClient, args: Namespace, draft: Draft) -> ReclaimReport:
    from msgspec import UnsetType

    from vram.model.plan import Outcome
    from vram.untrusted import decode

    data = b"{}"
    if not args.json:
        emit("\n")
    patience = {"grace_s": args.grace, "deadline_s": args.deadline}
    shown = ShownOutcomes(args, len(draft.plan.steps))
    asked = client.ask("run", words=plan_words(args), digest=draft.plan.digest, **patience)
    for answer in asked:
        if isinstance(answer.data, UnsetType):
            continue
        if answer.is_last:
            data = bytes(answer.data)
        elif answer.event == "outcome":
            shown.add(decode(bytes(answer.data), Outcome))
    shown.finish()
    return _report(data)


def _show_end(args: Namespace, report: ReclaimReport) -> None:
    if args.json:
        from vram.report.json import encode

        emit(encode(report))
    elif report.receipt is not None:
        from vram.report.plan import receipt, still_held

        look = render_options(args)
        emit("\n")
        show(receipt(report.receipt, look), args, look)
        if report.left:
            show(still_held(report.left, look), args, look)
    elif report.plan.steps:
        more = "" if args.dry_run else " --yes runs this plan."
        emit(f"\nNothing was touched.{more}\n")
