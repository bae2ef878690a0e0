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
    """place.namespace  Are the host's processes visible, or only those of a PID namespace?

    What it checks
    --------------
    The number of this PID namespace, and whether the pids that the driver lists exist in /proc.

    What it means
    -------------
    From inside a namespace, processes outside it are not visible and cannot be signalled, though their
    memory counts in the totals: it is "hidden" in the ledger. Drivers since about 560 list only processes of
    the namespace; older ones list host pids, which do not exist or mean a different process here: vram
    reports those and never acts on them.

    What to do
    ----------
    Run vram on the host, or in a container that shares the host's PID namespace.
    """
    host = facts.survey.host
    strangers = [
        each.process.pid
        for each in facts.charges
        if each.process is not None and each.process.started_at is None
    ]
    if host.initial_pid_namespace:
        return ok("the host's PID namespace")
    words = f"a separate PID namespace ({host.pid_namespace})"
    if strangers:
        words += f"; the driver lists {counted(len(strangers), 'pid')} unknown here"
    return CheckAnswer(
        state="limited",
        seen=words,
        details=tuple(f"listed, but not here: pid {pid}" for pid in strangers),
        means="Processes outside are not visible and not touched; their memory is “hidden” in the ledger.",
        fix="Run it on the host, or share the host's PID namespace.",
        command="docker run --pid=host …" if facts.host_files.container else "",
    )


_START = {
    "podman": "podman run --device nvidia.com/gpu=all …",
    "docker": "docker run --gpus all …",
}


@check(CHECKS, "place.container", ("why", "who", "check", "free", "park", "borrow"))
def check_container(facts: DoctorFacts) -> CheckAnswer:
    """place.container  Is this a container, and does it have GPUs?

    What it checks
    --------------
    vram's cgroup, the files and mounts that container runtimes leave, and the sockets of runtimes that run
    here.

    What it means
    -------------
    A container has only the GPUs, libraries and permissions that its runtime gave it. One that sees the
    host's kernel module but none of its libraries was started without GPUs.

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
            seen=f"{seen}, which has no GPU",
            details=(inside.evidence, *others),
            means=f"The host has a driver, but this container has {_withheld(facts)}.",
            fix="Start the container with GPUs, using a runtime with the NVIDIA container toolkit.",
            command="" if inside.pod else _START.get(inside.runtime or "docker", ""),
        )
    return ok(seen, inside.evidence, *others)


def _named(inside: Container) -> str:
    kind = f"a {inside.runtime} container" if inside.runtime else "a container"
    identity = f" {inside.identity[:12]}" if inside.identity else ""
    return kind + identity + (" of a Kubernetes pod" if inside.pod else "")


def _withheld(facts: DoctorFacts) -> str:
    if facts.host_files.nodes:
        return "only part of what it needs"
    if facts.lacks_library:
        return "neither its libraries nor its devices"
    return "its libraries, but not its devices"


_TOTALS = "Totals are reported, but not what each Linux process uses."


@check(CHECKS, "place.wsl", ("why", "who", "check", "free", "park", "borrow"))
def check_wsl(facts: DoctorFacts) -> CheckAnswer:
    """place.wsl  Is this Linux under Windows (WSL), and can it use the GPU?

    What it checks
    --------------
    The kernel's name, /dev/dxg, the folder of the Windows driver's Linux libraries, and whether Windows
    answered with its counters.

    What it means
    -------------
    Under WSL2 the driver is Windows'. It reports totals, but not what each Linux process uses, and Windows'
    own programs use memory that no list shows here. Windows' counters show it, if Windows programs can be
    started from here. On Windows itself vram does not run: WSL2 is the way to use it there.

    What to do
    ----------
    - No /dev/dxg or no libraries: install the NVIDIA driver on Windows, then `wsl --update`.
    - No interop: set `enabled=true` under `[interop]` in /etc/wsl.conf.
    - powershell.exe is not found: set `enabled=true` under `[automount]` there, or put its folder on PATH.
    - Windows answers with an error: run `winmgmt /resyncperf` in Windows, as administrator.
    - WSL 1 has no GPU: `wsl --set-version DISTRIBUTION 2`.
    """
    wsl = facts.survey.host.wsl_facts
    if wsl is None:
        return not_applicable("not under Windows")
    if wsl.version == 1:
        return _without_gpu(
            "WSL 1, which has no GPU", "Convert it to WSL 2.", "wsl.exe --set-version DISTRIBUTION 2"
        )
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
            seen="WSL2; Windows' own programs are not reported",
            details=(windows.message,) if windows and windows.message else (),
            means=f"{_TOTALS} What Windows itself holds on the GPU is unknown.",
            fix=remedy.text,
            command=remedy.command,
        )
    return CheckAnswer(
        state="limited",
        seen=f"WSL2; Windows reported its counters in {windows.duration_s:.1f} s",
        means=f"{_TOTALS} Windows' own programs are reported.",
        fix="Nothing to fix; vram why --deep asks programs for their own figures.",
    )


def _without_gpu(seen: str, fix: str, command: str) -> CheckAnswer:
    return CheckAnswer(state="missing", seen=seen, means="No GPU is visible here.", fix=fix, command=command)
