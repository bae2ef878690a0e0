"""gpu.mps  Do programs share a GPU through MPS?

What is looked at
-----------------
The folder of the MPS daemon ($CUDA_MPS_PIPE_DIRECTORY, or /tmp/nvidia-mps), whether its daemon lives,
and whether the driver lists clients.

What it means
-------------
Clients of MPS cannot be parked. A part of what they use is charged to the server, which is never ended:
all clients would fail with it.

What to do
----------
Nothing, if it is wanted. Whoever runs the machine can end it when its clients are done.
"""

from __future__ import annotations

from vram.doctor.answers import NO_DRIVER, Answer, ok
from vram.doctor.sight import Sight
from vram.model.doctor import Topic, Verb
from vram.model.gpu import ChargeFacts
from vram.units import counted

ID = "gpu.mps"
TOPIC: Topic = "gpu"
VERBS: tuple[Verb, ...] = ("park", "borrow", "who")
OPTIONAL = False


def judge(sight: Sight) -> Answer:
    mps = sight.premises.mps
    if not sight.gpus and mps.control_pid is None:
        return NO_DRIVER
    clients = {each.process.pid for each in sight.charges if _is_client(each.facts) and each.process}
    if not clients and mps.control_pid is None:
        return ok("no MPS", *((f"{mps.folder} is left of an MPS that has ended",) if mps.has_pipe else ()))
    daemon = f"MPS daemon {mps.control_pid}" if mps.control_pid else "MPS"
    return Answer(
        state="limited",
        seen=f"{daemon} serves {counted(len(clients), 'client')}",
        details=(f"its folder is {mps.folder}", *(f"pid {pid} is a client" for pid in sorted(clients))),
        means="Its clients cannot be parked, and a part of their memory is charged to the server.",
        fix="Leave it if it is wanted; it ends when its clients are done.",
        command="echo quit | nvidia-cuda-mps-control",
    )


def _is_client(facts: object) -> bool:
    return isinstance(facts, ChargeFacts) and "mps" in facts.lists
