"""Why one process may not look into another: what the kernel's settings say, in words."""

from __future__ import annotations

_YAMA = "/proc/sys/kernel/yama/ptrace_scope"

_SCOPES = {
    "1": "the kernel lets only a parent attach (kernel.yama.ptrace_scope is 1): run it with sudo, or let the "
    "process allow it by prctl(PR_SET_PTRACER)",
    "2": "the kernel lets only root attach (kernel.yama.ptrace_scope is 2): run it with sudo",
    "3": "the kernel lets nobody attach until the next boot (kernel.yama.ptrace_scope is 3)",
}


def ptrace_scope(path: str = _YAMA) -> str:
    """The setting of the Yama security module; "0" where it is not there."""
    try:
        with open(path, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return "0"


def why_not_traced(path: str = _YAMA) -> str:
    """What to do about a refused attach."""
    return _SCOPES.get(
        ptrace_scope(path), "a container or a security module forbids ptrace here: it needs CAP_SYS_PTRACE"
    )
