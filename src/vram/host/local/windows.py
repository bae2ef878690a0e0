"""Windows, asked from inside WSL2: PowerShell in a process of its own that is ended when it hangs."""

from __future__ import annotations

import glob
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from msgspec.structs import replace

from vram.children import Child, spawn
from vram.host.ports import WindowsAnswer
from vram.model.observation import NO_INTEROP, NO_POWERSHELL, WINDOWS_LEFT_OUT, Status

_PROGRAM = "powershell.exe"
_FOLDER = "Windows/System32/WindowsPowerShell/v1.0"
_OPTIONS = ("-NoLogo", "-NoProfile", "-NonInteractive", "-Command")
_MAX_NBYTES = 16 << 20
_GRACE_S = 0.2


class LocalWindows:
    """Runs scripts of ours in Windows' own PowerShell."""

    def __init__(self, *, virtual: bool = False, proc_root: str = "/proc", run: str = "/run/WSL") -> None:
        self._virtual = virtual
        self._proc_root = proc_root
        self._run = run

    def ask(self, script: str, deadline_s: float) -> PowerShellQuery:
        """Start at once; the query's ``answer`` waits for the end of it."""
        program = self._program()
        if program is None:
            return PowerShellQuery.settled("unsupported", NO_POWERSHELL, f"{_PROGRAM} was not found")
        try:
            child = spawn([program, *_OPTIONS, script], self._environment(), number=1, apart="group")
        except OSError as error:
            return PowerShellQuery.settled(*_refusal(error))
        return PowerShellQuery(child, time.monotonic() + deadline_s)

    def _program(self) -> str | None:
        places = [os.path.join(drive, _FOLDER) for drive in self._drives()]
        places += [folder for folder in os.environ.get("PATH", "").split(":") if folder]
        found = (os.path.join(place, _PROGRAM) for place in places)
        return next((path for path in found if os.access(path, os.X_OK)), None)

    def _drives(self) -> Iterator[str]:
        """Where drive C lies; its own folder is tried before a PATH that any user may have set."""
        if self._virtual:
            return
        with (
            suppress(OSError),
            open(f"{self._proc_root}/self/mounts", encoding="utf-8", errors="replace") as file,
        ):
            for line in file:
                if re.match(r"C:(\\134)? ", line, re.I):  # "C:\", with its backslash spelled
                    yield line.split()[1].replace("\\040", " ")
        yield "/mnt/c"

    def _environment(self) -> dict[str, str]:
        """Services, cron and sudo lack the variable that names the way to Windows."""
        variables = dict(os.environ)
        sockets = glob.glob(f"{self._run}/*_interop")
        if "WSL_INTEROP" not in variables and sockets:
            variables["WSL_INTEROP"] = max(sockets, key=_changed_at)
        return variables


class PowerShellQuery:
    """One question to Windows, under way or settled."""

    def __init__(self, child: Child | None, deadline: float, answer: WindowsAnswer | None = None) -> None:
        self._child = child
        self._deadline = deadline
        self._answer = answer
        self.on_answer: Callable[[WindowsAnswer], None] | None = None

    @classmethod
    def settled(cls, status: Status, code: str, message: str) -> PowerShellQuery:
        return cls(None, 0.0, WindowsAnswer(status, message=message, code=code))

    def answer(self) -> WindowsAnswer:
        """What came of it; nothing of it is left running afterwards."""
        if self._answer is None:
            try:
                self._answer = self._read()
            finally:
                self.close()
        if self.on_answer is not None:
            self.on_answer(self._answer)
        return self._answer

    def close(self) -> None:
        """End it, with everything that it started: they are a process group of their own."""
        if self._child is None:
            return
        child, self._child = self._child, None
        child.end_group(_GRACE_S)
        child.hang_up()

    def _read(self) -> WindowsAnswer:
        assert self._child is not None
        output = bytearray()
        try:
            for part in self._child.parts(self._deadline):
                output += part
                if len(output) > _MAX_NBYTES:
                    message = "Windows' answer is too large"
                    return WindowsAnswer("failed", message=message, code="windows-damaged")
        except TimeoutError:
            message = "Windows did not answer in time"
            return WindowsAnswer("timeout", message=message, code="windows-timeout")
        return WindowsAnswer("ok", bytes(output))


def _changed_at(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def _refusal(error: OSError) -> tuple[Status, str, str]:
    if isinstance(error, PermissionError):
        return "denied", "powershell-denied", f"this user is not allowed to start {_PROGRAM}"
    # "Exec format error": the kernel is not set up to hand such programs to Windows.
    return "unsupported", NO_INTEROP, "Windows programs cannot be started from here: WSL's interop is off"


# ---- asked seldom, or not at all: each question starts a PowerShell over there ----


class UnaskedWindows:
    """Starts nothing, for users who want Windows left out."""

    def ask(self, script: str, deadline_s: float) -> PowerShellQuery:
        return PowerShellQuery.settled(
            "unsupported", WINDOWS_LEFT_OUT, "Windows was not queried (--no-windows)"
        )


class SeldomWindows:
    """Asks *windows* at most every *every_s*, and repeats its last answer in between.

    What failed is repeated too: one that hangs would delay every survey until its deadline.
    """

    def __init__(
        self, windows: LocalWindows, every_s: float, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._windows = windows
        self._every_s = every_s
        self._monotonic = monotonic
        self._last: WindowsAnswer | None = None
        self._asked_at = 0.0

    def ask(self, script: str, deadline_s: float) -> PowerShellQuery:
        age_s = self._monotonic() - self._asked_at
        if self._last is not None and age_s < self._every_s:
            return PowerShellQuery(None, 0.0, replace(self._last, age_s=age_s))
        self._asked_at = self._monotonic()
        query = self._windows.ask(script, deadline_s)
        query.on_answer = self._keep
        return query

    def _keep(self, answer: WindowsAnswer) -> None:
        self._last = answer
