"""The driver's answers about parking, as errors that say what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from vram.errors import (
    CannotPark,
    DeviceError,
    DriverMissing,
    NoRoom,
    NoSuchProcess,
    NotOnGpu,
    NotPermitted,
    TimedOut,
    VramError,
)
from vram.model.parking import RECORDER, CheckpointAnswer, Parked, Unrecorded
from vram.payloads.driver_threads import NO_PERMISSION
from vram.reach.target_process import why_not_traced
from vram.units import size

NO_MEMORY = 2
_NOT_SUPPORTED = 801
# INVALID_VALUE by the documentation, NOT_INITIALIZED on an H200: the process does not use CUDA.
NOT_KNOWN_TO_DRIVER = (1, 3)

_LISTED = "`vram park` lists those that are"

Verb = Literal["park", "unpark"]


def explain(
    answer: CheckpointAnswer,
    entry: Parked,
    verb: Verb,
    profiler: Callable[[int], str | None] = lambda pid: None,
) -> VramError:
    """The error that says why *verb* failed, and the state of the process now.

    *profiler* names the profiler that was loaded into a process, where one was.
    """
    pid = entry.target.process.pid
    match answer.status:
        case "ended":
            return NoSuchProcess(f"process {pid} has exited")
        case "short":
            return _no_room(answer, entry)
        case "timeout":
            return TimedOut(
                f"the driver did not finish with pid {pid} in time; it is not interrupted, and the"
                " process continues when it is done",
                hint="`vram park` shows its state",
            )
        case "unavailable":
            return DriverMissing(f"the driver does not answer: {answer.message}", hint="see `vram why`")
        case "died":
            return DeviceError(f"{answer.message}; pid {pid} is running again", hint="try again")
        case "unknown":
            return _unknown_state(answer, pid)
        case "not-held":
            return _not_held(answer, pid, "it was not touched" if verb == "park" else "it stays parked")
    if answer.status == "ok":
        return CannotPark(
            f"pid {pid} is already {answer.state}, not by vram; it was not touched",
            hint=f"`vram unpark {pid}` resumes it, if no other program is about to",
        )
    if answer.state == "failed":
        return DeviceError(
            f"{answer.call} failed with CUDA error {answer.code} and left pid {pid} in the state"
            ' "failed": its next use of the GPU will fail',
            hint="save what you can and restart it; NVIDIA guarantees nothing in this state",
        )
    if verb == "unpark":
        return _still_parked(answer, pid)
    if answer.code == _NOT_SUPPORTED and answer.call == "cuCheckpointProcessLock":
        return _profiled(pid, profiler(pid))
    return _refused(answer, pid)


def not_parked(answer: CheckpointAnswer, pid: int) -> VramError:
    """Why *pid*, which has no journal entry, is not brought back."""
    if answer.status == "ok":
        return CannotPark(f"pid {pid} is not parked: the driver reports it as running", hint=_LISTED)
    if answer.status == "unknown":
        return _unknown_state(answer, pid)
    if answer.status == "not-held":
        return _not_held(answer, pid, "it was not touched")
    if answer.status == "refused" and answer.code in NOT_KNOWN_TO_DRIVER:
        return NotOnGpu(f"pid {pid} is not parked: the driver does not know it", hint=_LISTED)
    if answer.status == "refused" and answer.code == 304:
        return NotPermitted(f"the driver reports nothing about pid {pid}", hint="ask its owner")
    if answer.status == "unavailable":
        return DriverMissing(f"the driver does not answer: {answer.message}", hint="see `vram why`")
    message = answer.message or f"{answer.call} failed with CUDA error {answer.code}"
    return DeviceError(f"cannot read the state of pid {pid}: {message}", hint="see `vram why`")


def _not_held(answer: CheckpointAnswer, pid: int, left: str) -> VramError:
    message = f"pid {pid} cannot be kept stopped while the driver works: {answer.message}; {left}"
    if answer.message == NO_PERMISSION:
        return NotPermitted(message, hint=why_not_traced())
    if answer.message and answer.message.startswith("it is traced"):
        return CannotPark(message, hint="detach that debugger first")
    return CannotPark(message, hint="see `vram why`")


def _unknown_state(answer: CheckpointAnswer, pid: int) -> VramError:
    return DeviceError(
        f"{answer.message}; pid {pid} was not touched", hint="a newer vram may support it; see `vram doctor`"
    )


def _no_room(answer: CheckpointAnswer, entry: Parked) -> VramError:
    pid = entry.target.process.pid
    share = next((each for each in entry.shares if each.uuid in answer.short), entry.shares[0])
    missing = answer.short.get(share.uuid, 0)
    if isinstance(entry, Unrecorded):
        return NoRoom(
            f"pid {pid} may need up to {size(share.nbytes)} on GPU {share.gpu}, but {size(missing)} of"
            " that is not free",
            hint="it has no journal entry with its size, so this is all of its host memory; `vram unpark"
            f" --anyway {pid}` lets the driver try",
            missing=answer.short,
        )
    return NoRoom(
        f"pid {pid} needs {size(share.nbytes)} on GPU {share.gpu}, but {size(missing)} of that is not free",
        hint="it stays parked, unharmed; `vram who` shows who holds the memory",
        missing=answer.short,
    )


def _refused(answer: CheckpointAnswer, pid: int) -> VramError:
    unharmed = "it was unlocked and keeps running"
    match answer.code:
        case code if code in NOT_KNOWN_TO_DRIVER:
            return NotOnGpu(
                f"the driver does not know pid {pid}", hint="`vram who` lists the processes on each GPU"
            )
        case 2:  # OUT_OF_MEMORY
            return CannotPark(f"not enough memory to park pid {pid}; {unharmed}")
        case 304:  # OPERATING_SYSTEM: another user's process, measured
            return NotPermitted(f"no permission to park pid {pid}", hint="ask its owner")
        case 401:  # ILLEGAL_STATE
            return CannotPark(
                f"pid {pid} is already locked or parked, not by vram",
                hint=f"`vram unpark {pid}` resumes it, if no other program is about to",
            )
        case 600:  # NOT_READY: the lock's own timeout
            return TimedOut(
                f"pid {pid} was busy on the GPU all the time and could not be locked; {unharmed}",
                hint="wait until its GPU work is done, or raise --lock-timeout",
            )
        case 801:
            return CannotPark(
                f"the driver cannot park pid {pid}: it has managed memory, or shares memory with other"
                f" processes; {unharmed}",
                hint="ask its owner to save the work and end it",
            )
    return DeviceError(f"{answer.call} failed with CUDA error {answer.code} for pid {pid}; {unharmed}")


def _profiled(pid: int, profiler: str | None) -> VramError:
    """CUPTI leaves a mark in a process for good: also after it was detached (H200, driver 580.159.04)."""
    if profiler == RECORDER:
        return CannotPark(
            f"pid {pid} is or was recorded by vram, and the driver parks no process in which CUPTI was used;"
            " it was not touched",
            hint="restart it without `vram run` to park it; `vram attach --stop` does not change that",
        )
    who = f" ({profiler})" if profiler else ""
    return CannotPark(
        f"a profiler uses or used CUPTI in pid {pid}{who}, and the driver does not park such a process; it"
        " was not touched",
        hint="restart it without the profiler to park it",
    )


def _still_parked(answer: CheckpointAnswer, pid: int) -> VramError:
    if answer.code == NO_MEMORY:
        return CannotPark(
            f"not enough GPU memory for pid {pid}: another process took it in the meantime",
            hint="it stays parked; try again when there is room",
        )
    return DeviceError(
        f"{answer.call} failed with CUDA error {answer.code} for pid {pid}; it stays"
        f" {answer.state or 'as it was'}",
        hint=f"try `vram unpark {pid}` again",
    )
