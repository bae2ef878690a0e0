"""Answers of the history as Parquet, a row each, for DuckDB, Ray Data, pandas and the like."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, BinaryIO

import msgspec

from vram.errors import UsageError
from vram.history.schema import SAMPLED
from vram.model.history import (
    Held,
    HistoryReport,
    HoldersReport,
    PastGhostsReport,
    SeriesReport,
    UserWaste,
    WasteReport,
)
from vram.model.process import Workload


def require_library() -> None:
    """Raise UsageError where pyarrow is not installed."""
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        hint = "pip install 'vram[parquet]', or use --json"
        raise UsageError("writing Parquet needs pyarrow, which is not installed", hint=hint) from error


def write(report: HistoryReport, stream: BinaryIO) -> None:
    """The rows of any answer."""
    if isinstance(report, SeriesReport):
        write_series(report, stream)
    elif isinstance(report, WasteReport):
        write_waste(report.users, stream)
    elif isinstance(report, HoldersReport):
        write_held(report.holders, stream)
    else:
        write_held(report.ghosts if isinstance(report, PastGhostsReport) else report.rows, stream)


def write_held(rows: Sequence[Held], stream: BinaryIO) -> None:
    """What was held, a row for each hold."""
    import pyarrow as pa

    schema = pa.schema(
        [
            ("gpu", pa.int32()),
            ("mig", pa.string()),
            ("gpu_uuid", pa.string()),
            ("kind", pa.string()),
            ("nbytes", pa.int64()),
            ("most_bytes", pa.int64()),
            ("pid", pa.int64()),
            ("started_at", pa.int64()),
            ("uid", pa.int64()),
            ("user", pa.string()),
            ("command", pa.string()),
            ("workload", pa.string()),
            ("co_holders", pa.list_(pa.int64())),
            ("dead_pid", pa.int64()),
            ("code", pa.string()),
            ("since", _time(pa)),
            ("until", _time(pa)),
            ("held_s", pa.float64()),
            ("idle_s", pa.float64()),
            ("since_seen", pa.bool_()),
            ("until_seen", pa.bool_()),
        ]
    )
    _write([_flat(row) for row in rows], schema, stream)


def write_waste(users: Sequence[UserWaste], stream: BinaryIO) -> None:
    """A row for each user."""
    import pyarrow as pa

    whole = ("held_byte_s", "idle_byte_s", "leftover_byte_s")
    fields = [("uid", pa.int64()), ("user", pa.string()), *((name, pa.int64()) for name in whole)]
    _write([msgspec.structs.asdict(each) for each in users], pa.schema(fields), stream)


def write_series(report: SeriesReport, stream: BinaryIO) -> None:
    """A row for each point, with a column for each kind of memory."""
    import pyarrow as pa

    kinds = (*SAMPLED, "free")
    fields = [
        ("gpu", pa.string()),
        ("at", _time(pa)),
        ("total_bytes", pa.int64()),
        ("leftover_bytes", pa.int64()),
    ]
    rows = [
        {
            "gpu": report.gpu,
            "at": _when(point.at),
            "total_bytes": point.total_bytes,
            "leftover_bytes": point.leftover_bytes,
            **{kind: None if point.total_bytes is None else point.kinds.get(kind, 0) for kind in kinds},
        }
        for point in report.points
    ]
    _write(rows, pa.schema([*fields, *((kind, pa.int64()) for kind in kinds)]), stream)


def _write(rows: list[dict[str, Any]], schema: Any, stream: BinaryIO) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    known = [{name: row[name] for name in schema.names} for row in rows]
    pq.write_table(pa.Table.from_pylist(known, schema=schema), stream, compression="zstd")


def _flat(row: Held) -> dict[str, Any]:
    said = {name: value for name, value in msgspec.structs.asdict(row.workload).items() if value is not None}
    return {
        **msgspec.structs.asdict(row),
        "workload": None if row.workload == Workload() else msgspec.json.encode(said).decode(),
        "since": _when(row.since),
        "until": None if row.until is None else _when(row.until),
    }


def _time(pa: Any) -> Any:
    return pa.timestamp("s", tz="UTC")


def _when(text: str) -> Any:
    from datetime import datetime

    return datetime.fromisoformat(text)
