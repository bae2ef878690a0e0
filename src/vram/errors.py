"""One exception tree. Every error says what happened, hints at what to do next, and has its exit code."""

from __future__ import annotations

from enum import IntEnum

from vram.python_310 import add_note


class ExitCode(IntEnum):
    """What a script reads from ``$?``. One meaning per number in every command."""

    OK = 0
    HELD = 1
    USAGE = 2
    PARTIAL = 3
    NO_DRIVER = 4
    BAD_INPUT = 5
    VIRTUAL_GPU = 6
    LIMITED = 7
    BROKEN = 8
    NOTHING_FOUND = 9
    NO_SUCH_PROCESS = 10
    NOT_ON_GPU = 11
    NOT_PERMITTED = 12
    PROTECTED = 13
    NOT_REACHABLE = 14
    WORLD_CHANGED = 15
    BAD_PLAN = 16
    NO_AUDIT = 17
    CANNOT_ATTACH = 18
    GOAL_IMPOSSIBLE = 19
    CANNOT_PARK = 20
    TIMED_OUT = 21
    WRONG_SYSTEM = 22
    CANNOT_RECORD = 23
    ALREADY_RUNNING = 24
    CANNOT_LISTEN = 25
    NO_SERVICE = 26
    CHECK_FAILED = 90
    """A check of `vram run --check` does not hold. Few programs end with this code."""
    INTERNAL = 70
    INTERRUPTED = 130
    BROKEN_PIPE = 141

    __str__ = int.__repr__  # as from Python 3.11 on


class VramError(Exception):
    """Something a user can understand went wrong."""

    exit_code = ExitCode.PARTIAL

    def __init_subclass__(cls, exit_code: ExitCode | None = None) -> None:
        """A subclass names its exit code where it is defined; without one it has that of its base."""
        if exit_code is not None:
            cls.exit_code = exit_code

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint
        if hint:  # a program that does not catch it shows the hint with the traceback
            add_note(self, f"hint: {hint}")


class UsageError(VramError, exit_code=ExitCode.USAGE):
    """The words of the call are wrong; nothing was done."""


class WrongSystem(VramError, exit_code=ExitCode.WRONG_SYSTEM):
    """vram runs on Linux, WSL2 included; this is Windows itself."""


def require_linux(platform: str) -> None:
    """Raise WrongSystem where *platform*, as ``sys.platform`` has it, is Windows."""
    if platform == "win32":
        raise WrongSystem(
            "vram does not run on Windows itself; it runs on Linux, and on Windows in WSL2",
            hint="install WSL2 (`wsl --install`), then vram in it: it accounts for the GPU of Windows there",
        )


class DriverMissing(VramError, exit_code=ExitCode.NO_DRIVER):
    """No NVIDIA driver answers on this host."""


class DeviceError(VramError):
    """The driver answered with an error."""


class NoSuchDevice(UsageError):
    """This process sees no such GPU."""


class OutOfMemory(DeviceError, MemoryError):
    """The device, or the host for pinned memory, has too little free. ``nbytes`` were asked for."""

    def __init__(self, message: str, *, hint: str = "", nbytes: int | None = None) -> None:
        self.nbytes = nbytes
        super().__init__(message, hint=hint)


class BufferClosed(VramError):
    """A buffer was used, or closed again, after its close."""


class BufferLent(VramError):
    """A buffer stays open: other code still works on its memory."""


class BufferLost(VramError):
    """A buffer's memory is not this process's to use or free: its context is gone, or it is a parent's."""


class BadSnapshot(VramError, exit_code=ExitCode.BAD_INPUT):
    """A snapshot file is broken, foreign or newer than this program."""


class NewerSnapshot(BadSnapshot):
    """A snapshot whose schema this version does not know yet."""


class BadTrace(VramError, exit_code=ExitCode.BAD_INPUT):
    """A trace file is missing, foreign, newer than this program, or nothing of it can be read."""


class BadInput(VramError, exit_code=ExitCode.BAD_INPUT):
    """An input is damaged, or ends where it may not."""


class ConfigError(VramError, exit_code=ExitCode.BAD_INPUT):
    """A configuration file is missing, is not TOML, or says something that cannot be meant."""


class AlreadyRunning(VramError, exit_code=ExitCode.ALREADY_RUNNING):
    """Another service has the state folder; two would act twice."""


class CannotListen(VramError, exit_code=ExitCode.CANNOT_LISTEN):
    """An address is taken, not ours, or a socket lies where others could have put it."""


class NoService(VramError, exit_code=ExitCode.NO_SERVICE):
    """No service answers at the socket; `vram serve` starts one."""


class HistoryUnavailable(VramError):
    """The history cannot be written or read now: no room, a file of others, or another process has it."""


class NothingFound(VramError, exit_code=ExitCode.NOTHING_FOUND):
    """The input was read to its end, and what was searched for is not in it."""


class VirtualGpuError(VramError, exit_code=ExitCode.VIRTUAL_GPU):
    """The virtual GPU cannot be made or entered."""


class LeakDetected(VramError):
    """A scope ended with more device memory than it began with.

    ``leak`` is the account of it, in plain data: the error itself keeps nothing alive.
    """

    def __init__(self, message: str, *, hint: str = "", leak: object = None) -> None:
        super().__init__(message, hint=hint)
        self.leak = leak


class LeakWarning(UserWarning):
    """The same, where a scope was asked to warn only."""


class LimitExceeded(VramError):
    """A scope gained more device memory than its limit allows."""

    def __init__(self, message: str, *, hint: str = "", gained: int | None = None) -> None:
        super().__init__(message, hint=hint)
        self.gained = gained


class TargetDied(VramError):
    """The process ended while vram was in it. That is a failure, however it ended."""


class Refused(VramError):
    """Nothing was touched."""


class NoSuchProcess(Refused, exit_code=ExitCode.NO_SUCH_PROCESS):
    """No process has that pid."""


class NotOnGpu(Refused, exit_code=ExitCode.NOT_ON_GPU):
    """The process holds no GPU memory."""


class NotPermitted(Refused, exit_code=ExitCode.NOT_PERMITTED):
    """It is another user's: vram gives no rights that the caller does not have."""


class Protected(Refused, exit_code=ExitCode.PROTECTED):
    """The system needs the process; no flag and no policy overrides that."""


class NotReachable(Refused, exit_code=ExitCode.NOT_REACHABLE):
    """vram cannot attach to the process, or cannot ask it: no Python, no known server, stopped, no answer."""


class CallsGivenUp(NotReachable):
    """The process has given up system calls (seccomp), and may be killed for one that vram makes in it."""


class WorldChanged(Refused, exit_code=ExitCode.WORLD_CHANGED):
    """The target is not what the plan was made for."""


class BadPlan(Refused, exit_code=ExitCode.BAD_PLAN):
    """A plan file is foreign, edited, or newer than this program."""


class AuditUnavailable(Refused, exit_code=ExitCode.NO_AUDIT):
    """The audit log cannot be written: no log, no action."""


class AttachDenied(Refused, exit_code=ExitCode.CANNOT_ATTACH):
    """The kernel does not let us attach to the process: yama, a container, or another tracer."""


class GoalImpossible(Refused, exit_code=ExitCode.GOAL_IMPOSSIBLE):
    """The goal is more than the GPU has, or than anything allowed would free."""


class CannotPark(Refused, exit_code=ExitCode.CANNOT_PARK):
    """A preflight check says that parking or unparking would fail half-way."""


class NoRoom(CannotPark):
    """A parked process does not fit on its GPU now. ``missing`` are bytes, by the UUID of the GPU."""

    def __init__(self, message: str, *, hint: str = "", missing: dict[str, int] | None = None) -> None:
        super().__init__(message, hint=hint)
        self.missing = missing or {}


class TimedOut(Refused, exit_code=ExitCode.TIMED_OUT):
    """The deadline passed; the target goes on unharmed."""


class CannotRecord(Refused, exit_code=ExitCode.CANNOT_RECORD):
    """The process was reached, and the recorder could not be started in it, or there was none to stop."""
