"""Worker processes that judge snapshots, as many as there are cores; one that fails is replaced."""

from __future__ import annotations

import os
import signal
import threading
import time

import msgspec

from vram import untrusted
from vram.children import interpreter, start_program
from vram.fleet.judge import JudgeRequest, rejected
from vram.model.fleet import FleetNode

_MAX_ANSWER = 16 << 20
_WITHIN_S = 30.0
"""A node of 16 GPUs and 2,000 processes takes half a second."""
_END_S = 10.0


def usual_workers() -> int:
    """As many as this process may use cores."""
    return len(os.sched_getaffinity(0))


class Judges:
    """Worker processes for several threads; each is started when it is first needed."""

    def __init__(self, workers: int) -> None:
        self._idle: list[_Worker] = []
        self._all: set[_Worker] = set()
        self._slots = threading.Semaphore(workers)
        self._lock = threading.Lock()

    def __enter__(self) -> Judges:
        return self

    def __exit__(self, *error: object) -> None:
        for worker in self._all:
            worker.close()

    def cancel(self) -> None:
        """End every worker; a thread that waits for one hears that it has ended."""
        with self._lock:  # so that none of them is closed meanwhile
            for worker in self._all:
                worker.kill()

    def judge(self, asked: JudgeRequest) -> FleetNode:
        """Return what a worker makes of the snapshot at ``asked.path``; never raises for what is in it."""
        with self._slots:
            worker = self._take()
            try:
                node = worker.ask(asked)
            except untrusted.Rejected as error:
                self._drop(worker)
                late = error.code == "late"
                words = f"judging its snapshot takes more than {_WITHIN_S:.0f} s" if late else str(error)
                return rejected(asked.name, "not-judged", words)
            except BaseException:
                self._drop(worker)
                raise
            with self._lock:
                self._idle.append(worker)
            return node

    def _take(self) -> _Worker:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        worker = _Worker()
        with self._lock:
            self._all.add(worker)
        return worker

    def _drop(self, worker: _Worker) -> None:
        with self._lock:
            self._all.discard(worker)
        worker.close()


class _Worker:
    def __init__(self) -> None:
        self._process = start_program(interpreter("vram.fleet.worker"))

    def ask(self, asked: JudgeRequest) -> FleetNode:
        try:
            self._process.write(msgspec.json.encode(asked) + b"\n")
        except OSError as error:
            raise untrusted.Rejected("ended", "the process that judges it has ended") from error
        answer = untrusted.receive(
            self._process.pipe,
            nbytes=_MAX_ANSWER,
            until=time.monotonic() + _WITHIN_S,
            pidfd=self._process.pidfd,
        )
        return untrusted.decode(answer, FleetNode)

    def kill(self) -> None:
        """Kill it: a thread that waits for its answer hears of it."""
        self._process.send(signal.SIGKILL)

    def close(self) -> None:
        """End it, once no thread waits for it any more."""
        self._process.end(_END_S)
        self._process.hang_up()
