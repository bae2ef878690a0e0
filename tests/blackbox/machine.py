"""Starts demo programs and reads what they change: the GPU through an observer, processes through /proc."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE.parents[1] / "src" / "vram" / "virtualgpu" / "programs"
ANSWER_S = 60.0
EXIT_S = 20.0

# The virtual GPU's files carry a serial after the name that the real driver uses.
DEVICE_FILE = re.compile(
    r"(?:^|/)dev/(nvidia\d+|nvidiactl|nvidia-uvm(?:-tools)?|nvidia-caps/[^ .]+)(?:\.\d+)?$"
)
DMABUF = re.compile(r"^/dmabuf:|(?:^|/)dev/dmabuf\.\d+$")


class ProgramFailed(Exception):
    """A program, or the observer, failed or gave no answer."""


@dataclass(frozen=True)
class GpuReading:
    """One reading of the GPU. ``listed`` joins all process lists by pid."""

    total: int
    free: int
    used: int
    reserved: int
    v1_used: int
    v1_free: int
    listed: Mapping[int, int]


class LineProcess:
    """A child that answers every line with a line."""

    def __init__(self, command: list[str], env: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=dict(env))
        self._unread = b""

    def say(self, word: str = "") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(word.encode() + b"\n")
        self.process.stdin.flush()

    def hear(self) -> Any:
        """Return the next line's value; a child that says nothing in time has failed."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + ANSWER_S
        while b"\n" not in self._unread:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                raise ProgramFailed(f"no answer within {ANSWER_S:.0f} s")
            chunk = os.read(self.process.stdout.fileno(), 65536)
            if not chunk:
                raise ProgramFailed(f"ended without an answer, exit status {self.process.wait()}")
            self._unread += chunk
        line, _, self._unread = self._unread.partition(b"\n")
        return json.loads(line)

    def close_input(self) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()


class Program:
    """A demo program while it runs: ``"forks.orphan"`` is ``forks.py`` with ``orphan``.

    Every process it names is held by pidfd, so none can be missed at the end.
    """

    def __init__(self, name: str, arguments: tuple[Any, ...], env: Mapping[str, str]) -> None:
        file, *situation = name.split(".")
        command = [sys.executable, str(PROGRAMS / f"{file}.py"), *situation, *map(str, arguments)]
        self._lines = LineProcess(command, env)
        self._pidfds: dict[int, int] = {}
        self.lingering: list[int] = []
        self.line: dict[str, Any] = {}
        try:
            self._hear()
        except BaseException:
            self.close()
            raise

    def __getitem__(self, fact: str) -> Any:
        return self.line[fact]

    @property
    def pids(self) -> dict[str, int]:
        return dict(self.line["pids"])

    @property
    def nbytes(self) -> int:
        return int(self.line["nbytes"])

    def go(self, word: str = "") -> Program:
        """Send the program to its next stage."""
        self._lines.say(word)
        self._hear()
        return self

    def kill(self, pid: int | None = None) -> float:
        """Kill the program, or another of its processes; return the seconds until it was gone."""
        pid = self._lines.process.pid if pid is None else pid
        began = time.monotonic()
        signal.pidfd_send_signal(self._pidfds[pid], signal.SIGKILL)
        if pid == self._lines.process.pid:
            self._lines.process.wait()
        else:
            _wait_gone(self._pidfds[pid], EXIT_S)
        return time.monotonic() - began

    def close(self) -> None:
        """End the program: each process gets the chance to exit; one that does not is noted and killed."""
        self._lines.close_input()
        with suppress(subprocess.TimeoutExpired):
            self._lines.process.wait(EXIT_S)
        for pid, pidfd in self._pidfds.items():
            if not _wait_gone(pidfd, EXIT_S):
                self.lingering.append(pid)
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                _wait_gone(pidfd, EXIT_S)
            os.close(pidfd)
        self._pidfds.clear()
        if self._lines.process.poll() is None:
            self._lines.process.kill()
        self._lines.process.wait()
        assert self._lines.process.stdout is not None
        self._lines.process.stdout.close()

    def _hear(self) -> None:
        self.line = self._lines.hear()
        if not self.line["ready"]:
            raise ProgramFailed(self.line["error"])
        for pid in {self._lines.process.pid, *self.pids.values()} - set(self._pidfds):
            self._pidfds[pid] = os.pidfd_open(pid)


def _wait_gone(pidfd: int, deadline_s: float) -> bool:
    """Wait until a process has ended; its files are closed by then, reaped or not."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(deadline_s * 1000))


class Machine:
    """Where rows run: an environment that decides which GPU it is, and the observer of that GPU."""

    def __init__(self, env: Mapping[str, str] | None = None) -> None:
        self.env = dict(os.environ if env is None else env)
        self._observer = LineProcess([sys.executable, str(HERE / "observer.py")], self.env)
        self.gpu = self.ask("gpu")

    @property
    def observer_pid(self) -> int:
        return self._observer.process.pid

    def ask(self, question: str) -> Any:
        self._observer.say(question)
        answer = self._observer.hear()
        if "failed" in answer:
            raise ProgramFailed(f"the observer: {answer['failed']}")
        return answer["answer"]

    def read(self) -> GpuReading:
        read = self.ask("memory")
        listed: dict[int, int] = {}
        for entries in read["lists"].values():
            # JSON turns pids into text; a figure that the driver does not report counts as nothing here.
            listed |= {int(pid): nbytes or 0 for pid, nbytes in entries.items()}
        fields = ("total", "free", "used", "reserved", "v1_used", "v1_free")
        return GpuReading(**{name: read[name] for name in fields}, listed=listed)

    @contextmanager
    def start(self, name: str, *arguments: Any) -> Iterator[Program]:
        program = Program(name, arguments, self.env)
        try:
            yield program
        finally:
            program.close()

    def close(self) -> None:
        self._observer.close_input()
        self._observer.process.wait(EXIT_S)


# ---- what /proc shows ----


def device_files(pid: int) -> Counter[str]:
    """Count a process's descriptors by the device file they are on."""
    count: Counter[str] = Counter()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            kind = file_kind(os.readlink(descriptor))
        except FileNotFoundError:
            continue
        if kind:
            count[kind] += 1
    return count


def file_kind(target: str) -> str | None:
    target = target.removesuffix(" (deleted)")
    if DMABUF.search(target):
        return "dmabuf"
    found = DEVICE_FILE.search(target)
    return found[1] if found else None


def device_mappings(pid: int) -> int:
    """Count a process's mappings of device files."""
    fields = (line.split(None, 5) for line in Path(f"/proc/{pid}/maps").read_text().splitlines())
    return sum(1 for field in fields if len(field) == 6 and file_kind(field[5]))


def loaded_driver(pid: int) -> bool:
    return "libcuda.so" in Path(f"/proc/{pid}/maps").read_text()


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def fdinfo(pid: int, descriptor: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/fdinfo/{descriptor}").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def close_on_exec(pid: int) -> Counter[str]:
    """Count device descriptors by whether an exec would close them."""
    count: Counter[str] = Counter()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            kind, flags = file_kind(os.readlink(descriptor)), fdinfo(pid, int(descriptor.name))["flags"]
        except FileNotFoundError:
            continue
        if kind:
            count["closed" if int(flags, 8) & os.O_CLOEXEC else "kept"] += 1
    return count
