"""Snapshots of PyTorch 2.15, of tests/hardware/tracer/torch_program.py, as the payload hands them over."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vram.model.trace import GpuUse, TracedProcess, TraceView

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


class Blobs:
    """A trace of which only the blobs matter."""

    def __init__(self, *blobs: tuple[int, str, bytes]) -> None:
        self._blobs = blobs

    def blobs(self) -> Iterator[tuple[int, str, bytes]]:
        yield from self._blobs


def view(said: dict[str, Any] | None = None, **more: Any) -> TraceView:
    """What the driver's side of a trace of *said* would be: its clock begins a second before."""
    events = (said or {}).get("traces") or [{"time_us": [0]}]
    origin = events[0]["time_us"][0] * 1000 - 10**9
    if said:
        origin += said["monotonic_ns"] - said["wall_ns"]
    process = TracedProcess(
        index=0,
        pid=7,
        parent_pid=1,
        command=("python", "train.py"),
        executable="/usr/bin/python3",
        python="3.12",
        attached=False,
        forked=False,
        stacks="python",
        started_wall_ns=0,
        first_ns=origin,
        last_ns=10**10,
        end="exit",
    )
    empty: dict[str, Any] = dict.fromkeys(
        ("stacks", "allocations", "peak", "leaks", "timeline", "churn", "holes", "failures", "gaps"), ()
    )
    gpu = GpuUse(
        gpu=0, peak_nbytes=0, peak_ns=10**9, end_nbytes=0, allocated_nbytes=0, allocations=0, frees=0
    )
    fields = empty | {
        "paths": ("a.vram",),
        "processes": (process,),
        "duration_ns": 10**10,
        "events": 0,
        "gpus": (gpu,),
        "failures_in_all": 0,
        "marks": (),
        "before": (),
        "host_peak_nbytes": 0,
    }
    return TraceView(**(fields | more))
