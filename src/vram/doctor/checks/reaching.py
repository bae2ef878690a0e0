"""Attaching to Python processes, and what profilers have loaded into them."""

from __future__ import annotations

from vram.doctor.check import (
    Check,
    CheckAnswer,
    check,
    not_applicable,
    ok,
)
from vram.doctor.facts import DoctorFacts, PythonTarget
from vram.model.doctor import Tracing
from vram.units import counted, size

CHECKS: list[Check] = []


_LAST_MINOR = 14


@check(CHECKS, "reaching.routes", ("trim", "deep", "free"), optional=True)
def check_routes(facts: DoctorFacts) -> CheckAnswer:
    """reaching.routes  How can vram attach to a CPython process here?

    What it checks
    --------------
    Three Python processes that the doctor starts itself, of the version that runs vram: one running, one
    idle in a system call, one waiting for a lock. Each is stopped for a moment by ptrace, queried, and
    ended. No other process is stopped.

    What it means
    -------------
    `vram trim` attaches to any CPython from 3.9 to 3.14 this way, without an agent and without a debugger.
    For 3.14, Python's own debugger interface is tried first.
    If an idle program cannot be entered (shadow stacks), it answers when it next runs.

    What to do
    ----------
    See permissions.ptrace for what the kernel blocks. Programs that call `vram.agent()` need none of it.
    """
    test = facts.attach_test
    if test is None:
        return CheckAnswer(state="unknown", seen="the self test did not finish", fix="Run it again.")
    if int(test.version.partition(".")[2]) > _LAST_MINOR:
        return not_applicable(
            f"vram's own Python {test.version} is newer than the versions that vram can attach to"
        )
    if not test.errors:
        longest = max(test.routes.values())
        return ok(
            "can attach to a Python that is running, idle or waiting for a lock",
            f"stopped for at most {longest:.1f} ms (Python {test.version})",
        )
    failed = ", ".join(test.errors)
    return CheckAnswer(
        state="limited",
        seen=f"cannot attach to a Python {failed}",
        details=tuple(f"{state}: {reason}" for state, reason in test.errors.items()),
        means="vram trim can reach such processes only through an agent or Jupyter.",
        fix="Have programs call vram.agent(), or start them with VRAM_AGENT=1.",
    )


_MAX_NAMED = 4


@check(CHECKS, "reaching.python", ("trim", "deep", "free"))
def check_python(facts: DoctorFacts) -> CheckAnswer:
    """reaching.python  Which Python processes on the GPUs can be trimmed, and how?

    What it checks
    --------------
    Every Python process with GPU memory: an agent's socket, a Jupyter connection file, Python 3.14's
    debugger interface, ptrace. No process is queried or stopped.

    What it means
    -------------
    `vram trim PID` uses the safest one that is available.

    What to do
    ----------
    CPython 3.9 and later needs only the permission to attach. Other programs can call `vram.agent()`, or
    be started with VRAM_AGENT=1; for notebooks install `vram[jupyter]`.
    """
    if facts.targets is None:
        return CheckAnswer(
            state="unknown",
            seen="reading the files of a process on the GPUs does not return",
            means="vram trim would hang on them too.",
            fix="Check whether its program is on a file server that does not answer.",
        )
    if not facts.targets:
        return not_applicable("no Python process uses a GPU")
    willing = [target for target in facts.targets if target.available]
    details = tuple(_python_line(target) for target in facts.targets)
    whole = counted(len(facts.targets), "Python process")
    if len(willing) == len(facts.targets):
        return ok(f"{whole} on the GPUs can be trimmed", *details)
    stuck = [target for target in facts.targets if target not in willing]
    needs_zmq = facts.program.packages.get("pyzmq") is None and any(target.is_kernel for target in stuck)
    return CheckAnswer(
        state="limited",
        seen=f"{_named(stuck, whole)} cannot be trimmed",
        details=details,
        means="vram trim refuses them, and vram why --deep cannot look inside.",
        fix=_fix(needs_zmq),
        command="pip install 'vram[jupyter]'" if needs_zmq else "",
    )


def _named(stuck: list[PythonTarget], whole: str) -> str:
    if len(stuck) > _MAX_NAMED:
        return f"{len(stuck)} of {whole}"
    return f"Python pid{'s' * (len(stuck) > 1)} {', '.join(str(target.pid) for target in stuck)}"


def _fix(needs_zmq: bool) -> str:
    if needs_zmq:
        return "Install the package that talks to Jupyter kernels."
    return "Have them call vram.agent() at their next start, or start them with VRAM_AGENT=1."


def _python_line(target: PythonTarget) -> str:
    held = f", {size(target.nbytes)}" if target.nbytes is not None else ""
    ways = f"by {', '.join(target.available)}" if target.available else "by none"
    reasons = "; ".join(f"{name}: {reason}" for name, reason in target.unavailable.items())
    return f"pid {target.pid} ({target.user or 'unknown user'}{held}): {ways}" + (
        f" ({reasons})" if reasons else ""
    )


@check(CHECKS, "reaching.cupti", (), optional=True)
def check_cupti(facts: DoctorFacts) -> CheckAnswer:
    """reaching.cupti  Is CUPTI installed, and does a tracing tool already use it?

    What it checks
    --------------
    libcupti in the toolkit, in installed packages and in the loader's folders; readable processes on the
    GPUs that have it mapped or were started with CUDA_INJECTION64_PATH; the same variable in vram's own
    environment.

    What it means
    -------------
    `vram run` and `vram attach` record through it, and so do CUDA profilers (PyTorch's, Nsight Systems).
    Before CUPTI 13.3 with driver 610 only one of them works per process: the second one records nothing.
    vram's recorder shares its place with PyTorch's profiler.

    What to do
    ----------
    - Not found: `pip install nvidia-cuda-cupti`, or the CUDA toolkit.
    - In use: let that tool finish. A process that has it mapped is not necessarily being traced.
    """
    places = tuple(f"found: {path}" for path in facts.cupti or ())
    injected = [each for each in facts.tracing if each.injection]
    if facts.host_files.injection:
        return CheckAnswer(
            state="limited",
            seen=f"CUDA_INJECTION64_PATH is set to {facts.host_files.injection}",
            details=places,
            means="Every CUDA program started from here loads that tool; only one can be loaded.",
            fix="Unset it where you want no tracing.",
            command="unset CUDA_INJECTION64_PATH",
        )
    if injected:
        return CheckAnswer(
            state="limited",
            seen=f"a tracing tool is loaded in {counted(len(injected), 'process')} on the GPUs",
            details=(*map(_tracing_line, facts.tracing), *places),
            means="Another profiler in the same process would record nothing.",
            fix="Let that tool finish before you start another one.",
        )
    if facts.cupti is None:
        fix = "Remove folders that no longer exist from LD_LIBRARY_PATH."
        return CheckAnswer(state="unknown", seen="reading a library folder does not return", fix=fix)
    if not places:
        return CheckAnswer(
            state="missing",
            seen="no libcupti found",
            means="`vram run`, `vram attach` and CUDA profilers need it; everything else of vram does not.",
            fix="Install it if you want to record allocations or to profile.",
            command="pip install nvidia-cuda-cupti",
        )
    mapped = f", mapped by {counted(len(facts.tracing), 'process')}" if facts.tracing else ""
    return ok(f"CUPTI found{mapped}", *map(_tracing_line, facts.tracing), *places)


def _tracing_line(each: Tracing) -> str:
    injection = f", started with CUDA_INJECTION64_PATH={each.injection}" if each.injection else ""
    return f"pid {each.pid}: {f'has {each.library}' if each.library else 'has no libcupti yet'}{injection}"
