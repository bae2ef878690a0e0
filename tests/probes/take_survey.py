"""Takes surveys inside a virtual GPU and prints each as one line of JSON.

    take_survey.py [--deadline S] [--thread] [--cuda] [--rounds N] [--unkillable] [--end PID]

Rounds after the first wait for a line of input. With --unkillable the first process that
reads NVML cannot die, held in its last moment as a tracer can: what a driver in trouble
does to its callers. A line "release" lets it go. With --end that process ends when all has
been read but who it is.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import sys
import threading

import msgspec

from vram.host.local import LocalHost
from vram.host.local.processes import LocalProc
from vram.model.process import ProcessFacts, ProcessRef
from vram.probes.survey import survey

SEIZE, CONTINUE, STOP_AT_EXIT = 0x4206, 7, 0x40
libc = ctypes.CDLL(None, use_errno=True)


class ExitTrap:
    """Stops processes as they exit, so that they cannot end."""

    def __init__(self, host: LocalHost) -> None:
        self._host = host
        self._held: list[int] = []

    def take(self) -> None:
        for pid in self._host.nvml.own_pids():
            assert libc.ptrace(SEIZE, pid, None, ctypes.c_void_p(STOP_AT_EXIT)) == 0
            self._held.append(pid)

    def release(self) -> None:
        for pid in self._held:
            libc.ptrace(CONTINUE, pid, None, None)
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


class TrappingHost(LocalHost):
    """Traps the reader as soon as the open files are read: it has been started then."""

    trap: ExitTrap | None = None

    @property
    def files(self):  # type: ignore[no-untyped-def]
        if self.trap is not None:
            self.trap.take()
            self.trap = None
        return self._files

    @files.setter
    def files(self, files: object) -> None:
        self._files = files


class Ending:
    """The processes, one of which ends in the moment before it is looked at."""

    def __init__(self, proc: LocalProc, pid: int) -> None:
        self._proc = proc
        self._pid = pid

    def started_at(self, pid: int) -> int | None:
        return self._proc.started_at(pid)

    def facts(self, pid: int) -> tuple[ProcessRef, ProcessFacts] | None:
        if pid == self._pid:
            os.kill(pid, signal.SIGKILL)
            while (found := self._proc.facts(pid)) and not found[1].is_dead:
                os.sched_yield()
        return self._proc.facts(pid)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--deadline", type=float, default=30.0)
    parser.add_argument("--end", type=int)
    parser.add_argument("--rounds", type=int, default=1)
    for flag in ("--thread", "--cuda", "--unkillable"):
        parser.add_argument(flag, action="store_true")
    args = parser.parse_args()
    if args.thread:
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    if args.cuda:
        ctypes.CDLL("libcuda.so.1")
    host = TrappingHost()
    if args.end:
        host.proc = Ending(host.proc, args.end)
    trap = ExitTrap(host)
    host.trap = trap if args.unkillable else None
    for turn in range(args.rounds):
        if turn and sys.stdin.readline().strip() == "release":
            trap.release()
        print(msgspec.json.encode(survey(host, deadline_s=args.deadline)).decode(), flush=True)


main()
