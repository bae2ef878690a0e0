"""What a parent can be to a process, by its facts: its launcher, who adopted it, or where people work."""

from __future__ import annotations

from vram.model.process import ProcessFacts, ProcessRef

# Those that adopt besides the first process of a PID namespace. Container runtimes are none: whoever loses
# its parent in a container is adopted inside, and what they start themselves is a container's first process.
_ADOPTERS = frozenset(("systemd", "slurmstepd", "tini", "dumb-init", "catatonit", "docker-init"))
# A first process that may have launched others itself, as where torchrun is all that a container runs.
_MAY_LAUNCH = (
    *("python", "pypy", "mpirun", "mpiexec", "prterun", "prted", "orted", "orterun"),
    *("hydra_pmi_proxy", "raylet"),
)
# Here people start programs, with whatever is left in their environment; so do container runtimes for them.
_WORKPLACES = frozenset(
    (
        *("sh", "bash", "dash", "ash", "busybox", "zsh", "ksh", "mksh", "fish", "csh", "tcsh", "pwsh", "nu"),
        *("tmux", "tmux: server", "screen", "SCREEN", "zellij", "dtach", "abduco", "script", "expect"),
        *("sshd", "sshd-session", "dropbear", "login", "su", "sudo", "doas", "runuser", "cron", "crond"),
        *("atd", "env", "nohup", "timeout", "time", "gdb", "lldb", "strace", "perf", "nsys", "ncu"),
        *("valgrind", "node", "code", "containerd-shim", "containerd-shim-runc-v2", "conmon", "runc"),
        *("crun", "podman", "dockerd", "unshare", "nsenter"),
    )
)


def program_name(facts: ProcessFacts) -> str:
    """The name of its program; "" where it is not known."""
    # No user can choose the name of a process of root's, whose program not everybody may read.
    name = facts.command if facts.executable is None and facts.uid == 0 else (facts.executable or "")
    return name.rpartition("/")[2]


def is_first(facts: ProcessFacts) -> bool:
    """Whether it is the first process of its PID namespace: of the machine, or of a container."""
    return facts.namespace_pids[-1:] == (1,)


def may_launch(facts: ProcessFacts) -> bool:
    """Whether its program is one that starts others as parts of a job; a shell is none."""
    return program_name(facts).startswith(_MAY_LAUNCH)


def is_adopter(process: ProcessRef, facts: ProcessFacts) -> bool:
    """Whether *process* takes in those whose parents died, and cannot have launched them itself."""
    name = program_name(facts)
    if facts.is_dead or not name or may_launch(facts):
        return False
    return process.pid == 1 or is_first(facts) or name in _ADOPTERS


def is_no_launcher(facts: ProcessFacts) -> bool:
    """Whether it is known to have started no part of a job: neither by itself, nor for somebody in it.

    Any process may ask the kernel to adopt what its descendants leave behind; /proc does not say who did.
    """
    name = program_name(facts)
    return bool(name) and not facts.is_dead and not may_launch(facts) and name not in _WORKPLACES
