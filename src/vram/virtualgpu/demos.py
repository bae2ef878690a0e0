"""The five questions people ask about GPU memory, each as a demo: a program, vram's answer, a remedy.

A demo program is a file of ``programs/`` that knows nothing of vram: real processes that bring about
one situation, stage by stage. The tests use them too.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from vram.children import LocalPidHandle
from vram.errors import VirtualGpuError

PROGRAMS = Path(__file__).with_name("programs")
EXIT_S = 10.0


class ProgramLauncher(Protocol):
    """Where a demo program can run: a virtual GPU, or a machine that has a real one."""

    def popen(self, argv: list[str], **options: Any) -> subprocess.Popen[bytes]: ...


class DemoProgram:
    """One program of ``programs/`` while it runs: ``"forks.orphan"`` is ``forks.py`` with ``orphan``.

    ``pids`` names its processes by their role. All of them are held by pidfd from the moment
    they are named, so signals reach no other process and none is left behind.
    """

    def __init__(self, launcher: ProgramLauncher, name: str, *arguments: object) -> None:
        program, *situation = name.split(".")
        self._process = launcher.popen(
            # As typed by a person in that folder: reports show this line, not where Python lies.
            ["python", f"{program}.py", *situation, *map(str, arguments)],
            executable=sys.executable,
            # Under a name without a path, Python would look for its library beside another one.
            env={**os.environ, "PYTHONHOME": f"{sys.base_prefix}:{sys.base_exec_prefix}"},
            cwd=PROGRAMS,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Ctrl-C at the terminal is ours to handle, in our order.
            start_new_session=True,
        )
        pid = self._process.pid
        self._handles = {pid: LocalPidHandle(pid, os.pidfd_open(pid))}
        self._line: dict[str, Any] = {}
        try:
            self._read_stage()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> DemoProgram:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def stage(self) -> str:
        return str(self._line["stage"])

    @property
    def pids(self) -> dict[str, int]:
        return dict(self._line["pids"])

    @property
    def nbytes(self) -> int:
        """How many bytes of device memory this stage is about."""
        return int(self._line["nbytes"])

    def go(self) -> None:
        """Send the program to its next stage, and wait until it is there."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()
        self._read_stage()

    def kill(self, role: str, number: signal.Signals = signal.SIGKILL) -> None:
        """End the process with that role by a signal, and wait until it is gone."""
        pid = self.pids[role]
        self._handles[pid].send(number)
        if pid == self._process.pid:
            self._process.wait()
        else:
            self._handles[pid].ended(EXIT_S)

    def close(self) -> None:
        """End the program: each process gets the chance to exit, then is killed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        for handle in self._handles.values():
            if not handle.ended(EXIT_S):
                handle.send(signal.SIGKILL)
                handle.ended(EXIT_S)
            handle.close()
        self._handles.clear()
        self._process.wait()
        self._process.stdout.close()

    def _read_stage(self) -> None:
        assert self._process.stdout is not None
        line = json.loads(self._process.stdout.readline() or b'{"ready": false, "error": "it ended early"}')
        if not line["ready"]:
            raise VirtualGpuError(f"a demo program failed: {line['error']}")
        self._line = line
        for pid in set(self.pids.values()) - set(self._handles):
            self._handles[pid] = LocalPidHandle(pid, os.pidfd_open(pid))


class Demo(NamedTuple):
    """A question, the program that raises it, and what answers it.

    ``prepare`` brings the program to where the question comes up. ``remedy`` is the command that
    frees the memory with the least harm, run as it stands. ``own_call`` is what the program does
    about it itself: the remedy where no command is, and where the command is refused on this host.
    Sentences and commands may name processes by their role: ``{child}`` becomes a pid.
    """

    name: str
    question: str
    program: str
    size: str
    happened: str
    prepare: Callable[[DemoProgram], None]
    advice: str
    remedy: str = ""
    own_call: str = ""


def _export_and_die(program: DemoProgram) -> None:
    program.go()
    program.go()


THREAD = Demo(
    name="thread",
    question="The thread has ended. Why is its memory still in use?",
    program="owners.raw_pointers",
    size="1GiB",
    happened="Four threads of one process allocated 1 GiB each through raw pointers, and ended.",
    prepare=lambda program: None,  # the first stage already raises the question
    advice="Device memory belongs to the process, not to the thread. An owner object would have freed "
    "it; what has no owner is freed with the context.",
    own_call="Process {self} resets its context, as cudaDeviceReset() does.",
)

FORK = Demo(
    name="fork",
    question="The process is dead. Why is its memory not free?",
    program="forks.orphan",
    size="4GiB",
    happened="Process {parent} allocated 4 GiB, forked and was killed. Its child sleeps.",
    prepare=lambda program: program.kill("parent"),
    advice="The child inherited the open device files, and they hold the memory. The pid that the driver "
    "lists is dead: there is nothing to kill. `vram free` terminates the child instead.",
    remedy="vram free --yes",
)

EXPORT = Demo(
    name="export",
    question="No process is listed. Who holds 4 GiB?",
    program="exports.handle",
    size="4GiB",
    happened="Process {allocator} exported an allocation to process {holder}, which never uses CUDA, "
    "and was killed.",
    prepare=_export_and_die,
    advice="An exported allocation stays as long as any process has a descriptor of it open. A service "
    "may have received it and be at work, so only you can say that the holder may end: `vram kill` ends it.",
    remedy="vram kill {holder} --yes",
)

POOL = Demo(
    name="pool",
    question="Everything was freed. Why is it still in use?",
    program="pools.trim",
    size="6GiB",
    happened="Process {self} freed all of its 6 GiB into a stream-ordered pool that keeps it.",
    prepare=DemoProgram.go,
    advice="To the driver, memory that a pool keeps is in use. Only the process can release it, so "
    "`vram trim` asks the process, which keeps running.",
    remedy="vram trim {self}",
    own_call="Process {self} trims its pool itself, with cuMemPoolTrimTo().",
)

CONTEXT = Demo(
    name="context",
    question="Nothing is computed. What uses the memory?",
    program="contexts.small",
    size="2MiB",
    happened="Four idle processes hold 2 MiB each.",
    prepare=lambda program: None,
    advice="Every process that uses CUDA pays for a context first, however little it allocates. "
    "`vram park` moves idle processes to host memory, contexts included; `vram unpark` brings them back.",
    remedy="vram park {worker0} {worker1} {worker2} {worker3}",
    own_call="The four idle processes end.",
)

DEMOS = (THREAD, FORK, EXPORT, POOL, CONTEXT)
