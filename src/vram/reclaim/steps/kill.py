"""The last rung for a process: SIGTERM, grace, SIGKILL, and a look whether it is really gone."""

from __future__ import annotations

from collections.abc import Sequence
from signal import SIGCONT, SIGKILL, SIGTERM

from vram.errors import NoSuchProcess, Refused, UsageError
from vram.host.ports import Host, Sent
from vram.model.plan import Step, StepKind, Target
from vram.reclaim.identity import Held, hold
from vram.reclaim.rung import Unfinished, Unkillable

# SIGKILL needs no grace; this is for the kernel to take a large process down. Giving 4 GiB of
# GPU memory back took 110 ms.
TEARDOWN_S = 5.0


class Kill:
    """Ends a process by pidfd; what it did not save is lost."""

    kind: StepKind = "kill"

    def check(self, host: Host, step: Step, before: Sequence[Step] = ()) -> None:
        with hold(host, _target(step)):
            pass

    def describe(self, step: Step) -> str:
        return f"SIGTERM to pid {_target(step).process.pid}, then SIGKILL if it is still there"

    def apply(self, host: Host, step: Step, deadline_s: float) -> str:
        with hold(host, _target(step)) as held:
            _ask(held)
            if held.ended(deadline_s):
                return "it ended when asked to (SIGTERM)"
            sent, was_leaving = _insist(held)
            if not held.ended(TEARDOWN_S):
                raise Unkillable(_where_it_hangs(host, held.target), hint="wait, then look with `vram why`")
        if sent == "gone":
            return "it ended when asked to (SIGTERM)"
        if was_leaving:
            return f"it was exiting {deadline_s:g} s after SIGTERM, and was seen off by SIGKILL"
        return f"it did not end within {deadline_s:g} s of SIGTERM and was killed (SIGKILL)"

    def verify(self, host: Host, step: Step) -> bool:
        try:
            with hold(host, _target(step)):
                return False
        except NoSuchProcess:
            return True


def _ask(held: Held) -> None:
    """SIGTERM; raises where it must not be sent, or where nobody is left to take it."""
    stopped = held.recheck().state == "T"
    if held.send(SIGTERM) == "gone":
        raise NoSuchProcess(f"process {held.target.process.pid} has ended")
    if stopped:
        # It takes the signal only once it runs again. In this order: were we killed between
        # the two, it would still be as stopped as it was.
        held.grip.send(SIGCONT)


def _insist(held: Held) -> tuple[Sent, bool]:
    """SIGKILL; also, whether it was exiting. What forbids it is no refusal any more: it took SIGTERM."""
    try:
        return held.send_again(SIGKILL)
    except NoSuchProcess:
        return "gone", True
    except Refused as error:
        pid = held.target.process.pid
        raise Unfinished(
            f"pid {pid} was sent SIGTERM, and nothing more: {error}", hint="look with `vram why`"
        ) from error


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
