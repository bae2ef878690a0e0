"""A parked (checkpointed) process leaves nothing on the GPU

Source
------
Folklore; the promise of CUDA checkpointing, on which `vram park` stands.

Method
------
A process with 256 MiB is locked and checkpointed by the driver, the device is read, and the
process is restored and unlocked.

Reading
-------
True means that even the context is gone; the contents wait in host memory. The few MiB that are
left are there as long as any process has CUDA initialised: see init-costs. Drivers before 570 cannot
do it, and managed memory, MIG and MPS refuse.
"""

from __future__ import annotations

from vram.lab.answer import Answer, CannotTell, Takes, figure, weighed
from vram.lab.bench import Bench
from vram.units import MIB, size

NBYTES = 256 * MIB
TAKES = Takes(NBYTES)
OK = 0


def measure(bench: Bench) -> Answer:
    program, held = bench.holding(NBYTES)
    other = bench.actor()
    other.init()
    for verb in ("Lock", "Checkpoint"):
        code = other.checkpoint_code(verb, program.pid)
        if code != OK:
            raise CannotTell(f"cuCheckpointProcess{verb} answered {code}")
    left = bench.grown(bench.look("parked"))
    codes = [other.checkpoint_code(verb, program.pid) for verb in ("Restore", "Unlock")]
    back = bench.grown(bench.look("brought back"))
    answer = weighed(left, held, "used while it is parked", claimed=False)
    refused = "" if codes == [OK, OK] else f"; restoring and unlocking it answered {codes}"
    because = f"{answer.because}, {size(back)} when it was back{refused}"
    return Answer(answer.holds, because, (figure("parked", left), figure("brought back", back)))
