"""What root's `vram free` must not mistake for a leftover, on real hardware: programs that are just starting,
and processes that were handed descriptors.

python -m pytest --real-gpu -s tests/hardware/test_starting.py
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from tests.hardware.conftest import Record
from tests.patience import until
from vram.ledger.file_holders import _ONLY_INITIALISED
from vram.payloads.procfs import ProcessFolder, may_run_driver_threads
from vram.reclaim.executor import SECOND_LOOK_S
from vram.units import GIB, MIB
from vram.virtualgpu.demos import PROGRAMS

pytestmark = pytest.mark.gpu

CONTEXT = "import driver, sys; driver.context(); print('made', flush=True); sys.stdin.read()"
KEEPS = "import sys; print('ready', flush=True); sys.stdin.read()"
HANDS_OVER = """
import driver, os, socket, sys
end, kind = socket.socket(fileno=int(sys.argv[1])), sys.argv[2]
driver.context()
driver.alloc(int(sys.argv[3]))
paths = {int(name): os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")}
chosen = [each for each, path in paths.items() if path == kind or kind == "/dev/nvidia" and kind in path]
socket.send_fds(end, [b"."], chosen)
"""
BUSY = "while True: pass"


class Gpu:
    """The first GPU as NVML tells of it."""

    def __init__(self) -> None:
        import pynvml

        pynvml.nvmlInit()
        self._nvml = pynvml
        self._handle = pynvml.nvmlDeviceGetHandleByIndex(0)

    def listed(self) -> set[int]:
        return {each.pid for each in self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)}

    def used(self) -> int:
        return int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle, self._nvml.nvmlMemory_v2).used)


@pytest.fixture
def gpu() -> Gpu:
    return Gpu()


def on_gpu(pid: int) -> int:
    """How many descriptors of the first GPU a process has open."""
    found = 0
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                found += os.readlink(f"/proc/{pid}/fd/{name}") == "/dev/nvidia0"
    return found


@contextmanager
def busy(count: int, cores: set[int]) -> Iterator[None]:
    """Programs that keep *cores* busy."""
    programs = [
        subprocess.Popen([sys.executable, "-c", BUSY], preexec_fn=lambda: os.sched_setaffinity(0, cores))
        for _ in range(count)
    ]
    try:
        yield
    finally:
        for each in programs:
            each.kill()
            each.wait()


def uncharged_s(gpu: Gpu, count: int, cores: set[int] | None = None) -> list[float]:
    """*count* programs make a context at once: how long each looks like a holder and is not in the list.

    All that time the driver runs a thread in it: that tells it from one that inherited files.
    """
    programs = [
        subprocess.Popen(
            [sys.executable, "-c", CONTEXT],
            cwd=PROGRAMS,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            preexec_fn=(lambda: os.sched_setaffinity(0, cores)) if cores else None,
        )
        for _ in range(count)
    ]
    began: dict[int, float] = {}
    took: dict[int, float] = {}

    def all_listed() -> bool:
        now = time.monotonic()
        for each in programs:
            if each.pid not in began and on_gpu(each.pid) > _ONLY_INITIALISED:
                began[each.pid] = now
                with ProcessFolder("/proc", each.pid) as folder:
                    assert may_run_driver_threads(folder)
        for pid in gpu.listed() & began.keys() - took.keys():
            took[pid] = time.monotonic() - began[pid]
        return len(took) + len([each for each in programs if each.poll() is not None]) == count

    try:
        until(all_listed, lambda: f"{len(took)} of {count} are in the list")
    finally:
        for each in programs:
            each.kill()
            each.communicate()
    return sorted(took.values())


def test_how_long_a_starting_program_has_files_and_no_charge(gpu: Gpu, record: Record) -> None:
    """Longer than vram waits for its second look, where many start at once: time alone proves nothing."""
    alone = [each for _ in range(10) for each in uncharged_s(gpu, 1)]
    with busy(8, {0}):
        starved = uncharged_s(gpu, 12, {0})
    found = {"alone": alone, "at once": uncharged_s(gpu, 48), "starved": starved}
    record(**{name: {"shortest": min(each), "longest": max(each)} for name, each in found.items()})
    assert max(alone) < SECOND_LOOK_S


@contextmanager
def handed(kind: str, nbytes: int) -> Iterator[None]:
    """A context's descriptors of one *kind* are handed to a program that never used CUDA; its maker ends."""
    ours, theirs = socket.socketpair()
    with theirs:
        subprocess.run(
            [sys.executable, "-c", HANDS_OVER, str(theirs.fileno()), kind, str(nbytes)],
            cwd=PROGRAMS,
            pass_fds=[theirs.fileno()],
            check=True,
        )
    with ours:
        _, kept, _, _ = socket.recv_fds(ours, 1, 64)
    with subprocess.Popen([sys.executable, "-c", KEEPS], pass_fds=kept, stdin=-1, stdout=-1) as holder:
        for each in kept:
            os.close(each)
        assert holder.stdin is not None
        assert holder.stdout is not None
        holder.stdout.readline()
        yield
        holder.stdin.close()


def test_which_descriptors_keep_memory_without_a_mapping(gpu: Gpu, record: Record) -> None:
    idle, kept = gpu.used(), {}
    for kind in ("/dev/nvidia", "/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia-uvm"):
        with handed(kind, GIB):
            kept[kind] = round((gpu.used() - idle) / MIB, 1)
        kept[f"{kind}, closed"] = round((gpu.used() - idle) / MIB, 1)
    record(kept_mib=kept)
    assert kept["/dev/nvidia"] > 1024
    assert all(nbytes < 16 for name, nbytes in kept.items() if "closed" in name)
