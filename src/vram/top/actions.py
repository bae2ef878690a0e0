"""What can be done to the selected process: planned, shown, and run exactly as shown.

The plans are those of `vram free --pid N`, `vram kill N`, `vram free --pid N --up-to park` and so on, with
the same checks of identity, the same protections, the same audit log and the same measured receipt.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

from msgspec import Struct
from rich.console import Group, RenderableType
from rich.text import Text

from vram.errors import CannotPark, UsageError, VramError, WorldChanged
from vram.host.ports import Host
from vram.model.parking import Parked
from vram.model.plan import Draft, Outcome, Skipped, StepKind
from vram.reclaim import execute, plan, remaining
from vram.reclaim.audit import refusals_logged
from vram.report import plan as plan_text
from vram.report.layout import RenderOptions, paragraph
from vram.report.phrases import unparked_sentence
from vram.units import size

ActionName = Literal["free", "trim", "park", "unpark", "kill"]
GRACE_S = 10.0
_ONLY: dict[ActionName, StepKind] = {"trim": "trim", "park": "park", "kill": "kill"}


class ActionRequest(Struct, frozen=True, kw_only=True):
    """An action on one process; without a pid, on all leftovers of ``gpus`` (empty: all).

    ``started_at`` is when the process was started that the user saw: another one with its pid is not meant.
    """

    name: ActionName
    pid: int | None = None
    started_at: int | None = None
    gpus: tuple[int, ...] = ()

    @property
    def title(self) -> str:
        return self.name if self.pid is None else f"{self.name} pid {self.pid}"


class PreparedAction(Protocol):
    """What will be done, before it is done."""

    @property
    def does_something(self) -> bool: ...
    def shown(self, options: RenderOptions) -> RenderableType: ...
    def run(self, on_line: Callable[[RenderableType], None], options: RenderOptions) -> RenderableType: ...


def prepare(host: Host, request: ActionRequest, deadline_s: float) -> PreparedAction:
    """Plan *request*; nothing is touched. Raises why it is refused."""
    pids = () if request.pid is None else (request.pid,)
    with refusals_logged(request.name, pids):
        if request.name == "unpark":
            return _prepare_unpark(host, request)
        made = plan(
            only=_ONLY.get(request.name), pids=pids, gpus=request.gpus, host=host, deadline_s=deadline_s
        )
    _require_same(request, made)
    return PlannedSteps(host, request, made, deadline_s)


def _require_same(request: ActionRequest, made: Draft) -> None:
    """The plan must be for the process that was on the screen."""
    for step in made.plan.steps:
        if step.target is None or step.target.process.pid != request.pid or request.started_at is None:
            continue
        if step.target.process.started_at != request.started_at:
            raise WorldChanged(
                f"pid {request.pid} is another process now than the one that was selected",
                hint="select it again",
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
        return plan_text.draft(self._draft, options)

    def run(self, on_line: Callable[[RenderableType], None], options: RenderOptions) -> RenderableType:
        def show_outcome(outcome: Outcome) -> None:
            on_line(plan_text.outcome(outcome, options))

        receipt = execute(
            self._draft.plan,
            host=self._host,
            deadline_s=self._deadline_s,
            patience_s={"kill": GRACE_S},
            on_outcome=show_outcome,
        )
        shown: list[RenderableType] = [plan_text.receipt(receipt, options)]
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
