"""Answers of the history as Parquet, a row each, for DuckDB, Ray Data, pandas and the like."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, BinaryIO

import msgspec

from vram.errors import UsageError
from vram.history.schema import SAMPLED
from vram.installation import how_to_add
from vram.model.history import (
    Held,
    HistoryReport,
    HoldersReport,
    PastGhostsReport,
    SeriesReport,
    UserWaste,
    WasteReport,
)
from vram.model.moment import read_rfc3339
from vram.model.process import Workload


def require_library() -> None:
    """Raise UsageError where pyarrow is not installed."""
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        hint = f"{how_to_add('parquet')}, or use --json"
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


_HELD = {
    "gpu": "int32",
    "mig": "string",
    "gpu_uuid": "string",
    "kind": "string",
    "nbytes": "int64",
    "most_bytes": "int64",
    "pid": "int64",
    "started_at": "int64",
    "uid": "int64",
    "user": "string",
    "command": "string",
    "workload": "string",
    "co_holders": "list",
    "dead_pid": "int64",
    "code": "string",
    "since": "time",
    "until": "time",
    "held_s": "float64",
    "idle_s": "float64",
    "since_seen": "bool_",
    "until_seen": "bool_",
}


def write_held(rows: Sequence[Held], stream: BinaryIO) -> None:
    """What was held, a row for each hold."""
    _write([_flat(row) for row in rows], _HELD, stream)


def write_waste(users: Sequence[UserWaste], stream: BinaryIO) -> None:
    """A row for each user."""
    whole = ("held_byte_s", "idle_byte_s", "leftover_byte_s")
    columns = {"uid": "int64", "user": "string", **dict.fromkeys(whole, "int64")}
    _write([msgspec.structs.asdict(each) for each in users], columns, stream)


def write_series(report: SeriesReport, stream: BinaryIO) -> None:
    """A row for each point, with a column for each kind of memory."""
    kinds = (*SAMPLED, "free")
    sizes = dict.fromkeys(("total_bytes", "leftover_bytes", *kinds), "int64")
    rows = [
        {
            "gpu": report.gpu,
            "mig": report.mig,
            "at": _when(point.at),
            "total_bytes": point.total_bytes,
            "leftover_bytes": point.leftover_bytes,
            **{kind: None if point.total_bytes is None else point.kinds.get(kind, 0) for kind in kinds},
        }
        for point in report.points
    ]
    _write(rows, {"gpu": "int32", "mig": "string", "at": "time", **sizes}, stream)


def _write(rows: list[dict[str, Any]], columns: dict[str, str], stream: BinaryIO) -> None:
    """Write those of each row's values that have a column; a type is the name of pyarrow's own."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    others = {"list": pa.list_(pa.int64()), "time": pa.timestamp("s", tz="UTC")}
    types = {name: others[kind] if kind in others else getattr(pa, kind)() for name, kind in columns.items()}
    known = [{name: row[name] for name in columns} for row in rows]
    table = pa.Table.from_pylist(known, schema=pa.schema(list(types.items())))
    pq.write_table(table, stream, compression="zstd")


def _flat(row: Held) -> dict[str, Any]:
    said = {name: value for name, value in msgspec.structs.asdict(row.workload).items() if value is not None}
    return {
        **msgspec.structs.asdict(row),
        "workload": None if row.workload == Workload() else msgspec.json.encode(said).decode(),
        "since": _when(row.since),
        "until": None if row.until is None else _when(row.until),
    }


def _when(text: str) -> datetime:
    return read_rfc3339(text)
