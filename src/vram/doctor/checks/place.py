"""Where we run: on the host, in a namespace, in a container, under Windows."""

from __future__ import annotations

from vram.diagnosis.remedies import ask_windows
from vram.doctor.check import (
    Check,
    CheckAnswer,
    check,
    not_applicable,
    ok,
)
from vram.doctor.facts import DoctorFacts
from vram.model.doctor import Container
from vram.model.observation import ProbeRun
from vram.model.windows import WslFacts
from vram.units import counted

CHECKS: list[Check] = []


@check(CHECKS, "place.namespace", ("why", "who", "check", "free", "kill", "reset"))
def check_namespace(facts: DoctorFacts) -> CheckAnswer:
    """place.namespace  Do we see the host's processes, or those of a PID namespace?

    What is looked at
    -----------------
    The number of our PID namespace, and whether the pids that the driver lists are known to our /proc.

    What it means
    -------------
    From inside a namespace nobody outside can be seen, named or touched, though their memory counts in the
    totals: it is "hidden" in the ledger. Drivers from about 560 translate and list only our own; older ones
    list host pids, which mean nothing or somebody else here: vram reports those and never acts on them.

    What to do
    ----------
    Run vram on the host, or in a container that shares its PID namespace.
    """
    host = facts.survey.host
    strangers = [
        each.process.pid
        for each in facts.charges
        if each.process is not None and each.process.started_at is None
    ]
    if host.initial_pid_namespace:
        return ok("the host's PID namespace")
    words = f"a PID namespace of its own ({host.pid_namespace})"
    if strangers:
        words += f"; the driver lists {counted(len(strangers), 'pid')} that nobody has here"
    return CheckAnswer(
        state="limited",
        seen=words,
        details=tuple(f"listed, and not here: pid {pid}" for pid in strangers),
        means="Processes outside are neither seen nor touched; their memory is “hidden” in the ledger.",
        fix="Look from the host, or share its PID namespace.",
        command="docker run --pid=host …" if facts.host_files.container else "",
    )


_START = {
    "podman": "podman run --device nvidia.com/gpu=all …",
    "docker": "docker run --gpus all …",
}


@check(CHECKS, "place.container", ("why", "who", "check", "free", "park", "borrow"))
def check_container(facts: DoctorFacts) -> CheckAnswer:
    """place.container  Are we in a container, and was it given the GPUs?

    What is looked at
    -----------------
    Our control group, the files that runtimes leave, what they mount, and the sockets of runtimes that
    run here.

    What it means
    -------------
    A container has the GPUs, libraries and rights that its runtime gave it, and nothing else. One that
    sees the host's kernel module and none of its libraries was started without GPUs.

    What to do
    ----------
    Start it with GPUs (`docker run --gpus all`, `podman run --device nvidia.com/gpu=all`, a resource limit
    `nvidia.com/gpu` in Kubernetes), with the NVIDIA container toolkit on the host.
    """
    inside, here = facts.host_files.container, facts.host_files.runtimes
    others = (f"runs here: {', '.join(here)}",) if here else ()
    if inside is None:
        return ok("no container" + (f" ({', '.join(here)} run here)" if here else ""), *others)
    seen = f"in {_named(inside)}"
    if facts.host_files.driver.module_version and not facts.gpus and not facts.virtual:
        return CheckAnswer(
            state="missing",
            seen=f"{seen}, which was given no GPU",
            details=(inside.evidence, *others),
            means=f"The host has a driver; this container was given {_withheld(facts)}.",
            fix="Start the container with GPUs, by a runtime with the NVIDIA container toolkit.",
            command="" if inside.pod else _START.get(inside.runtime or "docker", ""),
        )
    return ok(seen, inside.evidence, *others)


def _named(inside: Container) -> str:
    kind = f"a {inside.runtime} container" if inside.runtime else "a container"
    identity = f" {inside.identity[:12]}" if inside.identity else ""
    return kind + identity + (" of a Kubernetes pod" if inside.pod else "")


def _withheld(facts: DoctorFacts) -> str:
    if facts.host_files.nodes:
        return "not all that leads to it"
    if facts.lacks_library:
        return "neither its libraries nor its devices"
    return "its libraries, and not its devices"


_TOTALS = "Totals are reported, what each Linux process has is not."


@check(CHECKS, "place.wsl", ("why", "who", "check", "free", "park", "borrow"))
def check_wsl(facts: DoctorFacts) -> CheckAnswer:
    """place.wsl  Is this Linux under Windows (WSL), and what of the GPU can be reached?

    What is looked at
    -----------------
    The kernel's name, /dev/dxg, the folder of the Windows driver's Linux libraries, and whether Windows could
    be asked for its counters.

    What it means
    -------------
    Under WSL2 the driver is the one of Windows: totals are reported, what each Linux process has is not, and
    Windows' own programs take memory that no list shows here. Its counters tell of them, if Windows programs
    can be started from here.

    What to do
    ----------
    - No /dev/dxg or no libraries: install the NVIDIA driver on Windows, then `wsl --update`.
    - No interop: set `enabled=true` under `[interop]` in /etc/wsl.conf.
    - powershell.exe is not found: set `enabled=true` under `[automount]` there, or put its folder on PATH.
    - Windows answers with an error: `winmgmt /resyncperf` in an administrator's shell of Windows.
    - WSL 1 has no GPU: `wsl --set-version DISTRIBUTION 2`.
    """
    wsl = facts.survey.host.wsl_facts
    if wsl is None:
        return not_applicable("not under Windows")
    if wsl.version == 1:
        return _without_gpu("WSL 1, which has no GPU", "Convert it.", "wsl.exe --set-version DISTRIBUTION 2")
    if not wsl.gpu_device:
        return _without_gpu(
            "WSL2 without /dev/dxg",
            "Install the NVIDIA driver on Windows and update WSL.",
            "wsl.exe --update",
        )
    if wsl.libraries is None:
        return _without_gpu(
            "WSL2 without the driver's libraries (/usr/lib/wsl/lib)",
            "Give the container that folder." if wsl.container else "Install the NVIDIA driver on Windows.",
            "docker run --gpus all …" if wsl.container else "",
        )
    return _with_gpu(wsl, next((run for run in facts.survey.probes if run.name == "windows"), None))


def _with_gpu(wsl: WslFacts, windows: ProbeRun | None) -> CheckAnswer:
    if windows is None or windows.status != "ok":
        remedy = ask_windows(wsl, windows, "windows")
        return CheckAnswer(
            state="limited",
            seen="WSL2; Windows does not tell of its own programs",
            details=(windows.message,) if windows and windows.message else (),
            means=f"{_TOTALS} What Windows itself keeps on the GPU cannot be asked for.",
            fix=remedy.text,
            command=remedy.command,
        )
    return CheckAnswer(
        state="limited",
        seen=f"WSL2; Windows reported its counters in {windows.duration_s:.1f} s",
        means=f"{_TOTALS} Windows' own programs are in its counters.",
        fix="Nothing is to be put right; vram why --deep asks programs for their own figures.",
    )


def _without_gpu(seen: str, fix: str, command: str) -> CheckAnswer:
    return CheckAnswer(
        state="missing", seen=seen, means="No GPU can be seen from here.", fix=fix, command=command
    )
