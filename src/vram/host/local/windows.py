"""Windows, asked from inside WSL2: PowerShell in a process of its own that is ended when it hangs."""

from __future__ import annotations

import glob
import os
import re
import select
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from msgspec.structs import replace

from vram.host.local.child import Child, spawn
from vram.host.ports import Windows, WindowsAnswer, WindowsQuery
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
            child = spawn([program, *_OPTIONS, script], self._environment(), number=1, apart=True)
        except OSError as error:
            return PowerShellQuery.settled(*_refusal(error))
        return PowerShellQuery(child, time.monotonic() + deadline_s)

    def _program(self) -> str | None:
        places = [os.path.join(drive, _FOLDER) for drive in self._drives()]
        places += [folder for folder in os.environ.get("PATH", "").split(":") if folder]
        found = (os.path.join(place, _PROGRAM) for place in places)
        return next((path for path in found if os.access(path, os.X_OK)), None)

    def _drives(self) -> Iterator[str]:
        """Where drive C lies; its own folder is tried before a PATH that anybody may have set."""
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

    @classmethod
    def settled(cls, status: Status, code: str, message: str) -> PowerShellQuery:
        return cls(None, 0.0, WindowsAnswer(status, message=message, code=code))

    def answer(self) -> WindowsAnswer:
        """What came of it; nothing of it is left running afterwards."""
        if self._answer is None:
            try:
                self._answer = self._heard()
            finally:
                self.close()
        return self._answer

    def close(self) -> None:
        """End it, with everything that it started: they are a process group of their own."""
        if self._child is None:
            return
        child, self._child = self._child, None
        child.end_group(_GRACE_S)
        child.hang_up()

    def _heard(self) -> WindowsAnswer:
        assert self._child is not None
        parts: list[bytes] = []
        poll = select.poll()
        poll.register(self._child.pipe, select.POLLIN)
        while sum(map(len, parts)) <= _MAX_NBYTES:
            left = self._deadline - time.monotonic()
            if not poll.poll(max(0.0, left) * 1000):
                message = "Windows did not answer in time"
                return WindowsAnswer("timeout", message=message, code="windows-timeout")
            part = os.read(self._child.pipe, 1 << 18)
            if not part:
                return WindowsAnswer("ok", b"".join(parts))
            parts.append(part)
        return WindowsAnswer("failed", message="Windows' answer is too large", code="windows-damaged")


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
    """Starts nothing, for whoever wants Windows left out."""

    def ask(self, script: str, deadline_s: float) -> PowerShellQuery:
        return PowerShellQuery.settled(
            "unsupported", WINDOWS_LEFT_OUT, "Windows was not queried (--no-windows)"
        )


class SeldomWindows:
    """Asks *windows* at most every *every_s*, and repeats its last answer in between.

    What failed is repeated too: one that hangs would delay every survey until its deadline.
    """

    def __init__(
        self, windows: Windows, every_s: float, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._windows = windows
        self._every_s = every_s
        self._monotonic = monotonic
        self._last: WindowsAnswer | None = None
        self._asked_at = 0.0

    def ask(self, script: str, deadline_s: float) -> WindowsQuery:
        age_s = self._monotonic() - self._asked_at
        if self._last is not None and age_s < self._every_s:
            return PowerShellQuery(None, 0.0, replace(self._last, age_s=age_s))
        self._asked_at = self._monotonic()
        return _Kept(self._windows.ask(script, deadline_s), self._keep)

    def _keep(self, answer: WindowsAnswer) -> None:
        self._last = answer


class _Kept:
    """A query whose answer is passed on to be kept."""

    def __init__(self, query: WindowsQuery, keep: Callable[[WindowsAnswer], None]) -> None:
        self._query = query
        self._keep = keep

    def answer(self) -> WindowsAnswer:
        answer = self._query.answer()
        self._keep(answer)
        return answer

    def close(self) -> None:
        self._query.close()
