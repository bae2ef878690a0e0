"""What the kernel lets us see and do."""

from __future__ import annotations

import errno

from vram.diagnosis.remedies import SUDO_VRAM
from vram.doctor.check import (
    Check,
    CheckAnswer,
    check,
    not_tried,
    ok,
)
from vram.doctor.facts import DoctorFacts
from vram.model.doctor import Confinement
from vram.model.files import UnreadableFacts
from vram.units import counted

CHECKS: list[Check] = []


_MAX_USERS = 4


@check(CHECKS, "permissions.processes", ("why", "who", "check", "free", "kill", "reset"))
def check_processes(facts: DoctorFacts) -> CheckAnswer:
    """permissions.processes  Can vram read who has the GPU open, also of other users?

    What it checks
    --------------
    Whether vram has CAP_SYS_PTRACE, as root has outside containers and user namespaces, how /proc is
    mounted (hidepid), and how many processes' open files could not be read.

    What it means
    -------------
    The driver lists the processes of all users. But who holds memory through inherited files, an exported
    handle or a dma-buf is visible only in their open files, and only root can read those of other users:
    otherwise such memory stays "hidden" or "unattributed" in the ledger.

    What to do
    ----------
    Run vram with sudo. If hidepid hides whole processes, members of the group in /proc's `gid=` option can
    see them.
    """
    confinement, host = facts.host_files.confinement, facts.survey.host
    unreadable = [each.facts for each in facts.survey.observations if isinstance(each.facts, UnreadableFacts)]
    count = sum(each.processes for each in unreadable)
    hidden = confinement.hidepid is not None
    if confinement.sees_everybody or (not count and not hidden):
        # Some are always about to end, or closed to everybody by a security module.
        rest = f" except those of {counted(count, 'process')}" if count else ""
        return ok(f"{host.user} can read everybody's open files{rest}")
    users = [user for each in unreadable for user in each.users]
    return CheckAnswer(
        state="limited",
        seen=_seen(host.user, count, confinement.hidepid),
        details=(f"their users: {_some(users)}",) if users else (),
        means="Holders among other users, by inherited or exported files, stay unknown.",
        fix=_fix(host.uid, confinement),
        command=f"{SUDO_VRAM} doctor" if host.uid else "",
    )


def _fix(uid: int, confinement: Confinement) -> str:
    if uid:
        return "Run it as root."
    if not confinement.first_user_namespace:
        return "Run it on the host: this root exists only in a user namespace."
    return "Give this container CAP_SYS_PTRACE, or run it on the host."


def _seen(user: str, count: int, hidepid: str | None) -> str:
    parts = [f"hidepid={hidepid} hides other users' processes"] if hidepid else []
    if count:
        parts.append(f"{user} cannot read the open files of {counted(count, 'process')}")
    return "; ".join(parts)


def _some(users: list[str]) -> str:
    more = f" and {len(users) - _MAX_USERS} more" if len(users) > _MAX_USERS else ""
    return ", ".join(users[:_MAX_USERS]) + more


_NEEDS = {"pidfd_open": "5.3", "pidfd_getfd": "5.6", "kcmp": "3.5 with CONFIG_KCMP"}
_COSTS = {
    "pidfd_open": "Without it vram signals and parks no process.",
    "pidfd_getfd": "Exported memory cannot be proven, so vram why does not name its holder.",
    "kcmp": "Inherited files look like a process's own files, so vram why names fewer holders.",
}


@check(CHECKS, "permissions.pidfd", ("why", "free", "park", "borrow", "kill"))
def check_pidfd(facts: DoctorFacts) -> CheckAnswer:
    """permissions.pidfd  Does the kernel allow pidfds and the comparison of open files?

    What it checks
    --------------
    `pidfd_open`, `pidfd_getfd` and `kcmp`, each called once on vram's own child process.

    What it means
    -------------
    Without pidfd_open vram signals and parks nothing: a pid alone may be reused for a different process at
    any moment. Without pidfd_getfd exported memory cannot be proven; without kcmp inherited files cannot be
    distinguished from a process's own files.

    What to do
    ----------
    They need Linux 5.3, 5.6 and a kernel with kcmp. Inside a container an old seccomp profile may block
    them: use a newer container runtime.
    """
    test = facts.kernel_test
    if test.not_tried is not None:
        return not_tried(test.not_tried)
    codes = {"pidfd_open": test.pidfd_open, "pidfd_getfd": test.pidfd_getfd, "kcmp": test.kcmp}
    failed = {name: code for name, code in codes.items() if code}
    if failed:
        return _failed(facts, failed)
    if None in codes.values():
        stuck = test.hung_in or test.died_in or "the self test"
        return CheckAnswer(state="unknown", seen=f"{stuck} did not finish; nothing is known")
    return ok("pidfd and kcmp work")


def _failed(facts: DoctorFacts, failed: dict[str, int]) -> CheckAnswer:
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


@check(CHECKS, "permissions.ptrace", ("trim", "park", "borrow"), optional=True)
def check_ptrace(facts: DoctorFacts) -> CheckAnswer:
    """permissions.ptrace  May vram attach to other processes of the same user?

    What it checks
    --------------
    Yama's setting (kernel.yama.ptrace_scope), vram's capabilities, and a self test on vram's own child
    process. Yama always allows that, so if it fails, a seccomp filter or a security module blocks it.

    What it means
    -------------
    `vram trim` needs permission to attach in order to enter a Python process by remote-exec or ptrace. An
    agent (`vram.agent()`) and Jupyter do not need it. `vram park` and `vram borrow` need it to keep a process
    stopped while the driver's own threads in it work.

    What to do
    ----------
    - Scope 1 or 2: run `vram trim` and `vram park` with sudo, or have the program call `vram.agent()`.
    - Scope 3: nobody may attach until the next boot.
    - In a container: add CAP_SYS_PTRACE.
    """
    refused, yama = facts.kernel_test.ptrace, facts.host_files.confinement.yama or 0
    if refused:
        return CheckAnswer(
            state="limited",
            seen="attaching is refused even to our own child process"
            f" ({errno.errorcode.get(refused, refused)})",
            means=_MEANS,
            fix=f"{_AGENT}; a container needs CAP_SYS_PTRACE.",
            command="docker run --cap-add SYS_PTRACE …" if facts.host_files.container else "",
        )
    confinement = facts.host_files.confinement
    if yama == 3 or (yama in _SCOPES and not confinement.may_trace):
        return CheckAnswer(
            state="limited",
            seen=_SCOPES[yama],
            means=_MEANS,
            fix=f"{_AGENT}." if yama == 3 else f"{_AGENT}; or run vram trim with sudo.",
            command="" if yama == 3 else f"{SUDO_VRAM} trim PID",
        )
    if refused is None:
        return CheckAnswer(state="unknown", seen="the self test did not finish", fix="Run it again.")
    return ok(f"can attach to {'any process' if confinement.sees_everybody else 'your own processes'}")
