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
    """reaching.routes  By which routes can vram attach to a CPython here?

    What is looked at
    -----------------
    Three Pythons that the doctor starts itself, of the version that runs vram: one at work, one at rest in a
    system call, one that waits for a lock. Each is stopped for a moment by ptrace, asked, and ended. Nobody
    else's process is stopped.

    What it means
    -------------
    `vram trim` attaches to any CPython from 3.9 to 3.14 by these routes, without an agent and without a
    debugger. A 3.14 is asked through its own interface for debuggers first.
    Where the route for a program at rest is closed (shadow stacks), such a program answers when it wakes up.

    What to do
    ----------
    See permissions.ptrace for what the kernel forbids. Programs that call `vram.agent()` need none of it.
    """
    test = facts.attach_test
    if test is None:
        return CheckAnswer(state="unknown", seen="the self test did not end", fix="Run it again.")
    if int(test.version.partition(".")[2]) > _LAST_MINOR:
        return not_applicable(f"vram's own Python {test.version} is newer than those that vram can attach to")
    if not test.errors:
        longest = max(test.routes.values())
        return ok(
            "can attach to a Python at work, at rest or waiting for a lock",
            f"stopped for at most {longest:.1f} ms (Python {test.version})",
        )
    failed = ", ".join(test.errors)
    return CheckAnswer(
        state="limited",
        seen=f"cannot attach to a Python {failed}",
        details=tuple(f"{state}: {reason}" for state, reason in test.errors.items()),
        means="vram trim reaches such processes by an agent or Jupyter only.",
        fix="Have programs call vram.agent(), or be started with VRAM_AGENT=1.",
    )


_MOST_NAMED = 4


@check(CHECKS, "reaching.python", ("trim", "deep", "free"))
def check_python(facts: DoctorFacts) -> CheckAnswer:
    """reaching.python  Which Python processes on the GPUs can be asked to trim, and how?

    What is looked at
    -----------------
    Every Python process with GPU memory: an agent's socket, a Jupyter connection file, Python 3.14's
    interface for debuggers, ptrace. Nobody is asked anything, and nobody is stopped.

    What it means
    -------------
    `vram trim PID` takes the safest of them that can be used.

    What to do
    ----------
    CPython from 3.9 on needs nothing but the permission to attach. Other programs can call `vram.agent()`,
    or be started with VRAM_AGENT=1; notebooks are also reached with `vram[jupyter]`.
    """
    if facts.targets is None:
        return CheckAnswer(
            state="unknown",
            seen="the files of a process on the GPUs do not answer",
            means="vram trim would wait for them as well.",
            fix="See whether its program lies on a server that is gone.",
        )
    if not facts.targets:
        return not_applicable("no Python process is on a GPU")
    willing = [target for target in facts.targets if target.available]
    details = tuple(_python_line(target) for target in facts.targets)
    whole = counted(len(facts.targets), "Python process")
    if len(willing) == len(facts.targets):
        return ok(f"{whole} on the GPUs can be asked to trim", *details)
    stuck = [target for target in facts.targets if target not in willing]
    needs_zmq = facts.program.packages.get("pyzmq") is None and any(target.is_kernel for target in stuck)
    return CheckAnswer(
        state="limited",
        seen=f"{_named(stuck, whole)} cannot be asked to trim",
        details=details,
        means="vram trim refuses them, and vram why --deep does not see inside.",
        fix=_fix(needs_zmq),
        command="pip install 'vram[jupyter]'" if needs_zmq else "",
    )


def _named(stuck: list[PythonTarget], whole: str) -> str:
    if len(stuck) > _MOST_NAMED:
        return f"{len(stuck)} of {whole}"
    return f"Python pid{'s' * (len(stuck) > 1)} {', '.join(str(target.pid) for target in stuck)}"


def _fix(needs_zmq: bool) -> str:
    if needs_zmq:
        return "Install what speaks to Jupyter kernels."
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
    places = tuple(f"found: {path}" for path in facts.cupti or ())
    injected = [each for each in facts.tracing if each.injection]
    if facts.host_files.injection:
        return CheckAnswer(
            state="limited",
            seen=f"CUDA_INJECTION64_PATH is set to {facts.host_files.injection}",
            details=places,
            means="Every CUDA program started from here loads that tool; there is room for one.",
            fix="Unset it where no tracing is wanted.",
            command="unset CUDA_INJECTION64_PATH",
        )
    if injected:
        return CheckAnswer(
            state="limited",
            seen=f"{counted(len(injected), 'process')} on the GPUs run under a tool for tracing",
            details=(*map(_tracing_line, facts.tracing), *places),
            means="Another profiler in the same process would record nothing.",
            fix="Let that tool finish before another one is started.",
        )
    if facts.cupti is None:
        fix = "Take folders that are not there any more out of LD_LIBRARY_PATH."
        return CheckAnswer(state="unknown", seen="a folder of libraries does not answer", fix=fix)
    if not places:
        return CheckAnswer(
            state="missing",
            seen="no libcupti found",
            means="Profilers of CUDA need it; no command of vram does.",
            fix="Install it if you want to profile.",
            command="pip install nvidia-cuda-cupti",
        )
    mapped = f", mapped by {counted(len(facts.tracing), 'process')}" if facts.tracing else ""
    return ok(f"CUPTI found{mapped}", *map(_tracing_line, facts.tracing), *places)


def _tracing_line(each: Tracing) -> str:
    injection = f", started with CUDA_INJECTION64_PATH={each.injection}" if each.injection else ""
    return f"pid {each.pid}: {f'has {each.library}' if each.library else 'has no libcupti yet'}{injection}"
