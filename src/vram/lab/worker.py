"""The lab's own processes: workers that carry out one call after the other, and their forked children.

The program is ``virtualgpu/programs/worker.py``: driver calls are made there and nowhere else, so
one that hangs or crashes costs a process that was started for it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from subprocess import DEVNULL
from typing import Any

from vram.children import LineInbox, LocalPidHandle, start_program
from vram.lab.claim import CannotTell
from vram.units import size
from vram.virtualgpu.demos import PROGRAMS

EXIT_S = 10.0
NOT_SUPPORTED = 801
MAX_REASON_LENGTH = 160

LIBRARIES = {"torch": "PyTorch", "cupy": "CuPy", "jax": "JAX", "numba": "Numba", "pycuda": "PyCUDA"}


class WorkerEnded(CannotTell):
    """The process ended before it answered."""


class MemoryBudget:
    """What an experiment said that it takes. Asking for more is refused before the driver is asked."""

    def __init__(self, nbytes: int) -> None:
        self._left = nbytes

    def take(self, nbytes: int) -> None:
        if nbytes > self._left:
            raise CannotTell(f"it requested {size(nbytes)} more than its page says: refused")
        self._left -= nbytes

    def release(self, nbytes: int) -> None:
        self._left += nbytes


class LabProcess(LocalPidHandle):
    """One process of an experiment, held by pidfd from the moment it is named."""

    def __init__(self, pid: int) -> None:
        try:
            super().__init__(pid, os.pidfd_open(pid))
        except ProcessLookupError as error:
            raise WorkerEnded(f"a process of the experiment exited at once (pid {pid})") from error

    def kill(self) -> float:
        """End it by SIGKILL; return the seconds until the kernel reported it dead."""
        began = time.monotonic()
        self.send(signal.SIGKILL)
        if not self.ended(EXIT_S):
            raise CannotTell(f"a process of the experiment cannot be killed (pid {self.pid})")
        return time.monotonic() - began

    def close(self) -> None:
        self.send(signal.SIGKILL)
        self.ended(EXIT_S)
        super().close()


class WorkerClient(LabProcess):
    """A started worker. ``call`` has it carry out one operation; pointers are numbers, as in C.

    The operations are those of ``programs/worker_operations.py``. The worker names them when it
    starts: calling one that it does not have is a LookupError, and nothing is sent.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        words = [sys.executable, str(PROGRAMS / "worker.py")]
        self._program = start_program(words, env=environment, stderr=DEVNULL)
        super().__init__(self._program.pid)
        self.left_s: Callable[[], float] = lambda: EXIT_S
        self.budget = MemoryBudget(0)
        self.children: list[LabProcess] = []
        self._sizes: dict[int, int] = {}
        self._operations: dict[str, list[str]] = {}
        self._lines = LineInbox()
        self._unread: deque[bytes] = deque()
        self._unanswered: deque[str] = deque()

    # ---- calls ----

    def call(self, operation: str, *arguments: Any) -> Any:
        """Have the worker carry out *operation*; return its value, CannotTell where it fails.

        Memory is counted against the budget before the worker is asked for it.
        """
        self._check("operations", operation)
        allocates = operation in self._operations["allocate"]
        if allocates:
            self.budget.take(arguments[0])
        value = self._answer_to(operation, *arguments)
        if allocates:
            self._sizes[value or 0] = arguments[0]
        elif operation in self._operations["free"]:
            self.budget.release(self._sizes.pop(arguments[0], 0))
        return value

    def begin_call(self, operation: str, *arguments: Any) -> None:
        """Send a call and do not wait: its answer is read before the next one's."""
        self._write([operation, *arguments])
        self._unanswered.append(operation)

    def end_by(self, operation: str) -> None:
        """Send a call that ends the worker, and wait until it has ended."""
        self._check("operations", operation)
        self._write([operation])
        if not self.ended(self.left_s()):
            raise CannotTell(f"a process did not exit after {operation!r}")

    def stop(self) -> None:
        """Stop it as Ctrl-Z does."""
        self.send(signal.SIGSTOP)
        # One that ended instead must not be waited for; it stays to be reaped.
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def fork(self) -> ForkedChild:
        """Fork a child that sleeps on when the worker is gone."""
        child = ForkedChild(self, self.call("fork"))
        self.children.append(child)
        return child

    def spawn(self) -> LabProcess:
        """Start another program from it, as subprocess does."""
        program = LabProcess(self.call("spawn"))
        self.children.append(program)
        return program

    def close(self) -> None:
        """End the worker and what it started, and wait until each is gone."""
        for child in reversed(self.children):
            child.close()
        super().close()
        self._program.hang_up()
        self._program.wait(EXIT_S)  # one that hangs in the kernel for good cannot be ended

    def call_child(self, pid: int, operation: str, *arguments: Any) -> Any:
        self._check("child", operation)
        return self.call("call_child", pid, operation, *arguments)

    def _check(self, group: str, operation: str) -> None:
        if not self._operations:
            self._operations = json.loads(self._read_line("start"))
        if operation not in self._operations[group]:
            known = ", ".join(self._operations[group])
            raise LookupError(f"workers have no operation {operation!r}; they have {known}")

    # ---- lines ----

    def _answer_to(self, operation: str, *arguments: Any) -> Any:
        while self._unanswered:
            self._read_answer(self._unanswered.popleft())
        self._write([operation, *arguments])
        return self._read_answer(operation)

    def _read_answer(self, operation: str) -> Any:
        answer = json.loads(self._read_line(operation))
        if "failed" in answer:
            raise _refusal(answer)
        return answer["value"]

    def _write(self, line: list[Any]) -> None:
        try:
            self._program.write(json.dumps(line).encode() + b"\n")
        except BrokenPipeError as error:
            raise WorkerEnded("a process of the experiment exited early") from error

    def _read_line(self, operation: str) -> bytes:
        while not self._unread:
            try:
                part = next(self._program.parts(time.monotonic() + self.left_s()), b"")
            except TimeoutError as error:
                raise CannotTell(f"not done by the deadline: {operation!r} did not return") from error
            if not part:
                raise WorkerEnded(f"a process of the experiment exited in {operation!r}")
            self._unread += self._lines.add(part)
        return self._unread.popleft()


class ForkedChild(LabProcess):
    """A child that a worker forked. While the worker lives, it passes calls on to it."""

    def __init__(self, worker: WorkerClient, pid: int) -> None:
        super().__init__(pid)
        self._worker = worker

    def call(self, operation: str, *arguments: Any) -> Any:
        """Have the child carry out *operation*; it has fewer than its worker."""
        return self._worker.call_child(self.pid, operation, *arguments)

    def receive(self, descriptor: int) -> None:
        """Take over a descriptor of the worker's, which keeps none."""
        self._worker.call("send_descriptor", self.pid, descriptor)


class WorkerPool:
    """Workers that start before they are needed: they wait with a library imported, and no CUDA call made.

    Starting Python and importing a framework takes longer than most experiments do. They wait by the
    library that they have imported; "" is none.
    """

    def __init__(self, gpu_uuid: str) -> None:
        self.environment = {**os.environ, "CUDA_VISIBLE_DEVICES": gpu_uuid}
        self._waiting: dict[str, deque[WorkerClient]] = {}

    def prestart(self, library: str) -> None:
        """Start one ahead of time."""
        worker = WorkerClient(self.environment)
        self._waiting.setdefault(library, deque()).append(worker)
        if library:
            worker.begin_call("run_python", f"import {library}")

    def take(self, library: str) -> WorkerClient:
        """Return one that waits, or a new one. An import that failed is reported by its first call."""
        waiting = self._waiting.get(library)
        return waiting.popleft() if waiting else WorkerClient(self.environment)

    def close(self) -> None:
        for waiting in self._waiting.values():
            while waiting:
                waiting.pop().close()


def _refusal(answer: Mapping[str, Any]) -> CannotTell:
    reason = _first_line(str(answer["failed"]))
    if "missing" in answer:
        library = str(answer["missing"]).partition(".")[0]
        return CannotTell(f"{LIBRARIES.get(library, library)} is not installed")
    if answer.get("code") == NOT_SUPPORTED:
        return CannotTell(f"this driver does not support it: {reason}")
    return CannotTell(reason)


def _first_line(text: str) -> str:
    """The first line, shortened: errors of frameworks go on for pages."""
    line = text.strip().partition("\n")[0]
    return line if len(line) <= MAX_REASON_LENGTH else line[: MAX_REASON_LENGTH - 1] + "…"
