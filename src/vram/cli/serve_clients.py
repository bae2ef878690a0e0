"""``vram serve status|free|allow-park|allow-sleep``: ask a running service, over its socket."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from vram.cli.arguments import Parser, add_socket_argument
from vram.cli.reclaiming import Reclaimed, add_plan_arguments, add_reclaim_arguments, plan_words, reclaim
from vram.cli.terminal import emit
from vram.errors import ExitCode

if TYPE_CHECKING:
    from vram.model.plan import Draft, Outcome
    from vram.serve.socket.client import ServeClient

_ALLOW_EPILOG = """\
Only the owner of a process can allow this. {variable}=idle in the environment of a
process says the same at its start. It has an effect only where the administrator has a
policy {policy}. {more}"""
_DECISIONS = 10


class ServeWord(NamedTuple):
    """A word that asks a running service instead of starting one."""

    help: str
    add_arguments: Callable[[Parser], None]
    run: Callable[[Namespace], int]


# ---- status ----


def _add_status_arguments(parser: Parser) -> None:
    parser.add_flag("--json", help="one JSON object instead of text")
    add_socket_argument(parser)


def _status(args: Namespace) -> int:
    from vram.serve.socket.client import ServeClient

    with ServeClient(args.socket) as client:
        data = client.data("status", timeout_s=10.0)
    if args.json:
        from vram.report.escape import json_inert

        emit(json_inert(data) + b"\n")
        return ExitCode.OK
    from vram.report.service import ServiceStatus, status
    from vram.untrusted import decode

    emit(status(decode(data, ServiceStatus), _DECISIONS))
    return ExitCode.OK


# ---- free: as `vram free`, but the service plans and acts, with the rights of the user who asks ----


def _add_free_arguments(parser: Parser) -> None:
    add_plan_arguments(parser)
    add_reclaim_arguments(parser)
    add_socket_argument(parser)


def _free(args: Namespace) -> int:
    from vram.serve.socket.client import ServeClient

    with ServeClient(args.socket) as client:
        return reclaim(args, _ServiceReclaimer(args, client))


class _ServiceReclaimer:
    """Has the service make a plan and carry it out."""

    def __init__(self, args: Namespace, client: ServeClient) -> None:
        self._args, self._client = args, client

    def plan(self) -> Draft:
        words, deadline_s = plan_words(self._args), self._args.deadline
        return _read_report(self._client.data("plan", words=words, deadline_s=deadline_s)).draft

    def run(self, draft: Draft, on_outcome: Callable[[Outcome], None]) -> Reclaimed:
        from msgspec import UnsetType

        from vram.model.plan import Outcome
        from vram.untrusted import decode

        data = b"{}"
        for answer in self._client.ask(
            "run",
            words=plan_words(self._args),
            digest=draft.plan.digest,
            grace_s=self._args.grace,
            deadline_s=self._args.deadline,
        ):
            if isinstance(answer.data, UnsetType):
                continue
            if answer.is_last:
                data = bytes(answer.data)
            elif answer.event == "outcome":
                on_outcome(decode(bytes(answer.data), Outcome))
        return _read_report(data)


def _read_report(data: bytes) -> Reclaimed:
    from vram.model.plan import Draft
    from vram.report.json_reports import ReclaimReport
    from vram.untrusted import decode

    report = decode(data, ReclaimReport)
    draft = Draft(plan=report.plan, skipped=report.skipped, activity=report.activity)
    return Reclaimed(draft, report.receipt, report.left)


# ---- allow-park, allow-sleep ----


class _Allow(NamedTuple):
    """What the owner of a process can allow while that is idle."""

    do: str
    epilog: str
    done: str
    revoked: str

    def add_arguments(self, parser: Parser) -> None:
        parser.epilog = self.epilog
        parser.add_pid("pid", help="your process")
        parser.add_flag("--revoke", help="do not allow it any more")
        add_socket_argument(parser)

    def run(self, args: Namespace) -> int:
        from vram.serve.socket.client import ServeClient

        with ServeClient(args.socket) as client:
            client.data(self.do, pid=args.pid, revoke=args.revoke)
        emit(f"pid {args.pid} {self.revoked if args.revoke else self.done}\n")
        return ExitCode.OK


_PARK = _Allow(
    "allow-park",
    _ALLOW_EPILOG.format(
        variable="VRAM_ALLOW_PARK",
        policy="park-idle",
        more="While it is parked, `vram park` lists it and `vram unpark` resumes it.",
    ),
    "may be parked while it is idle",
    "is not parked by policies any more",
)
_SLEEP = _Allow(
    "allow-sleep",
    _ALLOW_EPILOG.format(
        variable="VRAM_ALLOW_SLEEP",
        policy="sleep-idle",
        more="While it sleeps, `vram sleep` lists it; a request, or `vram wake`,\nwakes it.",
    ),
    "may be put to sleep when it has been idle",
    "is not put to sleep by policies any more",
)

WORDS = {
    "status": ServeWord(
        "how the service is, its policies, and what they decided", _add_status_arguments, _status
    ),
    "free": ServeWord(
        "as `vram free`, planned and run by the service with your rights", _add_free_arguments, _free
    ),
    "allow-park": ServeWord(
        "let your process be parked while it is idle and somebody waits for room",
        _PARK.add_arguments,
        _PARK.run,
    ),
    "allow-sleep": ServeWord(
        "let your process be put to sleep when it has been idle, until it is wanted",
        _SLEEP.add_arguments,
        _SLEEP.run,
    ),
}
