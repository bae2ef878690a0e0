"""What can be done to the selected process: planned, shown, and run exactly as shown.

The plans are those of `vram free --pid N`, `vram kill N`, `vram kill --job N` for an orphan,
`vram release N`, `vram free --pid N --up-to park` and so on, with the same checks of identity, the same
protections, the same audit log and the same measured receipt.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Literal, Protocol

from msgspec import Struct
from rich.console import Group, RenderableType
from rich.text import Text

from vram.errors import CannotPark, UsageError, VramError, WorldChanged
from vram.host.ports import Host
from vram.model.hold import Identity
from vram.model.parking import Parked
from vram.model.plan import Draft, Outcome, Skipped, StepKind
from vram.model.release import AskedRequest
from vram.reclaim import execute, plan, remaining
from vram.reclaim.actions import TIMEOUT_S
from vram.reclaim.audit import refusals_logged
from vram.report import plan as plan_text
from vram.report import release as release_text
from vram.report.layout import RenderOptions, paragraph
from vram.report.phrases import one_line, unparked_sentence
from vram.units import counted, size

if TYPE_CHECKING:
    from vram.reclaim.actions.release import PreparedRelease

ActionName = Literal["free", "release", "release --undo", "trim", "park", "unpark", "kill"]
GRACE_S = 10.0
_ONLY: dict[ActionName, StepKind] = {"trim": "trim", "park": "park", "kill": "kill"}


class ActionRequest(Struct, frozen=True, kw_only=True):
    """An action on one process; without a pid, on all leftovers of ``gpus`` (empty: all).

    ``started_at`` is when the process was started that the user saw: another one with its pid is not meant.
    ``others`` are on the same line, and meant too. ``job``: all that was launched together with it is meant.
    """

    name: ActionName
    pid: int | None = None
    started_at: int | None = None
    others: tuple[Identity, ...] = ()
    job: bool = False
    gpus: tuple[int, ...] = ()

    @property
    def start_times(self) -> dict[int, int | None]:
        """When each process was started that the user saw, by pid."""
        return {} if self.pid is None else {self.pid: self.started_at, **dict(self.others)}

    @property
    def pids(self) -> tuple[int, ...]:
        """Whom the plan is to name; naming one of a job names all."""
        return tuple(self.start_times)[:1] if self.job else tuple(self.start_times)

    @property
    def title(self) -> str:
        if self.pid is None:
            return self.name
        if self.job:
            return f"{self.name} the job of pid {self.pid}"
        more = f" and {len(self.others)} more" if self.others else ""
        return f"{self.name} pid {self.pid}{more}"


class PreparedAction(Protocol):
    """What will be done, before it is done."""

    @property
    def does_something(self) -> bool: ...
    def shown(self, options: RenderOptions) -> RenderableType: ...
    def run(self, on_line: Callable[[RenderableType], None], options: RenderOptions) -> RenderableType: ...


def prepare(host: Host, request: ActionRequest, deadline_s: float) -> PreparedAction:
    """Plan *request*; nothing is touched. Raises why it is refused."""
    with refusals_logged(request.name, request.pids):
        if request.name == "unpark":
            return _prepare_unpark(host, request)
        if request.name in ("release", "release --undo"):
            return _prepare_release(host, request, deadline_s)
        made = plan(
            only=_ONLY.get(request.name),
            pids=request.pids,
            job=request.job,
            gpus=request.gpus,
            host=host,
            deadline_s=deadline_s,
        )
    _require_same(request, made)
    return PlannedSteps(host, request, made, deadline_s)


def _require_same(request: ActionRequest, made: Draft) -> None:
    """The plan must be for the processes that were on the screen."""
    for step in made.plan.steps:
        process = step.target.process if step.target else None
        started_at = request.start_times.get(process.pid) if process else None
        if process is not None and started_at is not None and process.started_at != started_at:
            raise _is_another(process.pid)


def _is_another(pid: int) -> WorldChanged:
    return WorldChanged(
        f"pid {pid} is another process now than the one that was selected", hint="select it again"
    )


class PlannedSteps:
    """A plan with a digest. Running it is refused where the machine is no longer what it was made for."""

    def __init__(self, host: Host, request: ActionRequest, made: Draft, deadline_s: float) -> None:
        self._host = host
        self._request = request
        self._draft = made
        self._deadline_s = deadline_s

    @property
    def does_something(self) -> bool:
        return bool(self._draft.plan.steps)

    @property
    def digest(self) -> str:
        return self._draft.plan.digest

    def shown(self, options: RenderOptions) -> RenderableType:
        shown = plan_text.draft(self._draft, options)
        if not self._request.job:
            return shown
        pids = [step.target.process.pid for step in self._draft.plan.steps if step.target]
        # All of them, also where the plan names the first few: one key ends them all.
        ends = f"This ends the whole job, {counted(len(pids), 'process')}: pid {', '.join(map(str, pids))}"
        return Group(paragraph("", Text(ends, style="bold"), options), Text(), shown)

    def run(self, on_line: Callable[[RenderableType], None], options: RenderOptions) -> RenderableType:
        def show_outcome(outcome: Outcome) -> None:
            if not self._request.job:
                on_line(plan_text.outcome(outcome, options))

        receipt = execute(
            self._draft.plan,
            host=self._host,
            deadline_s=self._deadline_s,
            patience_s={"kill": GRACE_S},
            on_outcome=show_outcome,
            together=self._request.job,
        )
        shown: list[RenderableType] = [plan_text.receipt(receipt, options)]
        if self._request.job:  # what was freed is known of all of it alone
            shown.insert(0, plan_text.outcomes(receipt.outcomes, options))
        left = () if self._request.pid is not None else self._left()
        if left:
            shown.append(plan_text.still_held(left, options))
        return Group(*shown)

    def _left(self) -> tuple[Skipped, ...]:
        try:
            return remaining(self._draft.plan, host=self._host, deadline_s=self._deadline_s)
        except VramError:  # the device does not answer: the receipt says so already
            return ()


def _prepare_unpark(host: Host, request: ActionRequest) -> PreparedAction:
    from vram.reclaim.parking import Parking

    if request.pid is None:
        raise UsageError("unpark needs a process", hint="select a parked one")
    with Parking(host) as parking:
        (entry,) = parking.entries_of([request.pid])
    if request.started_at is not None and entry.target.process.started_at != request.started_at:
        raise CannotPark(f"the process that was parked as pid {request.pid} has ended")
    return PlannedUnpark(host, entry)


class PlannedUnpark:
    """A parked process that is to be brought back; its identity is compared before it is touched."""

    def __init__(self, host: Host, entry: Parked) -> None:
        self._host = host
        self._entry = entry

    does_something = True

    def shown(self, options: RenderOptions) -> RenderableType:
        target, shares = self._entry.target, self._entry.shares
        room = ", ".join(f"{size(share.nbytes)} on GPU {share.gpu}" for share in shares)
        who = f"pid {target.process.pid}" + (f" · {target.user}" if target.user else "")
        words = Text.assemble(
            options.clean(f"{who} · "), (options.short(target.command, options.measure - 30), "bold")
        )
        needs = f"needs {room} free" if room else "how much room it needs is not known"
        words.append(f"\n{options.clean(needs)}", style="dim")
        words.append("\nlost: nothing; it continues where it was paused", style="dim")
        return Group(Text("Plan: 1 step", style="bold"), paragraph("unpark  ", words, options, indent=2))

    def run(self, on_line: Callable[[RenderableType], None], options: RenderOptions) -> RenderableType:
        from vram.reclaim.parking import Parking

        with Parking(self._host) as parking:
            moved = parking.unpark(self._entry)
        took = f" in {moved.took_s:.2f} s"
        return Text(options.clean(unparked_sentence(moved.entry) + took))


def _prepare_release(host: Host, request: ActionRequest, deadline_s: float) -> PreparedAction:
    from vram.reclaim.actions.release import prepare_release
    from vram.reclaim.server_search import looks_like_a_server, relatives

    if request.pid is None:
        raise UsageError("release needs a process", hint="select a server")
    _require_selected(host, request.pid, request.started_at)
    undo = request.name == "release --undo"
    if undo and not looks_like_a_server(host, relatives(host, request.pid)):
        raise CannotPark(
            f"pid {request.pid} is not parked, and is no server that released its memory",
            hint="p parks it, R asks a server for its memory: both can be undone",
        )
    prepared = prepare_release(host, request.pid, undo=undo, deadline_s=deadline_s)
    _require_selected(host, request.pid, request.started_at)
    return PlannedRelease(host, prepared)


def _require_selected(host: Host, pid: int, started_at: int | None) -> None:
    if started_at is not None and host.proc.started_at(pid) != started_at:
        raise _is_another(pid)


class PlannedRelease:
    """A server that is to be asked; its process is compared before and after each request."""

    def __init__(self, host: Host, prepared: PreparedRelease) -> None:
        self._host, self._prepared = host, prepared

    does_something = True

    def shown(self, options: RenderOptions) -> RenderableType:
        return release_text.order(self._prepared.order, options)

    def run(self, on_line: Callable[[RenderableType], None], options: RenderOptions) -> RenderableType:
        from vram.reclaim.actions.release import release

        calls = count()

        def show_asked(asked: AskedRequest) -> None:
            if next(calls) % 2 == 0:  # when it goes out; its answer, the next call, is in the receipt
                on_line(paragraph("asked: ", Text(options.clean(one_line(asked.request))), options))

        receipt = release(self._host, self._prepared, TIMEOUT_S["release"], show_asked)
        return release_text.receipt(receipt, options)
