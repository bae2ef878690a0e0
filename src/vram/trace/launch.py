"""Launch a command with the recorder in it and in its children, unmodified; then gather what they wrote.

The CUDA driver loads the library that CUDA_INJECTION64_PATH names into every process that uses it; children
inherit that variable and those of the recorder. What the user must know the recorder writes into a file.
"""

from __future__ import annotations

import os
import shutil
import struct
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Literal

from msgspec import Struct

from vram.errors import VramError
from vram.files import open_plain
from vram.host.ports import Host
from vram.installation import how_to_get_native
from vram.trace import cupti, output
from vram.trace.output import TracePart

INJECTION = "CUDA_INJECTION64_PATH"
PREFIX = "VRAM_TRACE_"
LIBRARY = os.path.join(os.path.dirname(__file__), "lib", "libvramtracer.so")
FRAMEWORK_PAYLOAD = os.path.join(
    os.path.dirname(os.path.dirname(__file__)), "payloads", "tracer", "frameworks.py"
)

Stacks = Literal["python", "native", "none"]
Framework = Literal["auto", "torch", "cupy", "jax"]
Untraced = Literal["another tool", "another machine"]

_MAX_MESSAGES_NBYTES, _MAX_MESSAGES, _MAX_LENGTH = 1 << 20, 200, 300
# From the ELF specification: of an executable, its class, byte order and machine.
_ELF = struct.Struct("<4s2B10x2xH")


class RecordSettings(Struct, frozen=True, kw_only=True):
    """What the recorder shall do."""

    output: str
    stacks: Stacks = "python"
    framework: Framework | None = None
    fail_at: str | None = None
    """``count=N`` or ``size=BYTES``: which allocation fails."""


class Message(Struct, frozen=True):
    """What the recorder said of one process. The text may come from the process itself."""

    pid: int
    code: str
    text: str


class Launched(Struct, frozen=True, kw_only=True):
    """How the command ended, as wait(2) says it, and what was recorded of it."""

    status: int
    trace: str | None = None
    growing: tuple[TracePart, ...] = ()
    left: tuple[TracePart, ...] = ()
    left_reason: str = ""
    messages: tuple[Message, ...] = ()
    untraced: Untraced | None = None


class Launch:
    """One command, prepared. Use it with ``with``: its private folder is removed at the end."""

    def __init__(self, host: Host, argv: Sequence[str], settings: RecordSettings) -> None:
        self.argv = tuple(argv)
        self.settings = settings
        self.run = os.urandom(16).hex()
        self._host = host
        self._folder = ""

    def __enter__(self) -> Launch:
        require_library()
        try:
            self._folder = tempfile.mkdtemp(prefix="vram-run-")
            os.close(os.open(self.messages_path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        except OSError as error:
            raise VramError(
                f"no temporary folder can be made: {error.strerror}",
                hint="set TMPDIR to one that you can write to",
            ) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def messages_path(self) -> str:
        return os.path.join(self._folder, "messages")

    def untraced(self, base: Mapping[str, str]) -> Untraced | None:
        """Why the recorder will not be in the command; None where it will."""
        taken = base.get(INJECTION)
        if taken and not is_ours(taken):
            return "another tool"
        return "another machine" if is_for_another_machine(self.argv[0], base) else None

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """*base* with all that the recorder needs; unchanged where another tool has its place."""
        if self.untraced(base) == "another tool":
            return dict(base)
        driver = self._host.system.host_files().driver.module_version
        libraries = cupti.candidates(self.argv, base, self._host.system.cupti(), driver)
        settings = self.settings
        values = {
            "OUTPUT": settings.output,
            "RUN": self.run,
            "STACKS": settings.stacks,
            "MESSAGES": self.messages_path,
            "CUPTI": ":".join(libraries),
            "FAIL_AT": settings.fail_at,
            # Also without a framework: it ends the recording before the interpreter takes the program apart.
            "FRAMEWORKS": settings.framework or "none",
            "PAYLOAD": FRAMEWORK_PAYLOAD,
        }
        variables = without_recorder(base)
        variables[INJECTION] = LIBRARY
        return variables | {f"{PREFIX}{name}": value for name, value in values.items() if value}


Wait = Callable[[Sequence[str], Mapping[str, str]], int]
"""Runs a command in an environment and returns how it ended."""


def launch(prepared: Launch, base: Mapping[str, str], wait: Wait, *, force: bool = False) -> Launched:
    """Run the command of *prepared* by *wait*, and gather what was recorded."""
    untraced = prepared.untraced(base)
    status = wait(prepared.argv, prepared.environment(base))
    found = output.collect(prepared.settings.output, prepared.run, force=force)
    return Launched(
        status=status,
        trace=found.trace,
        growing=found.growing,
        left=found.left,
        left_reason=found.reason,
        messages=read_messages(prepared.messages_path),
        untraced=untraced,
    )


def require_library(error: type[VramError] = VramError) -> None:
    """Raise *error* where the recorder is not installed."""
    if not os.path.exists(LIBRARY):
        raise error(
            "vram's recorder, libvramtracer.so, is not installed",
            hint=how_to_get_native(),
        )


def is_ours(path: str) -> bool:
    """Whether *path* is a recorder of vram, of whichever installation: another `vram run` is around us."""
    return os.path.basename(path) == os.path.basename(LIBRARY)


def without_recorder(base: Mapping[str, str]) -> dict[str, str]:
    """*base* without what a `vram run` around us has put there."""
    kept = {name: value for name, value in base.items() if not name.startswith(PREFIX)}
    if is_ours(kept.get(INJECTION, "")):
        del kept[INJECTION]
    return kept


def read_messages(path: str) -> tuple[Message, ...]:
    """What the recorder said so far; lines that are none of its own are left out."""
    try:
        with open(open_plain(path, os.O_NOFOLLOW), "rb") as file:
            lines = file.read(_MAX_MESSAGES_NBYTES).split(b"\n")
    except OSError:
        return ()
    found = []
    for line in lines[:_MAX_MESSAGES]:
        pid, _, rest = line.decode("utf-8", "backslashreplace").partition(" ")
        code, _, text = rest.partition(" ")
        if pid.isascii() and pid.isdecimal() and len(pid) < 11 and code:
            found.append(Message(int(pid), code[:40], text[:_MAX_LENGTH]))
    return tuple(dict.fromkeys(found))


# ---- a program of another architecture: its driver cannot load our library, and says nothing ----


def is_for_another_machine(program: str, environment: Mapping[str, str]) -> bool:
    """Whether *program* is an executable for another processor, or a 32-bit one."""
    found = shutil.which(program, path=environment.get("PATH"))
    theirs = _machine(found) if found else None
    ours = _machine("/proc/self/exe")
    return theirs is not None and ours is not None and theirs != ours


def _machine(path: str) -> tuple[int, int] | None:
    with suppress(OSError), open(open_plain(path), "rb") as file:
        head = file.read(_ELF.size)
        if len(head) == _ELF.size and head.startswith(b"\x7fELF"):
            _, width, order, machine = _ELF.unpack(head)
            return width, machine if order == 1 else int.from_bytes(machine.to_bytes(2, "little"), "big")
    return None
