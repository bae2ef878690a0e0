"""What the doctor judges by (the machine's files, settings and rights), and what it answers."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

_SYS_PTRACE = 19


class DriverFiles(Struct, frozen=True, kw_only=True):
    """What the kernel says of the driver, and of the devices that want one."""

    nvidia_devices: int = 0
    """NVIDIA GPUs on the PCI bus, with a driver or without."""
    module_version: str | None = None
    """Of the module that is loaded, as /proc/driver/nvidia/version says."""
    installed_version: str | None = None
    """The same, as /sys/module/nvidia/version says."""
    open_module: bool | None = None
    modules: tuple[str, ...] = ()
    """Which of the driver's modules are loaded; also nouveau, which keeps it out."""
    tool: str | None = None
    """Where nvidia-smi lies."""


class DeviceNode(Struct, frozen=True):
    """One file in /dev that leads to the driver."""

    path: str
    mode: int
    user: str
    group: str
    usable: bool
    """We may read and write it."""


class Confinement(Struct, frozen=True, kw_only=True):
    """What the kernel lets us do. None: it has no such setting, or does not tell."""

    capabilities: int | None = None
    seccomp: int | None = None
    yama: int | None = None
    hidepid: str | None = None
    """The option that /proc is mounted with: "1", "2", "4", "invisible"…"""
    first_user_namespace: bool = True
    """In another one, root is root over its own processes only."""

    @property
    def may_trace(self) -> bool:
        return bool((self.capabilities or 0) >> _SYS_PTRACE & 1)

    @property
    def sees_everybody(self) -> bool:
        return self.may_trace and self.first_user_namespace


class Container(Struct, frozen=True, kw_only=True):
    """The container that we are in, and how we know."""

    runtime: str | None = None
    identity: str | None = None
    pod: str | None = None
    evidence: str


class Mps(Struct, frozen=True):
    """The folder through which programs find the MPS service, and who serves there."""

    folder: str
    control_pid: int | None = None
    """The daemon's; None where none runs, or its file cannot be read."""
    has_pipe: bool = False


class HostFiles(Struct, frozen=True, kw_only=True):
    """Everything that files alone tell."""

    driver: DriverFiles = DriverFiles()
    nodes: tuple[DeviceNode, ...] = ()
    confinement: Confinement = Confinement()
    container: Container | None = None
    runtimes: tuple[str, ...] = ()
    """Container runtimes whose sockets are here."""
    mps: Mps = Mps("/tmp/nvidia-mps")
    injection: str | None = None
    """CUDA_INJECTION64_PATH of our own environment."""
    machine: str = ""
    """The processor's architecture."""


class Tracing(Struct, frozen=True):
    """A process that a tool for tracing has been loaded into, or will be."""

    pid: int
    library: str | None = None
    """The libcupti that it has mapped."""
    injection: str | None = None
    """What CUDA_INJECTION64_PATH names in its environment."""


class DriverTest(Struct, frozen=True, kw_only=True):
    """libcuda, loaded and initialised in a process of its own; no context is made."""

    path: str | None = None
    library_version: str | None = None
    """By the name of the file."""
    cuda_version: str | None = None
    error: str | None = None
    """Why it cannot be loaded."""
    init_code: int | None = None
    """What cuInit answered; 0 is well, None: it never came to that."""
    gpus: int | None = None
    lacks: tuple[str, ...] = ()
    """Calls for parking that it does not have."""
    hung_in: str | None = None
    """The call that did not answer in time."""
    died_in: str | None = None
    """The call that ended the process."""
    not_tried: str | None = None
    """Why there was no process to try it."""
    took_s: float | None = None


class AttachTest(Struct, frozen=True, kw_only=True):
    """A Python of our own, visited by ptrace. ``routes`` are those that worked, with the milliseconds
    for which it was stopped; ``errors`` why others did not. ``native_ms`` and ``native_error`` say the same
    of one that was visited as a program without Python is."""

    version: str
    routes: dict[str, float] = {}
    errors: dict[str, str] = {}
    native_ms: float | None = None
    native_error: str = ""


class KernelTest(Struct, frozen=True, kw_only=True):
    """System calls that vram makes, tried on processes of its own. 0 is well, else the kernel's error."""

    pidfd_open: int | None = None
    pidfd_getfd: int | None = None
    kcmp: int | None = None
    ptrace: int | None = None
    natives: dict[str, str | None] = {}
    """Libraries of ours, and why each cannot be loaded; None: it can."""
    hung_in: str | None = None
    died_in: str | None = None
    not_tried: str | None = None


# ---- what the doctor answers ----


State = Literal["ok", "limited", "missing", "broken", "not-applicable", "unknown"]
Topic = Literal["driver", "gpu", "permissions", "place", "parking", "reaching", "vram"]
Verdict = Literal["ready", "limited", "broken", "no-driver"]
Verb = Literal["why", "who", "check", "free", "trim", "park", "borrow", "kill", "reset", "deep"]
"""A command that something bears on; "deep" is `vram why --deep`, and "park" is unpark too."""


class CheckResult(Struct, frozen=True, kw_only=True):
    """The answer to one question. ``check`` never changes its meaning."""

    check: str
    topic: Topic
    state: State
    seen: str
    """What was found, with its figures: a few words."""
    details: tuple[str, ...] = ()
    means: str = ""
    """What follows for vram's commands; empty where all is well."""
    fix: str = ""
    """The sentence that puts it right."""
    command: str = ""
    """The same as a command, where there is one; it can be pasted as it stands."""
    verbs: tuple[Verb, ...] = ()
    """The commands that it bears on."""
    optional: bool = False
    """vram works without it, so it never changes the verdict."""


class Examination(Struct, frozen=True, kw_only=True):
    """Every result, in the order of the checks; the verdict is the gravest that counts."""

    verdict: Verdict
    results: tuple[CheckResult, ...]
