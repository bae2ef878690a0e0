"""Traces that are read while they are written."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.trace.test_damage import example
from tests.trace.writer import CHUNK, PAGE, TraceFile
from vram.trace.reader import Follower, open_trace

pytestmark = pytest.mark.native

MIB = 1 << 20


def grown(events: int) -> bytes:
    """A trace of three threads after so many events of all; what was not yet written is zero."""
    trace = TraceFile()
    section = trace.section()
    writers = [section.writer() for _ in range(3)]
    for writer in writers:
        writer.new_chunk()
    for at in range(events):
        writer = writers[at % 3]
        if at % 5 == 4:
            writer.free(at * 1000, (at - 2) * MIB)
        else:
            stack = writer.stack((f"f{at % 7}", "x.py", at % 7))
            writer.alloc(at * 1000, at * MIB, 512 + at, where=writer.where(0xC0, at % 2), stack=stack)
    return trace.bytes()


def test_what_is_followed_is_what_is_read_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "t.1.part"
    random_numbers = random.Random(3)
    follower = Follower(tmp_path / "t")
    follower.advance()
    assert follower.live().events == 0
    done = 0
    while done < 21000:
        done = min(21000, done + random_numbers.choice((0, 1, 2, 50, 4000)))
        content = grown(done)
        # In place: what was written before stays as it is.
        with open(path, "r+b" if path.exists() else "wb") as file:
            file.write(content)
        follower.advance(everything=True)
        assert follower.live().events == done
    live, view = follower.live(), open_trace([path]).view()
    assert [(use.gpu, use.peak_nbytes, use.end_nbytes) for use in live.gpus] == [
        (use.gpu, use.peak_nbytes, use.end_nbytes) for use in view.gpus
    ]
    left = {
        (view.stacks[leak.site.stack], leak.site.gpu): (leak.site.count, leak.site.nbytes)
        for leak in view.leaks
    }
    assert {(live.stacks[site.stack], site.gpu): (site.count, site.nbytes) for site in live.sites} == left
    assert view.processes[0].missing_frees == view.processes[0].unknown_frees == 0


def test_a_record_that_is_half_written_is_read_when_it_is_whole(tmp_path: Path) -> None:
    """Every byte of a record may appear in any order; it counts once its type, the last, is there."""
    path = tmp_path / "t.1.part"
    before, after = bytearray(grown(30)), bytearray(grown(31))
    changed = [at for at in range(len(after)) if before[at] != after[at]]
    path.write_bytes(before)
    follower = Follower(parts=[path])
    follower.advance(everything=True)
    first, *rest = changed
    with open(path, "r+b") as file:
        for at in reversed(rest):
            file.seek(at)
            file.write(after[at : at + 1])
            file.flush()
            follower.advance(everything=True)
            assert follower.live().events == 30
        file.seek(first)
        file.write(after[first : first + 1])
    follower.advance(everything=True)
    assert follower.live().events == 31


def test_chunks_that_are_reserved_before_they_are_begun(tmp_path: Path) -> None:
    """A later chunk may have its header before an earlier one has: nothing is skipped."""
    path = tmp_path / "t.1.part"
    section = example().sections[0]
    whole = section.bytes()
    late = bytearray(whole)
    late[PAGE + CHUNK : PAGE + 2 * CHUNK] = bytes(CHUNK)
    path.write_bytes(late)
    follower = Follower(parts=[path])
    follower.advance(everything=True)
    some = follower.live().events
    path.write_bytes(whole)
    follower.advance(everything=True)
    everything = open_trace([path]).view().events
    assert 0 < some < everything == follower.live().events


def test_parts_that_appear_and_files_that_are_no_traces(tmp_path: Path) -> None:
    follower = Follower(tmp_path / "t")
    (tmp_path / "t.1.part").write_bytes(bytes(PAGE + CHUNK))  # made, its header not yet written
    (tmp_path / "t.2.part").write_bytes(b"something else")
    (tmp_path / "u.3.part").write_bytes(grown(9))  # another run's
    for _ in range(2):
        follower.advance(everything=True)
    assert follower.live().processes == ()
    [problem] = follower.problems
    assert "t.2.part is not a trace" in problem
    (tmp_path / "t.1.part").write_bytes(grown(9))
    follower.advance(everything=True)
    (tmp_path / "t.4.part").write_bytes(grown(12))
    follower.advance(everything=True)
    live = follower.live()
    assert [process.events for process in live.processes] == [9, 12]
