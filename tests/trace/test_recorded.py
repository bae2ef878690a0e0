"""What the recorder writes in real processes on the virtual GPU, as the reader understands it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import until
from tests.tracer.conftest import Traced
from vram.model.trace import TraceView
from vram.trace.reader import Follower, open_trace
from vram.virtualgpu import VirtualGpu

MIB = 1 << 20


@pytest.fixture
def traced(virtual_gpu: VirtualGpu, tmp_path: Path) -> Traced:
    return Traced(virtual_gpu, tmp_path)


def view_of(traced: Traced, program: str) -> TraceView:
    traced.run(program)
    view = open_trace(traced.parts()).view()
    assert not view.damage
    return view


def verdicts(view: TraceView) -> dict[str, tuple[str, str, int, int]]:
    """Kind, verdict, count and bytes by the function that called the driver's wrapper."""
    return {
        view.stacks[leak.site.stack].frames[-2].function: (
            leak.site.kind,
            leak.verdict,
            leak.site.count,
            leak.site.nbytes,
        )
        for leak in view.leaks
    }


def test_a_leak_a_cache_and_what_was_freed(traced: Traced) -> None:
    view = view_of(
        traced,
        """
context()
def loads():
    return [alloc(2 << 20) for _ in range(4)]
def leaks():
    alloc(1 << 20)
import time
def works():
    free(alloc(8 << 20))
    time.sleep(0.02)  # a step takes its time: by the clock it is told what goes on to the end
model = loads()
for step in range(40):
    works()
    leaks()
""",
    )
    assert verdicts(view) == {
        "leaks": ("device", "growing", 40, 40 * MIB),
        "loads": ("device", "in use at exit", 4, 8 * MIB),
    }
    [use] = view.gpus
    assert (use.peak_nbytes, use.end_nbytes) == ((8 + 39 + 8) * MIB, 48 * MIB)
    assert (use.allocations, use.frees) == (84, 40)
    assert use.name
    assert use.total_nbytes
    [process] = view.processes
    assert (process.end, process.unknown_frees, process.missing_frees) == ("exit", 0, 0)


def test_memory_of_a_context_that_was_reset_is_leaked(traced: Traced) -> None:
    """As with cudaDeviceReset() at a program's end: what was not freed before is a leak."""
    view = view_of(
        traced,
        """
context()
def lost():
    return alloc(1 << 20)
def freed():
    free(alloc(2 << 20))
lost(); lost(); freed()
check(cuda.cuDevicePrimaryCtxReset_v2(0))
""",
    )
    assert verdicts(view) == {"lost": ("device", "leaked", 2, 2 * MIB)}
    assert view.gpus[0].end_nbytes == 0


def test_handles_and_mappings(traced: Traced) -> None:
    """cuMemCreate's memory lives while it is mapped, although its handle was released."""
    view = view_of(
        traced,
        """
context()
class Prop(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("handles", ctypes.c_int), ("where", ctypes.c_int),
                ("id", ctypes.c_int), ("meta", ctypes.c_void_p), ("flags", ctypes.c_ubyte * 8)]
def vmm(nbytes, unmap):
    handle, address, zero = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_uint64()
    prop, nbytes = Prop(1, 0, 1, 0), ctypes.c_uint64(nbytes)
    check(cuda.cuMemAddressReserve(ctypes.byref(address), nbytes, zero, zero, zero))
    check(cuda.cuMemCreate(ctypes.byref(handle), nbytes, ctypes.byref(prop), zero))
    check(cuda.cuMemMap(address, nbytes, zero, handle, zero))
    check(cuda.cuMemRelease(handle))
    if unmap:
        check(cuda.cuMemUnmap(address, nbytes))
vmm(4 << 20, False)
vmm(6 << 20, True)
""",
    )
    [use] = view.gpus
    assert (use.peak_nbytes, use.end_nbytes) == (10 * MIB, 4 * MIB)
    [at_end] = [row for row in view.holes if row.at_ns != use.peak_ns]
    assert at_end.live_nbytes == 4 * MIB


def test_threads_free_each_others_memory(traced: Traced) -> None:
    view = view_of(
        traced,
        """
import queue, threading
made = context()
given = queue.SimpleQueue()
def taker():
    check(cuda.cuCtxSetCurrent(made))
    for _ in range(300):
        free(given.get())
threads = [threading.Thread(target=taker) for _ in range(3)]
for thread in threads: thread.start()
for _ in range(900):
    given.put(alloc(4096))
for thread in threads: thread.join()
""",
    )
    [use] = view.gpus
    assert (use.allocations, use.frees, use.end_nbytes) == (900, 900, 0)
    [process] = view.processes
    assert (process.unknown_frees, process.missing_frees) == (0, 0)
    assert process.threads >= 4
    assert view.leaks == ()


@pytest.mark.fault(22)
def test_a_killed_process_leaves_a_readable_trace(traced: Traced) -> None:
    """SIGKILL while it allocates: everything that it reported as done is in the trace."""
    program = """
from program import *
context()
for number in range(100000):
    alloc(4096)
    os.write(1, b"%d\\n" % (number + 1))
"""
    line = [sys.executable, "-c", program, str(traced.folder)]
    with subprocess.Popen(line, env=traced.environment(), stdout=subprocess.PIPE) as process:
        assert process.stdout
        for _ in range(200):
            process.stdout.readline()
        process.kill()
        said = process.stdout.read().split()
    done = int(said[-1]) if said and said[-1].isdigit() else 200
    view = open_trace(traced.parts()).view()
    assert not view.damage
    [use] = view.gpus
    # One more may have been recorded before it was said.
    assert done <= use.allocations <= done + 1
    assert view.processes[0].end == "cut"


FOLLOWED = """
from program import *
context()
kept = [alloc(1 << 20) for _ in range(50)]
say("ready")
sys.stdin.readline()
free(kept.pop())
say("done")
sys.stdin.readline()
"""


def test_a_real_process_is_followed(traced: Traced) -> None:
    command = [sys.executable, "-c", FOLLOWED]
    environment = traced.environment()
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        follower = Follower(traced.folder / "trace")
        try:
            assert process.stdout.readline() == b"ready\n"
            await_live(follower, 50 * MIB)
            process.stdin.write(b"\n")
            process.stdin.flush()
            assert process.stdout.readline() == b"done\n"
            await_live(follower, 49 * MIB)
        finally:
            process.stdin.close()
    live = follower.live()
    [use] = live.gpus
    assert (use.peak_nbytes, use.frees) == (50 * MIB, 1)
    assert live.stacks[live.sites[0].stack].frames[0].function == "alloc"


def await_live(follower: Follower, nbytes: int) -> None:
    def holds() -> bool:
        follower.advance()
        return [use.end_nbytes for use in follower.live().gpus] == [nbytes]

    until(holds, lambda: f"not {nbytes} bytes: {follower.live().gpus}")
