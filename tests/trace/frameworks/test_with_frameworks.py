"""The driver's side of a trace and the framework's, put together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.trace.frameworks.recorded import KINDS, LEAK_LINE, content, packed, traced
from tests.trace.frameworks.test_jax_profile import profile, sample
from tests.trace.writer import TraceFile
from vram.model.trace import OUTSIDE_FRAMEWORKS, BlockUse, LeakSite, TraceView
from vram.trace.frameworks import with_frameworks
from vram.trace.frameworks.torch_use import FROM_OOM, MISSING, TOO_SHORT
from vram.trace.reader import open_trace
from vram.units import MIB

SECOND = 10**9


def merged(trace: TraceFile, folder: Path) -> TraceView:
    path = folder / "t.vram"
    path.write_bytes(trace.bytes())
    with open_trace([path]) as opened:
        return with_frameworks(opened.view(), opened)


@pytest.fixture(params=KINDS)
def said(request: pytest.FixtureRequest) -> dict[str, Any]:
    return content(request.param)


def of_torch(said: dict[str, Any], folder: Path, **more: Any) -> TraceView:
    trace, writer = traced(said, **more)
    writer.blob("torch", packed(content("plain") | {"at": "begin", "segments": [], "traces": []}))
    writer.blob("torch", packed(said))
    return merged(trace, folder)


def use(view: TraceView, framework: str, at: str) -> BlockUse:
    (found,) = (each for each in view.frameworks if (each.framework, each.at) == (framework, at))
    return found


def places(view: TraceView, rows: tuple[LeakSite, ...]) -> set[tuple[str, int]]:
    frames = (view.stacks[row.site.stack].frames[0] for row in rows)
    return {(frame.function, frame.line) for frame in frames}


def judged(view: TraceView, verdict: str) -> tuple[LeakSite, ...]:
    return tuple(row for row in view.leaks if row.verdict == verdict)


def test_a_segment_is_split_into_its_tensors(said: dict[str, Any], tmp_path: Path) -> None:
    view = of_torch(said, tmp_path)
    end = use(view, "torch", "end")
    reserved = sum(each[2] for each in said["segments"])
    assert (end.reserved_nbytes, end.used_nbytes) == (reserved, (48 + 36) * MIB)
    assert [(site.count, site.nbytes) for site in end.sites] == [(6, 48 * MIB), (12, 36 * MIB)]
    assert use(view, "torch", "peak").used_nbytes == (48 + 36 + 35) * MIB


def test_tensors_that_pile_up_are_the_leak_and_their_segments_are_not(
    said: dict[str, Any], tmp_path: Path
) -> None:
    """The segments come from one place, to the end: without PyTorch's account they are called a leak."""
    alone, _ = traced(said, every_ns=SECOND)
    assert judged(merged(alone, tmp_path), "growing")
    view = of_torch(said, tmp_path, every_ns=SECOND)
    assert places(view, judged(view, "growing")) == {("remember", LEAK_LINE)}
    assert {row.site.kind for row in judged(view, "growing")} == {"torch block"}
    assert judged(view, "leaked") == ()


def test_without_an_account_nothing_is_added(tmp_path: Path) -> None:
    trace, _ = traced(content("plain"))
    assert merged(trace, tmp_path).frameworks == ()


def test_what_another_library_leaks_at_the_same_stack_stays_a_leak(tmp_path: Path) -> None:
    said = content("plain")
    trace, writer = traced(said)
    other = trace.sections[0].writer()
    stack = other.stack(("tensor", "/app/train.py", 12), ("main", "/app/train.py", 30))
    for number in range(8):
        other.alloc(number * SECOND // 4, 0x1000 + number * 64, 64, where=other.where(), stack=stack)
    writer.blob("torch", packed(said))
    view = merged(trace, tmp_path)
    assert "device" in {row.site.kind for row in judged(view, "growing")}


def test_the_rest_of_the_drivers_bytes_is_a_line_of_its_own(tmp_path: Path) -> None:
    said = content("plain")
    trace, writer = traced(said)
    writer.alloc(SECOND // 2, 0x9000, 7 * MIB, where=writer.where())
    writer.blob("torch", packed(said))
    view = merged(trace, tmp_path)
    assert use(view, OUTSIDE_FRAMEWORKS, "end").used_nbytes == 7 * MIB
    assert use(view, OUTSIDE_FRAMEWORKS, "peak").used_nbytes == 7 * MIB


@pytest.mark.parametrize("late_ns", [-3_000_000, 0, 900_000, 300_000_000])
def test_clocks_are_aligned_by_the_segments_that_both_sides_saw(late_ns: int, tmp_path: Path) -> None:
    """The leak begins at the same moment of the view, however far PyTorch's clock is off."""
    view = of_torch(content("plain"), tmp_path, late_ns=late_ns)
    (leak,) = judged(view, "growing")
    first = min(row.first_ns for row in view.leaks if row.site.kind == "device")
    assert 10_000_000 < leak.first_ns - first < 200_000_000


def test_a_process_that_numbers_its_gpus_differently_is_understood(tmp_path: Path) -> None:
    """PyTorch's first GPU is the driver's third here (CUDA_VISIBLE_DEVICES, another process's numbers)."""
    view = of_torch(content("plain"), tmp_path, device=2)
    gpus = {each.gpu for each in view.gpus}
    assert {each.gpu for each in view.frameworks} <= gpus
    assert {row.site.gpu for row in view.leaks if row.site.kind == "torch block"} <= gpus


def test_a_process_that_was_killed_says_what_is_missing(tmp_path: Path) -> None:
    trace, writer = traced(content("plain"))
    writer.blob("torch", packed(content("plain") | {"at": "begin", "segments": [], "traces": []}))
    (only,) = merged(trace, tmp_path).frameworks
    assert (only.framework, only.note) == ("torch", MISSING)


def test_a_snapshot_taken_when_memory_ran_out_serves_where_there_is_no_later_one(tmp_path: Path) -> None:
    view = of_torch(content("plain") | {"at": "oom"}, tmp_path)
    assert use(view, "torch", "end").note == FROM_OOM
    assert places(view, judged(view, "growing")) == {("remember", LEAK_LINE)}


def test_a_history_that_is_too_short_says_so(tmp_path: Path) -> None:
    whole, cut = content("plain"), content("plain")
    cut["traces"] = [{name: column[60:] for name, column in whole["traces"][0].items()}]
    trace, writer = traced(whole)
    other = trace.sections[0].writer()
    other.alloc(1_000_000, 0x9000, 1 << 30, where=other.where())
    other.free(2_000_000, 0x9000, where=other.where())
    writer.blob("torch", packed(cut))
    peak = use(merged(trace, tmp_path), "torch", "peak")
    assert peak.note == TOO_SHORT.format(count=len(cut["traces"][0]["action"]))


def test_an_unreadable_account_is_damage_and_nothing_else(tmp_path: Path) -> None:
    trace, writer = traced(content("plain"))
    writer.blob("torch", b"\0\1\2")
    writer.blob("jax", b"")
    writer.blob("jax-pools", b"{}")
    writer.blob("of another version", b"x")
    view = merged(trace, tmp_path)
    assert len(view.damage) == 3
    assert view.frameworks == ()


def test_jax_says_what_its_buffers_are(tmp_path: Path) -> None:
    trace, writer = traced(content("plain"))
    writer.blob("jax", profile(sample([1, 2], 12, 36 * MIB)))
    writer.blob("jax-pools", json.dumps({"form": 1, "pools": [[1, 100 * MIB, 36 * MIB]]}).encode())
    view = merged(trace, tmp_path)
    end = use(view, "jax", "end")
    assert (end.gpu, end.reserved_nbytes, end.used_nbytes) == (1, 100 * MIB, 36 * MIB)
    assert [frame.line for frame in view.stacks[end.sites[0].stack].frames] == [24, 35]


def test_the_frame_of_vrams_own_hook_is_left_out(tmp_path: Path) -> None:
    trace = TraceFile()
    writer = trace.section().writer()
    stack = writer.stack(("malloc_postprocess", "<vram tracer>", 7), ("train", "/app/train.py", 5))
    where = writer.where()
    writer.alloc(1, 0x7000, 32 * MIB, where=where)
    writer.alloc(2, 0x7000, MIB, kind="cupy block", where=where, stack=stack)
    view = merged(trace, tmp_path)
    (site,) = use(view, "cupy", "end").sites
    assert [frame.function for frame in view.stacks[site.stack].frames] == ["train"]
