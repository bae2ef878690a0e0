"""vram.native  Do vram's own native parts load?

What is looked at
-----------------
Each library is loaded once, in a process of its own.

What it means
-------------
libvramscan: without it the walk over /proc is done in Python, slower, with the same answers.
libvrambuffer: without it `vram.Buffer` cannot lend memory by DLPack, and asks the driver in Python,
which takes longer. libcuda and libnvidia-ml of the virtual GPU: without them `vram demo` and
`vram virtual` do not work.

What to do
----------
Install vram from a wheel for this platform; in a checkout run `python native/build.py`.
"""

from __future__ import annotations

import os

from vram.doctor.answers import Answer, ok
from vram.doctor.sight import Sight
from vram.model.doctor import Topic, Verb

ID = "vram.native"
TOPIC: Topic = "vram"
VERBS: tuple[Verb, ...] = ("why", "who", "check")
OPTIONAL = True

_COSTS = {
    "libvramscan.so": "looking takes longer",
    "libvrambuffer.so": "vram.Buffer cannot lend by DLPack",
    "libcuda.so.1": "vram demo and virtual do not work",
    "libnvidia-ml.so.1": "vram demo and virtual do not work",
}


def judge(sight: Sight) -> Answer:
    natives = sight.kernel_trial.natives
    if not natives:
        return Answer(state="unknown", seen="the trial did not end", fix="Run it again.")
    broken = {os.path.basename(path): error for path, error in natives.items() if error}
    if not broken:
        return ok("all native parts load", *(f"loads: {path}" for path in natives))
    costs = dict.fromkeys(_COSTS.get(name, "") for name in broken)
    sentence = "; ".join(cost for cost in costs if cost)
    return Answer(
        state="missing",
        seen=f"cannot be loaded: {', '.join(broken)}",
        details=tuple(f"{name}: {error}" for name, error in broken.items()),
        means=f"{sentence[:1].upper()}{sentence[1:]}.",
        fix="Install a wheel for this platform; in a checkout build them.",
        command="python native/build.py",
    )
