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

from __future__ import annotations

from vram.doctor.answers import NO_DRIVER, Answer, ok
from vram.doctor.sight import Sight
from vram.model.doctor import Topic, Verb
from vram.reclaim.preflight import reserve
from vram.units import size

ID = "parking.room"
TOPIC: Topic = "parking"
VERBS: tuple[Verb, ...] = ("park", "borrow", "free")
OPTIONAL = False


def judge(sight: Sight) -> Answer:
    room = sight.room
    if not sight.gpus:
        return NO_DRIVER
    if room.memory_left is None:
        return Answer(
            state="unknown",
            seen="/proc/meminfo does not tell how much host memory is available",
            means="vram park refuses what it cannot check.",
            fix="Mount /proc in this container.",
        )
    left = max(0, room.memory_left - reserve(room.memory_total))
    limit = f" (limited by {room.memory_limited_by})" if room.memory_limited_by else ""
    largest = _largest(sight)
    if largest is None:
        return ok(f"{size(left)} of host memory to park in{limit}", "no process is on the GPUs now")
    pid, nbytes = largest
    if nbytes <= left:
        return ok(f"{size(left)} of host memory to park in{limit}; the largest process has {size(nbytes)}")
    return Answer(
        state="limited",
        seen=f"pid {pid} has {size(nbytes)} on the GPU, {size(left)} of host memory are free{limit}",
        means="It cannot be parked; smaller ones can.",
        fix="Raise the memory limit of its control group."
        if room.memory_limited_by
        else "Make room in host memory, or trim the process first.",
        command="" if room.memory_limited_by else f"vram trim {pid}",
    )


def _largest(sight: Sight) -> tuple[int, int] | None:
    held: dict[int, int] = {}
    for each in sight.charges:
        if each.process is not None and each.process.started_at is not None and each.nbytes is not None:
            held[each.process.pid] = held.get(each.process.pid, 0) + each.nbytes
    return max(held.items(), key=lambda item: item[1], default=None)
