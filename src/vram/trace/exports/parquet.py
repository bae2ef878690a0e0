"""A trace as Parquet: a row for each event, and a second table with the frames of the stacks."""

from __future__ import annotations

import json
from itertools import islice
from typing import TYPE_CHECKING, Any, BinaryIO

from vram.errors import UsageError
from vram.model.trace import KINDS_BY_NUMBER, CallStack, TraceView
from vram.trace.exports.places import named, text
from vram.trace.naming import naming
from vram.trace.reader import EVENT_TYPES

if TYPE_CHECKING:
    from vram.trace.reader import Trace

_FRAMES_AT_ONCE = 50_000


def require_library() -> None:
    """Raise UsageError where pyarrow is not installed."""
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise UsageError(
            "writing Parquet needs pyarrow, which is not installed",
            hint="pip install 'vram[parquet]', or choose another --export",
        ) from error


def write(trace: Trace, events: BinaryIO, stacks: BinaryIO) -> None:
    """Write both tables, batch by batch."""
    kept: dict[int, CallStack] = {}
    _write_events(trace, events, kept)
    _write_stacks(kept, stacks)


def _write_events(trace: Trace, stream: BinaryIO, kept: dict[int, CallStack]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    view = trace.view()
    names = naming(view, trace.builds())
    schema = pa.schema(
        [
            ("time_ns", pa.int64()),
            ("process", pa.int32()),
            ("pid", pa.int32()),
            ("thread", pa.int32()),
            ("op", pa.dictionary(pa.int8(), pa.string())),
            ("kind", pa.dictionary(pa.int8(), pa.string())),
            ("gpu", pa.int16()),
            ("stream", pa.uint64()),
            ("address", pa.uint64()),
            ("nbytes", pa.uint64()),
            ("allocation", pa.uint64()),
            ("stack", pa.uint32()),
        ],
        metadata={"vram": json.dumps(_about(view))},
    )
    operations = pa.array([name or "unknown" for name in EVENT_TYPES])
    kinds = pa.array([*KINDS_BY_NUMBER.values(), "unknown"])
    pids = {process.index: process.pid for process in view.processes}
    with pq.ParquetWriter(stream, schema, compression="zstd") as writer:
        for batch in trace.events():
            columns = [
                pa.array(batch.time_ns, pa.int64()),
                pa.array(batch.process, pa.int32()),
                pa.array([pids.get(index) for index in batch.process], pa.int32()),
                pa.array(batch.thread, pa.int32()),
                _coded(pa, batch.type, operations, unknown=0),
                _coded(pa, batch.kind, kinds, unknown=len(KINDS_BY_NUMBER)),
                pa.array([None if gpu < 0 else gpu for gpu in batch.gpu], pa.int16()),
                pa.array(batch.stream, pa.uint64()),
                pa.array(batch.address, pa.uint64()),
                pa.array(batch.nbytes, pa.uint64()),
                pa.array(batch.allocation, pa.uint64()),
                pa.array(batch.stack, pa.uint32()),
            ]
            writer.write_batch(pa.record_batch(columns, schema=schema))
            kept.update(
                {number: named(batch.stacks[number], names) for number in set(batch.stack) - kept.keys()}
            )


def _coded(pa: Any, numbers: Any, words: Any, *, unknown: int) -> Any:
    """Numbers as the words that they mean."""
    codes = [number if number < len(words) else unknown for number in numbers]
    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int8()), words)


def _about(view: TraceView) -> dict[str, Any]:
    """What belongs to the whole: the processes and the marks."""
    return {
        "processes": [
            {"index": each.index, "pid": each.pid, "command": [text(word) for word in each.command]}
            for each in view.processes
        ],
        "marks": [
            {"process": mark.process, "time_ns": mark.time_ns, "text": text(mark.text)} for mark in view.marks
        ],
    }


def _write_stacks(stacks: dict[int, CallStack], stream: BinaryIO) -> None:
    """A row for each frame: stack, depth (0 is the innermost), language, function, file, line or offset."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema(
        [
            ("stack", pa.uint32()),
            ("depth", pa.int32()),
            ("language", pa.string()),
            ("function", pa.string()),
            ("file", pa.string()),
            ("line", pa.uint64()),
        ]
    )
    with pq.ParquetWriter(stream, schema, compression="zstd") as writer:
        frames = (
            (number, depth, frame.language, text(frame.function), text(frame.file), frame.line)
            for number in sorted(stacks)
            for depth, frame in enumerate(stacks[number].frames)
        )
        while True:
            rows = list(islice(frames, _FRAMES_AT_ONCE))
            columns = zip(*rows, strict=True) if rows else ((),) * len(schema)
            arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
            writer.write_batch(pa.record_batch(arrays, schema=schema))
            if len(rows) < _FRAMES_AT_ONCE:
                return
