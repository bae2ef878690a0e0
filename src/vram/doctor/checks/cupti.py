"""reaching.cupti  Is CUPTI here, and does a tool for tracing have it already?

What is looked at
-----------------
libcupti in the toolkit, in installed packages and in the loader's folders; processes on the GPUs that
have one mapped or were started with CUDA_INJECTION64_PATH, as far as we may read them; the same
variable in our own environment.

What it means
-------------
No command of vram uses it. It is what profilers of CUDA stand on (PyTorch's, Nsight Systems), and before
CUPTI 13.3 with driver 610 a process has room for one of them: whoever comes second records nothing.

What to do
----------
- Not found: `pip install nvidia-cuda-cupti`, or the CUDA toolkit.
- Taken: let that tool finish. A process that merely has it mapped need not be traced now.
"""

from __future__ import annotations

from vram.doctor.answers import Answer, ok
from vram.doctor.sight import Sight
from vram.model.doctor import Topic, Verb
from vram.model.surroundings import Tracing
from vram.units import counted

ID = "reaching.cupti"
TOPIC: Topic = "reaching"
VERBS: tuple[Verb, ...] = ()
OPTIONAL = True


def judge(sight: Sight) -> Answer:
    places = tuple(f"found: {path}" for path in sight.cupti or ())
    injected = [each for each in sight.tracing if each.injection]
    if sight.premises.injection:
        return Answer(
            state="limited",
            seen=f"CUDA_INJECTION64_PATH is set to {sight.premises.injection}",
            details=places,
            means="Every CUDA program started from here loads that tool; there is room for one.",
            fix="Unset it where no tracing is wanted.",
            command="unset CUDA_INJECTION64_PATH",
        )
    if injected:
        return Answer(
            state="limited",
            seen=f"{counted(len(injected), 'process')} on the GPUs run under a tool for tracing",
            details=(*map(_told, sight.tracing), *places),
            means="Another profiler in the same process would record nothing.",
            fix="Let that tool finish before another one is started.",
        )
    if sight.cupti is None:
        fix = "Take folders that are not there any more out of LD_LIBRARY_PATH."
        return Answer(state="unknown", seen="a folder of libraries does not answer", fix=fix)
    if not places:
        return Answer(
            state="missing",
            seen="no libcupti found",
            means="Profilers of CUDA need it; no command of vram does.",
            fix="Install it if you want to profile.",
            command="pip install nvidia-cuda-cupti",
        )
    mapped = f", mapped by {counted(len(sight.tracing), 'process')}" if sight.tracing else ""
    return ok(f"CUPTI found{mapped}", *map(_told, sight.tracing), *places)


def _told(each: Tracing) -> str:
    injection = f", started with CUDA_INJECTION64_PATH={each.injection}" if each.injection else ""
    return f"pid {each.pid}: {f'has {each.library}' if each.library else 'has no libcupti yet'}{injection}"
