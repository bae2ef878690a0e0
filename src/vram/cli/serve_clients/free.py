"""``vram serve free``: as ``vram free``, planned and run by the service with your rights."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

from vram.cli.arguments import gpu_numbers, memory_size, pid_number
from vram.cli.reclaiming import add_reclaim_arguments, consent, exit_code, require_digest
from vram.cli.serve_clients import add_socket_argument
from vram.cli.terminal import emit, render_options, show

if TYPE_CHECKING:
    from vram.model.plan import Draft
    from vram.report.json_reports import ReclaimReport
    from vram.serve.socket.client import ServeClient

HELP = "as `vram free`, planned and run by the service with your rights"


def add_arguments(parser: ArgumentParser) -> None:
    option = parser.add_argument
    option("size", nargs="?", type=memory_size, metavar="SIZE", help="how much to free, e.g. 20GiB")
    option("--gpu", action="append", metavar="N[,N...]", help="only on these GPUs (repeatable)")
    option("--up-to", choices=("trim", "park", "kill"), help="the most harmful action allowed")
    option("--park-idle", action="store_true", help="also park idle processes of yours")
    option("--finding", action="append", default=[], metavar="CODE", help="only what this finding names")
    option("--pid", action="append", type=pid_number, default=[], metavar="PID", help="only this process")
    add_reclaim_arguments(parser)
    add_socket_argument(parser)


def run(args: Namespace) -> int:
    from vram.model.plan import Draft
    from vram.serve.socket.client import ServeClient

    with ServeClient(args.socket) as client:
        report = _report(client.data("plan", words=_words(args), deadline_s=args.deadline))
        draft = Draft(plan=report.plan, skipped=report.skipped)
        require_digest(args, draft)
        if not args.json:
            from vram.report.plan import draft as shown

            look = render_options(args)
            show(shown(draft, look), args, look)
        if draft.plan.steps and consent(args, "Proceed?"):
            report = _run(client, args, draft)
    _show_end(args, report)
    return exit_code(args, draft, report.receipt, report.left)


def _words(args: Namespace) -> dict[str, Any]:
    words = {
        "goal_bytes": args.size,
        "gpus": sorted(gpu_numbers(args.gpu or [])),
        "up_to": args.up_to,
        "findings": args.finding,
        "pids": args.pid,
        "park_idle": args.park_idle,
    }
    return {name: value for name, value in words.items() if value}


def _report(data: bytes) -> ReclaimReport:
    from vram.report.json_reports import ReclaimReport
    from vram.untrusted import decode

    return decode(data, ReclaimReport)


def _run(client: ServeClient, args: Namespace, draft: Draft) -> ReclaimReport:
    from msgspec import UnsetType

    from vram.model.plan import Outcome
    from vram.report.plan import outcome as shown
    from vram.untrusted import decode

    data = b"{}"
    if not args.json:
        emit("\n")
    patience = {"grace_s": args.grace, "deadline_s": args.deadline}
    asked = client.ask("run", words=_words(args), digest=draft.plan.digest, **patience)
    for answer in asked:
        if isinstance(answer.data, UnsetType):
            continue
        if answer.is_last:
            data = bytes(answer.data)
        elif answer.event == "outcome" and not args.json:
            look = render_options(args)
            show(shown(decode(bytes(answer.data), Outcome), look), args, look)
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
