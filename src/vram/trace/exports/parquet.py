"""A trace as Parquet: a row for each event, and a second table with the frames of the stacks."""

from __future__ import annotations

import json
import os
from itertools import islice
from typing import TYPE_CHECKING, Any, BinaryIO

from vram.errors import UsageError
from vram.files import new_file
from vram.installation import how_to_add
from vram.model.trace import KINDS_BY_NUMBER, CallStack, TraceView
from vram.trace.exports import named, text
from vram.trace.reader import EVENT_TYPES
from vram.trace.symbols import naming

if TYPE_CHECKING:
    from vram.trace.reader import Trace

_FRAMES_AT_ONCE = 50_000


def write(trace: Trace, path: str, *, force: bool) -> None:
    """Write the events to *path*, and beside it the stacks that they refer to; UsageError without pyarrow."""
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise UsageError(
            "writing Parquet needs pyarrow, which is not installed",
            hint=f"{how_to_add('parquet')}, or choose another --export",
        ) from error
    if path == "/dev/stdout":
        raise UsageError("Parquet is two files, and not for standard output", hint="name a file with -o")
    root, ending = os.path.splitext(path)
    with (
        new_file(path, force=force) as events,
        new_file(f"{root}.stacks{ending or '.parquet'}", force=force) as stacks,
    ):
        _write_stacks(_write_events(trace, events), stacks)


def _write_events(trace: Trace, stream: BinaryIO) -> dict[int, CallStack]:
    """Write a row for each event, batch by batch; returns the stacks that they refer to, by number."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    view = trace.view()
    names = naming(view, trace.builds())
    kept: dict[int, CallStack] = {}
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
            columns = {
                "pid": pa.array([pids.get(index) for index in batch.process], pa.int32()),
                "op": _encode_words(pa, batch.type, operations, unknown=0),
                "kind": _encode_words(pa, batch.kind, kinds, unknown=len(KINDS_BY_NUMBER)),
                "gpu": pa.array([None if gpu < 0 else gpu for gpu in batch.gpu], pa.int16()),
            }
            for field in schema:
                if field.name not in columns:
                    columns[field.name] = pa.array(getattr(batch, field.name), field.type)
            writer.write_batch(pa.record_batch(columns, schema=schema))
            kept.update(
                {number: named(batch.stacks[number], names) for number in set(batch.stack) - kept.keys()}
            )
    return kept


def _encode_words(pa: Any, numbers: Any, words: Any, *, unknown: int) -> Any:
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
    """A row for each frame: stack, depth (0 is the innermost), language, function, file, line or offset.

    A native frame whose line is known has its library apart; otherwise that is the file."""
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
            ("library", pa.string()),
        ]
    )
    with pq.ParquetWriter(stream, schema, compression="zstd") as writer:
        frames = (
            (
                number,
                depth,
                frame.language,
                text(frame.function),
                text(frame.file),
                frame.line,
                text(frame.library) or None,
            )
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
