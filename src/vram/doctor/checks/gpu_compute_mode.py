"""gpu.compute-mode  Who may make a context?

What is looked at
-----------------
The compute mode of every GPU.

What it means
-------------
"prohibited": nobody. "exclusive-process": one process at a time, however much memory is free; the
command of `vram borrow` is refused while another process has a context there.

What to do
----------
Nothing, if a scheduler set it. Root can change it; running programs keep what they have.
"""

from __future__ import annotations

from vram.doctor.answers import NO_DRIVER, Answer, ok
from vram.doctor.sight import Sight, gpu_names
from vram.model.doctor import Topic, Verb

ID = "gpu.compute-mode"
TOPIC: Topic = "gpu"
VERBS: tuple[Verb, ...] = ("borrow",)
OPTIONAL = False


def judge(sight: Sight) -> Answer:
    if not sight.gpus:
        return NO_DRIVER
    closed = [index for index, gpu in sight.gpus.items() if gpu.compute_mode == "prohibited"]
    exclusive = [index for index, gpu in sight.gpus.items() if gpu.compute_mode == "exclusive-process"]
    if not closed and not exclusive:
        return ok("compute mode default")
    which, mode = (closed, "prohibited") if closed else (exclusive, "exclusive-process")
    return Answer(
        state="limited",
        seen=f"{gpu_names(which)}: compute mode {mode}",
        means="No program can make a context there."
        if closed
        else "A second program is refused while a first one has a context, whatever memory is free.",
        fix="Leave it if a scheduler set it; root can change it.",
        command=f"sudo nvidia-smi -i {which[0]} -c DEFAULT",
    )
