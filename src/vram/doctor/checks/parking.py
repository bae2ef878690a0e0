"""Parking: has the driver the calls, and the machine the room?"""

from __future__ import annotations

from vram.doctor.check import (
    NO_DRIVER,
    Check,
    CheckAnswer,
    check,
    ok,
)
from vram.doctor.facts import DoctorFacts
from vram.reclaim.preflight import CHECKPOINT_SINCE, ON_ARM_SINCE, reserve
from vram.units import size

CHECKS: list[Check] = []


_IPC_SINCE = 610
_MEANS = "vram park and borrow refuse; vram free has one action less."


@check(CHECKS, "parking.calls", ("park", "borrow", "free"))
def check_calls(facts: DoctorFacts) -> CheckAnswer:
    """parking.calls  Can the driver move a process's memory to the host and back?

    What is looked at
    -----------------
    The driver's version, and whether libcuda has the five calls for it and starts. They are tried on
    nobody: that is done by `vram park`, after its own preflight.

    What it means
    -------------
    Driver 570 and later park, on ARM 595 and later. Memory that processes share by IPC needs 610 and a start
    under `cuda-checkpoint --launch-job`. Managed memory, MIG and MPS are refused by every driver so far.

    What to do
    ----------
    Install a newer driver. Until then `vram trim` and `vram kill` are what there is.
    """
    version = facts.driver.driver_version
    if version is None:
        return NO_DRIVER
    if facts.survey.host.wsl:
        return CheckAnswer(
            state="missing",
            seen="not under WSL: there the driver in the kernel is the one of Windows",
            means=_MEANS,
            fix="Trim or end processes instead; nothing here can change it.",
        )
    since = ON_ARM_SINCE if facts.host_files.machine == "aarch64" else CHECKPOINT_SINCE
    major = int(version.split(".")[0]) if version.split(".")[0].isdigit() else 0
    test = facts.driver_test
    if major < since or test.lacks:
        return CheckAnswer(
            state="missing",
            seen=f"driver {version} cannot park" + (f": {test.lacks[0]} is missing" if test.lacks else ""),
            details=tuple(f"libcuda has no {name}" for name in test.lacks),
            means=_MEANS,
            fix=f"Install a driver of version {since} or later.",
        )
    if test.init_code != 0:
        return CheckAnswer(
            state="missing",
            seen="libcuda cannot be asked",
            means=_MEANS,
            fix="Do what driver.cuda says.",
        )
    shared = "" if major >= _IPC_SINCE else f"; memory shared by IPC from {_IPC_SINCE} on"
    return ok(f"driver {major} parks{shared}", "the calls are there, and were tried on nobody")


@check(CHECKS, "parking.room", ("park", "borrow", "free"))
def check_room(facts: DoctorFacts) -> CheckAnswer:
    """parking.room  Is there host memory to park the largest process in?

    What is looked at
    -----------------
    Host memory that is available, less what vram leaves alone (a twentieth of the machine, from 512 MiB
    to 8 GiB), within the limits of the process's control group; the largest process on the GPUs.

    What it means
    -------------
    Parking moves a process's GPU memory into its own host memory. What does not fit is refused beforehand.

    What to do
    ----------
    End or shrink what takes host memory, or raise the limit of the container, pod or job.
    """
    room = facts.room
    if not facts.gpus:
        return NO_DRIVER
    if room.memory_left is None:
        return CheckAnswer(
            state="unknown",
            seen="/proc/meminfo does not tell how much host memory is available",
            means="vram park refuses what it cannot check.",
            fix="Mount /proc in this container.",
        )
    left = max(0, room.memory_left - reserve(room.memory_total))
    limit = f" (limited by {room.memory_limited_by})" if room.memory_limited_by else ""
    largest = _largest(facts)
    if largest is None:
        return ok(f"{size(left)} of host memory to park in{limit}", "no process is on the GPUs now")
    pid, nbytes = largest
    if nbytes <= left:
        return ok(f"{size(left)} of host memory to park in{limit}; the largest process has {size(nbytes)}")
    return CheckAnswer(
        state="limited",
        seen=f"pid {pid} has {size(nbytes)} on the GPU, {size(left)} of host memory are free{limit}",
        means="It cannot be parked; smaller ones can.",
        fix="Raise the memory limit of its control group."
        if room.memory_limited_by
        else "Make room in host memory, or trim the process first.",
        command="" if room.memory_limited_by else f"vram trim {pid}",
    )


def _largest(facts: DoctorFacts) -> tuple[int, int] | None:
    held: dict[int, int] = {}
    for each in facts.charges:
        if each.process is not None and each.process.started_at is not None and each.nbytes is not None:
            held[each.process.pid] = held.get(each.process.pid, 0) + each.nbytes
    return max(held.items(), key=lambda item: item[1], default=None)
