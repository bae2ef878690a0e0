"""The rung that moves a process's GPU memory into host memory, and back."""

from __future__ import annotations

from collections.abc import Sequence

from vram.host.ports import Host
from vram.model.parking import Share
from vram.model.plan import Step, StepKind, Target
from vram.reclaim import identity
from vram.reclaim.parking import PROMPT_S, Parking
from vram.reclaim.preflight import look, managed_bytes, may_park, require_checkpoints
from vram.units import size


class Park:
    """Reversible: ``undo`` is ``vram unpark``. While it is parked, the process waits in its next
    CUDA call, and what was on the GPU lies in its host memory."""

    kind: StepKind = "park"

    def check(self, host: Host, step: Step, before: Sequence[Step] = ()) -> None:
        # Their bytes are still on the GPU, and the host memory that they will take is still free.
        taken = sum(each.predicted_bytes or 0 for each in before if each.kind == "park")
        _shares(host, _target(step), taken)

    def describe(self, step: Step) -> str:
        target = _target(step)
        nbytes = f"{size(step.predicted_bytes)} of " if step.predicted_bytes is not None else ""
        return f"park pid {target.process.pid}: move {nbytes}its GPU memory into host memory"

    def apply(self, host: Host, step: Step, deadline_s: float) -> str:
        target = _target(step)
        shares = _shares(host, target)
        with Parking(host) as parking:
            moved = parking.park(target, shares, deadline_s=deadline_s)
        pid = target.process.pid
        return f"parked pid {pid}: {size(moved.entry.nbytes)} moved; `vram unpark {pid}` brings it back"

    def verify(self, host: Host, step: Step) -> bool:
        with Parking(host) as parking:
            return parking.worker.state(_target(step).process.pid, PROMPT_S).state == "parked"

    def undo(self, host: Host, step: Step, deadline_s: float) -> str:
        """Bring the process back: the way out of everything that ``apply`` did."""
        pid = _target(step).process.pid
        with Parking(host) as parking:
            parking.unpark(parking.entry_of(pid), deadline_s=deadline_s)
        return f"pid {pid} is back on its GPU"


def _shares(host: Host, target: Target, taken_before: int = 0) -> tuple[Share, ...]:
    """What the process has on each GPU; raises where it must not be parked, or is another one now."""
    require_checkpoints(host)
    with identity.hold(host, target) as held:
        pid = target.process.pid
        return may_park(
            look(host),
            target,
            held.recheck(),
            host.limits.read(pid),
            managed_bytes=managed_bytes(host, pid),
            taken_before=taken_before,
        )


def _target(step: Step) -> Target:
    assert step.target is not None, "a process is parked, not a GPU"
    return step.target
