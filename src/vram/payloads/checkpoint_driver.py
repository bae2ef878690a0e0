"""The driver's checkpoint calls, and the moves made of them: a process is stopped while its memory is away.

RUNNING -lock-> LOCKED -stop, checkpoint-> CHECKPOINTED -restore, continue-> LOCKED -unlock-> RUNNING

While a process is locked its calls work or wait; while it is checkpointed some of them kill it. So it is
stopped between the two, by SIGSTOP, and only the driver's own threads in it run (see driver_threads). It is
unlocked when it runs again: a thread may have been stopped inside a call, with a lock that unlocking needs
(measured on an H200: the driver's thread then waits for good).
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack

from vram.payloads.driver_threads import CannotHold, DriverThreads, is_stopped, resume, stop
from vram.payloads.libcuda import load

RUNNING, LOCKED, CHECKPOINTED, FAILED = STATES = range(4)


class Unavailable(Exception):
    """There is no driver that could be asked; ``code`` is its answer where it gave one."""

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code


class CheckpointLockArgs(ctypes.Structure):
    _fields_ = (("timeout_ms", ctypes.c_uint), ("reserved", ctypes.c_uint), ("more", ctypes.c_uint64 * 7))


class GpuPair(ctypes.Structure):
    """CUcheckpointGpuPair: what was on the old GPU is to be on the new one."""

    _fields_ = (("old", ctypes.c_ubyte * 16), ("new", ctypes.c_ubyte * 16))


class CheckpointRestoreArgs(ctypes.Structure):
    """CUcheckpointRestoreArgs. In CUDA 13.4 there is custom storage in what is reserved here: none."""

    _fields_ = (
        ("pairs", ctypes.POINTER(GpuPair)),
        ("count", ctypes.c_uint),
        ("padding", ctypes.c_uint),
        ("reserved", ctypes.c_ubyte * 48),
    )


def restore_args(pairs: Sequence[Sequence[str]]) -> CheckpointRestoreArgs:
    """Arguments that map GPUs by their UUIDs, "GPU-…"."""
    made = (GpuPair * len(pairs))(*(GpuPair(_uuid_bytes(old), _uuid_bytes(new)) for old, new in pairs))
    return CheckpointRestoreArgs(made, len(pairs))


def _uuid_bytes(name: str) -> ctypes.Array[ctypes.c_ubyte]:
    return (ctypes.c_ubyte * 16)(*bytes.fromhex(name.removeprefix("GPU-").replace("-", "")))


class CheckpointDriver:
    """libcuda, initialised: measured 3.25 MiB of GPU memory while this process lives."""

    def __init__(self) -> None:
        try:
            self._cuda = load()
        except OSError:
            raise Unavailable("the CUDA driver library (libcuda.so.1) is not installed") from None
        if not hasattr(self._cuda, "cuCheckpointProcessLock"):
            raise Unavailable("this driver cannot checkpoint processes: it needs version 570")
        code = self._cuda.cuInit(0)
        if code:
            raise Unavailable(f"cuInit failed with CUDA error {code}", code)

    def state(self, pid: int) -> tuple[int, int | None]:
        """Return the driver's answer, and the state where it gave one, which may be none of STATES."""
        state = ctypes.c_int(-1)
        code = int(self._cuda.cuCheckpointProcessGetState(pid, ctypes.byref(state)))
        return code, None if code else state.value

    def make(self, call: str, pid: int, arguments: ctypes.Structure | None = None) -> int:
        """The driver's answer to *call*, cuCheckpointProcessLock for example."""
        pointer = None if arguments is None else ctypes.byref(arguments)
        return int(getattr(self._cuda, call)(pid, pointer))


class Move:
    """What is done to one process: what the driver answered last, and how long its calls took."""

    def __init__(
        self,
        driver: CheckpointDriver,
        pid: int,
        pidfd: int,
        pairs: Sequence[Sequence[str]] = (),
        on_restored: Callable[[], None] | None = None,
    ) -> None:
        self._driver = driver
        self._on_restored = on_restored
        self._pairs = pairs  # for a restore onto other GPUs: old and new UUID of each
        self.pid = pid
        self._pidfd = pidfd
        self.call = ""
        self.code = 0
        self.not_held: str | None = None
        """Why only the driver's threads of it cannot be made to run."""
        self.took_s = 0.0
        self._stopped = self._locked = self._checkpointed = False

    @property
    def failed(self) -> bool:
        return bool(self.code) or self.not_held is not None

    def state(self) -> int | None:
        """The driver's answer, whether the process is stopped or not; None where there is none."""
        try:
            return ask_state(self._driver, self.pid)[1]
        except CannotHold:
            return None

    def lock(self, timeout_ms: int) -> bool:
        # Without a timeout the driver would wait for good for a kernel that never ends.
        self._locked = self._make("Lock", CheckpointLockArgs(timeout_ms=max(1, timeout_ms)))
        return self._locked

    def stop(self) -> bool:
        try:
            stop(self.pid, self._pidfd)
        except CannotHold as error:
            self.not_held = str(error)
            return False
        self._stopped = True
        return True

    def checkpoint(self) -> bool:
        self._checkpointed = self._make("Checkpoint")
        return self._checkpointed

    def restore(self) -> bool:
        """Bring the memory back, where it is away."""
        if not self._checkpointed:
            return True
        restored = self._make("Restore", restore_args(self._pairs) if self._pairs else None)
        # One that failed half-way for good may run on: what it has in host memory can still be saved.
        self._checkpointed = not restored and self._driver.state(self.pid)[1] == CHECKPOINTED
        return restored

    def go_on(self) -> bool:
        """Let the process run, unless its memory is still away."""
        if self._checkpointed:
            return False
        if self._stopped:
            resume(self._pidfd)
        return not self._locked or self._make("Unlock")

    def unpark(self) -> bool:
        """Bring the memory back and let the process run on; also one that is only locked, or only stopped.

        Where the driver does not report the state of the process, nothing is done to it.
        """
        try:
            with DriverThreads(self.pid):
                restored = self._restore_where_parked()
        except CannotHold as error:
            if is_stopped(self.pid):
                self.not_held = str(error)
                return False
            restored = (
                self._restore_where_parked()
            )  # parked by a program that lets it run: nothing is safer than this
        if restored and self._on_restored is not None:
            self._on_restored()  # a thread that is held until now may have a lock that unlocking needs
        return self.go_on() and restored

    def _restore_where_parked(self) -> bool:
        self.call = "cuCheckpointProcessGetState"
        self.code, state = self._driver.state(self.pid)
        if state not in STATES:
            return False
        self._locked = state != RUNNING
        self._stopped = self._locked and is_stopped(self.pid)
        self._checkpointed = state == CHECKPOINTED
        return not self._checkpointed or ((self._stopped or self.stop()) and self.restore())

    def _make(self, verb: str, arguments: ctypes.Structure | None = None) -> bool:
        call, began = f"cuCheckpointProcess{verb}", time.monotonic()
        code = self._driver.make(call, self.pid, arguments)
        self.took_s += time.monotonic() - began
        if not self.failed:  # what is done to undo a failure does not hide it
            self.call, self.code = call, code
        return not code


def park_together(moves: Iterable[Move], lock_timeout_ms: int) -> bool:
    """Move the GPU memory of all these processes into their host memory, or let all run on as before."""
    moves = list(moves)
    deadline = time.monotonic() + lock_timeout_ms / 1000
    with ExitStack() as held:
        parked = (
            all(_hold(held, each) for each in moves)
            and all(each.lock(int(1000 * (deadline - time.monotonic()))) for each in moves)
            and all(each.stop() for each in moves)
            and all(each.checkpoint() for each in moves)
        )
        if not parked:
            for each in moves:
                each.restore()
    if not parked:
        for each in moves:
            each.go_on()
    return parked


def ask_state(driver: CheckpointDriver, pid: int) -> tuple[int, int | None]:
    """The driver's answer about a process, which one of its threads there gives: see CheckpointDriver.state.

    Raises CannotHold where the process is stopped, and nothing may be continued in it.
    """
    if not is_stopped(pid):
        return driver.state(pid)
    with DriverThreads(pid):
        return driver.state(pid)


def _hold(held: ExitStack, move: Move) -> bool:
    try:
        held.enter_context(DriverThreads(move.pid))
    except CannotHold as error:
        move.not_held = str(error)
        return False
    return True
