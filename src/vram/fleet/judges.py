"""Worker processes that judge snapshots, as many as there are cores; one that fails is replaced."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from contextlib import suppress
from types import TracebackType

import msgspec

from vram import untrusted
from vram.fleet.judge import JudgeRequest, rejected
from vram.host.local.child import interpreter
from vram.model.fleet import FleetNode

_MAX_ANSWER = 16 << 20
_WITHIN_S = 30.0
"""A node of 16 GPUs and 2,000 processes takes half a second."""


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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for worker in self._all:
            worker.close()

    def cancel(self) -> None:
        """End every worker; whoever waits for one hears that it has ended."""
        with self._lock:
            workers = list(self._all)
        for worker in workers:
            worker.end()

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
        self._process = subprocess.Popen(
            interpreter("vram.fleet.worker"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._pidfd = os.pidfd_open(self._process.pid)

    def ask(self, asked: JudgeRequest) -> FleetNode:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(msgspec.json.encode(asked) + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise untrusted.Rejected("ended", "the process that judges it has ended") from error
        answer = untrusted.receive(
            self._process.stdout.fileno(),
            nbytes=_MAX_ANSWER,
            until=time.monotonic() + _WITHIN_S,
            pidfd=self._pidfd,
        )
        return untrusted.decode(answer, FleetNode)

    def end(self) -> None:
        """Kill it: an ask that waits hears of it."""
        self._process.kill()

    def close(self) -> None:
        """End it, when nobody waits for it any more."""
        self._process.kill()
        self._process.wait()
        os.close(self._pidfd)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
