"""What a view says of small traces that were made for it."""

from __future__ import annotations

import pytest

from tests.trace.conftest import Read
from tests.trace.writer import TraceFile
from vram.model.trace import Frame

pytestmark = pytest.mark.native

MIB = 1 << 20
LOAD = ("load", "train.py", 3)
STEP = ("step", "train.py", 7)
MAIN = ("<module>", "train.py", 20)


def test_totals_peak_and_stacks(read: Read) -> None:
    trace = TraceFile()
    writer = trace.section(pid=7).writer()
    gpu = writer.where(device=1)
    load, step = writer.stack(LOAD, MAIN), writer.stack(STEP, MAIN)
    writer.alloc(10, 0x1000000, 10 * MIB, where=gpu, stack=load)
    writer.alloc(20, 0x2000000, 4 * MIB, where=gpu, stack=step)
    writer.free(30, 0x2000000, where=gpu)
    writer.alloc(40, 0x3000000, 2 * MIB, where=gpu, stack=step)
    writer.free(50, 0x3000000, where=gpu)
    writer.end(60)
    view = read(trace)

    [use] = view.gpus
    assert (use.gpu, use.peak_nbytes, use.peak_ns, use.end_nbytes) == (1, 14 * MIB, 20, 10 * MIB)
    assert (use.allocated_nbytes, use.allocations, use.frees) == (16 * MIB, 3, 2)
    assert view.events == 5
    assert [(site.nbytes, site.count) for site in view.peak] == [(10 * MIB, 1), (4 * MIB, 1)]
    frames = view.stacks[view.peak[1].stack].frames
    assert frames == (Frame("python", *STEP), Frame("python", *MAIN))
    [process] = view.processes
    assert (process.pid, process.end, process.command) == (7, "exit", ("python", "train.py"))
    assert not view.damage
