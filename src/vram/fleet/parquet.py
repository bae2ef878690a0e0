"""History of a fleet: one Parquet file a run, in folders day=YYYY-MM-DD/host=HOST that every reader knows.

``host`` is the machine that ran `vram fleet`, so that two of them never write to one place; the nodes are
a column, and the rows are sorted by it: a reader that wants one node skips the other row groups. A file
for each node would be 360,000 files a day at 1,250 nodes and five minutes.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from datetime import timezone
from typing import Any
from urllib.parse import quote

from vram.errors import UsageError
from vram.files import make_folder, write_file
from vram.installation import how_to_add
from vram.model.fleet import FleetGpu, FleetNode, FleetReport
from vram.model.moment import read_rfc3339

_ROWS_TOGETHER = 1024
_OF_NODES = ("state", "code", "message", "program", "driver_version", "took_s")
_SIZES = ("total_bytes", "held_bytes", "leftover_bytes", "unexplained_bytes", "free_bytes", "other_bytes")


def append(report: FleetReport, folder: str) -> str:
    """Add *report* to the history in *folder*, and return the new file's path.

    The file is there whole or not at all. Raises UsageError where it cannot be written, or without PyArrow.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise UsageError(f"--parquet needs PyArrow: {error}", hint=how_to_add("fleet")) from error
    if not folder:
        raise UsageError("--parquet needs the name of a folder")
    table = pyarrow.Table.from_pylist(list(_rows(report)), schema=_schema(pyarrow))
    data = io.BytesIO()
    parquet.write_table(table, data, compression="zstd", row_group_size=_ROWS_TOGETHER)
    path = _path(report, folder)
    try:
        make_folder(os.path.dirname(path))
    except OSError as error:
        raise UsageError(f"cannot create {os.path.dirname(path)}: {error.strerror}") from error
    write_file(path, data.getvalue())
    return path


def escaped(name: str) -> str:
    """*name* as a part of a path: hive's own way, %XX for whatever could be more than a name."""
    shown = quote(name, safe="", errors="backslashreplace")
    return shown.replace("~", "%7E") if shown not in ("", ".", "..") else shown.replace(".", "%2E") or "%00"


def _path(report: FleetReport, folder: str) -> str:
    moment = read_rfc3339(report.taken_at)
    day, at = moment.strftime("%Y-%m-%d"), moment.strftime("%H%M%S")
    # Random: two runs in one second, and two machines of one name, must not meet.
    name = f"fleet-{at}-{os.urandom(6).hex()}.parquet"
    return os.path.join(folder, f"day={day}", f"host={escaped(os.uname().nodename)}", name)


def _schema(pyarrow: Any) -> Any:
    text, number, real = pyarrow.string(), pyarrow.int64(), pyarrow.float64()
    return pyarrow.schema(
        [
            ("taken_at", pyarrow.timestamp("ms", tz="UTC")),
            *((name, text) for name in ("node", "node_host", "state", "code", "message")),
            ("gpu", pyarrow.int32()),
            *((name, text) for name in ("gpu_uuid", "gpu_name", "gpu_status")),
            *((name, number) for name in _SIZES),
            ("oldest_ghost_s", real),
            ("ghosts", pyarrow.int32()),
            *((name, text) for name in ("program", "driver_version", "source")),
            ("took_s", real),
        ]
    )


def _rows(report: FleetReport) -> Iterator[dict[str, Any]]:
    """A row for each GPU; one without a GPU for a node that is not counted."""
    at = read_rfc3339(report.taken_at).astimezone(timezone.utc)
    for node in sorted(report.nodes, key=lambda node: node.name):
        for gpu in node.gpus or (None,):
            row = {"taken_at": at, "source": report.source, "node": node.name, "node_host": node.host}
            row |= {name: getattr(node, name) for name in _OF_NODES}
            yield row | _gpu_columns(node, gpu)


def _gpu_columns(node: FleetNode, gpu: FleetGpu | None) -> dict[str, Any]:
    if gpu is None:
        return {}
    return {
        "gpu": gpu.index,
        "gpu_uuid": gpu.uuid,
        "gpu_name": gpu.name,
        "gpu_status": gpu.status,
        **{name: getattr(gpu, name) for name in _SIZES},
        "oldest_ghost_s": gpu.oldest_ghost_s,
        "ghosts": sum(gpu.index in ghost.gpus for ghost in node.ghosts),
    }
