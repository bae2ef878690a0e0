"""Stop another process's threads with ptrace, and read and write its memory.

The kernel resumes a seized thread when the thread of ours that seized it ends. So each stop has a thread of
its own, and no process stays stopped when we are killed.
"""

from __future__ import annotations

import ctypes
import gc
import os
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from vram.host.local.seccomp import ThreadLimits, main_thread_limits
from vram.payloads import ptrace
from vram.payloads.procfs import read_stat, started_at
from vram.reach.machines import this_machine
from vram.reach.machines.machine import Registers

_GETSIGMASK, _SETSIGMASK = 0x420A, 0x420B
_WAIT_FLAGS = os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT | ptrace.WALL
_EVENT_STOP = 128 << 8
_SIGTRAP = 5
# Threads that hang in the kernel do not stop; the others shall not wait for them any longer.
PATIENCE_S = 0.1
CROWDED_S = 0.3
_TURN_S = 0.00002
_ROUNDS = 64
# A process that starts threads all the time is given up after this.
_MAX_STOPPING_S = 1.0
# More than anything that is read at once: a larger size comes from forged data.
MAX_NBYTES = 16 << 20
_HIGHEST_PRIORITY = -20  # for this one thread, where we may: root does

Result = TypeVar("Result")

Identity = tuple[int, str, int, ThreadLimits | None]
"""When a process was started, which program it runs, whose it is, and what its main thread has given up."""


class UnsafeToAttach(Exception):
    """The process is in a state in which nothing may be done to it; nothing was.

    ``hint`` says what would change that; ``passing`` that it may succeed soon.
    """

    def __init__(self, reason: str, hint: str = "", *, passing: bool = False) -> None:
        super().__init__(reason)
        self.hint, self.passing = hint, passing


class TraceDenied(UnsafeToAttach):
    """The kernel forbids it."""


class TargetEnded(UnsafeToAttach):
    """The process has ended, or runs another program now."""


class _Span(ctypes.Structure):
    _fields_ = (("address", ctypes.c_void_p), ("nbytes", ctypes.c_size_t))


class TargetMemory:
    """The memory of one program, by address. After an exec nothing is written.

    It is read and written by calls that a signal can interrupt. Pages may lie on a file system that never
    answers; a read of /proc/PID/mem would then outlive SIGKILL, and so would its program. That file only
    shows whether the program is still the same.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        library = ctypes.CDLL(None, use_errno=True)  # releases the GIL: our other threads go on meanwhile
        for call in (library.process_vm_readv, library.process_vm_writev):
            call.restype = ctypes.c_ssize_t
            call.argtypes = (
                *(ctypes.c_int, ctypes.POINTER(_Span), ctypes.c_ulong),
                *(ctypes.POINTER(_Span), ctypes.c_ulong, ctypes.c_ulong),
            )
        self._read, self._write = library.process_vm_readv, library.process_vm_writev
        try:
            self._file = os.open(f"/proc/{pid}/mem", os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise TargetEnded("it has exited") from error
        except OSError as error:
            raise TraceDenied(f"no permission to open its memory ({error.strerror})") from error

    def close(self) -> None:
        os.close(self._file)

    def read(self, address: int, nbytes: int) -> bytes:
        if not 0 <= nbytes <= MAX_NBYTES:
            raise UnsafeToAttach(f"its memory at {address:#x} is not as expected")
        buffer = ctypes.create_string_buffer(nbytes)
        if self._copy(self._read, buffer, address, nbytes) != nbytes:
            self.require_same_program()
            raise UnsafeToAttach(f"its memory at {address:#x} cannot be read")
        return buffer.raw

    def uint64(self, address: int) -> int:
        return int.from_bytes(self.read(address, 8), "little")

    def int32(self, address: int) -> int:
        return int.from_bytes(self.read(address, 4), "little", signed=True)

    def write(self, address: int, data: bytes) -> None:
        self.require_same_program()
        buffer = ctypes.create_string_buffer(data, len(data))
        if self._copy(self._write, buffer, address, len(data)) != len(data):
            raise UnsafeToAttach(f"its memory at {address:#x} cannot be written")

    def write_to_program(self, address: int, data: bytes) -> None:
        """Write where other threads may begin another program meanwhile: then it is lost with the old one.

        The open file means the memory of one program, while a pid means whatever it runs. Only for memory
        that no file is behind: see above.
        """
        try:
            written = os.pwrite(self._file, data, address)
        except OSError as error:
            self.require_same_program()
            raise UnsafeToAttach(f"its memory at {address:#x} cannot be written") from error
        if written != len(data):
            raise TargetEnded("it exited or started another program in the meantime")

    def _copy(self, call: Any, buffer: Any, address: int, nbytes: int) -> int:
        if not 0 <= address < 1 << 64:
            return -1
        ours, theirs = _Span(ctypes.addressof(buffer), nbytes), _Span(address, nbytes)
        copied: int = call(self._pid, ctypes.byref(ours), 1, ctypes.byref(theirs), 1, 0)
        return copied

    def require_same_program(self) -> None:
        """Nothing is mapped at address 0: the file answers with an error, or with its end after an exec."""
        try:
            is_gone = not os.pread(self._file, 1, 0)
        except OSError:
            return
        if is_gone:
            raise TargetEnded("it exited or started another program in the meantime")


class StoppedThreads:
    """Every thread of one process, stopped; or *only* the one with that id."""

    def __init__(self, pid: int, only: int | None = None) -> None:
        self._pid, self._only = pid, only
        self._buffer = ctypes.create_string_buffer(8)
        # Of each thread: the signal that was being delivered to it, which it gets when it resumes, or 0.
        self._signals: dict[int, int] = {}
        self._stopped: set[int] = set()
        self.began = 0.0

    def stop(self) -> None:
        """Stop all of them; raises where one cannot be. Only running threads start new ones."""
        until = time.monotonic() + _MAX_STOPPING_S
        for _ in range(_ROUNDS):
            fresh = [tid for tid in self._tids() if tid not in self._signals and self._seize(tid)]
            if not fresh:
                return
            self.began = self.began or time.monotonic()
            for tid in fresh:
                with suppress(ProcessLookupError):
                    ptrace.request(ptrace.INTERRUPT, tid)
            self._wait_for(fresh)
            if time.monotonic() > until:
                break
        raise UnsafeToAttach("it starts threads faster than they can be stopped", passing=True)

    def registers(self, tid: int) -> Registers:
        return this_machine().registers(tid)

    def set_registers(self, tid: int, values: Registers) -> None:
        this_machine().set_registers(tid, values)

    def floating_point(self, tid: int) -> bytes:
        return this_machine().floating_point(tid)

    def signal_mask(self, tid: int) -> int:
        ptrace.request(_GETSIGMASK, tid, 8, self._buffer)
        return int.from_bytes(self._buffer.raw, "little")

    def set_signal_mask(self, tid: int, mask: int) -> None:
        struct.pack_into("<Q", self._buffer, 0, mask)
        ptrace.request(_SETSIGMASK, tid, 8, self._buffer)

    def ids(self) -> list[int]:
        return list(self._signals)

    def signal(self, tid: int) -> int:
        return self._signals[tid]

    def release(self) -> None:
        for tid in self._stopped:
            with suppress(OSError):
                ptrace.request(ptrace.DETACH, tid, 0, self._signals[tid])

    def _tids(self) -> list[int]:
        if self._only is not None:
            return [self._only]
        try:
            return [int(name) for name in os.listdir(f"/proc/{self._pid}/task")]
        except OSError as error:
            raise TargetEnded("it has exited") from error

    def _seize(self, tid: int) -> bool:
        """Whether it was seized; False where that thread has ended."""
        try:
            ptrace.request(ptrace.SEIZE, tid)
        except ProcessLookupError:
            if tid == self._pid:
                raise TargetEnded("it has exited") from None
            self._miss(tid)
            return False
        except PermissionError as error:
            state = _state(self._pid, tid)
            if state in ("", "Z", "X"):
                if tid == self._pid:
                    raise UnsafeToAttach("its main thread has exited") from error
                self._miss(tid)
                return False
            raise TraceDenied("no permission to trace it", passing=True) from error
        self._signals[tid] = 0
        return True

    def _miss(self, tid: int) -> None:
        """That thread has ended; raises where it is the one that was wanted."""
        if tid == self._only:
            raise UnsafeToAttach("the thread that was chosen has ended", passing=True)

    def _wait_for(self, tids: list[int]) -> None:
        waiting = list(tids)
        began = time.monotonic()
        while waiting:
            waiting = [tid for tid in waiting if not self._has_stopped(tid)]
            if not waiting:
                return
            # A thread needs a CPU to stop: on a busy machine it may be the one that we use.
            time.sleep(_TURN_S)
            waited_s = time.monotonic() - began
            # In an uninterruptible wait; others only wait for a CPU.
            hangs = waited_s > PATIENCE_S and any(_state(self._pid, tid) == "D" for tid in waiting)
            if waited_s > CROWDED_S or hangs:
                raise UnsafeToAttach(
                    "one of its threads hangs in the kernel",
                    "try again when that call has returned",
                    passing=True,
                )

    def _has_stopped(self, tid: int) -> bool:
        try:
            status = os.waitid(os.P_PID, tid, _WAIT_FLAGS)
        except ChildProcessError:
            status, gone = None, True
        else:
            gone = status is not None and status.si_code in (os.CLD_EXITED, os.CLD_KILLED, os.CLD_DUMPED)
        if gone:
            if tid == self._pid:
                raise TargetEnded("it has exited")
            del self._signals[tid]
            self._miss(tid)
            return True
        if status is None:
            return False
        self._stopped.add(tid)
        if status.si_status & ~0xFF == _EVENT_STOP:
            if status.si_status & 0xFF != _SIGTRAP:
                raise UnsafeToAttach("it is stopped", f"resume it first: kill -CONT {self._pid}")
        else:
            self._signals[tid] = status.si_status & 0x7F
        return True


def while_stopped(
    pid: int, action: Callable[[StoppedThreads], Result], only: int | None = None
) -> tuple[Result, float]:
    """Do *action* while every thread of *pid* is stopped; return its result, and for how many seconds.

    *only*: while that one thread is, and the others run.
    """
    outcome: list[Result | BaseException] = []
    stopped_s = 0.0

    def trace() -> None:
        nonlocal stopped_s
        threads = StoppedThreads(pid, only)
        collects = gc.isenabled()
        gc.disable()  # a collection here would lengthen the stop, and so would a wait for a CPU
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _HIGHEST_PRIORITY)
        try:
            threads.stop()
            outcome.append(action(threads))
        except BaseException as error:
            outcome.append(error)
        finally:
            threads.release()
            if threads.began:
                stopped_s = time.monotonic() - threads.began
            if collects:
                gc.enable()

    tracer = threading.Thread(target=trace, name="vram-visit")
    try:
        tracer.start()
    except RuntimeError as error:
        raise UnsafeToAttach(f"vram cannot start a thread to stop it with: {error}") from error
    try:
        tracer.join()
    finally:
        # Interrupted or not: our caller may close what the tracer still uses.
        while tracer.is_alive():
            with suppress(KeyboardInterrupt):
                tracer.join()
    (result,) = outcome
    if isinstance(result, OSError):
        raise UnsafeToAttach(f"it cannot be traced: {result.strerror}") from result
    if isinstance(result, BaseException):
        raise result
    return result, stopped_s


def identity(pid: int) -> Identity:
    """When it was started, which program it runs, whose it is, its limits. Raises TargetEnded."""
    started = started_at(pid)
    if started is None:
        raise TargetEnded("it has exited")
    try:
        program = os.readlink(f"/proc/{pid}/exe").removesuffix(" (deleted)")
        return started, program, os.stat(f"/proc/{pid}").st_uid, main_thread_limits(pid)
    except OSError as error:
        raise TargetEnded("it has exited") from error


def _state(pid: int, tid: int) -> str:
    stat = read_stat(pid, tid)
    return stat.state if stat else ""
