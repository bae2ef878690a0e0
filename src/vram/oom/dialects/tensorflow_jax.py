"""TensorFlow, JAX and XLA, and the pool that they share."""

from __future__ import annotations

import re

from vram.model.oom import OomMessage, Where
from vram.oom.dialects import SIZE, Match, Parsed, amount, dialect, minus
from vram.oom.passage import Passage

_ENTRY = re.compile(r"XLA_PYTHON_CLIENT_(\w+)=(\S+)")


@dialect(
    "xla",
    needles=(
        b"trying to allocate",
        b"memory allocating",
        b"Failed to allocate",
        b"memory space hbm",
        b"Attempting to",
    ),
    start=re.compile(
        rf"Out\s+of\s+memory\s+while\s+trying\s+to\s+allocate\s+(?P<asked>{SIZE}|\d+)"
        rf"|RESOURCE_EXHAUSTED:\s+Out\s+of\s+memory\s+allocating\s+(?P<host>{SIZE})"
        rf"|Failed\s+to\s+allocate\s+request\s+for\s+(?P<request>{SIZE})"
        r"(?:\s+on\s+device\s+ordinal\s+(?P<gpu>\d+))?"
        r"|Ran\s+out\s+of\s+memory\s+in\s+memory\s+space\s+hbm\.\s+(?:Used\s+(?P<used>[\d.]+[KMGT])\s+of\s+"
        r"(?P<total>[\d.]+[KMGT])\s+hbm)?"
        rf"|Attempting\s+to\s+(?:reserve|allocate)\s+(?P<program>[\d.]+[KMGT])[^\n]*?There\s+are\s+"
        r"(?P<free>[\d.]+[KMGT])\s+free"
    ),
)
def xla(found: Match, passage: Passage) -> Parsed:
    """JAX and XLA: at run time from a preallocated pool, at compile time against the device's memory.

    Without a GPU they allocate in the host's memory, and word it otherwise.
    """
    wanted = found["asked"] or found["request"] or found["host"] or found["used"] or found["program"]
    return OomMessage(
        dialect="xla",
        wording=_name_xla_wording(found),
        where="host" if found["host"] else "device",
        gpu=int(found["gpu"]) if found["gpu"] else None,
        asked=amount(wanted),
        total=amount(found["total"]),
        free=amount(found["free"]),
        settings=tuple((name.lower(), value) for name, value in _ENTRY.findall(passage.before))[-3:],
    )


def _name_xla_wording(found: Match) -> str:
    if found["asked"]:
        return "run time"
    if found["request"] or found["host"]:
        return "request"
    return "compile time" if found["used"] else "hbm"


_GPU = re.compile(r"GPU[:_](\d+)")
_WIDTHS = {"float": 4, "half": 2, "bfloat16": 2, "double": 8, "int32": 4, "int64": 8, "bool": 1, "uint8": 1}


@dialect(
    "tensorflow",
    needles=(
        b"trying to allocate",
        b"failed to allocate",
        b"OOM when",
        b"t allocate pinned",
        b"o alloc ",
        b"Dst tensor",
    ),
    start=re.compile(
        rf"Allocator\s+\((?P<pool>[\w]+)\)\s+ran\s+out\s+of\s+memory\s+trying\s+to\s+allocate\s+(?P<asked>{SIZE})"
        r"(?:\s+\(rounded\s+to\s+(?P<rounded>\d+)\))?"
        r"|OOM\s+when\s+allocating\s+tensor\s+(?:with|of)\s+shape\s*(?P<shape>\[[\d,\s]*\])"
        r"(?:\s+and\s+type\s+(?P<type>\w+)\s+on\s+(?P<device>\S+)\s+by\s+allocator\s+(?P<by>\w+))?"
        rf"|failed\s+to\s+allocate\s+(?P<refused>{SIZE})\s+from\s+device:\s+(?:RESOURCE_EXHAUSTED:[\s:]+)?(?:CUDA_ERROR_OUT_OF_MEMORY|(?P<hip>HIP_ERROR_OutOfMemory|hipError\w+))"
        r"(?::\s+out\s+of\s+memory)?"
        r"|ResourceExhaustedError:(?P<operation>[^\n]{0,400}?)\s+failed\s+to\s+allocate\s+memory\s+\[Op:"
        r"|Dst\s+tensor\s+is\s+not\s+initialized"
        rf"|(?:could\s+not\s+allocate\s+pinned\s+host\s+memory\s+of\s+size:|failed\s+to\s+alloc)\s+(?P<pinned>\d+)"
        r"(?P<driver>\s+bytes\s+on\s+host(?::\s+CUDA_ERROR_OUT_OF_MEMORY)?(?::\s+out\s+of\s+memory)?)?"
    ),
)
def tensorflow(found: Match, passage: Passage) -> Parsed:
    """TensorFlow: a pool that ran out, a tensor that did not fit, a driver that had nothing left.

    What Python sees of it may have no figures: an operation's name, or that a copy has nowhere to go.
    """
    asked = amount(found["asked"] or found["refused"]) or amount(found["pinned"])
    if found["rounded"]:
        asked = amount(found["rounded"])
    if found["shape"] and found["type"]:
        asked = amount(_compute_nbytes(found["shape"], found["type"]))
    pool = found["pool"] or found["by"] or ""
    device = found["device"] or found["operation"] or _find_destination(found, passage.text)
    gpu = _GPU.search(device) or _GPU.search(pool)
    where: Where = "host" if pool.startswith("cpu") or "device:CPU" in device else "device"
    if found["pinned"] or "host" in pool:
        where = "pinned"
    return OomMessage(
        dialect="tensorflow",
        wording=_name_tensorflow_wording(found, passage.text[: found.start()]),
        where=where,
        gpu=int(gpu.group(1)) if gpu else None,
        asked=asked,
        signs=(
            *(("xla",) if "external/xla" in passage.text[: found.start()] else ()),
            *(("hip",) if found["hip"] else ()),
        ),
    )


def _find_destination(found: Match, text: str) -> str:
    """The destination of a copy, which is printed before the words that it failed with."""
    if not found.group().startswith("Dst"):
        return ""
    copied = re.findall(r"\sto\s+(\S+device:\S+)", text[max(0, found.start() - 300) : found.start()])
    return copied[-1] if copied else ""


def _name_tensorflow_wording(found: Match, lead: str) -> str:
    if found["pinned"]:
        return "pinned by the driver" if found["driver"] else "pinned"
    if found["asked"]:
        return "pool"
    if "OP_REQUIRES" in lead.rpartition("\n")[2]:
        return "kernel"  # where it failed; the exception that tells of it comes later
    if found["shape"]:
        return "tensor"
    return "driver" if found["refused"] else "operation"


def _compute_nbytes(shape: str, kind: str) -> str | None:
    """The tensor's size, from its shape; None where the type's width is not known."""
    width = _WIDTHS.get(kind)
    sides = [int(side) for side in re.findall(r"\d+", shape)]
    if width is None:
        return None
    for side in sides:
        width *= side
    return str(width)


_STAT = r"[ \t]+(\d[\d.,]*(?:[ \t]*(?:[KMGT]i?B|B))?)"
_FIELDS = {
    "sum": re.compile(rf"Sum\s+Total\s+of\s+in-use\s+chunks:\s+({SIZE})"),
    "pool": re.compile(
        rf"(?:total_region_allocated_bytes_|Total\s+(?:bytes|size)\s+in\s+pool):\s+({SIZE}|\d+)"
    ),
    "bound": re.compile(rf"memory_limit_:\s+({SIZE}|\d+)"),
    "limit": re.compile(rf"Limit:{_STAT}"),
    "live": re.compile(rf"\bInUse:{_STAT}"),
    "largest": re.compile(rf"LargestFreeBlock:{_STAT}"),
}


@dialect(
    "bfc",
    needles=(b"in-use chunks", b"] Stats:"),
    start=re.compile(
        r"Sum\s+Total\s+of\s+in-use\s+chunks:|Stats:\s*\n\s*Limit:\s+\d[\d.]*\s*(?:[KMGT]i?B|B)?\s*\n\s*InUse:"
        r"|(?:total_region_allocated_bytes_|Total\s+bytes\s+in\s+pool|Total\s+size\s+in\s+pool):"
    ),
)
def bfc(found: Match, passage: Passage) -> Parsed:
    """The dump that TensorFlow's and XLA's pool (best fit with coalescing) writes before they give up."""
    body = passage.text[found.start() : found.start() + 1500]
    matches = {name: pattern.search(body) for name, pattern in _FIELDS.items()}
    figures = {name: amount(match.group(1)) for name, match in matches.items() if match}
    live = figures.get("live") or figures.get("sum")
    largest = figures.get("largest")
    reading = OomMessage(
        dialect="bfc",
        wording="dump",
        live=live,
        idle=minus(figures.get("pool"), live),
        limit=figures.get("limit") or figures.get("bound"),
        largest_free=largest if largest and largest.nbytes else None,
    )
    return reading, found.start() + max(match.end() for match in matches.values() if match)
