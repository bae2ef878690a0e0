"""The first rung: a live process lets go of what it only caches, and goes on working."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from vram.errors import Refused, UsageError, VramError
from vram.host.ports import Host
from vram.model.inside import Trimmed
from vram.model.plan import Step, StepKind, Target
from vram.reach.ways import choose
from vram.reclaim.identity import hold
from vram.reclaim.trimming import visited
from vram.units import size

# Ways that can ask without stopping or changing anything; others are asked only to act.
ASKED_BEFOREHAND = ("agent", "jupyter")
ASKING_S = 2.0
_THROUGH = {"agent": "through its agent", "jupyter": "through its jupyter"}


class Trim:
    """Asks a process, by the safest way that is open, to empty its caches."""

    kind: StepKind = "trim"

    def prepare(self, host: Host, step: Step) -> Step:
        """Add the way in, and what its frameworks call unused where they can be asked."""
        target = _target(step)
        try:
            _, way = choose(target, step.via)
        except Refused:
            return step  # check says it in full
        if way.NAME not in ASKED_BEFOREHAND:
            return replace(step, via=way.NAME)
        try:
            answer = visited(host, target, "measure", way.NAME, ASKING_S).answer
        except VramError:
            return replace(step, via=way.NAME)
        return replace(step, via=way.NAME, predicted_bytes=answer.reclaimable_bytes)

    def check(self, host: Host, step: Step, before: Sequence[Step] = ()) -> None:
        with hold(host, _target(step)):
            choose(_target(step), step.via)

    def describe(self, step: Step) -> str:
        through = f" {_THROUGH.get(step.via, f'by {step.via}')}" if step.via else ""
        return f"pid {_target(step).process.pid} empties its caches{through} and goes on"

    def apply(self, host: Host, step: Step, deadline_s: float) -> str:
        visit = visited(host, _target(step), "trim", step.via, deadline_s)
        return _told(visit.answer)

    def verify(self, host: Host, step: Step) -> bool:
        """It is still there, and nobody left it stopped."""
        with hold(host, _target(step)) as held:
            return held.recheck().state not in ("T", "t")


def _told(answer: Trimmed) -> str:
    gave = [
        f"{line.name} {size(line.returned_bytes)}"
        for line in answer.lines
        if line.memory == "device" and line.returned_bytes
    ]
    said = f"by their own count: {', '.join(gave)}" if gave else "its frameworks had nothing to let go of"
    return "; ".join((said, *answer.notes))


def _target(step: Step) -> Target:
    if step.target is None:
        raise UsageError("a trim needs a process")
    return step.target
