"""The driver's answers about parking, as sentences with what to do."""

from __future__ import annotations

from typing import Literal

from vram.errors import (
    CannotPark,
    DeviceError,
    DriverMissing,
    NoSuchProcess,
    NotOnGpu,
    NotPermitted,
    TimedOut,
    VramError,
)
from vram.model.parking import CheckpointAnswer, Parked
from vram.units import size

NO_MEMORY = 2

Verb = Literal["park", "unpark"]


def explain(answer: CheckpointAnswer, entry: Parked, verb: Verb) -> VramError:
    """The error that says why *verb* came to nothing, and how the process stands now."""
    pid = entry.target.process.pid
    match answer.status:
        case "ended":
            return NoSuchProcess(f"process {pid} has ended")
        case "short":
            return _no_room(answer, entry)
        case "timeout":
            return TimedOut(
                f"the driver has not finished with pid {pid} in time; "
                "it is not interrupted, and the process runs again when it is done",
                hint="`vram parked` tells how it stands",
            )
        case "unavailable":
            return DriverMissing(f"the driver cannot be asked: {answer.message}", hint="see `vram why`")
        case "died":
            return DeviceError(f"{answer.message}; pid {pid} was put right", hint="try again")
    if answer.status == "ok":
        return CannotPark(
            f"pid {pid} is {answer.state} already, by something else than vram; it was not touched",
            hint="`cuda-checkpoint --get-state` tells more",
        )
    if answer.state == "failed":
        return DeviceError(
            f"{answer.call} answered CUDA error {answer.code} and left pid {pid} failed: "
            "its next use of the GPU will fail",
            hint="save what can be saved and start it anew; NVIDIA promises nothing for this state",
        )
    return _refused(answer, pid) if verb == "park" else _still_parked(answer, pid)


def _no_room(answer: CheckpointAnswer, entry: Parked) -> VramError:
    pid = entry.target.process.pid
    share = next((each for each in entry.shares if each.uuid in answer.short), entry.shares[0])
    missing = answer.short.get(share.uuid, 0)
    return CannotPark(
        f"pid {pid} needs {size(share.nbytes)} on GPU {share.gpu}, and {size(missing)} of that are not free",
        hint="it stays parked, unharmed; `vram who` tells who holds the memory",
    )


def _refused(answer: CheckpointAnswer, pid: int) -> VramError:
    unharmed = "it was unlocked and runs on"
    match answer.code:
        case 1:  # INVALID_VALUE: no process of that pid has a context
            return NotOnGpu(f"the driver knows nothing of pid {pid}", hint="`vram who` lists who is on a GPU")
        case 2:  # OUT_OF_MEMORY
            return CannotPark(f"the driver found too little memory to park pid {pid}; {unharmed}")
        case 304:  # OPERATING_SYSTEM: another user's process, measured
            return NotPermitted(f"the driver does not let us park pid {pid}", hint="ask its owner")
        case 401:  # ILLEGAL_STATE
            return CannotPark(
                f"pid {pid} is locked or parked already, by something else than vram",
                hint="`cuda-checkpoint --get-state` tells more",
            )
        case 600:  # NOT_READY: the lock's own timeout
            return TimedOut(
                f"pid {pid} was busy on the GPU all the time and could not be locked; {unharmed}",
                hint="wait for it to come to rest, or give it longer with --lock-timeout",
            )
        case 801:  # NOT_SUPPORTED
            return CannotPark(
                f"the driver cannot park pid {pid}: "
                f"it has managed memory, or shares memory with others; {unharmed}",
                hint="ask it to save its work and end",
            )
    return DeviceError(f"{answer.call} answered CUDA error {answer.code} for pid {pid}; {unharmed}")


def _still_parked(answer: CheckpointAnswer, pid: int) -> VramError:
    if answer.code == NO_MEMORY:
        return CannotPark(
            f"the driver found too little GPU memory for pid {pid}: somebody else took it meanwhile",
            hint="it stays parked; try again when there is room",
        )
    return DeviceError(
        f"{answer.call} answered CUDA error {answer.code} for pid {pid}; "
        f"it stays {answer.state or 'as it was'}",
        hint=f"try `vram unpark {pid}` again",
    )
