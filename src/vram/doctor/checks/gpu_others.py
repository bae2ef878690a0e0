"""gpu.others  Are there GPUs of AMD or Intel, and does the kernel tell of their memory?

What is looked at
-----------------
The GPUs that amdgpu, xe and i915 drive, and whether their figures in sysfs could be read.

What it means
-------------
`vram why`, `who` and `check` count them in, from what the kernel tells. Parking, trimming and resetting are
for NVIDIA's.

What to do
----------
Nothing, as a rule. Newer kernels tell more of what each process uses.
"""

from __future__ import annotations

from vram.doctor.answers import Answer, not_applicable, ok
from vram.doctor.sight import Sight, gpu_names
from vram.model.doctor import Topic, Verb
from vram.model.gpu import GpuFacts

ID = "gpu.others"
TOPIC: Topic = "gpu"
VERBS: tuple[Verb, ...] = ("why", "who", "check")
OPTIONAL = True


def judge(sight: Sight) -> Answer:
    if not sight.other_gpus:
        return not_applicable("no GPU of AMD or Intel")
    details = tuple(f"GPU {index}: {_named(gpu)}" for index, gpu in sight.other_gpus.items())
    silent = [
        each
        for each in sight.survey.observations
        if each.probe == "drm.memory" and each.status != "ok" and each.gpu is not None
    ]
    if not silent:
        return ok(f"{gpu_names(list(sight.other_gpus))}: {_vendors(sight)}", *details)
    return Answer(
        state="limited",
        seen=f"the kernel does not tell the memory of {gpu_names([each.gpu or 0 for each in silent])}",
        details=(*details, *(each.message for each in silent if each.message)),
        means="vram why can name who uses it, and cannot balance its bytes.",
        fix="For xe, a newer kernel with the dmem controller (CONFIG_CGROUP_DMEM); i915 tells it in none.",
    )


def _named(gpu: GpuFacts) -> str:
    version = f" {gpu.driver_version}" if gpu.driver_version else ""
    return f"{gpu.name} ({gpu.driver}{version})"


def _vendors(sight: Sight) -> str:
    names = {"amd": "AMD", "intel": "Intel"}
    found = dict.fromkeys(names.get(gpu.vendor, gpu.vendor) for gpu in sight.other_gpus.values())
    return " and ".join(found)
