"""TensorFlow: a pool that ran out, a tensor that did not fit, a driver that had nothing left.

What Python sees of it may have no figures: an operation's name, or that a copy has nowhere to go.
"""

from __future__ import annotations

import re

from vram.model.oom import Reading, Where
from vram.oom.sizes import SIZE, amount

NAME = "tensorflow"
NEEDLES: tuple[bytes, ...] = (
    b"trying to allocate",
    b"failed to allocate",
    b"OOM when",
    b"t allocate pinned",
    b"o alloc ",
    b"Dst tensor",
)
START = re.compile(
    rf"Allocator\s+\((?P<pool>[\w]+)\)\s+ran\s+out\s+of\s+memory\s+trying\s+to\s+allocate\s+(?P<asked>{SIZE})"
    r"(?:\s+\(rounded\s+to\s+(?P<rounded>\d+)\))?"
    r"|OOM\s+when\s+allocating\s+tensor\s+(?:with|of)\s+shape\s*(?P<shape>\[[\d,\s]*\])"
    r"(?:\s+and\s+type\s+(?P<type>\w+)\s+on\s+(?P<device>\S+)\s+by\s+allocator\s+(?P<by>\w+))?"
    rf"|failed\s+to\s+allocate\s+(?P<refused>{SIZE})\s+from\s+device:\s+(?:RESOURCE_EXHAUSTED:[\s:]+)?CUDA_ERROR_OUT_OF_MEMORY(?::\s+out\s+of\s+memory)?"
    r"|ResourceExhaustedError:(?P<operation>[^\n]{0,400}?)\s+failed\s+to\s+allocate\s+memory\s+\[Op:"
    r"|Dst\s+tensor\s+is\s+not\s+initialized"
    rf"|(?:could\s+not\s+allocate\s+pinned\s+host\s+memory\s+of\s+size:|failed\s+to\s+alloc)\s+(?P<pinned>\d+)"
    r"(?P<driver>\s+bytes\s+on\s+host(?::\s+CUDA_ERROR_OUT_OF_MEMORY)?(?::\s+out\s+of\s+memory)?)?"
)
_GPU = re.compile(r"GPU[:_](\d+)")
_WIDTHS = {"float": 4, "half": 2, "bfloat16": 2, "double": 8, "int32": 4, "int64": 8, "bool": 1, "uint8": 1}


def read(found: re.Match[str], text: str, before: str) -> tuple[Reading, int] | None:
    asked = amount(found["asked"] or found["refused"]) or amount(found["pinned"])
    if found["rounded"]:
        asked = amount(found["rounded"])
    if found["shape"] and found["type"]:
        asked = amount(_nbytes(found["shape"], found["type"]))
    pool = found["pool"] or found["by"] or ""
    device = found["device"] or found["operation"] or _destination(found, text)
    gpu = _GPU.search(device) or _GPU.search(pool)
    where: Where = "host" if pool.startswith("cpu") or "device:CPU" in device else "device"
    if found["pinned"] or "host" in pool:
        where = "pinned"
    reading = Reading(
        dialect=NAME,
        wording=_wording(found),
        where=where,
        gpu=int(gpu.group(1)) if gpu else None,
        asked=asked,
        signs=("xla",) if "external/xla" in text[: found.start()] else (),
    )
    return reading, found.end()


def _destination(found: re.Match[str], text: str) -> str:
    """Where a copy was to go, which stands before the words that it failed with."""
    if not found.group().startswith("Dst"):
        return ""
    copied = re.findall(r"\sto\s+(\S+device:\S+)", text[max(0, found.start() - 300) : found.start()])
    return copied[-1] if copied else ""


def _wording(found: re.Match[str]) -> str:
    if found["pinned"]:
        return "pinned by the driver" if found["driver"] else "pinned"
    if found["asked"] or found["shape"]:
        return "pool" if found["asked"] else "tensor"
    return "driver" if found["refused"] else "operation"


def _nbytes(shape: str, kind: str) -> str | None:
    """The tensor's size, from its shape; None where the type's width is not known."""
    width = _WIDTHS.get(kind)
    sides = [int(side) for side in re.findall(r"\d+", shape)]
    if width is None:
        return None
    for side in sides:
        width *= side
    return str(width)
