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
_MEANS = "vram park and borrow refuse; vram free cannot park."


@check(CHECKS, "parking.calls", ("park", "borrow", "free"))
def check_calls(facts: DoctorFacts) -> CheckAnswer:
    """parking.calls  Can the driver move a process's memory to the host and back?

    What it checks
    --------------
    The driver's version, and whether libcuda starts and has the five calls for it. They are not tried on
    any process; `vram park` does that, after its own preflight.

    What it means
    -------------
    Driver 570 and later can park, on ARM 595 and later. Memory shared by IPC needs driver 610 and a program
    started under `cuda-checkpoint --launch-job`. No driver so far can park managed memory, MIG or MPS.

    What to do
    ----------
    Install a newer driver. Until then use `vram trim` or `vram kill`.
    """
    version = facts.driver.driver_version
    if version is None:
        return NO_DRIVER
    if facts.survey.host.wsl:
        return CheckAnswer(
            state="missing",
            seen="not under WSL: the kernel driver is Windows'",
            means=_MEANS,
            fix="Trim or kill processes instead; nothing here can change it.",
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
            fix=f"Install driver {since} or later.",
        )
    if test.init_code != 0:
        return CheckAnswer(
            state="missing",
            seen="libcuda did not answer",
            means=_MEANS,
            fix="Follow driver.cuda.",
        )
    shared = "" if major >= _IPC_SINCE else f"; memory shared by IPC needs driver {_IPC_SINCE}"
    return ok(f"driver {major} can park{shared}", "the calls exist; they were not tried on a process")


@check(CHECKS, "parking.room", ("park", "borrow", "free"))
def check_room(facts: DoctorFacts) -> CheckAnswer:
    """parking.room  Is there enough host memory to park the largest process?

    What it checks
    --------------
    Available host memory minus a reserve (a twentieth of the machine, from 512 MiB to 8 GiB), within the
    limits of the process's cgroup; the largest process on the GPUs.

    What it means
    -------------
    Parking moves a process's GPU memory to host memory. A process that does not fit is refused.

    What to do
    ----------
    Free host memory, or raise the limit of the container, pod or job.
    """
    room = facts.room
    if not facts.gpus:
        return NO_DRIVER
    if room.memory_left is None:
        return CheckAnswer(
            state="unknown",
            seen="/proc/meminfo does not show how much host memory is available",
            means="vram park refuses because it cannot check for room.",
            fix="Mount /proc in this container.",
        )
    left = max(0, room.memory_left - reserve(room.memory_total))
    limit = f" (limited by {room.memory_limited_by})" if room.memory_limited_by else ""
    largest = _largest(facts)
    if largest is None:
        return ok(f"{size(left)} of host memory available for parking{limit}", "no process uses the GPUs now")
    pid, nbytes = largest
    if nbytes <= left:
        return ok(
            f"{size(left)} of host memory available for parking{limit}; the largest process needs"
            f" {size(nbytes)}"
        )
    return CheckAnswer(
        state="limited",
        seen=f"pid {pid} has {size(nbytes)} on the GPU, but only {size(left)} of host memory is free{limit}",
        means="It cannot be parked; smaller ones can.",
        fix="Raise the memory limit of its cgroup."
        if room.memory_limited_by
        else "Free some host memory, or trim the process first.",
        command="" if room.memory_limited_by else f"vram trim {pid}",
    )


def _largest(facts: DoctorFacts) -> tuple[int, int] | None:
    held: dict[int, int] = {}
    for each in facts.charges:
        if each.process is not None and each.process.started_at is not None and each.nbytes is not None:
            held[each.process.pid] = held.get(each.process.pid, 0) + each.nbytes
    return max(held.items(), key=lambda item: item[1], default=None)
