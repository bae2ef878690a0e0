"""Snapshots of PyTorch 2.15, of tests/hardware/tracer/torch_program.py, as the payload hands them over."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

from tests.trace.writer import TraceFile, Writer

KINDS = ("plain", "expandable")
LEAK_LINE = 24
"""Of ``remember``, which keeps twelve tensors of 3 MiB."""


def content(kind: str) -> dict[str, Any]:
    """The blob's JSON; change it as a hostile program could."""
    found = json.loads((Path(__file__).parent / f"torch-2.15-{kind}.json").read_text())
    assert isinstance(found, dict)
    return found


def packed(said: object) -> bytes:
    return zlib.compress(json.dumps(said).encode())


def traced(
    said: dict[str, Any], *, late_ns: int = 40_000, device: int = 0, every_ns: int = 0
) -> tuple[TraceFile, Writer]:
    """What the recorder wrote of the program that said this: its segments, all from one place.

    Recording began a second before; PyTorch notes what the driver gave *late_ns* later. *every_ns* says
    otherwise: a segment came each so often.
    """
    events = said["traces"][0]
    began_us = events["time_us"][0] - 1_000_000
    trace = TraceFile()
    writer = trace.section(wall_ns=began_us * 1000).writer()
    writer.device(device, "0000:01:00.0", "GPU", 80 << 30)
    where = writer.where(device=device)
    stack = writer.stack(("tensor", "/app/train.py", 12), ("main", "/app/train.py", 30))
    writer.alloc(1000, 0xC0, 0, kind="context", where=where)
    taken = 0
    for number, action in enumerate(events["action"]):
        time_ns = (events["time_us"][number] - began_us) * 1000 - late_ns
        address, nbytes = events["address"][number], events["nbytes"][number]
        if every_ns and action in (SEGMENT_ALLOC, SEGMENT_MAP):
            taken += 1
            time_ns = taken * every_ns
        if action == SEGMENT_ALLOC:
            writer.alloc(time_ns, address, nbytes, where=where, stack=stack)
        elif action == SEGMENT_MAP:
            writer.alloc(time_ns, number + 1, nbytes, kind="physical", where=where, stack=stack)
            writer.map(time_ns, address, nbytes, number + 1, where=where)
    return trace, writer


SEGMENT_ALLOC, SEGMENT_MAP = 2, 4
