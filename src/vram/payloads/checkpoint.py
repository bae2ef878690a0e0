"""The driver's checkpoint calls, by ctypes. No context is ever made here, so almost no GPU memory is taken.

RUNNING -lock-> LOCKED -checkpoint-> CHECKPOINTED -restore-> LOCKED -unlock-> RUNNING
"""

from __future__ import annotations

import ctypes
import time

from vram.payloads.libcuda import load

RUNNING, LOCKED, CHECKPOINTED, FAILED = STATES = range(4)


class Unavailable(Exception):
    """There is no driver that could be asked; ``code`` is its answer where it gave one."""

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code


class LockArguments(ctypes.Structure):
    _fields_ = (
        ("timeout_ms", ctypes.c_uint),
        ("reserved", ctypes.c_uint),
        ("more", ctypes.c_uint64 * 7),
    )


class Driver:
    """libcuda, initialised: measured 3.25 MiB of GPU memory while this process lives."""

    def __init__(self) -> None:
        try:
            self._cuda = load()
        except OSError:
            raise Unavailable("the CUDA driver library (libcuda.so.1) is not installed") from None
        if not hasattr(self._cuda, "cuCheckpointProcessLock"):
            raise Unavailable("this driver cannot checkpoint processes: that came with version 570")
        code = self._cuda.cuInit(0)
        if code:
            raise Unavailable(f"cuInit answered CUDA error {code}", code)

    def state(self, pid: int) -> tuple[int, int | None]:
        """Return the driver's answer, and the state where it gave one, which may be none of STATES."""
        state = ctypes.c_int(-1)
        code = int(self._cuda.cuCheckpointProcessGetState(pid, ctypes.byref(state)))
        return code, None if code else state.value

    def lock(self, pid: int, timeout_ms: int) -> int:
        # Without a timeout the driver would wait for good for a kernel that never ends.
        arguments = LockArguments(timeout_ms=max(1, timeout_ms))
        return int(self._cuda.cuCheckpointProcessLock(pid, ctypes.byref(arguments)))

    def checkpoint(self, pid: int) -> int:
        return int(self._cuda.cuCheckpointProcessCheckpoint(pid, None))

    def restore(self, pid: int) -> int:
        return int(self._cuda.cuCheckpointProcessRestore(pid, None))

    def unlock(self, pid: int) -> int:
        return int(self._cuda.cuCheckpointProcessUnlock(pid, None))


class Turn:
    """One move of a process, there or back: what the driver answered, and how long its calls took."""

    def __init__(self, driver: Driver, pid: int) -> None:
        self._driver = driver
        self._pid = pid
        self.call = ""
        self.code = 0
        self.took_s = 0.0

    def park(self, lock_timeout_ms: int) -> bool:
        """Move the process's GPU memory into its host memory; after any failure it is unlocked."""
        if not self._make("lock", lock_timeout_ms):
            return False
        if self._make("checkpoint"):
            return True
        self._driver.unlock(self._pid)
        return False

    def unpark(self) -> bool:
        """Bring the memory back and let the process run on; also one that is only locked.

        Where the driver does not say how the process stands, nothing is done to it.
        """
        self.call = "cuCheckpointProcessGetState"
        self.code, state = self._driver.state(self._pid)
        if state not in STATES:
            return False
        if state == CHECKPOINTED and not self._make("restore"):
            return False
        return state == RUNNING or self._make("unlock")

    def _make(self, verb: str, *arguments: int) -> bool:
        began = time.monotonic()
        self.call = f"cuCheckpointProcess{verb.title()}"
        self.code = getattr(self._driver, verb)(self._pid, *arguments)
        self.took_s += time.monotonic() - began
        return self.code == 0
