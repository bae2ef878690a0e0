"""A machine with a virtual GPU and a state folder of its own: real processes on it, vram beside them."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from fcntl import F_OFD_GETLK, F_OFD_SETLKW, F_UNLCK, F_WRLCK, fcntl
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE_S, until, until_ended
from tests.virtualgpu.conftest import ask
from tests.virtualgpu.programs import Program, environment, source
from vram.virtualgpu import VirtualGpu

WORKER = """
    import hashlib
    nbytes = int(os.environ.get("NBYTES", 64 * MIB))
    cuda.start(int(os.environ.get("GPU", 0)))
    address = cuda.alloc(nbytes)
    cuda.write(address, b"before" * 1000)
    cuda.tell("ready")
    while True:
        cuda.heard()
        cuda.tell("asked")
        cuda.tell(cuda.read(address, 6000).decode()[:6])
"""

SOMEBODY_ELSES = """
    cuda.start()
    cuda.alloc(64 * MIB)
    os.setresuid(65534, 65534, 65534)
    cuda.tell("ready")
    cuda.heard()
"""
# Works all the time, and asks for its stream and its event without a pause: that kills a program whose memory
# is away.
BUSY = """
    import threading, time
    nbytes = 64 * MIB
    cuda.start()
    address = cuda.alloc(nbytes)
    cuda.write(address, b"before" * 1000)
    context = cuda.out(ctypes.c_void_p, "cuCtxGetCurrent")
    stream = cuda.out(ctypes.c_void_p, "cuStreamCreate", 1)
    event = cuda.out(ctypes.c_void_p, "cuEventCreate", 0)
    cuda.call("cuEventRecord", event, stream)
    def again(name, *arguments):
        def loop():
            cuda.call("cuCtxSetCurrent", context)
            while cuda.code(name, *arguments) in (0, 600):
                pass
        threading.Thread(target=loop, daemon=True).start()
    again("cuStreamQuery", stream)
    again("cuEventQuery", event)
    again("cuCtxSynchronize")
    again("cuMemsetD8Async", address + (1 << 20), 7, 1 << 20, stream)
    cuda.tell("ready")
    while True:
        cuda.heard()
        cuda.tell("asked")
        cuda.tell(cuda.read(address, 6000).decode()[:6])
"""
RUNNING, LOCKED, CHECKPOINTED, FAILED = range(4)


_FLOCK = "@hhqqi4x"
# In struct store_client of native/virtualgpu/store/store.h.
_PID_AT, _STATE_AT = 12, 56


def _lock(pid: int) -> bytes:
    return struct.pack(_FLOCK, F_WRLCK, os.SEEK_SET, pid, 1, 0)


def _is_locked(file: int, pid: int) -> bool:
    return bool(struct.unpack(_FLOCK, fcntl(file, F_OFD_GETLK, _lock(pid)))[0] != F_UNLCK)


class Machine:
    """Starts programs on a virtual GPU, and vram with a state folder that is the test's alone."""

    def __init__(self, gpu: VirtualGpu, state: Path, stack: ExitStack) -> None:
        self.gpu = gpu
        self.state_home = state
        self._stack = stack

    def environment(self, **more: str) -> dict[str, str]:
        return {**self.gpu.environment(), "XDG_STATE_HOME": str(self.state_home), **more}

    def program(self, text: str, **more: str) -> Program:
        """A process on the GPU, ready: its first word is heard."""
        program = Program(self.gpu, text) if not more else _Variant(self.gpu, text, more)
        self._stack.enter_context(program)
        assert program.told() == "ready"
        return program

    def end_programs(self) -> None:
        """End all that was started here, before the test's own end."""
        self._stack.close()

    def worker(self, **more: str) -> Program:
        return self.program(WORKER, **more)

    def busy(self) -> Program:
        return self.program(BUSY)

    def vram(self, *words: object, **more: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "vram", *map(str, words)]
        return subprocess.run(
            argv, env=self.environment(**more), capture_output=True, text=True, timeout=PATIENCE_S
        )

    def start(self, *words: object, **options: Any) -> subprocess.Popen[str]:
        """vram, left running; ended with the test."""
        argv = [sys.executable, "-m", "vram", *map(str, words)]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        process = subprocess.Popen(argv, env=self.environment(), **{**pipes, **options})
        self._stack.callback(_end, process)
        return process

    def api(self, code: str) -> Any:
        """The last line that a program printed which uses vram's own functions, as JSON."""
        argv = [sys.executable, "-c", code]
        done = subprocess.run(
            argv, env=self.environment(), capture_output=True, text=True, timeout=PATIENCE_S
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    def wait_for(self, pid: int, state: int) -> None:
        """Come back when *pid* is in *state*, which it must not leave by itself."""
        until(lambda: self._state_in_file(pid) == state, lambda: self._state_in_file(pid))

    def state(self, pid: int) -> int:
        state = self._state_in_file(pid)
        assert state is not None
        return state

    def used(self) -> int:
        used: int = ask(self.gpu, "memory()")["v2"][3]
        return used

    def parked(self) -> list[dict[str, Any]]:
        done = self.vram("park", "--json")
        assert done.returncode == 0, done.stderr
        lines: list[dict[str, Any]] = json.loads(done.stdout)["parked"]
        return lines

    def audit(self) -> list[dict[str, Any]]:
        file = self.state_home / "vram" / "audit.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def until_nobody_moves(self, pid: int) -> None:
        """Come back when the claim on *pid* is free: no vram and no checkpoint worker is at work on it."""
        file = self._claims()
        try:
            fcntl(file, F_OFD_SETLKW, _lock(pid))
        finally:
            os.close(file)

    def until_somebody_moves(self, pid: int, vram: subprocess.Popen[str] | None = None) -> None:
        """Come back when a vram has taken the claim on *pid*, or when *vram* has ended without."""
        file = self._claims()
        try:
            until(lambda: _is_locked(file, pid) or (vram is not None and vram.poll() is not None))
        finally:
            os.close(file)

    def _claims(self) -> int:
        folder = self.state_home / "vram"
        folder.mkdir(mode=0o700, exist_ok=True)  # a vram that was killed early has not made it yet
        name = f"parking-{os.uname().nodename}.lock"
        return os.open(folder / name, os.O_RDWR | os.O_CREAT, 0o600)

    def _state_in_file(self, pid: int) -> int | None:
        """What the virtual driver's own file says: to ask it would need a tracer, in vram's way."""
        for file in (self.gpu.folder / "dev").glob("nvidia[0-9]*.*"):
            header = b""
            with suppress(FileNotFoundError):  # of a client that has just ended
                header = file.read_bytes()[:60]
            if len(header) == 60 and struct.unpack_from("<I", header, _PID_AT)[0] == pid:
                return int(struct.unpack_from("<I", header, _STATE_AT)[0])
        return None


class _Variant(Program):
    """A program with more in its environment."""

    def __init__(self, gpu: VirtualGpu, text: str, more: dict[str, str]) -> None:

        self.process = subprocess.Popen(
            [sys.executable, "-c", source(text)],
            env=environment(gpu) | more,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )


def is_stopped(program: Program) -> bool:
    return Path(f"/proc/{program.pid}/stat").read_text().rpartition(") ")[2][0] == "T"


def runs_on(worker: Program) -> bool:
    """Whether the process still uses its GPU and finds there what it left."""
    worker.go()
    return [worker.told(), worker.told()] == ["asked", "before"]


def checkpoint_worker_of(process: subprocess.Popen[str]) -> int:
    """The checkpoint worker that a running vram has started, as a pidfd."""
    found = checkpoint_worker_if_any(process)
    assert found, "vram ended without a checkpoint worker"
    return found


def checkpoint_worker_if_any(process: subprocess.Popen[str]) -> int | None:
    """The same, or None where vram has ended before its checkpoint worker was seen."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")

    def found() -> int | None:
        for pid in children.read_text().split():
            with suppress(OSError):
                if b"vram-checkpoint-worker" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    return os.pidfd_open(int(pid))
        return None

    worker = until(lambda: process.poll() is not None or found())
    return None if worker is True else worker


def until_delivered(process: subprocess.Popen[str], number: int) -> None:
    """Come back when a signal that was sent has interrupted what the process waits in, or has ended it."""

    def pending() -> bool:
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        masks = [int(line.split()[1], 16) for line in lines if line.startswith(("SigPnd:", "ShdPnd:"))]
        return any(mask >> (number - 1) & 1 for mask in masks)

    until(lambda: process.poll() is not None or not pending())


def until_it_has_a_claim(pidfd: int) -> None:
    """Come back when an order to move a process has reached the checkpoint worker."""
    fields = dict(line.split(":\t") for line in Path(f"/proc/self/fdinfo/{pidfd}").read_text().splitlines())
    files = Path(f"/proc/{int(fields['Pid'])}/fd")
    until(lambda: any(opened(file).endswith(".lock") for file in files.iterdir()))


def opened(descriptor: Path) -> str:
    """What it leads to; nothing where it was closed since the folder was listed."""
    try:
        return os.readlink(descriptor)
    except FileNotFoundError:
        return ""


def kill(pidfd: int) -> None:
    """End a process of the test's own by SIGKILL, and wait until it is gone."""
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    until_ended(pidfd)
    os.close(pidfd)


@contextmanager
def stopped(pidfd: int) -> Iterator[None]:
    """Keep a process stopped meanwhile; one that traces others must go on before they can end."""
    signal.pidfd_send_signal(pidfd, signal.SIGSTOP)
    try:
        yield
    finally:
        signal.pidfd_send_signal(pidfd, signal.SIGCONT)
        os.close(pidfd)


def kill_both(vram: subprocess.Popen[str]) -> None:
    """End vram and its worker, neither having the time to put right what the other's death leaves."""
    checkpoint_worker = checkpoint_worker_of(vram)
    signal.pidfd_send_signal(checkpoint_worker, signal.SIGSTOP)
    vram.kill()
    vram.wait(PATIENCE_S)
    kill(checkpoint_worker)


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


@pytest.fixture
def machine(virtual_gpu: VirtualGpu, tmp_path: Path) -> Iterator[Machine]:
    home = tmp_path / "state"
    home.mkdir(mode=0o700)
    with ExitStack() as stack:
        yield Machine(virtual_gpu, home, stack)
