"""One exception tree. Every error says what happened, and hints at what to do next.

VramError
├── UsageError          the words of the call are wrong            exit 2
│   └── NoSuchDevice         this process sees no such GPU
├── WrongSystem         vram runs on Linux, this is Windows        exit 22
├── DriverMissing       no NVIDIA driver answers on this host      exit 4
├── DeviceError         the driver answered with an error          exit 3
│   └── OutOfMemory          it has too little memory free
├── BadSnapshot         a snapshot file cannot be read or judged   exit 5
│   └── NewerSnapshot        a newer version of vram wrote it
├── BadTrace            a trace file cannot be read                exit 5
├── BadInput            another input is damaged or cut short      exit 5
├── ConfigError         a configuration file is wrong              exit 5
├── AlreadyRunning      another service has the state folder       exit 24
├── CannotListen        an address or socket cannot be used        exit 25
├── NoService           no vram service answers on this host       exit 26
├── HistoryUnavailable  the history cannot be written or read now  exit 3
├── NothingFound        what was searched for is not in the input   exit 9
├── VirtualGpuError     the virtual GPU cannot be made or entered  exit 6
├── LeakDetected        a scope gained device memory and kept it
├── LimitExceeded       a scope gained more than it was allowed
├── BufferClosed        a buffer was used, or closed again, after its close
├── BufferLent          a buffer stays open: somebody still works on its memory
├── BufferLost          a buffer's memory is not this process's to use or free any more
├── TargetDied          the process ended while vram was in it     exit 3
└── Refused             nothing was touched, for a reason that has a name of its own
    ├── NoSuchProcess        no process has that pid               exit 10
    ├── NotOnGpu             the process holds no GPU memory       exit 11
    ├── NotPermitted         it is somebody else's                 exit 12
    ├── Protected            the system needs it                   exit 13
    ├── NotReachable         cannot be attached to (no Python …)  exit 14
    │   └── CallsGivenUp         it would be killed for a system call
    ├── WorldChanged         it is not what the plan was made for  exit 15
    ├── BadPlan              the plan file is foreign or edited    exit 16
    ├── AuditUnavailable     no log, no action                     exit 17
    ├── AttachDenied         the kernel forbids attaching to it    exit 18
    ├── GoalImpossible       more than the GPU has, or can give    exit 19
    ├── CannotPark           preflight says it would not come back exit 20
    ├── TimedOut             the deadline passed, target unharmed  exit 21
    └── CannotRecord         the recorder cannot start or stop     exit 23
"""

from __future__ import annotations

from enum import IntEnum


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


class VramError(Exception):
    """Something a user can understand went wrong."""

    exit_code = ExitCode.PARTIAL

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint
        if hint:  # a program that does not catch it shows the hint with the traceback
            self.add_note(f"hint: {hint}")


class UsageError(VramError):
    """The words of the call are wrong; nothing was done."""

    exit_code = ExitCode.USAGE


class WrongSystem(VramError):
    """vram runs on Linux, WSL2 included; this is Windows itself."""

    exit_code = ExitCode.WRONG_SYSTEM


def require_linux(platform: str) -> None:
    """Raise WrongSystem where *platform*, as ``sys.platform`` has it, is Windows."""
    if platform == "win32":
        raise WrongSystem(
            "vram does not run on Windows itself; it runs on Linux, and on Windows in WSL2",
            hint="install WSL2 (`wsl --install`), then vram in it: it accounts for the GPU of Windows there",
        )


class DriverMissing(VramError):
    """No NVIDIA driver answers on this host."""

    exit_code = ExitCode.NO_DRIVER


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
    """A buffer stays open: somebody still works on its memory."""


class BufferLost(VramError):
    """A buffer's memory is not this process's to use or free: its context is gone, or it is a parent's."""


class BadSnapshot(VramError):
    """A snapshot file is broken, foreign or newer than this program."""

    exit_code = ExitCode.BAD_INPUT


class NewerSnapshot(BadSnapshot):
    """A snapshot whose schema this version does not know yet."""


class BadTrace(VramError):
    """A trace file is missing, foreign, newer than this program, or nothing of it can be read."""

    exit_code = ExitCode.BAD_INPUT


class BadInput(VramError):
    """An input is damaged, or ends where it may not."""

    exit_code = ExitCode.BAD_INPUT


class ConfigError(VramError):
    """A configuration file is missing, is not TOML, or says something that cannot be meant."""

    exit_code = ExitCode.BAD_INPUT


class AlreadyRunning(VramError):
    """Another service has the state folder; two would act twice."""

    exit_code = ExitCode.ALREADY_RUNNING


class CannotListen(VramError):
    """An address is taken, not ours, or a socket lies where others could have put it."""

    exit_code = ExitCode.CANNOT_LISTEN


class NoService(VramError):
    """No service answers at the socket; `vram serve` starts one."""

    exit_code = ExitCode.NO_SERVICE


class HistoryUnavailable(VramError):
    """The history cannot be written or read now: no room, a file of others, or another process has it."""


class NothingFound(VramError):
    """The input was read to its end, and what was searched for is not in it."""

    exit_code = ExitCode.NOTHING_FOUND


class VirtualGpuError(VramError):
    """The virtual GPU cannot be made or entered."""

    exit_code = ExitCode.VIRTUAL_GPU


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
    """The process ended while vram was in it. Whoever ended it, that is a failure."""


class Refused(VramError):
    """Nothing was touched."""


class NoSuchProcess(Refused):
    """No process has that pid."""

    exit_code = ExitCode.NO_SUCH_PROCESS


class NotOnGpu(Refused):
    """The process holds no GPU memory."""

    exit_code = ExitCode.NOT_ON_GPU


class NotPermitted(Refused):
    """It is somebody else's: who could not touch it without vram cannot with it."""

    exit_code = ExitCode.NOT_PERMITTED


class Protected(Refused):
    """The system needs the process; no flag and no policy overrides that."""

    exit_code = ExitCode.PROTECTED


class NotReachable(Refused):
    """vram cannot attach to the process: it runs no Python, is stopped, or does not answer."""

    exit_code = ExitCode.NOT_REACHABLE


class CallsGivenUp(NotReachable):
    """The process has given up system calls (seccomp), and may be killed for one that vram makes in it."""


class WorldChanged(Refused):
    """The target is not what the plan was made for."""

    exit_code = ExitCode.WORLD_CHANGED


class BadPlan(Refused):
    """A plan file is foreign, edited, or newer than this program."""

    exit_code = ExitCode.BAD_PLAN


class AuditUnavailable(Refused):
    """The audit log cannot be written: no log, no action."""

    exit_code = ExitCode.NO_AUDIT


class AttachDenied(Refused):
    """The kernel does not let us attach to the process: yama, a container, or somebody traces it already."""

    exit_code = ExitCode.CANNOT_ATTACH


class GoalImpossible(Refused):
    """The goal is more than the GPU has, or than anything allowed would free."""

    exit_code = ExitCode.GOAL_IMPOSSIBLE


class CannotPark(Refused):
    """A preflight check says that parking or unparking would fail half-way."""

    exit_code = ExitCode.CANNOT_PARK


class TimedOut(Refused):
    """The deadline passed; the target goes on unharmed."""

    exit_code = ExitCode.TIMED_OUT


class CannotRecord(Refused):
    """The process was reached, and the recorder could not be started in it, or there was none to stop."""

    exit_code = ExitCode.CANNOT_RECORD
