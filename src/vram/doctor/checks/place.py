"""Where we run (host, namespace, container, Windows), and what the kernel lets us see and do."""

from __future__ import annotations

import errno

from vram.diagnosis.remedies import SUDO_VRAM, ask_windows
from vram.doctor.check import (
    UNFINISHED,
    CheckAnswer,
    DoctorFacts,
    check,
    limited,
    missing,
    not_applicable,
    not_tried,
    ok,
    unknown,
)
from vram.model.doctor import Confinement, Container
from vram.model.files import UnreadableFacts
from vram.model.observation import ProbeRun
from vram.model.windows import WslFacts
from vram.units import counted

_MAX_USERS = 4


@check("permissions.processes", ("why", "who", "check", "free", "kill", "reset"))
def check_processes(facts: DoctorFacts) -> CheckAnswer:
    """permissions.processes  Can vram read who has the GPU open, also of other users?

    What it checks:
    Whether vram has CAP_SYS_PTRACE, as root has outside containers and user namespaces, how /proc is
    mounted (hidepid), and how many processes' open files could not be read.

    What it means:
    The driver lists the processes of all users. But who holds memory through inherited files, an exported
    handle or a dma-buf is visible only in their open files, and only root can read those of other users:
    otherwise such memory stays "hidden" or "unattributed" in the ledger.

    What to do:
    Run vram with sudo. If hidepid hides whole processes, members of the group in /proc's `gid=` option can
    see them.
    """
    confinement, host = facts.host_files.confinement, facts.survey.host
    unreadable = [each.facts for each in facts.survey.observations if isinstance(each.facts, UnreadableFacts)]
    count = sum(each.processes for each in unreadable)
    hidden = confinement.hidepid is not None
    if confinement.sees_everybody or (not count and not hidden):
        # Some are always about to end, or closed to all users by a security module.
        rest = f" except those of {counted(count, 'process')}" if count else ""
        return ok(f"{host.user} can read all processes' open files{rest}")
    users = [user for each in unreadable for user in each.users]
    return limited(
        seen=_describe_unreadable(host.user, count, confinement.hidepid),
        details=(f"their users: {_list_some(users)}",) if users else (),
        means="Holders among other users, by inherited or exported files, stay unknown.",
        fix=_suggest_fix(host.uid, confinement),
        command=f"{SUDO_VRAM} doctor" if host.uid else "",
    )


def _suggest_fix(uid: int, confinement: Confinement) -> str:
    if uid:
        return "Run it as root."
    if not confinement.first_user_namespace:
        return "Run it on the host: this root exists only in a user namespace."
    return "Give this container CAP_SYS_PTRACE, or run it on the host."


def _describe_unreadable(user: str, count: int, hidepid: str | None) -> str:
    parts = [f"hidepid={hidepid} hides other users' processes"] if hidepid else []
    if count:
        parts.append(f"{user} cannot read the open files of {counted(count, 'process')}")
    return "; ".join(parts)


def _list_some(users: list[str]) -> str:
    more = f" and {len(users) - _MAX_USERS} more" if len(users) > _MAX_USERS else ""
    return ", ".join(users[:_MAX_USERS]) + more


_NEEDS = {"pidfd_open": "5.3", "pidfd_getfd": "5.6", "kcmp": "3.5 with CONFIG_KCMP"}
_COSTS = {
    "pidfd_open": "Without it vram signals and parks no process.",
    "pidfd_getfd": "Exported memory cannot be proven, so vram why does not name its holder.",
    "kcmp": "Inherited files look like a process's own files, so vram why names fewer holders.",
}


@check("permissions.pidfd", ("why", "free", "park", "borrow", "kill"))
def check_pidfd(facts: DoctorFacts) -> CheckAnswer:
    """permissions.pidfd  Does the kernel allow pidfds and the comparison of open files?

    What it checks:
    `pidfd_open`, `pidfd_getfd` and `kcmp`, each called once on vram's own child process.

    What it means:
    Without pidfd_open vram signals and parks nothing: a pid alone may be reused for a different process at
    any moment. Without pidfd_getfd exported memory cannot be proven; without kcmp inherited files cannot be
    distinguished from a process's own files.

    What to do:
    They need Linux 5.3, 5.6 and a kernel with kcmp. Inside a container an old seccomp profile may block
    them: use a newer container runtime.
    """
    test = facts.kernel_test
    if test.not_tried is not None:
        return not_tried(test.not_tried)
    codes = {"pidfd_open": test.pidfd_open, "pidfd_getfd": test.pidfd_getfd, "kcmp": test.kcmp}
    failed = {name: code for name, code in codes.items() if code}
    if failed:
        return _answer_failed(facts, failed)
    if None in codes.values():
        stuck = test.hung_in or test.died_in or "the self test"
        return unknown(seen=f"{stuck} did not finish; nothing is known")
    return ok("pidfd and kcmp work")


def _answer_failed(facts: DoctorFacts, failed: dict[str, int]) -> CheckAnswer:
    first, code = next(iter(failed.items()))
    names = ", ".join(f"{name} ({errno.errorcode.get(code, code)})" for name, code in failed.items())
    absent = code == errno.ENOSYS and not facts.host_files.confinement.seccomp
    return CheckAnswer(
        state="broken" if "pidfd_open" in failed else "limited",
        seen=f"refused: {names}",
        means=_COSTS[first],
        fix=f"It needs Linux {_NEEDS[first]}; this is {facts.survey.host.kernel}."
        if absent
        else "A seccomp profile blocks it: use a newer container runtime, or allow the call.",
        command="" if absent else "docker run --security-opt seccomp=unconfined …",
    )


_SCOPES = {
    1: "only a parent may attach (ptrace_scope is 1)",
    2: "only root may attach (ptrace_scope is 2)",
    3: "nobody may attach until the next boot (ptrace_scope is 3)",
}
_MEANS = (
    "vram park and borrow refuse; vram trim cannot use remote-exec or ptrace. Agents and Jupyter kernels are"
    " not affected."
)
_AGENT = "Have programs call vram.agent(), or start them with VRAM_AGENT=1"


@check("permissions.ptrace", ("trim", "park", "borrow"), optional=True)
def check_ptrace(facts: DoctorFacts) -> CheckAnswer:
    """permissions.ptrace  May vram attach to other processes of the same user?

    What it checks:
    Yama's setting (kernel.yama.ptrace_scope), vram's capabilities, and a self test on vram's own child
    process. Yama always allows that, so if it fails, a seccomp filter or a security module blocks it.

    What it means:
    `vram trim` needs permission to attach in order to enter a process by remote-exec, ptrace or native. An
    agent (`vram.agent()`) and Jupyter do not need it. `vram park` and `vram borrow` need it to keep a process
    stopped while the driver's own threads in it work.

    What to do:
    - Scope 1 or 2: run `vram trim` and `vram park` with sudo, or have the program call `vram.agent()`.
    - Scope 3: nobody may attach until the next boot.
    - In a container: add CAP_SYS_PTRACE.
    """
    refused, yama = facts.kernel_test.ptrace, facts.host_files.confinement.yama or 0
    if refused:
        return limited(
            seen="attaching is refused even to our own child process"
            f" ({errno.errorcode.get(refused, refused)})",
            means=_MEANS,
            fix=f"{_AGENT}; a container needs CAP_SYS_PTRACE.",
            command="docker run --cap-add SYS_PTRACE …" if facts.host_files.container else "",
        )
    confinement = facts.host_files.confinement
    if yama == 3 or (yama in _SCOPES and not confinement.may_trace):
        return limited(
            seen=_SCOPES[yama],
            means=_MEANS,
            fix=f"{_AGENT}." if yama == 3 else f"{_AGENT}; or run vram trim with sudo.",
            command="" if yama == 3 else f"{SUDO_VRAM} trim PID",
        )
    if refused is None:
        return UNFINISHED
    return ok(f"can attach to {'any process' if confinement.sees_everybody else 'your own processes'}")


@check("place.namespace", ("why", "who", "check", "free", "kill", "reset"))
def check_namespace(facts: DoctorFacts) -> CheckAnswer:
    """place.namespace  Are the host's processes visible, or only those of a PID namespace?

    What it checks:
    The number of this PID namespace, and whether the pids that the driver lists exist in /proc.

    What it means:
    From inside a namespace, processes outside it are not visible and cannot be signalled, though their
    memory counts in the totals: it is "hidden" in the ledger. Drivers since about 560 list only processes of
    the namespace; older ones list host pids, which do not exist or mean a different process here: vram
    reports those and never acts on them.

    What to do:
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
    return limited(
        seen=words,
        details=tuple(f"listed, but not here: pid {pid}" for pid in strangers),
        means="Processes outside are not visible and not touched; their memory is “hidden” in the ledger.",
        fix="Run it on the host, or share the host's PID namespace.",
        command="docker run --pid=host …" if facts.host_files.container else "",
    )


_START = {"podman": "podman run --device nvidia.com/gpu=all …", "docker": "docker run --gpus all …"}


@check("place.container", ("why", "who", "check", "free", "park", "borrow"))
def check_container(facts: DoctorFacts) -> CheckAnswer:
    """place.container  Is this a container, and does it have GPUs?

    What it checks:
    vram's cgroup, the files and mounts that container runtimes leave, and the sockets of runtimes that run
    here.

    What it means:
    A container has only the GPUs, libraries and permissions that its runtime gave it. One that sees the
    host's kernel module but none of its libraries was started without GPUs.

    What to do:
    Start it with GPUs (`docker run --gpus all`, `podman run --device nvidia.com/gpu=all`, a resource limit
    `nvidia.com/gpu` in Kubernetes), with the NVIDIA container toolkit on the host.
    """
    inside, here = facts.host_files.container, facts.host_files.runtimes
    others = (f"runs here: {', '.join(here)}",) if here else ()
    if inside is None:
        return ok("no container" + (f" ({', '.join(here)} run here)" if here else ""), *others)
    seen = f"in {_describe_container(inside)}"
    if facts.host_files.driver.module_version and not facts.gpus and not facts.virtual:
        return missing(
            seen=f"{seen}, which has no GPU",
            details=(inside.evidence, *others),
            means=f"The host has a driver, but this container has {_describe_withheld(facts)}.",
            fix="Start the container with GPUs, using a runtime with the NVIDIA container toolkit.",
            command="" if inside.pod else _START.get(inside.runtime or "docker", ""),
        )
    return ok(seen, inside.evidence, *others)


def _describe_container(inside: Container) -> str:
    kind = f"a {inside.runtime} container" if inside.runtime else "a container"
    identity = f" {inside.identity[:12]}" if inside.identity else ""
    return kind + identity + (" of a Kubernetes pod" if inside.pod else "")


def _describe_withheld(facts: DoctorFacts) -> str:
    if facts.host_files.nodes:
        return "only part of what it needs"
    if facts.lacks_library:
        return "neither its libraries nor its devices"
    return "its libraries, but not its devices"


_TOTALS = "Totals are reported, but not what each Linux process uses."


@check("place.wsl", ("why", "who", "check", "free", "park", "borrow"))
def check_wsl(facts: DoctorFacts) -> CheckAnswer:
    """place.wsl  Is this Linux under Windows (WSL), and can it use the GPU?

    What it checks:
    The kernel's name, /dev/dxg, the folder of the Windows driver's Linux libraries, and whether Windows
    answered with its counters.

    What it means:
    Under WSL2 the driver is Windows'. It reports totals, but not what each Linux process uses, and Windows'
    own programs use memory that no list shows here. Windows' counters show it, if Windows programs can be
    started from here. On Windows itself vram does not run: WSL2 is the way to use it there.

    What to do:
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
        return _answer_without_gpu(
            "WSL 1, which has no GPU", "Convert it to WSL 2.", "wsl.exe --set-version DISTRIBUTION 2"
        )
    if not wsl.gpu_device:
        return _answer_without_gpu(
            "WSL2 without /dev/dxg",
            "Install the NVIDIA driver on Windows and update WSL.",
            "wsl.exe --update",
        )
    if wsl.libraries is None:
        return _answer_without_gpu(
            "WSL2 without the driver's libraries (/usr/lib/wsl/lib)",
            "Give the container that folder." if wsl.container else "Install the NVIDIA driver on Windows.",
            "docker run --gpus all …" if wsl.container else "",
        )
    return _answer_with_gpu(wsl, next((run for run in facts.survey.probes if run.name == "windows"), None))


def _answer_with_gpu(wsl: WslFacts, windows: ProbeRun | None) -> CheckAnswer:
    if windows is None or windows.status != "ok":
        remedy = ask_windows(wsl, windows, "windows")
        return limited(
            seen="WSL2; Windows' own programs are not reported",
            details=(windows.message,) if windows and windows.message else (),
            means=f"{_TOTALS} What Windows itself holds on the GPU is unknown.",
            fix=remedy.text,
            command=remedy.command,
        )
    return limited(
        seen=f"WSL2; Windows reported its counters in {windows.duration_s:.1f} s",
        means=f"{_TOTALS} Windows' own programs are reported.",
        fix="Nothing to fix; vram why --deep asks programs for their own figures.",
    )


def _answer_without_gpu(seen: str, fix: str, command: str) -> CheckAnswer:
    return missing(seen=seen, means="No GPU is visible here.", fix=fix, command=command)
