"""The last rung for a process: SIGTERM, grace, SIGKILL, and a look whether it is really gone."""

from __future__ import annotations

from signal import SIGCONT, SIGKILL, SIGTERM

from vram.errors import NoSuchProcess, UsageError
from vram.host.ports import Host
from vram.model.plan import Step, StepKind, Target
from vram.reclaim.identity import Held, hold
from vram.reclaim.rung import Unkillable

# SIGKILL needs no grace; this is for the kernel to take a large process down. Giving 4 GiB of
# GPU memory back took 110 ms.
TEARDOWN_S = 5.0


class Kill:
    """Ends a process by pidfd; what it did not save is lost."""

    kind: StepKind = "kill"

    def check(self, host: Host, step: Step) -> None:
        with hold(host, _target(step)):
            pass

    def describe(self, step: Step) -> str:
        return f"SIGTERM to pid {_target(step).process.pid}, then SIGKILL if it is still there"

    def apply(self, host: Host, step: Step, deadline_s: float) -> str:
        with hold(host, _target(step)) as held:
            if self._asked(held, deadline_s):
                return "it ended when asked to (SIGTERM)"
            if _sent(held, SIGKILL) and not held.ended(TEARDOWN_S):
                raise Unkillable(_where_it_hangs(host, held.target), hint="wait, then look with `vram why`")
            return f"it did not end within {deadline_s:g} s of SIGTERM and was killed (SIGKILL)"

    def verify(self, host: Host, step: Step) -> bool:
        try:
            with hold(host, _target(step)):
                return False
        except NoSuchProcess:
            return True

    def _asked(self, held: Held, grace_s: float) -> bool:
        stopped = held.recheck().state == "T"
        if not _sent(held, SIGTERM):
            return True
        if stopped:
            # It takes the signal only once it runs again. In this order: were we killed between
            # the two, it would still be as stopped as it was.
            held.grip.send(SIGCONT)
        return held.ended(grace_s)


def _sent(held: Held, number: int) -> bool:
    """Signal it; False where it has ended by itself."""
    try:
        return held.send(number) == "sent"
    except NoSuchProcess:
        return False


def _where_it_hangs(host: Host, target: Target) -> str:
    seen = host.proc.facts(target.process.pid)
    state, exiting = (seen[1].state, seen[1].exiting) if seen else ("?", True)
    why = "it waits inside the kernel (state D)" if state == "D" else f"it is in state {state}"
    if exiting:
        why = "it is exiting, and its memory comes back when that is over"
    return f"pid {target.process.pid} does not end, not even by SIGKILL: {why}"


def _target(step: Step) -> Target:
    if step.target is None:
        raise UsageError("a kill needs a process")
    return step.target
