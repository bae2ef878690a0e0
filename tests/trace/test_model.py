"""Random traces of several processes and threads: the reader says what the model says."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trace.model import KINDS, MIB, ON_GPU, Event, Model, Window, holes
from tests.trace.writer import Section, TraceFile, Writer
from vram.model.trace import TraceView
from vram.trace.reader import EVENT_TYPES, open_trace

pytestmark = pytest.mark.native

STACKS = [(), (("a", "m.py", 1),), (("b", "m.py", 2), ("a", "m.py", 1)), (("b", "m.py", 3), ("a", "m.py", 1))]
ADDRESSES = [0x7000_0000_0000 + at * MIB for at in (0, 1, 2, 3, 8, 16, 5000)]
RANGES = [0x6000_0000_0000 + at * 2 * MIB for at in (0, 1, 2, 3)]
HANDLES = [0x11, 0x12, 0x13]
CONTEXTS = [0, 0xC0, 0xC1]
SIZES = [0, 512, MIB, 3 * MIB]

ANYWHERE = [
    kind for kind in KINDS if kind not in ("context", "physical", "imported", "multicast", "physical host")
]
gpus = st.sampled_from([None, 0, 1])


def events_of(name: str) -> st.SearchStrategy[dict[str, object]]:
    address = st.sampled_from(ADDRESSES)
    kind = st.one_of(st.just("device"), st.sampled_from(ANYWHERE))
    common = {"name": st.just(name), "gpu": gpus, "context": st.sampled_from(CONTEXTS)}
    match name:
        case "alloc":
            sizes, stacks = st.sampled_from(SIZES), st.integers(0, len(STACKS) - 1)
            return st.fixed_dictionaries(
                common | {"kind": kind, "address": address, "nbytes": sizes, "stack": stacks}
            )
        case "free":
            return st.fixed_dictionaries(common | {"kind": kind, "address": address})
        case "end":
            return st.fixed_dictionaries({"name": st.just("end")})
    raise AssertionError(name)


def handle_events() -> st.SearchStrategy[dict[str, object]]:
    handle, where = st.sampled_from(HANDLES), st.sampled_from(RANGES)
    kind = st.sampled_from(["physical", "imported", "physical host"])
    several = st.sampled_from([2 * MIB, 4 * MIB])
    return st.one_of(
        st.fixed_dictionaries(
            {
                "name": st.just("alloc"),
                "kind": kind,
                "address": handle,
                "nbytes": st.just(2 * MIB),
                "gpu": gpus,
            }
        ),
        st.fixed_dictionaries({"name": st.just("free"), "kind": st.just("physical"), "address": handle}),
        st.fixed_dictionaries({"name": st.just("retain"), "handle": handle}),
        st.fixed_dictionaries(
            {"name": st.just("map"), "address": where, "nbytes": st.just(2 * MIB), "handle": handle}
        ),
        st.fixed_dictionaries({"name": st.just("unmap"), "address": where, "nbytes": several}),
    )


contexts_end = st.fixed_dictionaries(
    {"name": st.just("free"), "kind": st.just("context"), "address": st.sampled_from(CONTEXTS[1:])}
)
some_event = st.one_of(
    events_of("alloc"),
    events_of("alloc"),
    events_of("free"),
    events_of("free"),
    handle_events(),
    contexts_end,
)


@st.composite
def traces(draw: st.DrawFn) -> list[Event]:
    time, found = 0, []
    for fields in draw(st.lists(some_event, max_size=60)):
        time += draw(st.sampled_from([0, 0, 1, 1000, 10**9]))
        section = draw(st.integers(0, 1))
        found.append(Event(section, draw(st.integers(0, 2)), time, **fields))  # type: ignore[arg-type]
    for section in (0, 1):
        if draw(st.booleans()) and any(event.section == section for event in found):
            # A few records may follow it, of other threads.
            found.append(Event(section, 3, draw(st.sampled_from([time + 5, time, time // 2])), "end"))
    return found


def write(events: list[Event], chunk_every: int = 0) -> TraceFile:
    trace = TraceFile()
    sections: dict[int, Section] = {}
    writers: dict[tuple[int, int], Writer] = {}
    for number in sorted({event.section for event in events}):
        sections[number] = trace.section(pid=100 + number)
    for at, event in enumerate(events):
        key = (event.section, event.writer)
        if key not in writers:
            writers[key] = sections[event.section].writer()
        writer = writers[key]
        if chunk_every and at % chunk_every == 0:
            writer.new_chunk()
        where = writer.where(event.context, event.gpu)
        match event.name:
            case "alloc":
                stack = writer.stack(*STACKS[event.stack])
                writer.alloc(
                    event.time_ns, event.address, event.nbytes, kind=event.kind, where=where, stack=stack
                )
            case "free":
                writer.free(event.time_ns, event.address, kind=event.kind, where=where)
            case "map":
                writer.map(event.time_ns, event.address, event.nbytes, event.handle, where=where)
            case "unmap":
                writer.unmap(event.time_ns, event.address, event.nbytes, where=where)
            case "retain":
                writer.retain(event.time_ns, event.handle)
            case "end":
                writer.end(event.time_ns)
    return trace


def view_of(trace: TraceFile) -> TraceView:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "t.vram")
        path.write_bytes(trace.bytes())
        return open_trace([path]).view(points=50)


@settings(max_examples=settings().max_examples * 3)
@given(traces(), st.sampled_from([0, 3, 7]))
def test_the_reader_agrees_with_the_model(events: list[Event], chunk_every: int) -> None:
    if not events:
        return
    # Sections are numbered as they are in the file; the model's writers in the order of their first chunk.
    present = sorted({event.section for event in events})
    events = [Event(**{**vars(event), "section": present.index(event.section)}) for event in events]
    ordered = sorted(events, key=lambda event: event.section)
    view = view_of(write(events, chunk_every))
    model = Model(ordered, Window(view.duration_ns // 2, view.duration_ns))
    assert not view.damage
    assert view.events == model.count
    stack_of = {
        tuple((f.function, f.file, f.line) for f in stack.frames): at for at, stack in enumerate(view.stacks)
    }
    number = {stack_of[frames]: at for at, frames in enumerate(STACKS) if frames in stack_of}

    def site(row: object) -> tuple[int, str, int | None, int]:
        return number[row.stack], row.kind, row.gpu, row.process  # type: ignore[attr-defined]

    assert {site(row): [row.count, row.nbytes] for row in view.allocations} == model.made
    check_gpus(view, model)
    found = {site(row): [row.count, row.nbytes] for row in view.peak}
    assert found == {key: value for peak in model.peaks.values() for key, value in peak.sites.items()}
    leaks = {
        (site(leak.site), leak.verdict): [
            leak.site.count,
            leak.site.nbytes,
            leak.first_ns,
            leak.last_ns,
            leak.largest,
        ]
        for leak in view.leaks
    }
    expected = {key: value for key, value in model.leaks().items() if key[1] != "cache"}
    caches = {key[0] for key, value in model.leaks().items() if key[1] == "cache"}
    assert {key: row for key, row in leaks.items() if key[0] not in caches} == {
        key: row for key, row in expected.items() if key[0] not in caches
    }
    assert {key for key in leaks if key[1] in ("leaked", "growing")} == {
        key for key in expected if key[1] in ("leaked", "growing")
    }
    assert view.host_peak_nbytes == model.host_peak
    for process in view.processes:
        assert process.unknown_frees == model.unknown_frees[process.index]
        assert process.missing_frees == model.missing_frees[process.index]
    check_windows(view, model, site)
    check_holes(view, model)
    check_events(events, view, model)


def check_gpus(view: TraceView, model: Model) -> None:
    for use in view.gpus:
        peak = model.peaks[use.gpu]
        assert (use.peak_nbytes, use.end_nbytes) == (peak.nbytes, model.on_gpu(use.gpu))
        assert use.peak_ns == peak.time_ns or not peak.nbytes
        assert use.frees == model.gpu_frees[use.gpu]
        points = [point for point in view.timeline if point.gpu == use.gpu]
        assert len(points) <= 50
        if points:
            assert max(point.highest for point in points) == peak.nbytes
            assert points[-1].last == model.on_gpu(use.gpu)
            assert all(point.lowest <= point.last <= point.highest for point in points)
    listed = {use.gpu for use in view.gpus}
    assert all(gpu in listed for gpu, peak in model.peaks.items() if peak.nbytes)


def check_windows(
    view: TraceView, model: Model, site: Callable[[object], tuple[int, str, int | None, int]]
) -> None:
    """Their levels, and what each place had when they began, at their highest moment and at their end."""
    blocks = {"torch": "torch block", "cupy": "cupy block", "jax": "jax buffer", "other": "framework block"}
    seen = set()
    for window in view.windows:
        layer = window.gpu, blocks.get(window.framework or "", "device")
        seen.add(layer)
        highest, highest_ns = model.window.highest[layer]
        assert (window.highest_nbytes, window.highest_ns) == (highest, highest_ns)
        assert window.end_nbytes == model.level(layer)
        assert list(window.lowest) == model.window.lowest[layer]
        at_highest = {site(each.site): [each.site.count, each.site.nbytes] for each in window.places}
        assert {key: row for key, row in at_highest.items() if row[0]} == model.window.highest_sites[layer]
        live = model.layers().get(layer, {})
        for each in window.places:
            key = site(each.site)
            assert [each.base_count, each.base_nbytes] == model.window.base.get(key, [0, 0])
            assert [each.end_count, each.end_nbytes] == live.get(key, [0, 0])
            made, nbytes, freed = model.window.earlier.get(key, (0, 0, 0))
            assert (each.made, each.made_nbytes) == (model.made[key][0] - made, model.made[key][1] - nbytes)
            assert each.freed == model.freed[key] - freed
        assert window.base_nbytes == sum(each.base_nbytes for each in window.places)
    assert {layer for layer, row in model.layers().items() if row} <= seen


def check_holes(view: TraceView, model: Model) -> None:
    expected = set()
    for gpu, peak in model.peaks.items():
        for section in {section for section, _, _ in peak.ranges}:
            expected.add((gpu, section, *holes(peak.ranges, section)))
    for gpu in (None, 0, 1):
        ranges = model.ranges(gpu)
        for section in {section for section, _, _ in ranges}:
            expected.add((gpu, section, *holes(ranges, section)))
    found = {
        (row.gpu, row.process, row.holes, row.hole_nbytes, row.largest_hole, row.spanned_nbytes)
        for row in view.holes
    }
    assert found == expected


def check_events(events: list[Event], view: TraceView, model: Model) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "t.vram")
        path.write_bytes(write(events).bytes())
        rows = [
            (EVENT_TYPES[kind], time)
            for batch in open_trace([path]).events()
            for kind, time in zip(batch.type, batch.time_ns, strict=True)
        ]
    assert len(rows) == view.events
    assert [time for _, time in rows] == sorted(time for _, time in rows)
    assert sum(kind == "alloc" for kind, _ in rows) == sum(event.name == "alloc" for event in events)


def test_the_model_is_not_empty() -> None:
    """The comparison means something: a trace with a leak, a peak and a hole has them in both."""
    events = [
        Event(0, 0, 1, "alloc", address=ADDRESSES[0], nbytes=MIB, gpu=0, context=0xC0, stack=1),
        Event(0, 1, 2, "alloc", address=ADDRESSES[2], nbytes=MIB, gpu=0, context=0xC0, stack=2),
        Event(0, 1, 3, "free", kind="context", address=0xC0),
        Event(0, 0, 4, "end"),
    ]
    model = Model(events)
    assert {verdict for _, verdict in model.leaks()} == {"leaked"}
    assert holes(model.peaks[0].ranges, 0) == (1, MIB, MIB, 3 * MIB)
    assert "device" in ON_GPU
