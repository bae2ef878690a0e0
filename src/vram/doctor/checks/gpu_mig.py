"""gpu.mig  Is a GPU divided into instances (MIG)?

What is looked at
-----------------
The MIG mode of every GPU, and how many instances it has.

What it means
-------------
The driver cannot park processes on a GPU that is divided, so `vram park` and `borrow` refuse there.
Without root the whole GPU lists nobody; vram asks its instances. A GPU that has MIG on and no
instance yet is of no use: CUDA finds nothing on it.

What to do
----------
Nothing, if the division is wanted. It can be ended when nobody is on the GPU; that needs root, and
takes every instance away. Where there is none, make one.
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
    bare = [index for index in divided if sight.gpus[index].mig_devices == 0]
    return _without_instance(bare) if bare else _divided(divided, len(sight.gpus))


def _divided(divided: list[int], gpus: int) -> Answer:
    return Answer(
        state="limited",
        seen=f"MIG divides {gpu_names(divided)} of {gpus}",
        means="vram park and borrow refuse there: the driver cannot park on an instance.",
        fix="Leave it if it is wanted; with nobody on the GPU it can be ended.",
        command=f"sudo nvidia-smi -i {divided[0]} -mig 0",
    )


def _without_instance(bare: list[int]) -> Answer:
    return Answer(
        state="limited",
        seen=f"MIG is on at {gpu_names(bare)}, without an instance",
        means="CUDA finds nothing to run on there.",
        fix="Make an instance, of a profile that this lists, or end MIG with -mig 0.",
        command=f"sudo nvidia-smi mig -i {bare[0]} -lgip",
    )
