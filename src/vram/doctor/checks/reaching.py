"""Processes: can the driver park them, can vram attach to them, and which profilers are in them?"""

from __future__ import annotations

from vram.cpython_layouts import LAST_MINOR
from vram.doctor.check import (
    NO_DRIVER,
    UNFINISHED,
    AttachTarget,
    CheckAnswer,
    DoctorFacts,
    check,
    limited,
    missing,
    not_applicable,
    ok,
    unknown,
)
from vram.model.doctor import Tracing
from vram.model.parking import CHECKPOINT_SINCE, ON_ARM_SINCE, reserve
from vram.units import counted, size

_IPC_SINCE = 610
_MEANS = "vram park and borrow refuse; vram free cannot park."


@check("parking.calls", ("park", "borrow", "free"))
def check_calls(facts: DoctorFacts) -> CheckAnswer:
    """parking.calls  Can the driver move a process's memory to the host and back?

    What it checks:
    The driver's version, and whether libcuda starts and has the five calls for it. They are not tried on
    any process; `vram park` does that, after its own preflight.

    What it means:
    Driver 570 and later can park, on ARM 595 and later. Memory shared by IPC needs driver 610 and a program
    started under `cuda-checkpoint --launch-job`. No driver so far can park managed memory, MIG or MPS.

    What to do:
    Install a newer driver. Until then use `vram trim` or `vram kill`.
    """
    version = facts.driver.driver_version
    if version is None:
        return NO_DRIVER
    if facts.survey.host.wsl:
        return missing(
            seen="not under WSL: the kernel driver is Windows'",
            means=_MEANS,
            fix="Trim or kill processes instead; nothing here can change it.",
        )
    since = ON_ARM_SINCE if facts.host_files.machine == "aarch64" else CHECKPOINT_SINCE
    major = int(version.split(".")[0]) if version.split(".")[0].isdigit() else 0
    test = facts.driver_test
    if major < since or test.lacks:
        return missing(
            seen=f"driver {version} cannot park" + (f": {test.lacks[0]} is missing" if test.lacks else ""),
            details=tuple(f"libcuda has no {name}" for name in test.lacks),
            means=_MEANS,
            fix=f"Install driver {since} or later.",
        )
    if test.init_code != 0:
        return missing(seen="libcuda did not answer", means=_MEANS, fix="Follow driver.cuda.")
    shared = "" if major >= _IPC_SINCE else f"; memory shared by IPC needs driver {_IPC_SINCE}"
    return ok(f"driver {major} can park{shared}", "the calls exist; they were not tried on a process")


@check("parking.room", ("park", "borrow", "free"), needs_gpu=True)
def check_room(facts: DoctorFacts) -> CheckAnswer:
    """parking.room  Is there enough host memory to park the largest process?

    What it checks:
    Available host memory minus a reserve (a twentieth of the machine, from 512 MiB to 8 GiB), within the
    limits of the process's cgroup; the largest process on the GPUs.

    What it means:
    Parking moves a process's GPU memory to host memory. A process that does not fit is refused.

    What to do:
    Free host memory, or raise the limit of the container, pod or job.
    """
    room = facts.room
    if room.memory_left is None:
        return unknown(
            seen="/proc/meminfo does not show how much host memory is available",
            means="vram park refuses because it cannot check for room.",
            fix="Mount /proc in this container.",
        )
    left = max(0, room.memory_left - reserve(room.memory_total))
    limit = f" (limited by {room.memory_limited_by})" if room.memory_limited_by else ""
    largest = _find_largest(facts)
    if largest is None:
        return ok(f"{size(left)} of host memory available for parking{limit}", "no process uses the GPUs now")
    pid, nbytes = largest
    if nbytes <= left:
        return ok(
            f"{size(left)} of host memory available for parking{limit}; the largest process needs"
            f" {size(nbytes)}"
        )
    return limited(
        seen=f"pid {pid} has {size(nbytes)} on the GPU, but only {size(left)} of host memory is free{limit}",
        means="It cannot be parked; smaller ones can.",
        fix="Raise the memory limit of its cgroup."
        if room.memory_limited_by
        else "Free some host memory, or trim the process first.",
        command="" if room.memory_limited_by else f"vram trim {pid}",
    )


def _find_largest(facts: DoctorFacts) -> tuple[int, int] | None:
    held: dict[int, int] = {}
    for each in facts.charges:
        if each.process is not None and each.process.started_at is not None and each.nbytes is not None:
            held[each.process.pid] = held.get(each.process.pid, 0) + each.nbytes
    return max(held.items(), key=lambda item: item[1], default=None)


@check("reaching.routes", ("trim", "deep", "free"), optional=True)
def check_routes(facts: DoctorFacts) -> CheckAnswer:
    """reaching.routes  How can vram attach to a CPython process here?

    What it checks:
    Three Python processes that the doctor starts itself, of the version that runs vram: one running, one
    idle in a system call, one waiting for a lock. Each is stopped for a moment by ptrace, queried, and
    ended. No other process is stopped.

    What it means:
    `vram trim` attaches to any CPython from 3.9 to 3.14 this way, without an agent and without a debugger.
    For 3.14, Python's own debugger interface is tried first.
    If an idle program cannot be entered (shadow stacks), it answers when it next runs.

    What to do:
    See permissions.ptrace for what the kernel blocks. Programs that call `vram.agent()` need none of it.
    """
    test = facts.attach_test
    if test is None:
        return UNFINISHED
    if int(test.version.partition(".")[2]) > LAST_MINOR:
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
    return limited(
        seen=f"cannot attach to a Python {failed}",
        details=tuple(f"{state}: {reason}" for state, reason in test.errors.items()),
        means="vram trim can reach such processes only through an agent or Jupyter.",
        fix="Have programs call vram.agent(), or start them with VRAM_AGENT=1.",
    )


_MAX_NAMED = 4


@check("reaching.python", ("trim", "deep", "free"))
def check_python(facts: DoctorFacts) -> CheckAnswer:
    """reaching.python  Which Python processes on the GPUs can be trimmed, and how?

    What it checks:
    Every Python process with GPU memory: an agent's socket, a Jupyter connection file, Python 3.14's
    debugger interface, ptrace. No process is queried or stopped.

    What it means:
    `vram trim PID` uses the safest one that is available.

    What to do:
    CPython 3.9 and later needs only the permission to attach. Other programs can call `vram.agent()`, or
    be started with VRAM_AGENT=1; for notebooks install pyzmq.
    """
    if facts.targets is None:
        return unknown(
            seen="reading the files of a process on the GPUs does not return",
            means="vram trim would hang on them too.",
            fix="Check whether its program is on a file server that does not answer.",
        )
    pythons = [target for target in facts.targets if target.is_python]
    if not pythons:
        return not_applicable("no Python process uses a GPU")
    details = tuple(map(_describe_target, pythons))
    whole = counted(len(pythons), "Python process")
    stuck = [target for target in pythons if not target.available]
    if not stuck:
        return ok(f"{whole} on the GPUs can be trimmed", *details)
    needs_zmq = facts.program.packages.get("pyzmq") is None and any(target.is_kernel for target in stuck)
    return limited(
        seen=f"{_name_stuck(stuck, whole)} cannot be trimmed",
        details=details,
        means="vram trim refuses them, and vram why --deep cannot look inside.",
        fix=_suggest_fix(needs_zmq),
        command=facts.program.add_jupyter if needs_zmq else "",
    )


def _name_stuck(stuck: list[AttachTarget], whole: str, kind: str = "Python pid") -> str:
    if len(stuck) > _MAX_NAMED:
        return f"{len(stuck)} of {whole}"
    return f"{kind}{'s' * (len(stuck) > 1)} {', '.join(str(target.pid) for target in stuck)}"


def _suggest_fix(needs_zmq: bool) -> str:
    if needs_zmq:
        return "Install the package that talks to Jupyter kernels."
    return "Have them call vram.agent() at their next start, or start them with VRAM_AGENT=1."


def _describe_target(target: AttachTarget) -> str:
    held = f", {size(target.nbytes)}" if target.nbytes is not None else ""
    ways = f"by {', '.join(target.available)}" if target.available else "by none"
    reasons = "; ".join(f"{name}: {reason}" for name, reason in target.unavailable.items())
    return f"pid {target.pid} ({target.user or 'unknown user'}{held}): {ways}" + (
        f" ({reasons})" if reasons else ""
    )


@check("reaching.native", ("trim", "deep", "free"), optional=True)
def check_native(facts: DoctorFacts) -> CheckAnswer:
    """reaching.native  Can vram enter programs without Python here?

    What it checks:
    A process that the doctor starts itself is visited as a C or C++ program is: one thread that waits is
    stopped for a moment and loads a small library of vram's, which answers and unloads itself. Of programs
    without Python that have GPU memory, only files of /proc are read.

    What it means:
    `vram trim PID` trims the driver's memory pools of any CUDA program this way, `vram why PID` tells what is
    used of them, and `vram attach PID` starts the recorder.

    What to do:
    See permissions.ptrace for what the kernel blocks. Static programs, musl, seccomp filters and shadow
    stacks are refused; there, cudaMemPoolTrimTo in the program's own code does the same.
    """
    test = facts.attach_test
    if test is None or facts.targets is None:
        return UNFINISHED
    natives = [target for target in facts.targets if not target.is_python]
    details = tuple(map(_describe_target, natives))
    if test.native_error:
        return limited(
            seen="cannot enter a program without Python",
            details=(test.native_error, *details),
            means="vram trim, attach and why --deep work for Python processes alone.",
            fix="See permissions.ptrace.",
        )
    stuck = [target for target in natives if not target.available]
    if stuck:
        whole = counted(len(natives), "program")
        return limited(
            seen=f"{_name_stuck(stuck, whole, 'pid')} cannot be trimmed",
            details=details,
            means="vram trim refuses them, and vram why --deep cannot look inside.",
            fix="Have them call cudaMemPoolTrimTo themselves.",
        )
    stopped = f"one thread stopped for {test.native_ms or 0.0:.1f} ms"
    return ok("can enter a program without Python", stopped, *details)


@check("reaching.cupti", (), optional=True)
def check_cupti(facts: DoctorFacts) -> CheckAnswer:
    """reaching.cupti  Is CUPTI installed, and does a tracing tool already use it?

    What it checks:
    libcupti in the toolkit, in installed packages and in the loader's folders; readable processes on the
    GPUs that have it mapped or were started with CUDA_INJECTION64_PATH; the same variable in vram's own
    environment.

    What it means:
    `vram run` and `vram attach` record through it, and so do CUDA profilers (PyTorch's, Nsight Systems).
    Before CUPTI 13.3 with driver 610 only one of them works per process: the second one records nothing.
    vram's recorder shares its place with PyTorch's profiler.

    What to do:
    - Not found: `pip install nvidia-cuda-cupti`, or the CUDA toolkit.
    - In use: let that tool finish. A process that has it mapped is not necessarily being traced.
    """
    places = tuple(f"found: {path}" for path in facts.cupti or ())
    injected = [each for each in facts.tracing if each.injection]
    if facts.host_files.injection:
        return limited(
            seen=f"CUDA_INJECTION64_PATH is set to {facts.host_files.injection}",
            details=places,
            means="Every CUDA program started from here loads that tool; only one can be loaded.",
            fix="Unset it where you want no tracing.",
            command="unset CUDA_INJECTION64_PATH",
        )
    if injected:
        return limited(
            seen=f"a tracing tool is loaded in {counted(len(injected), 'process')} on the GPUs",
            details=(*map(_describe_tracing, facts.tracing), *places),
            means="Another profiler in the same process would record nothing.",
            fix="Let that tool finish before you start another one.",
        )
    if facts.cupti is None:
        fix = "Remove folders that no longer exist from LD_LIBRARY_PATH."
        return unknown(seen="reading a library folder does not return", fix=fix)
    if not places:
        return missing(
            seen="no libcupti found",
            means="`vram run`, `vram attach` and CUDA profilers need it; everything else of vram does not.",
            fix="Install it if you want to record allocations or to profile.",
            command="pip install nvidia-cuda-cupti",
        )
    mapped = f", mapped by {counted(len(facts.tracing), 'process')}" if facts.tracing else ""
    return ok(f"CUPTI found{mapped}", *map(_describe_tracing, facts.tracing), *places)


def _describe_tracing(each: Tracing) -> str:
    injection = f", started with CUDA_INJECTION64_PATH={each.injection}" if each.injection else ""
    return f"pid {each.pid}: {f'has {each.library}' if each.library else 'has no libcupti yet'}{injection}"
