"""gpu.persistence  Does the driver keep the GPUs ready while nobody uses them?

What is looked at
-----------------
The persistence mode of every GPU.

What it means
-------------
Without it a GPU that nobody has open is shut down, and set up again for the next program: the first
answer of `vram why`, and the start of every program, takes up to some seconds longer.

What to do
----------
Run nvidia-persistenced, as the driver's packages do. On WSL2 and virtual machines it may not be
settable.
"""

from __future__ import annotations

from vram.doctor.answers import NO_DRIVER, Answer, not_applicable, ok
from vram.doctor.sight import Sight, gpu_names
from vram.model.doctor import Topic, Verb

ID = "gpu.persistence"
TOPIC: Topic = "gpu"
VERBS: tuple[Verb, ...] = ("why", "who", "check")
OPTIONAL = True


def judge(sight: Sight) -> Answer:
    if not sight.gpus:
        return NO_DRIVER
    off = [index for index, gpu in sight.gpus.items() if gpu.persistence is False]
    if not off:
        known = any(gpu.persistence for gpu in sight.gpus.values())
        return ok("persistence on") if known else not_applicable("the driver does not tell")
    return Answer(
        state="limited",
        seen=f"persistence off on {gpu_names(off)}",
        means="An idle GPU has to wake up first: answers and programs start some seconds later.",
        fix="Let the persistence daemon keep it ready.",
        command="sudo systemctl enable --now nvidia-persistenced",
    )
