"""Checkpoint calls made by processes of their own, and where a thread of another process is just now."""

from __future__ import annotations

import ctypes
import os
import platform
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.needs import skip_without
from tests.patience import until
from tests.virtualgpu.programs import Program, result, running
from vram.virtualgpu import VirtualGpu

RUNNING, LOCKED, CHECKPOINTED, FAILED = range(4)
ILLEGAL_STATE, NOT_READY, NOT_SUPPORTED, OPERATING_SYSTEM, OUT_OF_MEMORY = 401, 600, 801, 304, 2
DRIVER_THREAD, EVENT_THREAD = "cuda00001400006", "cuda-EvtHandlr"

# System calls by their number. On aarch64 the C library makes the first two by ppoll.
POLL, PAUSE, FUTEX, NANOSLEEP = (73, 73, 98, 115) if platform.machine() == "aarch64" else (7, 34, 202, 230)
NO_LIMIT = 0 if platform.machine() == "aarch64" else 0xFFFFFFFF
"""The third argument of POLL where it waits for ever."""

_ASK = """
    cuda.call("cuInit", 0)
    arguments = (ctypes.c_uint64 * 8)({timeout_ms})
    def answer(word):
        if word == "State":
            state = ctypes.c_int(-1)
            return cuda.code("cuCheckpointProcessGetState", {pid}, ctypes.byref(state)) or state.value
        given = arguments if word == "Lock" else None
        return cuda.code("cuCheckpointProcess" + word, {pid}, given)
"""


def verbs(gpu: VirtualGpu, pid: int, *words: str, timeout_ms: int = 10_000) -> list[int]:
    """What a process of its own is answered to each verb in turn."""
    program = _ASK.format(pid=pid, timeout_ms=timeout_ms)
    answers: list[int] = result(gpu, program + f"    cuda.tell([answer(word) for word in {words!r}])")
    return answers


@contextmanager
def asking(gpu: VirtualGpu, pid: int, word: str, timeout_ms: int = 10_000) -> Iterator[Program]:
    """A process that makes one call and tells the answer. It has been seen waiting for that answer."""
    program = _ASK.format(pid=pid, timeout_ms=timeout_ms)
    with running(gpu, program + f"    cuda.tell('ready')\n    cuda.tell(answer({word!r}))") as asker:
        asker.told()
        until(lambda: is_in(FUTEX, asker.pid))
        yield asker


def is_in(number: int, pid: int, tid: int | None = None) -> bool:
    """Whether a thread, the main one where *tid* is None, sleeps in that system call."""
    return Path(f"/proc/{pid}/task/{tid or pid}/syscall").read_text().startswith(f"{number} ")


def has_told(program: Program) -> bool:
    """Whether there is something to read of it, or it has ended."""
    assert program.process.stdout is not None
    return bool(select.select([program.process.stdout], [], [], 0)[0])


def threads(pid: int) -> dict[str, int]:
    """The ids of a process's threads, by name."""
    tasks = Path(f"/proc/{pid}/task")
    return {(tasks / tid / "comm").read_text().strip(): int(tid) for tid in os.listdir(tasks)}


def thread_state(pid: int, tid: int) -> str:
    return Path(f"/proc/{pid}/task/{tid}/stat").read_text().rpartition(")")[2].split()[0]


@contextmanager
def only_the_driver_runs(pid: int) -> Iterator[None]:
    """Stop a process; its driver's thread alone goes on, because a tracer lets it.

    First that thread has its start behind it: where ASan is loaded, it takes a lock of ASan's there,
    which another thread that is stopped in its own start may hold.
    """
    driver = threads(pid)[DRIVER_THREAD]
    until(lambda: is_in(POLL, pid, driver))
    if _ptrace(_SEIZE, driver):
        skip_without("ptrace", "no thread may be seized here")
    try:
        os.kill(pid, signal.SIGSTOP)
        # The signal itself may come to this thread: it is passed on, and then the process stops.
        while os.waitpid(driver, _WALL)[1] >> 16 != _EVENT_STOP:
            _ptrace(_CONT, driver, signal.SIGSTOP)
        _ptrace(_CONT, driver)
        until(lambda: thread_state(pid, pid) == "T")
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
        _ptrace(_INTERRUPT, driver)
        os.waitpid(driver, _WALL)
        _ptrace(_DETACH, driver)


_CONT, _DETACH, _SEIZE, _INTERRUPT, _EVENT_STOP, _WALL = 7, 17, 0x4206, 0x4207, 128, 0x40000000


def _ptrace(request: int, tid: int, data: int = 0) -> int:
    call = ctypes.CDLL(None).ptrace
    call.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
    return int(call(request, tid, None, data))
