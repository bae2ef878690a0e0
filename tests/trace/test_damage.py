"""Traces that were cut, changed or made to harm: a typed error or a partial view, in bounded memory."""

from __future__ import annotations

import os
import random
import struct
import tempfile
from pathlib import Path

import pytest

from tests.faults.record import Tally
from tests.trace.conftest import Read
from tests.trace.writer import CHUNK, PAGE, TraceFile, number, signed, text
from vram.errors import BadTrace, VramError
from vram.model.trace import TraceView
from vram.trace.reader import Trace, open_trace

pytestmark = pytest.mark.native

MIB = 1 << 20


def example() -> TraceFile:
    """Some of everything, in two processes."""
    trace = TraceFile()
    for pid in (7, 8):
        section = trace.section(pid=pid, command=("python", "a b.py", "--x"))
        own, writer, other = section.writer(), section.writer(), section.writer()
        own.device(0, "0000:01:00.0", "NVIDIA H200", 140 << 30)
        own.before(1, 0, 5 * MIB, "torch")
        gpu, unknown = writer.where(0xC0, 0, 0x77), writer.where(0xC1, None)
        load = writer.stack(("load", "train.py", 3), ("<module>", "train.py", 20))
        step = writer.stack(("step", "train.py", 7), ("<module>", "train.py", 20))
        there = other.stack(("cudaMalloc", "/usr/lib/libx.so", 0x1234), language=1)
        writer.alloc(5, 0xC0, 0, kind="context")
        for at in range(12):
            writer.alloc(10 + 10 * at, 0x7000000 + at * MIB, MIB, where=gpu, stack=load if at % 2 else step)
            other.alloc(15 + 10 * at, 0x9000000 + at * MIB, 512, where=other.where(0xC0, 1), stack=there)
            if at % 3:
                other.free(17 + 10 * at, 0x7000000 + at * MIB)
        writer.alloc(200, 0x11, 2 * MIB, kind="physical", where=gpu, stack=load)
        writer.map(201, 0x60000000, 2 * MIB, 0x11)
        writer.retain(202, 0x11)
        writer.free(203, 0x11, kind="physical")
        writer.unmap(204, 0x60000000, 2 * MIB)
        writer.alloc(205, 0x500000, 4096, kind="pinned host", where=unknown)
        writer.alloc(206, 0x7000000, 256, kind="cupy block", where=gpu, stack=step)
        writer.failed(207, 100 << 30, where=gpu, stack=step)
        writer.trim(208, 1, 0, where=gpu)
        writer.takes_over(99, "worker")
        own.mark(209, "epoch 1")
        own.gap(210, 1, True)
        own.gap(220, 1, False)
        own.blob("torch", b"{}" * 40)
        writer.free(300, 0xC0, kind="context")
        own.end(400)
    return trace


def read_bytes(content: bytes) -> TraceView | VramError:
    """The view of a trace in memory, or the error that it is."""
    descriptor = os.memfd_create("trace")
    try:
        os.write(descriptor, content)
        with open_trace([Path(f"/proc/self/fd/{descriptor}")]) as trace:
            view = trace.view(points=100)
            check(view)
            return view
    except VramError as error:
        return error
    finally:
        os.close(descriptor)


def check(view: TraceView) -> None:
    """What holds for every view, however little could be read."""
    for use in view.gpus:
        assert 0 <= use.end_nbytes <= use.peak_nbytes <= use.allocated_nbytes
        assert use.frees <= use.allocations
        at_peak = sum(site.nbytes for site in view.peak if site.gpu == use.gpu)
        assert at_peak == use.peak_nbytes
    assert view.duration_ns < 1 << 60
    for site in (*view.allocations, *view.peak, *(leak.site for leak in view.leaks)):
        assert 0 <= site.stack < len(view.stacks)
        assert 0 <= site.process < len(view.processes)
    assert all(isinstance(sentence, str) for sentence in view.damage)


def compact() -> bytes:
    """The example's first process with its chunks brought close together, in a few KB of content."""
    return example().sections[0].bytes(cut=True)


@pytest.mark.fault(24)
def test_truncation_at_every_byte(tally: Tally) -> None:
    """Every byte at which something is written; of the zeros behind a chunk's records every 500th."""
    section = example().sections[0]
    whole = section.bytes()
    ends = [
        PAGE + at * CHUNK + len(section._writers[writer].chunks[0])
        for at, (writer, _) in enumerate(section.order)
    ]
    positions = set(range(len(section.header.rstrip(b"\0")) + 8))
    positions |= set(range(PAGE - 8, PAGE + 8)) | set(range(0, len(whole), 500))
    for at, end in enumerate(ends):
        positions |= set(range(PAGE + at * CHUNK - 2, end + 20))
    events = read_bytes(whole).events  # type: ignore[union-attr]
    before, errors = -1, 0
    for position in sorted(positions):
        found = read_bytes(whole[:position])
        tally.count()
        if isinstance(found, VramError):
            assert isinstance(found, BadTrace)
            assert position < 80
            errors += 1
            continue
        assert found.events <= events
        assert found.events >= before, "what was read of a shorter file is not lost in a longer one"
        before = found.events
    assert errors == 80
    assert before == events


@pytest.mark.fault(22)
def test_a_trace_that_ends_anywhere_loses_at_most_one_record_of_a_thread(tally: Tally) -> None:
    """What a killed process leaves: whole chunks, in which the records end with the last whole one."""
    trace = TraceFile()
    section = trace.section()
    writers = [section.writer() for _ in range(3)]
    for at in range(30):
        for writer in writers:
            writer.alloc(
                at,
                (at * 3 + writer.index) * MIB,
                MIB,
                where=writer.where(),
                stack=writer.stack(("f", "x", at)),
            )
    whole = section.bytes()
    random_numbers = random.Random(22)
    for _ in range(300):
        # A record is written from its second byte on, the type last: what is there of it is behind a zero.
        killed = bytearray(whole)
        complete = 0
        for at in range(len(writers)):
            start = PAGE + at * CHUNK
            ends = record_ends(bytes(killed[start : start + CHUNK]))
            last = random_numbers.randrange(len(ends))
            keep, partly = ends[last][0], ends[min(last + 1, len(ends) - 1)][0]
            half = random_numbers.randrange(keep, partly + 1)
            killed[start + half : start + CHUNK] = bytes(CHUNK - half)
            if keep < partly:
                killed[start + keep] = 0
            complete += ends[last][1]
        found = read_bytes(bytes(killed))
        assert isinstance(found, TraceView)
        assert found.events == complete
        assert found.processes[0].end == "cut"
        assert not found.damage
        tally.count()


def record_ends(chunk: bytes) -> list[tuple[int, int]]:
    """Where each record of a chunk of this test ends, and how many allocations there are up to it."""
    at, allocations, ends = 64, 0, [(64, 0)]

    def skip() -> int:
        nonlocal at
        value, shift = 0, 0
        while True:
            byte = chunk[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while chunk[at]:
        kind = chunk[at]
        at += 1
        if kind == 0x04:
            at += 1
            for _ in range(2):
                length = skip()
                at += length
            skip()
        else:
            for _ in range({0x03: 3, 0x05: 2, 0x40: 5}[kind]):
                skip()
            allocations += kind == 0x40
        ends.append((at, allocations))
    return ends


@pytest.mark.fault(24)
def test_flipped_bits(tally: Tally) -> None:
    whole = compact()
    used = [at for at in range(len(whole)) if whole[at]]
    random_numbers = random.Random(24)
    for _ in range(4000):
        changed = bytearray(whole)
        for _ in range(random_numbers.choice((1, 1, 1, 2, 8))):
            at = random_numbers.choice(used) + random_numbers.choice((0, 0, 0, 1))
            changed[min(at, len(changed) - 1)] ^= 1 << random_numbers.randrange(8)
        found = read_bytes(bytes(changed))
        assert isinstance(found, TraceView | BadTrace)
        tally.count()


@pytest.mark.fault(24)
def test_random_records(tally: Tally) -> None:
    """Chunks of random bytes, of random records with random numbers, and of records repeated at random."""
    random_numbers = random.Random(25)
    header = TraceFile().section().header
    example_chunk = bytes(example().sections[0]._writers[1].chunks[0])[64:]
    for at in range(1500):
        content = bytearray()
        while len(content) < 600:
            match at % 3:
                case 0:
                    content += random_numbers.randbytes(60)
                case 1:
                    content.append(
                        random_numbers.choice((*range(1, 16), *range(0x40, 0x54), *range(0x60, 0x6C)))
                    )
                    for _ in range(random_numbers.randrange(6)):
                        content += number(
                            random_numbers.getrandbits(random_numbers.choice((1, 3, 8, 20, 48, 64)))
                        )
                case 2:
                    start = random_numbers.randrange(len(example_chunk))
                    content += example_chunk[start : start + random_numbers.randrange(200)]
        head = struct.pack("<8sIIQI", b"VRAMCHNK", 0, 0, 5_000_000_000_000, 1).ljust(64, b"\0")
        found = read_bytes(header + head + bytes(content[:600]))
        assert isinstance(found, TraceView | BadTrace)
        tally.count()


HUGE = (1 << 64) - 1


@pytest.mark.fault(24)
@pytest.mark.parametrize(
    "record",
    [
        b"\x04\x00" + number(HUGE) + b"abc",
        b"\x04\x00" + number(4097) + b"a" * 4097,
        b"\x0b" + text("x") + number(0) + number(HUGE) + number(HUGE),
        b"\x0b" + text("x") + number(0) + number(1) + number(70000),
        b"\x05" + number(HUGE) + number(HUGE),
        b"\x05" + number(1) + number(1),
        b"\x40" + signed(1) + number(HUGE) + signed(1) + number(HUGE) + number(HUGE),
        b"\x40" + signed(-(1 << 62)) + number(0) + signed(1) + number(1) + number(0),
        b"\x40" + signed((1 << 63) - 1) + number(0) + signed(1) + number(1) + number(0),
        b"\x40" + b"\xff" * 11,
        b"\x06" + signed(1) + number(0) + signed(1) + number(HUGE) + number(HUGE),
        b"\x07" + signed(1) + number(0) + signed(1) + number(HUGE),
        b"\x0d" + signed(1) + number(HUGE) + number(HUGE) + text("x"),
        b"\x0f" + number(HUGE) + text("pci") + text("name") + number(HUGE),
        b"\x03" + number(HUGE) + number(HUGE) + number(HUGE),
        b"\x33",
        b"\xff",
    ],
)
def test_huge_lengths_and_numbers(record: bytes) -> None:
    trace = TraceFile()
    section = trace.section()
    writer = section.writer()
    writer.alloc(1, 0x1000, 512, where=writer.where(0xC0, 0))
    writer.raw(record)
    writer.new_chunk()
    writer.alloc(9, 0x2000, 512, where=writer.where(0xC0, 0))
    found = read_bytes(trace.bytes())
    assert isinstance(found, TraceView)
    # Nothing before the record is lost, nor the next chunk.
    assert sum(site.count for site in found.allocations if site.nbytes == 512 * site.count) >= 1
    assert found.events >= 2


@pytest.mark.fault(24)
def test_a_node_may_refer_only_to_what_is_defined_before_it() -> None:
    """A cycle or a forward reference has no stack, and says so; the stacks after it keep their numbers."""
    trace = TraceFile()
    writer = trace.section().writer()
    place = writer.place("f", "x.py", 1)
    writer.raw(b"\x05" + number(1) + number(place))  # node 1: its parent is itself
    writer.raw(b"\x05" + number(3) + number(place))  # node 2: its parent comes later
    writer.raw(b"\x05" + number(0) + number(place))  # node 3
    for node in (1, 2, 3):
        writer.alloc(node, node * MIB, MIB, stack=node)
    found = read_bytes(trace.bytes())
    assert isinstance(found, TraceView)
    depths = {site.count: len(found.stacks[site.stack].frames) for site in found.allocations}
    assert depths == {2: 0, 1: 1}
    assert any("not there" in sentence for sentence in found.damage)


@pytest.mark.fault(24)
def test_deep_stacks_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every allocation one frame deeper than the one before: what is shown of them is bounded."""
    monkeypatch.setattr("vram.trace.analysis._MAX_FRAMES", 50_000)
    trace = TraceFile()
    writer = trace.section().writer()
    place = writer.place("f", "x.py", 1)
    for node in range(3000):
        writer.raw(b"\x05" + number(node) + number(place))
        writer.alloc(node, node * MIB, MIB, stack=node + 1)
    found = read_bytes(trace.bytes())
    assert isinstance(found, TraceView)
    assert len(found.stacks) == 3001
    assert sum(len(stack.frames) for stack in found.stacks) < 50_000 + 3001 * 16


@pytest.mark.fault(24)
def test_memory_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace that needs more than it may is refused, by name."""
    trace = TraceFile()
    writer = trace.section().writer()
    for at in range(60000):
        writer.alloc(at, at * MIB, MIB)
    path = tmp_path / "t.vram"
    path.write_bytes(trace.bytes())
    monkeypatch.setattr("vram.trace.reader._MIN_LIMIT", 2 << 20)
    monkeypatch.setattr("vram.trace.reader._TIMES_FILE", 1)
    with pytest.raises(BadTrace, match="takes more than the 2 MiB"):
        open_trace([path]).view()


def test_chunks_that_are_missing_or_twice(read: Read) -> None:
    def trace_of(order: list[int]) -> TraceView:
        trace = TraceFile()
        section = trace.section()
        writer = section.writer()
        for at in range(4):
            writer.new_chunk()
            writer.alloc(at, at * MIB, MIB, stack=writer.stack((f"f{at}", "x.py", at)))
        section.order = [(0, at) for at in order]
        return read(trace)

    shuffled = trace_of([2, 0, 3, 1])
    assert not shuffled.damage
    assert shuffled.events == 4
    twice = trace_of([0, 1, 1, 2, 3])
    assert twice.damage == ("1 chunk of records found twice, read once",)
    assert twice.allocations == shuffled.allocations
    missing = trace_of([0, 2, 3])
    assert missing.processes[0].missing_chunks == 1
    assert missing.events == 3
    # Stacks defined after the gap have numbers that nobody knows: none is shown, and never a wrong one.
    named = {missing.stacks[site.stack].frames[:1] for site in missing.allocations}
    assert sorted(frames[0].function if frames else "" for frames in named) == ["", "f0"]


def test_time_that_goes_backwards_is_put_in_order(read: Read) -> None:
    trace = TraceFile()
    section = trace.section()
    writer, other = section.writer(), section.writer()
    writer.alloc(50, 0x1000, 512)
    writer.free(40, 0x2000)  # stamped before the allocation inside it was made: no damage
    other.alloc(5_000_000_000, 0x3000, 512)
    other.alloc(1_000_000_000, 0x4000, 512)
    view = read(trace)
    assert view.events == 4
    assert view.damage == ("1 impossible time, replaced by that of the record before or after",)
    assert [gpu.peak_ns for gpu in view.gpus] == [5_000_000_000]


def test_a_cut_trace_followed_by_another(tmp_path: Path) -> None:
    """`cat a b`, where a was cut at a byte that is no multiple of anything."""
    first, second = (example().sections[at].bytes(cut=True) for at in (0, 1))
    for cut in (PAGE + 3 * CHUNK - 1000, PAGE + 70, PAGE + CHUNK + 333, len(first) - 1):
        found = read_bytes(first[:cut] + second)
        assert isinstance(found, TraceView)
        assert [process.pid for process in found.processes] == [7, 8]
        assert found.processes[1].events == read_bytes(second).processes[0].events  # type: ignore[union-attr]


def test_a_lost_header_does_not_mix_two_processes() -> None:
    whole = bytearray(example().bytes())
    second = len(example().sections[0].bytes())
    whole[second] ^= 1
    found = read_bytes(bytes(whole))
    assert isinstance(found, TraceView)
    assert [process.pid for process in found.processes] == [7, 0]
    assert any("header of a process is unreadable" in sentence for sentence in found.damage)
    good = read_bytes(example().bytes())
    assert isinstance(good, TraceView)
    assert [process.events for process in found.processes] == [process.events for process in good.processes]


def test_a_section_of_a_newer_format_is_left_out() -> None:
    trace = example()
    newer = TraceFile()
    newer.section(pid=9, major=2).writer().alloc(1, 0x1000, 512)
    found = read_bytes(trace.bytes() + newer.bytes())
    assert isinstance(found, TraceView)
    assert [process.pid for process in found.processes] == [7, 8]
    assert any("newer vram (format 2)" in sentence for sentence in found.damage)


def test_a_file_that_becomes_shorter_while_it_is_read() -> None:
    """No SIGBUS: the file is read, not mapped."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(example().bytes())
        file.flush()
        trace = open_trace([Path(file.name)])
        reader = trace._pass(100)
        os.truncate(file.name, PAGE + CHUNK)
        reader.run()
        assert reader.totals().events < 100
        assert any(row.code == 12 for row in reader.damage())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"VRAM", "is cut off within its header"),
        (b"#!/bin/sh\nrm", "file is not a trace of vram"),
        (TraceFile().section(major=2).header, "was written by a newer vram: format 2, this one reads 1"),
        (TraceFile().section().header[:79], "is cut off within its header"),
    ],
)
def test_what_is_no_trace(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(BadTrace) as error:
        open_trace([path])
    assert said in str(error.value)
    assert error.value.exit_code == 5


def test_what_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(BadTrace, match="there is no file"):
        open_trace([tmp_path / "none"])
    with pytest.raises(BadTrace, match="is a folder"):
        open_trace([tmp_path])
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadTrace, match="not a plain file"):
        open_trace([tmp_path / "pipe"])
    secret = tmp_path / "secret"
    secret.write_bytes(example().bytes())
    secret.chmod(0)
    if os.geteuid():
        with pytest.raises(BadTrace, match="Permission denied"):
            open_trace([secret])


def test_a_newer_minor_version_is_read(read: Read) -> None:
    trace = TraceFile()
    trace.section(minor=7).writer().alloc(1, 0x1000, 512)
    assert read(trace).events == 1


def test_zero_chunks_are_no_damage(tmp_path: Path) -> None:
    """A chunk that was reserved and never begun, in the middle and at the end; a terabyte of holes."""
    section = example().sections[0]
    whole = section.bytes()
    spread = whole[: PAGE + CHUNK] + bytes(CHUNK) + whole[PAGE + CHUNK :] + bytes(CHUNK)
    found = read_bytes(spread)
    assert isinstance(found, TraceView)
    assert not found.damage
    assert found.events == read_bytes(whole).events  # type: ignore[union-attr]
    path = tmp_path / "sparse"
    path.write_bytes(whole)
    os.truncate(path, 1 << 40)
    assert open_trace([path]).view().events == found.events


def test_files_are_closed(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_bytes(example().bytes())
    before = len(os.listdir("/proc/self/fd"))
    trace: Trace | None = open_trace([path, path])
    assert len(os.listdir("/proc/self/fd")) == before + 2
    del trace
    assert len(os.listdir("/proc/self/fd")) == before


def test_too_many_stacks_are_joined(read: Read) -> None:
    """Every allocation by a stack of its own: the smallest share a row, and no byte is lost."""
    trace = TraceFile()
    writer = trace.section().writer()
    gpu, place = writer.where(), writer.place("f", "x.py", 1)
    for at in range(100_500):
        writer.raw(b"\x05" + number(at % 1000) + number(place) if at else b"\x05\x00" + number(place))
        writer.raw(b"\x04\x00" + text(str(at)) + text("") + number(at))
        place = at + 2
        writer.alloc(at, at << 20, 1 + at % 5000, where=gpu, stack=at + 1)
    view = read(trace)
    assert len(view.allocations) <= 100_002
    assert sum(site.count for site in view.allocations) == 100_500
    [use] = view.gpus
    for sites in (view.allocations, view.peak, [leak.site for leak in view.leaks]):
        assert sum(site.nbytes for site in sites) == use.peak_nbytes
    assert any("too many stacks" in sentence for sentence in view.damage)


def test_a_file_that_lacks_its_last_chunks_says_so(read: Read) -> None:
    """Cut between two chunks nothing looks broken: the END record knows how many there were."""
    trace = TraceFile()
    section = trace.section()
    section.writer().end(100, chunks=3)
    writer = section.writer()
    writer.alloc(10, 0x1000, 512, where=writer.where())
    view = read(trace)
    assert [process.missing_chunks for process in view.processes] == [1]
    assert view.damage == ("1 chunk of records missing, with the stacks that they defined",)
