"""What a view says of small traces that were made for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trace.conftest import Read
from tests.trace.writer import TraceFile, number, text
from vram.model.trace import Frame
from vram.trace.reader import EVENT_TYPES, open_trace

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


def verdicts(read: Read, trace: TraceFile) -> dict[str, tuple[str, int, int]]:
    """(verdict, count, bytes) by the name of the innermost function."""
    view = read(trace)
    assert not view.damage
    found = {}
    for leak in view.leaks:
        frames = view.stacks[leak.site.stack].frames
        found[frames[0].function] = (leak.verdict, leak.site.count, leak.site.nbytes)
    return found


def test_what_its_context_left_behind_is_leaked(read: Read) -> None:
    """cudaDeviceReset as the last act counts: the process ended after it. Another context is not touched."""
    trace = TraceFile()
    writer = trace.section().writer()
    here, there = writer.where(0xC0, 0), writer.where(0xC1, 0)
    writer.alloc(1, 0xC0, 0, kind="context", where=here)
    writer.alloc(2, 0x1000, 512, where=here, stack=writer.stack(("lost", "x.cu", 1)))
    writer.alloc(3, 0x2000, 512, where=there, stack=writer.stack(("other", "x.cu", 2)))
    writer.alloc(4, 0x3000, 512, kind="stream-ordered", where=here, stack=writer.stack(("pool", "x.cu", 3)))
    writer.alloc(5, 0x4000, 512, kind="pinned host", where=here, stack=writer.stack(("pinned", "x.cu", 4)))
    writer.alloc(6, 0x5000, 512, kind="module", where=here, stack=writer.stack(("code", "x.cu", 5)))
    writer.free(9, 0xC0, kind="context", where=here)
    writer.end(10)
    assert verdicts(read, trace) == {
        "lost": ("leaked", 1, 512),
        "pinned": ("leaked", 1, 512),
        "other": ("in use at exit", 1, 512),
        "pool": ("in use at exit", 1, 512),
    }
    assert read(trace).gpus[0].end_nbytes == 1024


def test_what_libraries_do_after_the_end_makes_no_leak(read: Read) -> None:
    """The driver takes a context and its modules down while the process exits, after its END."""
    trace = TraceFile()
    section = trace.section()
    own, writer = section.writer(), section.writer()
    where = writer.where()
    writer.alloc(1, 0x1000, 512, where=where, stack=writer.stack(LOAD))
    writer.alloc(2, 0x2000, 512, kind="module", where=where)
    own.end(5)
    writer.free(6, 0xC0, kind="context")
    writer.free(7, 0x2000, kind="module")
    assert verdicts(read, trace) == {"load": ("in use at exit", 1, 512)}


def test_contexts_that_end_with_a_killed_process_leave_nothing_leaked(read: Read) -> None:
    """Nothing of the process came after the ends of its contexts, not even its own end."""
    trace = TraceFile()
    writer = trace.section().writer()
    for context in (0xC0, 0xC1):
        where = writer.where(context, 0)
        writer.alloc(1, context << 16, 512, where=where, stack=writer.stack(("f", "x.py", context)))
    writer.free(8, 0xC0, kind="context")
    writer.free(9, 0xC1, kind="context")
    assert {verdict for verdict, _, _ in verdicts(read, trace).values()} == {"in use at exit"}


def test_growing_and_loaded_once(read: Read) -> None:
    trace = TraceFile()
    writer = trace.section().writer()
    gpu = writer.where()
    grows, loads = writer.stack(("grows", "x.py", 1)), writer.stack(("loads", "x.py", 2))
    for at in range(20):
        writer.alloc(at, 0x1000 * (at + 1), 512, where=gpu, stack=loads)
    late = writer.stack(("grows late", "x.py", 3))
    stopped = writer.stack(("stopped", "x.py", 4))
    for at in range(40):
        writer.alloc(100 + at * 100, (1 << 32) + at * 0x1000, 512, where=gpu, stack=grows)
        if at < 30:
            writer.alloc(100 + at * 100, (2 << 32) + at * 0x1000, 512, where=gpu, stack=stopped)
    for at in range(3):  # most of the time was spent on something else before
        writer.alloc(4010 + at * 20, (3 << 32) + at * 0x1000, 512, where=gpu, stack=late)
    writer.end(4060)
    assert verdicts(read, trace) == {
        "grows": ("growing", 40, 40 * 512),
        "grows late": ("growing", 3, 3 * 512),
        "loads": ("in use at exit", 20, 20 * 512),
        "stopped": ("in use at exit", 30, 30 * 512),
    }


def test_what_is_live_by_chance_at_the_end_does_not_grow(read: Read) -> None:
    """A place that frees what it allocated a while ago: its latest ones are live, the older ones are not."""
    trace = TraceFile()
    writer = trace.section().writer()
    gpu = writer.where()
    soon, late = writer.stack(("soon", "x.py", 1)), writer.stack(("late", "x.py", 2))
    for at in range(100):
        writer.alloc(at * 10, (1 << 32) + at * 0x1000, 512, where=gpu, stack=soon)
        writer.alloc(at * 10 + 1, (2 << 32) + at * 0x1000, 512, where=gpu, stack=late)
        if at >= 5:
            writer.free(at * 10 + 2, (1 << 32) + (at - 5) * 0x1000)
        if at >= 70:
            writer.free(at * 10 + 3, (2 << 32) + (at - 70) * 0x1000)
    writer.end(1000)
    assert {verdict for verdict, _, _ in verdicts(read, trace).values()} == {"in use at exit"}


@pytest.mark.parametrize(("exit_ns", "verdict"), [(99_000_000, "growing"), (101_000_000, "in use at exit")])
def test_a_programs_exit_does_not_hide_what_grew(read: Read, exit_ns: int, verdict: str) -> None:
    """Its work took a few milliseconds, its exit longer."""
    trace = TraceFile()
    writer = trace.section().writer()
    gpu, stack = writer.where(), writer.stack(("grows", "x.py", 1))
    for at in range(40):
        writer.alloc(at * 50_000, (1 << 32) + at * 0x1000, 512, where=gpu, stack=stack)
    writer.free(40 * 50_000, 1 << 32)
    writer.end(39 * 50_000 + exit_ns)
    assert verdicts(read, trace) == {"grows": (verdict, 39, 39 * 512)}


def test_a_frameworks_cache_is_no_leak_but_its_blocks_are(read: Read) -> None:
    trace = TraceFile()
    writer = trace.section().writer()
    gpu = writer.where()
    segment, block = writer.stack(("cudaMalloc", "pool.py", 1)), writer.stack(("train", "x.py", 2))
    for at in range(8):
        base = 0x10000000 + at * 2 * MIB
        writer.alloc(at * 100, base, 2 * MIB, where=gpu, stack=segment)
        writer.alloc(at * 100 + 1, base + 4096, MIB, kind="cupy block", where=gpu, stack=block)
        writer.alloc(at * 100 + 2, base + 8192, 4096, kind="cupy block", where=gpu, stack=block)
        writer.free(at * 100 + 3, base + 8192, kind="cupy block")
    writer.free(900, 0x10000000 + 4096, kind="cupy block")
    writer.end(1000)
    assert verdicts(read, trace) == {
        "cudaMalloc": ("in use at exit", 8, 16 * MIB),
        "train": ("growing", 7, 7 * MIB),
    }
    at_peak, at_end = read(trace).frameworks
    assert (at_peak.framework, at_peak.at, at_peak.reserved_nbytes) == ("cupy", "peak", 16 * MIB)
    assert (at_end.at, at_end.reserved_nbytes, at_end.used_nbytes) == ("end", 16 * MIB, 7 * MIB)
    assert [site.kind for site in at_end.sites] == ["cupy block"]
    assert read(trace).gpus[0].peak_nbytes == 16 * MIB


def test_a_handle_lives_while_it_is_referenced_or_mapped(read: Read) -> None:
    trace = TraceFile()
    writer = trace.section().writer()
    gpu = writer.where()
    writer.alloc(1, 0x11, 2 * MIB, kind="physical", where=gpu)
    writer.map(2, 0x60000000, 2 * MIB, 0x11)
    writer.free(3, 0x11, kind="physical")
    writer.alloc(4, 0x11, 4 * MIB, kind="physical", where=gpu)  # the number is used again
    writer.retain(5, 0x11)
    writer.free(6, 0x11, kind="physical")
    view = read(trace)
    assert view.gpus[0].end_nbytes == 6 * MIB
    assert view.processes[0].missing_frees == view.processes[0].unknown_frees == 0
    writer.unmap(7, 0x60000000, 2 * MIB)
    assert read(trace).gpus[0].end_nbytes == 4 * MIB
    writer.free(8, 0x11, kind="physical")
    assert read(trace).gpus[0].end_nbytes == 0


def test_memory_from_before_recording(read: Read) -> None:
    trace = TraceFile()
    section = trace.section(how=2)
    own, writer = section.writer(), section.writer()
    own.before(1, 0, 3 * MIB, "torch.cuda.memory_snapshot")
    own.before(1, None, MIB, "the driver")
    writer.free(5, 0x1000)
    writer.free(6, 0x2000, kind="pinned host")
    own.end(9, reason=2)
    view = read(trace)
    [process] = view.processes
    assert (process.attached, process.unknown_frees, process.end) == (True, 2, "detached")
    assert [(held.gpu, held.nbytes, held.source) for held in view.before] == [
        (0, 3 * MIB, "torch.cuda.memory_snapshot"),
        (None, MIB, "the driver"),
    ]
    assert not view.damage


def test_an_address_given_out_again_ends_what_was_there(read: Read) -> None:
    trace = TraceFile()
    writer = trace.section().writer()
    gpu = writer.where()
    writer.alloc(1, 0x1000, 512, where=gpu)
    writer.alloc(2, 0x1000, 256, where=gpu)
    view = read(trace)
    assert view.processes[0].missing_frees == 1
    assert (view.gpus[0].end_nbytes, view.gpus[0].peak_nbytes) == (256, 512)


def test_processes_add_up_on_one_gpu_whatever_they_call_it(read: Read) -> None:
    """The PCI address says which GPU it is; the number is the process's own (CUDA_VISIBLE_DEVICES)."""
    trace = TraceFile()
    for pid, device, pci in ((1, 0, "0000:01:00.0"), (2, 0, "0000:02:00.0"), (3, 1, "0000:02:00.0")):
        section = trace.section(pid=pid)
        own, writer = section.writer(), section.writer()
        own.device(device, pci, "NVIDIA H200", 140 << 30)
        writer.alloc(pid, 0x1000, pid * MIB, where=writer.where(0xC0, device))
    view = read(trace)
    assert [(use.gpu, use.pci, use.peak_nbytes) for use in view.gpus] == [
        (0, "0000:01:00.0", MIB),
        (1, "0000:02:00.0", 5 * MIB),
    ]
    assert {use.name for use in view.gpus} == {"NVIDIA H200"}


def test_clocks_of_one_and_of_several_machines(read: Read) -> None:
    wall, second = 1_700_000_000_000_000_000, 1_000_000_000
    trace = TraceFile()
    trace.section(pid=1, host="a", wall_ns=wall, started_ns=100 * second).writer().alloc(5, 0x1000, 512)
    # One boot: CLOCK_MONOTONIC holds, although the wall clock was set back by a second meanwhile.
    trace.section(pid=2, host="a", wall_ns=wall + second, started_ns=102 * second).writer().alloc(
        5, 0x1000, 512
    )
    # Another machine, or another boot: the wall clock.
    trace.section(pid=3, host="b", wall_ns=wall + 7 * second, started_ns=3 * second).writer().alloc(
        5, 0x1000, 512
    )
    view = read(trace)
    assert [process.first_ns for process in view.processes] == [0, 2 * second, 7 * second]
    assert [process.last_ns for process in view.processes] == [5, 2 * second + 5, 7 * second + 5]
    assert [process.host for process in view.processes] == ["a", "a", "b"]


def test_gpus_of_different_machines_are_different(read: Read) -> None:
    trace = TraceFile()
    for host in ("a", "b"):
        section = trace.section(host=host)
        own, writer = section.writer(), section.writer()
        own.device(0, "0000:01:00.0", "NVIDIA H200", 140 << 30)
        writer.alloc(1, 0x1000, MIB, where=writer.where(0xC0, 0))
    assert [(use.gpu, use.host, use.peak_nbytes) for use in read(trace).gpus] == [
        (0, "a", MIB),
        (1, "b", MIB),
    ]


def test_marks_gaps_failures_and_pinned_memory(read: Read) -> None:
    trace = TraceFile()
    section = trace.section()
    own, writer = section.writer(), section.writer()
    gpu = writer.where(0xC0, 1)
    own.mark(5, "epoch 1")
    own.mark(6, b"\xff\x1b[31m")
    own.gap(7, 1, True)
    own.gap(8, 1, False)
    own.gap(9, 2, True)
    writer.failed(10, 100 << 30, where=gpu, result=2, stack=writer.stack(STEP, MAIN))
    writer.alloc(11, 0x1000, MIB, kind="pinned host", where=gpu)
    writer.free(12, 0x1000, kind="pinned host")
    writer.alloc(13, 0x1000, 512, kind="registered host", where=gpu)
    view = read(trace)
    assert [(mark.time_ns, mark.text) for mark in view.marks] == [(5, "epoch 1"), (6, "\\xff\x1b[31m")]
    assert [(gap.reason, gap.start_ns, gap.end_ns) for gap in view.gaps] == [
        ("another subscriber", 7, 8),
        ("cupti shut down", 9, None),
    ]
    [failure] = view.failures
    assert (failure.gpu, failure.nbytes, failure.result, failure.kind) == (1, 100 << 30, 2, "device")
    assert view.stacks[failure.stack].frames[0].function == "step"
    assert view.failures_in_all == 1
    assert view.host_peak_nbytes == MIB
    assert [use.peak_nbytes for use in view.gpus] == [0]
    assert view.processes[0].end == "cut"


def test_churn_and_lifetimes(read: Read) -> None:
    trace = TraceFile()
    writer = trace.section().writer()
    gpu = writer.where()
    often, seldom = writer.stack(STEP), writer.stack(LOAD)
    for at in range(1000):
        writer.alloc(at * 1_000_000, 0x1000, 512, where=gpu, stack=often)
        writer.free(at * 1_000_000 + 50_000, 0x1000)
    for at in range(10):
        writer.alloc(2_000_000_000 + at * 2, 0x1000, 512, where=gpu, stack=seldom)
        writer.free(2_000_000_001 + at * 2, 0x1000)
    [churn] = read(trace).churn
    assert churn.site.count == 1000
    assert churn.median_life_ns == pytest.approx(50_000, rel=0.13)
    assert churn.per_second == pytest.approx(500, rel=0.01)


def test_stacks_of_different_writers_and_processes_are_one(read: Read) -> None:
    trace = TraceFile()
    for pid in (1, 2):
        section = trace.section(pid=pid)
        for _ in range(2):
            writer = section.writer()
            writer.stack((f"other{pid}", "y.py", 1))  # numbers differ
            writer.alloc(1, 0x1000 * writer.index, 512, stack=writer.stack(STEP, MAIN))
    view = read(trace)
    assert len(view.stacks) == 2
    assert sorted((site.process, site.count) for site in view.allocations) == [(0, 2), (1, 2)]


def test_several_files_are_one_trace(tmp_path: Path) -> None:
    paths = []
    for pid in (1, 2):
        trace = TraceFile()
        writer = trace.section(pid=pid).writer()
        writer.alloc(pid, 0x1000, MIB, where=writer.where(0xC0, 0))
        paths.append(tmp_path / f"{pid}.part")
        paths[-1].write_bytes(trace.bytes())
    view = open_trace(paths).view()
    assert [process.pid for process in view.processes] == [1, 2]
    assert view.gpus[0].peak_nbytes == 2 * MIB
    assert view.paths == tuple(map(str, paths))


def test_blobs(tmp_path: Path) -> None:
    trace = TraceFile()
    section = trace.section()
    own, other = section.writer(), section.writer()
    large = bytes(range(256)) * 700
    own.blob("torch", large)
    other.blob("jax", b"")
    own.blob("again", b"{}")
    own.raw(b"\x0b" + text("cut") + number(0) + number(2) + text(b"half"))
    path = tmp_path / "t"
    path.write_bytes(trace.bytes())
    found = {name: content for _, name, content in open_trace([path]).blobs()}
    assert found == {"torch": large, "jax": b"", "again": b"{}"}


def test_blobs_of_several_threads_come_in_turn(tmp_path: Path) -> None:
    """The recorder's own writer serves all threads, a part at a time."""
    trace = TraceFile()
    own = trace.section().writer()
    for at, part in enumerate((b"one", b"two")):
        own.raw(b"\x0b" + text("torch") + number(at) + number(2) + text(part))
        own.blob("library", b"/lib/libsome.so\0" + b"ab" * at)
    path = tmp_path / "t"
    path.write_bytes(trace.bytes())
    assert [content for _, name, content in open_trace([path]).blobs() if name == "torch"] == [b"onetwo"]


def test_builds_of_libraries(tmp_path: Path) -> None:
    trace = TraceFile()
    own = trace.section().writer()
    for content in (
        b"/a.so\x0001ab",
        b"/a.so\0",
        b"/a.so\x0001ab",
        b"/b\xff.so\0\xff",
        b"no separator",
        b"",
        b"/long.so\0" + b"f" * 9000,
    ):
        own.blob("library", content)
    path = tmp_path / "t"
    path.write_bytes(trace.bytes())
    assert open_trace([path]).builds() == {"/a.so": {"01ab", ""}, r"/b\xff.so": {"\ufffd"}}


def test_events_pair_allocations_and_frees(tmp_path: Path) -> None:
    trace = TraceFile()
    section = trace.section()
    writer, other = section.writer(5), section.writer(6)
    gpu = writer.where(0xC0, 1, 0x77)
    writer.alloc(1, 0x1000, 512, where=gpu, stack=writer.stack(STEP, MAIN))
    other.free(2, 0x1000)
    other.free(3, 0x9000)
    path = tmp_path / "t"
    path.write_bytes(trace.bytes())
    [batch] = open_trace([path]).events()
    assert [EVENT_TYPES[kind] for kind in batch.type] == ["alloc", "free", "free"]
    assert list(batch.allocation) == [1, 1, 0]
    assert list(batch.nbytes) == [512, 512, 0]
    assert list(batch.thread) == [5, 6, 6]
    assert list(batch.gpu) == [1, 1, -1]
    assert (batch.stream[0], batch.context[0]) == (0x77, 0xC0)
    assert batch.stacks[batch.stack[1]].frames[0].function == "step"
    assert list(batch.kind) == [0, 0, 255]


def test_what_is_live_at_the_end(tmp_path: Path) -> None:
    trace = TraceFile()
    writer = trace.section().writer()
    gpu = writer.where(0xC0, 1)
    writer.alloc(1, 0x1000, 512, where=gpu, stack=writer.stack(STEP))
    writer.alloc(2, 0x2000, 512, where=gpu)
    writer.free(3, 0x2000)
    path = tmp_path / "t"
    path.write_bytes(trace.bytes())
    [live] = open_trace([path]).live()
    assert (live.process, live.gpu, live.kind, live.address, live.nbytes, live.time_ns) == (
        0,
        1,
        0,
        0x1000,
        512,
        1,
    )
    assert live.stack.frames == (Frame("python", *STEP),)
