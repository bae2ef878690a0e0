"""The worker: a process for one action of ``vram serve``, as the user in whose name it is done.

It reads one request from standard input, and writes JSON lines to standard output: outcomes as they come, and
at last a report or an error. It plans, compares and acts as the commands do, with the rights of its user:
the kernel refuses what that user may not do.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from typing import Any, Literal, NoReturn

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from vram import untrusted
from vram.errors import CannotPark, ExitCode, Refused, UsageError, VramError, WorldChanged
from vram.model.plan import Draft, Outcome, OutcomeStatus, Receipt, Skipped, StepKind
from vram.policy.policy import NotifyConfig
from vram.serve.socket.become import become, enter_cgroups
from vram.serve.socket.peers import environment, owner_of
from vram.serve.socket.protocol import PlanWords, WorkerError, require_sound

MAX_REQUEST = 256 << 10
MAX_ANSWER = 16 << 20

_RANK: tuple[OutcomeStatus, ...] = ("done", "not-needed", "refused", "failed", "unkillable")

WorkerJob = Literal[
    "plan",
    "run",
    "end",
    "end-orphans",
    "park",
    "trim",
    "release",
    "sleep",
    "unpark",
    "recover",
    "notify",
    "growing-line",
]


class Notification(Struct, frozen=True, kw_only=True):
    """What people are told: a sentence in the title, and lines."""

    title: str
    lines: tuple[str, ...]
    uids: tuple[int, ...] = ()
    facts: dict[str, Any] = {}


class WorkerRequest(Struct, frozen=True, kw_only=True):
    """One action. ``targets`` are pids with their start times: no later process is meant."""

    job: WorkerJob
    state: str | None = None
    deadline_s: float = 5.0
    words: PlanWords = PlanWords()
    digest: str | None = None
    targets: tuple[tuple[int, int], ...] = ()
    by_pid: int = 0
    """Of an unpark: the worker that parked it; an entry that another process wrote is left to its owner."""
    grace_s: float = 10.0
    dry_run: bool = False
    message: Notification | None = None
    notify: NotifyConfig = NotifyConfig()


class WorkerAnswer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line; the last one has ``is_last``. ``report`` is what `vram free --json` prints."""

    is_last: bool = False
    outcome: Raw | UnsetType = UNSET
    report: Raw | UnsetType = UNSET
    status: OutcomeStatus | None = None
    message: str = ""
    digest: str | None = None
    freed_bytes: int | None = None
    error: WorkerError | None = None


def main() -> NoReturn:
    """Do what standard input says, as the user of the one argument; without one, as who we are."""
    if len(sys.argv) > 1:
        become(sys.argv[1])
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _leave)
    code: int = ExitCode.OK
    try:
        request = untrusted.decode(untrusted.read_stream(0, nbytes=MAX_REQUEST), WorkerRequest)
        if request.state is not None:
            from vram.reclaim import state

            state.use_folder(request.state)
        _JOBS[request.job](request)
    except VramError as error:
        code = error.exit_code
        name = type(error).__name__
        told = WorkerError(name=name, message=str(error), hint=error.hint, exit_code=code)
        _say(WorkerAnswer(is_last=True, error=told))
    sys.exit(code)


def _leave(number: int, _: object) -> NoReturn:
    """As Ctrl-C: every clean-up is passed on the way out."""
    raise SystemExit(128 + number)


def _say(answer: WorkerAnswer) -> None:
    """Who does not listen any more has gone; what was begun is finished all the same."""
    with suppress(OSError):
        left = msgspec.json.encode(answer) + b"\n"
        while left:
            left = left[os.write(1, left) :]


def _say_outcome(outcome: Outcome) -> None:
    _say(WorkerAnswer(outcome=Raw(msgspec.json.encode(outcome))))


# ---- what a user asks for: plans, and running them ----


def _draft(request: WorkerRequest) -> Draft:
    from vram.model.plan import PlanRequest
    from vram.reclaim import plan_request

    require_sound(request.words)
    return plan_request(PlanRequest(**msgspec.structs.asdict(request.words)), deadline_s=request.deadline_s)


def _plan(request: WorkerRequest) -> None:
    _say_report(_draft(request), None)


def _run(request: WorkerRequest) -> None:
    from vram.reclaim import remaining
    from vram.reclaim.audit import refusals_logged

    with refusals_logged("serve", request.words.pids):
        draft = _draft(request)
    if request.digest != draft.plan.digest:
        raise WorldChanged(
            f"the plan is now {draft.plan.digest[:12]}: the machine has changed since it was shown",
            hint="ask for the plan again, and check it",
        )
    receipt = _execute(draft, request) if draft.plan.steps else None
    left: tuple[Skipped, ...] = ()
    if receipt is not None and draft.plan.goal_bytes is None and not request.words.pids:
        left = remaining(draft.plan, request.words.findings, deadline_s=request.deadline_s)
    _say_report(draft, receipt, left)


def _say_report(draft: Draft, receipt: Receipt | None, left: tuple[Skipped, ...] = ()) -> None:
    from vram.report.json_reports import reclaim

    _say(
        WorkerAnswer(
            is_last=True,
            report=Raw(msgspec.json.format(reclaim(draft, receipt, left), indent=-1)),
            digest=draft.plan.digest,
            freed_bytes=receipt.returned_bytes if receipt else None,
        )
    )


def _execute(draft: Draft, request: WorkerRequest, *, whole: bool = False) -> Receipt:
    from vram.reclaim import ends_orphans_alone, execute

    patience: dict[StepKind, float] = {"kill": request.grace_s}
    return execute(
        draft.plan,
        deadline_s=request.deadline_s,
        patience_s=patience,
        on_outcome=_say_outcome,
        together=whole or ends_orphans_alone(draft.plan),
        whole=whole,
    )


# ---- what policies decide ----


def _end(request: WorkerRequest) -> None:
    """End the holders of one leftover, all of them or none."""
    from vram.host.local import LocalHost
    from vram.reclaim.planner import plan_ending

    draft = plan_ending(LocalHost(), request.targets, request.deadline_s)
    _finish(draft, None if request.dry_run else _execute(draft, request))


def _end_orphans(request: WorkerRequest) -> None:
    """End what is left of one job whose launcher is dead, all of it or nothing, if it still does nothing."""
    from vram.host.local import LocalHost
    from vram.reclaim.borrow import IDLE_WINDOW_S, idled
    from vram.reclaim.planner import plan_ending_orphans

    host = LocalHost()
    draft = plan_ending_orphans(host, request.targets, request.deadline_s)
    if request.dry_run:
        _finish(draft, None)
        return
    pids = [step.target.process.pid for step in draft.plan.steps if step.target]
    began, before = host.clock.monotonic(), {pid: host.limits.read(pid) for pid in pids}
    host.clock.sleep(IDLE_WINDOW_S)
    window_s = host.clock.monotonic() - began
    for pid in pids:
        if not idled(before[pid], host.limits.read(pid), window_s):
            raise Refused(f"pid {pid} works again")
    _finish(draft, _execute(draft, request, whole=True))


def _finish(draft: Draft, receipt: Receipt | None) -> None:
    outcomes = receipt.outcomes if receipt else ()
    worst = max(outcomes, key=lambda each: _RANK.index(each.status), default=None)
    _say(
        WorkerAnswer(
            is_last=True,
            status=worst.status if worst else "done",
            message=(worst.message or "") if worst else "only planned",
            digest=draft.plan.digest,
            freed_bytes=receipt.returned_bytes if receipt else None,
        )
    )


def _park(request: WorkerRequest) -> None:
    """Park one process, if it is still the one that was meant, and still idle."""
    from vram.host.local import LocalHost
    from vram.reclaim import plan
    from vram.reclaim.borrow import idle_pids
    from vram.reclaim.preflight import read_driver

    ((pid, started_at),) = request.targets
    host = LocalHost()
    draft = plan(only="park", pids=(pid,), host=host, deadline_s=request.deadline_s)
    _require_same(draft, pid, started_at)
    report = read_driver(host, request.deadline_s)
    if any(pid not in idle_pids(host, report, share.gpu, [pid]) for share in report.shares(pid)):
        raise CannotPark(f"pid {pid} works again")
    _finish(draft, None if request.dry_run else _execute(draft, request))


def _relieve(request: WorkerRequest) -> None:
    """Trim one process, or have a server release its memory, if it is still the one that was meant."""
    from vram.reclaim import plan

    ((pid, started_at),) = request.targets
    only: StepKind = "trim" if request.job == "trim" else "release"
    draft = plan(only=only, pids=(pid,), deadline_s=request.deadline_s)
    _require_same(draft, pid, started_at)
    _finish(draft, None if request.dry_run else _execute(draft, request))


def _sleep(request: WorkerRequest) -> None:
    """Have its owner's waker put one process to sleep, if it is still the one that was meant, and idle.

    The waker outlives us, in that process's control group. What its owner has chosen for it there is kept.
    """
    from vram.model.sleeping import SleepOptions
    from vram.sleeping import client
    from vram.sleeping.protocol import WakerRefusal

    (target,) = request.targets
    if client.identify([target[0]]) != [target]:
        raise WorldChanged(f"pid {target[0]} is a different process now")
    owner = owner_of(*target)
    enter_cgroups(owner.cgroups if owner is not None else "")
    _keep_state_as(target)
    known = next((each for each in client.listed() if target[0] in each.pids), None)
    if known is not None and known.state != "awake":
        _say(WorkerAnswer(is_last=True, status="not-needed", message="it sleeps already"))
        return
    try:
        (asleep,) = client.ask("sleep", [target], known.options if known is not None else SleepOptions())
    except WakerRefusal as error:
        if error.name != "Works":
            raise CannotPark(str(error), hint=error.hint) from error
        _say(WorkerAnswer(is_last=True, status="not-needed", message=str(error)))
        return
    gpus = request.words.gpus
    freed = sum(share.nbytes for share in asleep.shares if not gpus or share.gpu in gpus)
    message = "it sleeps until it is wanted"
    _say(WorkerAnswer(is_last=True, status="done", message=message, freed_bytes=freed))


def _keep_state_as(target: tuple[int, int]) -> None:
    """Keep state where that process's owner keeps it, who looks for the waker there."""
    said = [each for each in environment(*target) if each.startswith(b"XDG_STATE_HOME=/")]
    path = os.fsdecode(said[0].partition(b"=")[2]) if said else ""
    with suppress(OSError, ValueError):
        # In a container it may mean another folder, or none.
        if path and os.stat(path).st_uid == os.geteuid():
            os.environ["XDG_STATE_HOME"] = path


def _require_same(draft: Draft, pid: int, started_at: int) -> None:
    for step in draft.plan.steps:
        process = step.target.process if step.target else None
        if process is None or (process.pid, process.started_at) != (pid, started_at):
            raise WorldChanged(f"pid {pid} is a different process now")


def _unpark(request: WorkerRequest) -> None:
    from vram.host.local import LocalHost
    from vram.reclaim.parking import PROMPT_S, Parking

    ((pid, started_at),) = request.targets
    host = LocalHost()
    if host.proc.started_at(pid) != started_at:
        raise WorldChanged(f"the process that was parked as pid {pid} has ended")
    with Parking(host) as parking:
        parking.recover()
        entry = parking.journal.find(pid)
        if entry is not None and request.by_pid and entry.by_pid != request.by_pid:
            _say(WorkerAnswer(is_last=True, status="not-needed", message="its owner parked it again"))
            return
        if parking.worker.state(pid, PROMPT_S).state == "running":
            _say(WorkerAnswer(is_last=True, status="not-needed", message="it runs already"))
            return
        (entry,) = parking.entries_of([pid])
        if entry.target.process.started_at != started_at:
            raise WorldChanged(f"pid {pid} is a different process now")
        moved = parking.unpark(entry)
    _say(WorkerAnswer(is_last=True, status="done", message=f"back on its GPU in {moved.took_s:.1f} s"))


def _recover(request: WorkerRequest) -> None:
    """Bring back what a worker that was killed left locked."""
    from vram.host.local import LocalHost
    from vram.reclaim.parking import Parking

    with Parking(LocalHost()) as parking:
        found = parking.recover() if parking.journal.entries() else ()
    left = ", ".join(f"pid {each.entry.target.process.pid} {each.done}" for each in found)
    _say(WorkerAnswer(is_last=True, status="done", message=left))


def _notify(request: WorkerRequest) -> None:
    from vram.serve.policies.notify import notify

    if request.message is None:
        raise UsageError("there is nothing to tell")
    done, failed = notify(request.message, request.notify)
    message = "; ".join((*done, *failed)) or "no user is known to notify"
    _say(WorkerAnswer(is_last=True, status="done" if done else "failed", message=message))


def _growing_line(request: WorkerRequest) -> None:
    """Which line of a process grows, as its recording has it; nothing where it is not recorded."""
    from vram.host.local import LocalHost
    from vram.trace.growing import growing_line

    ((pid, started_at),) = request.targets
    line = growing_line(pid) if LocalHost().proc.started_at(pid) == started_at else None
    _say(WorkerAnswer(is_last=True, status="done", message=line or ""))


_JOBS = {
    "plan": _plan,
    "run": _run,
    "end": _end,
    "end-orphans": _end_orphans,
    "park": _park,
    "trim": _relieve,
    "release": _relieve,
    "sleep": _sleep,
    "unpark": _unpark,
    "recover": _recover,
    "notify": _notify,
    "growing-line": _growing_line,
}
