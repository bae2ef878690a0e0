"""Park a process: move its GPU memory into its host memory. `vram unpark` brings it back."""

from __future__ import annotations

from collections.abc import Sequence

from vram.host.ports import Host
from vram.model.parking import GpuShare
from vram.model.plan import Step, StepKind, Target
from vram.reclaim import identity
from vram.reclaim.actions import target_of
from vram.reclaim.parking import PROMPT_S, Parking
from vram.reclaim.preflight import ParkOptions, read_driver, require_parkable
from vram.units import size


class Park:
    """Reversible. While it is parked, the process is stopped, and what was on the GPU lies in its host
    memory."""

    kind: StepKind = "park"

    def check(self, host: Host, step: Step, before: Sequence[Step] = ()) -> Step:
        # Their bytes are still on the GPU, and the host memory that they will take is still free.
        taken = sum(each.predicted_bytes or 0 for each in before if each.kind == "park")
        require_parkable(host, read_driver(host), target_of(step), ParkOptions(taken_before=taken))
        return step

    def apply(self, host: Host, step: Step, timeout_s: float) -> str:
        target = target_of(step)
        shares = _shares(host, target)
        with Parking(host) as parking:
            moved = parking.park(target, shares, deadline_s=timeout_s)
        pid = target.process.pid
        return (
            f"parked pid {pid}: {size(moved.entry.nbytes)} moved to host memory; resume it with `vram"
            f" unpark {pid}`"
        )

    def verify(self, host: Host, step: Step) -> bool:
        with Parking(host) as parking:
            return parking.worker.state(target_of(step).process.pid, PROMPT_S).state == "parked"


def _shares(host: Host, target: Target) -> tuple[GpuShare, ...]:
    """What the process has on each GPU now, checked again: earlier steps took time and host memory."""
    with identity.open_verified(host, target):
        return require_parkable(host, read_driver(host), target)
