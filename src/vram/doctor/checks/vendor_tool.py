"""driver.tool  Is nvidia-smi here?

What is looked at
-----------------
The system's own folders for programs. The caller's PATH has no say, because `vram reset` runs as root.

What it means
-------------
`vram reset` runs it, once everything else is out of the way: only it may reset a GPU.

What to do
----------
Install the driver's utilities; a container gets it with NVIDIA_DRIVER_CAPABILITIES=utility.
"""

from __future__ import annotations

from vram.doctor.answers import NO_DRIVER, Answer, not_applicable, ok
from vram.doctor.sight import Sight
from vram.model.doctor import Topic, Verb

ID = "driver.tool"
TOPIC: Topic = "driver"
VERBS: tuple[Verb, ...] = ("reset",)
OPTIONAL = True


def judge(sight: Sight) -> Answer:
    tool = sight.premises.driver.tool
    if sight.virtual:
        return not_applicable("a virtual GPU has no nvidia-smi")
    if tool:
        return ok("nvidia-smi is here", f"it is {tool}")
    if not sight.gpus:
        return NO_DRIVER
    return Answer(
        state="missing",
        seen="nvidia-smi is in none of the system's folders",
        means="vram reset names what is in the way, and cannot reset.",
        fix="Install the driver's utilities (nvidia-utils); in a container ask for `utility`.",
    )
