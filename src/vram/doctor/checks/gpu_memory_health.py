"""gpu.memory-health  Is the GPUs' memory sound: ECC, remapped rows, retired pages?

What is looked at
-----------------
ECC and its uncorrected errors since boot, rows that wait for their remapping or could not be
remapped, pages that wait for their retirement.

What it means
-------------
A pending repair takes effect at the next reset. A remapping that failed means that the GPU is to be
replaced. Uncorrected errors have ended the programs that met them.

What to do
----------
- Pending: let the work on that GPU end, then `vram reset GPU`.
- Failed: take the GPU out of service.
"""

from __future__ import annotations

from vram.doctor.answers import NO_DRIVER, Answer, ok
from vram.doctor.sight import Sight, gpu_names
from vram.model.doctor import Topic, Verb
from vram.model.gpu import GpuFacts

ID = "gpu.memory-health"
TOPIC: Topic = "gpu"
VERBS: tuple[Verb, ...] = ("why", "check", "reset")
OPTIONAL = False


def judge(sight: Sight) -> Answer:
    if not sight.gpus:
        return NO_DRIVER
    failed = [index for index, gpu in sight.gpus.items() if gpu.remap_failed]
    waiting = [index for index, gpu in sight.gpus.items() if gpu.remap_pending or gpu.retired_pending]
    wrong = [index for index, gpu in sight.gpus.items() if gpu.ecc_uncorrected]
    details = tuple(_counts(index, gpu) for index, gpu in sight.gpus.items())
    if failed:
        return Answer(
            state="broken",
            seen=f"{gpu_names(failed)}: faulty memory could not be remapped",
            details=details,
            means="Programs that come upon the faulty place are ended by the driver.",
            fix="Take the GPU out of service and have it replaced.",
            command=f"nvidia-smi -q -d ROW_REMAPPER,PAGE_RETIREMENT -i {failed[0]}",
        )
    if waiting or wrong:
        return _waiting(sight, waiting, wrong, details)
    known = {gpu.ecc_enabled for gpu in sight.gpus.values()}
    ecc = "ECC on" if known == {True} else "ECC off" if known == {False} else "ECC mixed or unknown"
    return ok(f"{ecc}, no repair waits", *details)


def _waiting(sight: Sight, waiting: list[int], wrong: list[int], details: tuple[str, ...]) -> Answer:
    which = waiting or wrong
    errors = sum(gpu.ecc_uncorrected or 0 for gpu in sight.gpus.values())
    return Answer(
        state="limited",
        seen=f"{gpu_names(which)}: a repair of faulty memory waits for a reset"
        if waiting
        else f"{gpu_names(which)}: {errors} uncorrected ECC errors since boot",
        details=details,
        means="The memory works on; programs that met the fault were ended.",
        fix="Let the work there end, then reset the GPU." if waiting else "Watch it; a reset clears it.",
        command=f"vram reset {which[0]}",
    )


def _counts(index: int, gpu: GpuFacts) -> str:
    figures = {
        "uncorrected ECC errors": gpu.ecc_uncorrected,
        "rows remapped after correctable": gpu.remapped_correctable,
        "after uncorrectable errors": gpu.remapped_uncorrectable,
    }
    said = ", ".join(f"{'unknown' if count is None else count} {name}" for name, count in figures.items())
    return f"GPU {index}: {said}"
