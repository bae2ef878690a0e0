"""gpu.mig  Is a GPU divided into instances (MIG)?

What is looked at
-----------------
The MIG mode of every GPU.

What it means
-------------
The driver cannot park processes on a GPU that is divided, so `vram park` and `borrow` refuse there.
Without root the whole GPU lists nobody; vram asks its instances.

What to do
----------
Nothing, if the division is wanted. It can be ended when nobody is on the GPU; that needs root, and
takes every instance away.
"""

from __future__ import annotations

from vram.doctor.answers import NO_DRIVER, Answer, ok
from vram.doctor.sight import Sight, gpu_names
from vram.model.doctor import Topic, Verb

ID = "gpu.mig"
TOPIC: Topic = "gpu"
VERBS: tuple[Verb, ...] = ("park", "borrow")
OPTIONAL = False


def judge(sight: Sight) -> Answer:
    if not sight.gpus:
        return NO_DRIVER
    divided = [index for index, gpu in sight.gpus.items() if gpu.mig_enabled]
    if not divided:
        return ok("MIG off")
    return Answer(
        state="limited",
        seen=f"MIG divides {gpu_names(divided)} of {len(sight.gpus)}",
        means="vram park and borrow refuse there: the driver cannot park on an instance.",
        fix="Leave it if it is wanted; with nobody on the GPU it can be ended.",
        command=f"sudo nvidia-smi -i {divided[0]} -mig 0",
    )
