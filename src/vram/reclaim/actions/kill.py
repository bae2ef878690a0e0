"""Terminate a process: SIGTERM, grace, SIGKILL, and a check that it is really gone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from signal import SIGCONT, SIGKILL, SIGSTOP, SIGTERM

from vram.errors import NoSuchProcess, Refused, VramError, WorldChanged
from vram.host.ports import Host, Sent
from vram.model.plan import Step, StepKind, Target
from vram.reclaim.actions import Unfinished, Unkillable, target_of
from vram.reclaim.identity import VerifiedProcess, open_verified

# SIGKILL needs no grace; this is for the kernel to tear a large process down. Freeing 4 GiB of
# GPU memory took 110 ms.
TEARDOWN_S = 5.0
# Each is held by a descriptor, and a process may often have no more than 1,024.
MAX_AT_ONCE = 500


class Kill:
    """Terminates a process by pidfd; what it did not save is lost."""

    kind: StepKind = "kill"

    def check(self, host: Host, step: Step, before: Sequence[Step] = ()) -> Step:
        target_of(step)  # who it is, and that it may be touched, is all there is to check
        return step

    def apply(self, host: Host, step: Step, timeout_s: float) -> str:
        (result,) = end_together(host, (step,), timeout_s)
        if isinstance(result, VramError):
            raise result
        return result

    def verify(self, host: Host, step: Step) -> bool:
        try:
            with open_verified(host, target_of(step)):
                return False
        except NoSuchProcess:
            return True


def end_together(
    host: Host,
    steps: Sequence[Step],
    timeout_s: float,
    teardown_s: float = TEARDOWN_S,
    *,
    stop_first: bool = False,
    whole: bool = False,
) -> list[str | VramError]:
    """Terminate the targets of *steps* with one grace for all; for each, what was done or why it was not.

    One after the other, a hundred processes that ignore SIGTERM would take a hundred times as long. Each is
    compared with its target before every signal, as alone. *stop_first* is for processes that start each
    other again: all are stopped (SIGSTOP), which none can notice, then killed without a grace. With *whole*
    all are opened and compared before the first is signalled: raises WorldChanged, none touched, where one
    is not what it was.
    """
    if whole and len(steps) > MAX_AT_ONCE:
        raise Refused(f"{len(steps)} processes are too many to be ended as one", hint="see `vram kill --job`")
    found: list[str | VramError] = []
    for first in range(0, len(steps), MAX_AT_ONCE):
        with ExitStack() as opened:
            part = [_open(host, step, opened) for step in steps[first : first + MAX_AT_ONCE]]
            if whole:
                _require_all(part)
            if stop_first:
                found += _kill_stopped(host, part, teardown_s)
            else:
                found += _end_opened(host, part, timeout_s, teardown_s)
    return found


def _open(host: Host, step: Step, opened: ExitStack) -> VerifiedProcess | VramError:
    try:
        return opened.enter_context(open_verified(host, target_of(step)))
    except VramError as error:
        return error


def _require_all(part: Sequence[VerifiedProcess | VramError]) -> None:
    for each in part:
        if isinstance(each, VramError):
            raise WorldChanged(f"nothing was ended: {each}", hint="make a new plan") from each


def _end_opened(
    host: Host, part: Sequence[VerifiedProcess | VramError], timeout_s: float, teardown_s: float
) -> Iterable[str | VramError]:
    results: dict[int, str | VramError] = {}
    living: dict[int, VerifiedProcess] = {}
    for at, each in enumerate(part):
        if isinstance(each, VramError):
            results[at] = each
            continue
        try:
            _terminate(each)
            living[at] = each
        except VramError as error:
            results[at] = error
    grace_ends = host.clock.monotonic() + timeout_s
    stubborn = {at: each for at, each in living.items() if not _ended_by(host, each, grace_ends)}
    results |= dict.fromkeys(living.keys() - stubborn.keys(), "it exited after SIGTERM")
    results |= _kill_all(host, stubborn, teardown_s, lambda sent, exiting: _killed(sent, exiting, timeout_s))
    return [results[at] for at in range(len(part))]


def _kill_stopped(
    host: Host, part: Sequence[VerifiedProcess | VramError], teardown_s: float
) -> Iterable[str | VramError]:
    results: dict[int, str | VramError] = {}
    stopped: dict[int, VerifiedProcess] = {}
    try:
        for at, each in enumerate(part):
            if isinstance(each, VramError):
                results[at] = each
                continue
            try:
                stopped[at] = each
                if each.send(SIGSTOP) == "gone":
                    raise NoSuchProcess(f"process {each.target.process.pid} has exited")
            except VramError as error:
                results[at] = error
                del stopped[at]
        results |= _kill_all(
            host, stopped, teardown_s, lambda sent, exiting: "it was killed (SIGKILL)", "SIGSTOP"
        )
    finally:  # none stays stopped, whatever became of it
        for process in stopped.values():
            process.handle.send(SIGCONT)
    return [results[at] for at in range(len(part))]


def _kill_all(
    host: Host,
    living: Mapping[int, VerifiedProcess],
    teardown_s: float,
    words: Callable[[Sent, bool], str],
    before: str = "SIGTERM",
) -> dict[int, str | VramError]:
    """SIGKILL; for each what was done, in *words* for what was sent and whether it was exiting."""
    results: dict[int, str | VramError] = {}
    killed: dict[int, tuple[Sent, bool]] = {}
    for at, process in living.items():
        try:
            killed[at] = _kill(process, before)
        except VramError as error:
            results[at] = error
    teardown_ends = host.clock.monotonic() + teardown_s
    for at, (sent, was_exiting) in killed.items():
        if _ended_by(host, living[at], teardown_ends):
            results[at] = words(sent, was_exiting)
        else:
            why = _why_it_lives(host, living[at].target)
            results[at] = Unkillable(why, hint="wait, then check again with `vram why`")
    return results


def _ended_by(host: Host, process: VerifiedProcess, deadline: float) -> bool:
    return process.ended(max(0.0, deadline - host.clock.monotonic()))


def _killed(sent: Sent, was_exiting: bool, timeout_s: float) -> str:
    if sent == "gone":
        return "it exited after SIGTERM"
    if was_exiting:
        return f"it was still exiting {timeout_s:g} s after SIGTERM, and was killed (SIGKILL)"
    return f"it did not exit within {timeout_s:g} s of SIGTERM and was killed (SIGKILL)"


def _terminate(process: VerifiedProcess) -> None:
    """SIGTERM; raises where it must not be sent, or where the process has ended."""
    stopped = process.facts.state == "T"
    if process.send(SIGTERM) == "gone":
        raise NoSuchProcess(f"process {process.target.process.pid} has exited")
    if stopped:
        # It takes the signal only once it runs again. In this order: were we killed between
        # the two, it would still be as stopped as it was.
        process.handle.send(SIGCONT)


def _kill(process: VerifiedProcess, before: str = "SIGTERM") -> tuple[Sent, bool]:
    """SIGKILL; also, whether it was exiting. What forbids it now is no refusal: it was sent *before*."""
    try:
        return process.send_again(SIGKILL)
    except NoSuchProcess:
        return "gone", True
    except Refused as error:
        pid = process.target.process.pid
        raise Unfinished(
            f"pid {pid} was sent {before} and nothing more: {error}", hint="check with `vram why`"
        ) from error


def _why_it_lives(host: Host, target: Target) -> str:
    seen = host.proc.facts(target.process.pid)
    state, exiting = (seen[1].state, seen[1].exiting) if seen else ("?", True)
    why = "it is waiting in the kernel (state D)" if state == "D" else f"it is in state {state}"
    if exiting:
        why = "it is exiting; its memory is freed when it has exited"
    return f"pid {target.process.pid} does not exit, not even after SIGKILL: {why}"
