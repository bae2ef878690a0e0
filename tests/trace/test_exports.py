"""Traces for other tools, held against what these document, and loaded by them where they are at hand."""

from __future__ import annotations

import io
import json
import os
import pickle
import pickletools
import zlib
from array import array
from collections.abc import Iterator
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.needs import needs, require, skip_without
from tests.trace_report import training_traces
from tests.trace_report.training_traces import EVIL, SECOND, training
from vram.errors import UsageError
from vram.model.trace import Mark, TraceView
from vram.trace.exports import export, perfetto, speedscope, torch_viewer
from vram.trace.reader import EventBatch
from vram.units import GIB, KIB, MIB

ALLOC, FREE, FAILED, MAP, UNMAP = 1, 2, 3, 4, 5
DEVICE, STREAM_ORDERED, PHYSICAL, PINNED, CONTEXT, TORCH = 0, 2, 6, 8, 13, 16
FIELDS = {"time_ns": "Q", "address": "Q", "nbytes": "Q", "allocation": "Q", "context": "Q", "stream": "Q"} | {
    "process": "I",
    "thread": "I",
    "gpu": "i",
    "stack": "I",
    "type": "B",
    "kind": "B",
}


class ATrace:
    """Events that are written down, in batches of two as a reader hands them out."""

    def __init__(
        self,
        *events: dict[str, int],
        view: TraceView | None = None,
        blobs: tuple[tuple[int, str, bytes], ...] = (),
    ) -> None:
        self._events, self._blobs = events, blobs
        self._view = view or training()

    def view(self) -> TraceView:
        return self._view

    def blobs(self) -> Iterator[tuple[int, str, bytes]]:
        return iter(self._blobs)

    def builds(self) -> dict[str, set[str]]:
        return {}

    def events(self) -> Iterator[EventBatch]:
        for start in range(0, len(self._events), 2):
            batch = self._events[start : start + 2]
            columns: dict[str, Any] = {
                name: memoryview(array(code, [event.get(name, 0) for event in batch]))
                for name, code in FIELDS.items()
            }
            yield EventBatch(**columns, stacks=self._view.stacks)  # type: ignore[arg-type]


def event(type_: int, kind: int, at: int, address: int, nbytes: int, **more: int) -> dict[str, int]:
    values = {"type": type_, "kind": kind, "time_ns": at, "address": address, "nbytes": nbytes, "thread": 11}
    return {**values, "allocation": address, "stack": 1, **more}


A_FEW = (
    event(ALLOC, DEVICE, 1_000, 0x1000000, 4 * MIB),
    event(ALLOC, TORCH, 1_500, 0x1000000, MIB, allocation=2, stack=2),
    event(ALLOC, TORCH, 1_600, 0x1200000, MIB, allocation=3, stack=2),
    event(ALLOC, DEVICE, 2_000, 0x9000000, 512, stack=3),
    event(ALLOC, PINNED, 2_500, 0x5500, KIB, allocation=5, gpu=-1),
    event(FREE, TORCH, 3_000, 0x1000000, MIB, allocation=2),
    event(FAILED, DEVICE, 3_500, 0, 20 * GIB, stack=6),
    event(ALLOC, DEVICE, 4_000, 0xA000000, 2 * MIB, stack=4),
    event(FREE, DEVICE, 5_123, 0xA000000, 2 * MIB),
)


# ---- Perfetto ----


def perfetto_events(trace: Any) -> list[dict[str, Any]]:
    out = io.BytesIO()
    perfetto.write(trace, out)
    whole = json.loads(out.getvalue())
    assert set(whole) == {"displayTimeUnit", "otherData", "traceEvents"}
    return whole["traceEvents"]  # type: ignore[no-any-return]


def test_perfetto_events_have_the_fields_that_their_phase_needs() -> None:
    """As the Trace Event Format has them: C, i, b, e and M."""
    needed = {
        "M": {"name", "pid", "args"},
        "C": {"name", "pid", "ts", "args"},
        "i": {"name", "pid", "tid", "ts", "s", "cat"},
        "b": {"name", "pid", "tid", "ts", "cat", "id"},
        "e": {"name", "pid", "tid", "ts", "cat", "id"},
    }
    for view in (training(), training_traces.hostile(), training_traces.empty()):
        events = perfetto_events(ATrace(*A_FEW, view=view))
        for each in events:
            assert needed[each["ph"]] <= set(each)
            assert isinstance(each["pid"], int)
            assert isinstance(each["name"], str)
            assert isinstance(each.get("ts", 0), int | float)
            assert each.get("s", "t") in "gpt"
            if each["ph"] == "C":
                assert all(isinstance(value, int) for value in each["args"].values())


def test_perfetto_counts_what_is_live() -> None:
    events = perfetto_events(ATrace(*A_FEW))
    counters = [(each["name"], each["ts"], each["args"]["bytes"]) for each in events if each["ph"] == "C"]
    live = [(ts, nbytes) for name, ts, nbytes in counters if name == "GPU 0 live"]
    assert live == [(1.0, 4 * MIB), (2.0, 4 * MIB + 512), (4.0, 6 * MIB + 512), (5.123, 4 * MIB + 512)]
    blocks = [nbytes for name, _, nbytes in counters if name == "GPU 0 in torch blocks"]
    assert blocks == [MIB, 2 * MIB, MIB]


def test_perfetto_slices_are_those_of_large_allocations_and_close() -> None:
    events = perfetto_events(ATrace(*A_FEW))
    begun = {each["id"]: each for each in events if each["ph"] == "b" and each["cat"] == "live"}
    ended = {each["id"]: each for each in events if each["ph"] == "e" and each["cat"] == "live"}
    assert set(ended) < set(begun)
    assert {each["args"]["bytes"] for each in begun.values()} == {4 * MIB, MIB, 2 * MIB}
    assert begun["0xa000000"]["name"] == ended["0xa000000"]["name"] == "make_workspace kernels.py:52"
    (failed,) = [each for each in events if each.get("cat") == "failed"]
    assert failed["args"]["stack"].splitlines()[0] == "batches.<locals>.batch /home/user/project/data.py:20"


def test_perfetto_of_very_many_events_has_the_large_ones() -> None:
    """A browser cannot open gigabytes: counters move in steps, small allocations are no events."""
    view = training(events=perfetto.VERY_MANY_EVENTS + 1)  # its peak is 18 GiB, a step 18.4 MB
    few = [event(ALLOC, DEVICE, at, at << 21, 64 * KIB) for at in range(1, 101)]
    events = perfetto_events(ATrace(*few, event(ALLOC, DEVICE, 200, 1 << 40, 32 * MIB), view=view))
    counters = [each["args"]["bytes"] for each in events if each["ph"] == "C"]
    assert counters == [38 * MIB + 256 * KIB, 38 * MIB + 256 * KIB]
    assert [each["args"]["bytes"] for each in events if each.get("cat") == "alloc"] == [32 * MIB]


def test_perfetto_has_marks_and_gaps() -> None:
    events = perfetto_events(ATrace(view=training()))
    marks = [(each["name"], each["ts"]) for each in events if each.get("cat") == "mark"]
    assert marks == [("epoch 1", 4e6), ("epoch 2", 34e6)]
    gap = [each["ts"] for each in events if each.get("cat") == "gap"]
    assert gap == [20e6, 24e6]


def test_perfetto_is_written_piece_by_piece() -> None:
    """What is in memory does not grow with the trace."""

    class Counting(io.BytesIO):
        largest = 0

        def write(self, data: Any) -> int:
            self.largest = max(self.largest, len(data))
            return super().write(data)

    many = [event(ALLOC, DEVICE, at, at << 21, 2 * MIB) for at in range(1, 20_001)]
    out = Counting()
    perfetto.write(ATrace(*many), out)  # type: ignore[arg-type]
    assert len(out.getvalue()) > 4 * out.largest
    assert len(json.loads(out.getvalue())["traceEvents"]) > 60_000


def test_a_context_takes_along_what_was_allocated_in_it() -> None:
    """Without events of their own; what comes from a pool stays."""
    events = (
        event(ALLOC, DEVICE, 1_000, 0x1000000, 4 * MIB, context=0xC1),
        event(ALLOC, STREAM_ORDERED, 2_000, 0x2000000, MIB, context=0xC1),
        event(ALLOC, DEVICE, 3_000, 0x3000000, 2 * MIB, context=0xC2),
        event(FREE, CONTEXT, 4_000, 0xC1, 0),
    )
    drawn = perfetto_events(ATrace(*events))
    assert [each["args"]["bytes"] for each in drawn if each["ph"] == "C"][-1] == 3 * MIB
    assert [each["id"] for each in drawn if each["ph"] == "e" and each["cat"] == "live"] == ["0x1000000"]
    taken = snapshot(ATrace(*events))
    assert [segment["address"] for segment in taken["segments"]] == [0x2000000, 0x3000000]


# ---- speedscope ----

# What https://www.speedscope.app/file-format-schema.json asks for, in our own words.
SPEEDSCOPE = {
    "type": "object",
    "required": ["$schema", "profiles", "shared"],
    "properties": {
        "$schema": {"const": "https://www.speedscope.app/file-format-schema.json"},
        "activeProfileIndex": {"type": "number"},
        "exporter": {"type": "string"},
        "name": {"type": "string"},
        "shared": {
            "type": "object",
            "required": ["frames"],
            "properties": {
                "frames": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "required": ["name"],
                        "properties": {
                            "name": {"type": "string"},
                            "file": {"type": "string"},
                            "line": {"type": "number"},
                            "col": {"type": "number"},
                        },
                    },
                }
            },
        },
        "profiles": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["type", "name", "unit", "startValue", "endValue", "samples", "weights"],
                "properties": {
                    "type": {"const": "sampled"},
                    "name": {"type": "string"},
                    "unit": {
                        "enum": ["bytes", "microseconds", "milliseconds", "nanoseconds", "none", "seconds"]
                    },
                    "startValue": {"type": "number"},
                    "endValue": {"type": "number"},
                    "samples": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
                    "weights": {"type": "array", "items": {"type": "number"}},
                },
            },
        },
    },
}


@pytest.mark.parametrize(
    "sample", [training, training_traces.with_blocks, training_traces.empty, training_traces.hostile]
)
def test_speedscope_takes_it(sample: Any) -> None:
    out = io.BytesIO()
    speedscope.write(sample(), out)
    file = json.loads(out.getvalue())
    Draft202012Validator(SPEEDSCOPE).validate(file)
    for profile in file["profiles"]:
        assert len(profile["samples"]) == len(profile["weights"])
        assert profile["endValue"] == sum(profile["weights"])
        used = {frame for stack in profile["samples"] for frame in stack}
        assert used <= set(range(len(file["shared"]["frames"])))


def test_speedscope_has_the_peak_with_the_outermost_call_first() -> None:
    out = io.BytesIO()
    speedscope.write(training(), out)
    file = json.loads(out.getvalue())
    peak = file["profiles"][0]
    assert peak["name"] == "live at the peak"
    assert peak["endValue"] == sum(site.nbytes for site in training().peak)
    names = [file["shared"]["frames"][at]["name"] for at in peak["samples"][1]]
    assert names == ["<module>", "train", "Model.forward", "Module._call_impl", "Linear.forward"]


# ---- PyTorch's viewer ----


def snapshot(trace: Any) -> Any:
    out = io.BytesIO()
    torch_viewer.write(trace, out)
    return pickle.loads(out.getvalue())


def test_the_viewers_events_are_segments_and_blocks() -> None:
    taken = snapshot(ATrace(*A_FEW))
    (events,) = taken["device_traces"]
    assert [(each["action"], each["size"]) for each in events] == [
        ("segment_alloc", 4 * MIB),
        ("alloc", MIB),
        ("alloc", MIB),
        ("segment_alloc", 512),
        ("alloc", 512),
        ("free_completed", MIB),
        ("oom", 20 * GIB),
        ("segment_alloc", 2 * MIB),
        ("alloc", 2 * MIB),
        ("free_completed", 2 * MIB),
        ("segment_free", 2 * MIB),
    ]
    assert events[1]["frames"][0] == {
        "name": "Linear.forward",
        "filename": f"{training_traces.TORCH}/nn/modules/linear.py",
        "line": 125,
    }


def test_the_viewers_segments_are_filled_with_blocks() -> None:
    segments = snapshot(ATrace(*A_FEW))["segments"]
    assert [segment["address"] for segment in segments] == [0x1000000, 0x9000000]
    blocks = [(block["address"], block["size"], block["state"]) for block in segments[0]["blocks"]]
    assert blocks == [
        (0x1000000, 2 * MIB, "inactive"),
        (0x1200000, MIB, "active_allocated"),
        (0x1300000, MIB, "inactive"),
    ]
    for segment in segments:
        assert sum(block["size"] for block in segment["blocks"]) == segment["total_size"]


def test_mapped_memory_is_a_segment_where_it_is_mapped() -> None:
    taken = snapshot(
        ATrace(
            event(ALLOC, PHYSICAL, 1, 0x77, 2 * MIB),
            event(MAP, 255, 2, 0x2000000, 2 * MIB),
            event(ALLOC, TORCH, 3, 0x2000000, MIB, allocation=9),
        )
    )
    (events,) = taken["device_traces"]
    assert [each["action"] for each in events] == ["segment_map", "alloc"]
    (segment,) = taken["segments"]
    assert segment["is_expandable"]


def torch_history() -> bytes:
    """PyTorch's account: a segment of 4 MiB with a tensor in it, another tensor that was freed."""
    history = {
        "action": [2, 0, 0, 1],
        "address": [0x1000000, 0x1000000, 0x1100000, 0x1000000],
        "nbytes": [4 * MIB, MIB, MIB, MIB],
        "time_us": [10, 11, 12, 13],
        "stack": [0, 0, 1, 0],
    }
    account = {
        "form": 1,
        "at": "exit",
        "wall_ns": 1,
        "ours": True,
        "segments": [[0, 0x1000000, 4 * MIB, False, [MIB, 0, 2, 0, MIB, MIB - 12, 0, 1]]],
        "traces": [history],
        "texts": ["make", "/p/a.py", "use", "/p/b.py"],
        "frames": [[0, 1, 3], [2, 3, 7]],
        "stacks": [[0], [1, 0]],
    }
    return zlib.compress(json.dumps(account).encode())


def test_pytorchs_own_history_stands_for_its_memory() -> None:
    """What the driver saw of it is left out; other memory of the driver stays."""
    blobs = ((0, "torch", torch_history()), (0, "torch", b"damaged"), (0, "jax", b""))
    events = (
        event(ALLOC, DEVICE, 1_000, 0x1000000, 4 * MIB),
        event(ALLOC, TORCH, 1_500, 0x1100000, MIB, allocation=2),
        event(ALLOC, DEVICE, 2_000, 0x9000000, 512, stack=3),
    )
    taken = snapshot(ATrace(*events, blobs=blobs))
    (trace,) = taken["device_traces"]
    assert [(each["action"], each["addr"], each["size"]) for each in trace] == [
        ("segment_alloc", 0x1000000, 4 * MIB),
        ("alloc", 0x1000000, MIB),
        ("alloc", 0x1100000, MIB),
        ("free_completed", 0x1000000, MIB),
        ("segment_alloc", 0x9000000, 512),
        ("alloc", 0x9000000, 512),
    ]
    assert [(frame["name"], frame["line"]) for frame in trace[2]["frames"]] == [("use", 7), ("make", 3)]
    driver, own = taken["segments"]
    assert driver["address"] == 0x9000000
    blocks = [(block["address"], block["size"], block["state"]) for block in own["blocks"]]
    assert blocks == [
        (0x1000000, MIB, "inactive"),
        (0x1100000, MIB, "active_allocated"),
        (0x1200000, 2 * MIB, "inactive"),
    ]


def test_every_block_of_the_viewer_has_a_segment_at_every_moment() -> None:
    """It draws none otherwise: a block whose segment is older than the recording, one whose segment goes."""
    taken = snapshot(
        ATrace(
            event(ALLOC, TORCH, 1, 0x5000000, MIB, allocation=1),
            event(ALLOC, DEVICE, 2, 0x1000000, 4 * MIB),
            event(ALLOC, TORCH, 3, 0x1100000, MIB, allocation=2),
            event(FREE, TORCH, 4, 0x5000000, MIB, allocation=1),
            event(FREE, DEVICE, 5, 0x1000000, 4 * MIB),
            event(FREE, TORCH, 6, 0x1100000, MIB, allocation=2),
        )
    )
    segments: dict[int, int] = {}
    blocks: dict[int, int] = {}
    for each in taken["device_traces"][0]:
        table = segments if each["action"].startswith("segment") else blocks
        if each["action"] in ("alloc", "segment_alloc"):
            table[each["addr"]] = each["size"]
        else:
            del table[each["addr"]]
        for address in blocks:
            assert any(start <= address < start + size for start, size in segments.items())
    assert not segments
    assert taken["segments"] == []


def test_the_viewer_knows_every_opcode_of_the_pickle() -> None:
    """It has an unpickler of its own, with these of Python's opcodes (torch/utils/viz/MemoryViz.js)."""
    known = (
        "APPEND APPENDS BINFLOAT BINGET BININT BININT1 BININT2 BINPUT BINUNICODE DICT EMPTY_DICT EMPTY_LIST"
    )
    known += " EMPTY_TUPLE FRAME LIST LONG1 LONG_BINGET LONG_BINPUT MARK MEMOIZE NEWFALSE NEWTRUE NONE PROTO"
    known += " SETITEM SETITEMS SHORT_BINUNICODE STOP TUPLE TUPLE1 TUPLE2 TUPLE3"
    for view in (training(), training_traces.hostile()):
        out = io.BytesIO()
        torch_viewer.write(ATrace(*A_FEW, view=view), out)  # type: ignore[arg-type]
        used = {opcode.name for opcode, _, _ in pickletools.genops(out.getvalue())}
        assert used <= set(known.split())


def test_the_addresses_of_two_processes_stay_apart() -> None:
    both = [event(ALLOC, DEVICE, at, 0x1000000, MIB, process=at) for at in (0, 1)]
    assert len({segment["address"] for segment in snapshot(ATrace(*both))["segments"]}) == 2


def test_torchs_own_program_draws_it() -> None:
    """``torch/cuda/_memory_viz.py`` needs no GPU and imports nothing of PyTorch.

    VRAM_MEMORY_VIZ names that file where PyTorch is not installed beside the tests.
    """
    torch = find_spec("torch")
    beside = Path(torch.origin).parent / "cuda/_memory_viz.py" if torch and torch.origin else None
    viewer = os.environ.get("VRAM_MEMORY_VIZ") or beside
    if viewer is None:
        skip_without("torch", "no PyTorch here: VRAM_MEMORY_VIZ names no torch/cuda/_memory_viz.py")
    spec = spec_from_file_location("memory_viz", viewer)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    taken = snapshot(ATrace(*A_FEW, view=training()))
    assert "MemoryViz.js" in module.trace_plot(taken)
    assert "cudaMalloc" in module.trace(taken)
    assert "total_reserved" in module.segsum(taken)


# ---- Parquet ----


@pytest.fixture
def pq() -> Any:
    require("pyarrow.parquet")
    import pyarrow.parquet

    return pyarrow.parquet


def test_parquet_has_a_row_for_each_event_and_one_for_each_frame(tmp_path: Path, pq: Any) -> None:
    path = tmp_path / "trace.parquet"
    export(ATrace(*A_FEW), "parquet", str(path))  # type: ignore[arg-type]
    events = pq.read_table(path).to_pylist()
    assert len(events) == len(A_FEW)
    assert events[0] == {
        "time_ns": 1_000,
        "process": 0,
        "pid": 4101,
        "thread": 11,
        "op": "alloc",
        "kind": "device",
        "gpu": 0,
        "stream": 0,
        "address": 0x1000000,
        "nbytes": 4 * MIB,
        "allocation": 0x1000000,
        "stack": 1,
    }
    assert [row["op"] for row in events[5:7]] == ["free", "failed"]
    assert events[4]["gpu"] is None
    frames = pq.read_table(tmp_path / "trace.stacks.parquet").to_pylist()
    assert [row["function"] for row in frames if row["stack"] == 2][:2] == [
        "Linear.forward",
        "Module._call_impl",
    ]
    about = json.loads(pq.read_schema(path).metadata[b"vram"])
    assert about["processes"][0]["pid"] == 4101


def test_parquet_of_a_hostile_trace(tmp_path: Path, pq: Any) -> None:
    export(ATrace(*A_FEW, view=training_traces.hostile()), "parquet", str(tmp_path / "x"))  # type: ignore[arg-type]
    assert pq.read_table(tmp_path / "x").num_rows == len(A_FEW)
    assert pq.read_table(tmp_path / "x.stacks.parquet").num_rows == 304


def test_parquet_of_nothing(tmp_path: Path, pq: Any) -> None:
    export(ATrace(view=training_traces.empty()), "parquet", str(tmp_path / "x"))  # type: ignore[arg-type]
    assert pq.read_table(tmp_path / "x").num_rows == 0
    assert pq.read_table(tmp_path / "x.stacks.parquet").num_rows == 0


# ---- files ----


@pytest.mark.parametrize(
    "form", ["perfetto", "speedscope", "torch", pytest.param("parquet", marks=needs("pyarrow.parquet"))]
)
def test_nothing_is_replaced_unless_that_is_wanted(form: str, tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("mine")
    with pytest.raises(UsageError, match="exists"):
        export(ATrace(*A_FEW), form, str(path))  # type: ignore[arg-type]
    assert path.read_text() == "mine"
    assert [each.name for each in tmp_path.iterdir()] == ["out"]
    export(ATrace(*A_FEW), form, str(path), force=True)  # type: ignore[arg-type]
    assert path.stat().st_size > 100


def test_half_a_file_is_none(tmp_path: Path) -> None:
    class Broken(ATrace):
        def events(self) -> Iterator[EventBatch]:
            yield from super().events()
            raise UsageError("the file became shorter")

    with pytest.raises(UsageError, match="shorter"):
        export(Broken(*A_FEW), "perfetto", str(tmp_path / "x"))  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_names_of_any_bytes_are_carried() -> None:
    view = training(marks=(Mark(0, SECOND, EVIL),))
    (mark,) = [each for each in perfetto_events(ATrace(view=view)) if each.get("cat") == "mark"]
    assert mark["name"].startswith("\x1b]0;evil")
