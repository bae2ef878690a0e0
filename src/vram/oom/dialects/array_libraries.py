"""CuPy, RMM, Numba and PyCUDA."""

from __future__ import annotations

import re

from vram.model.oom import Amount, OomReading, Where
from vram.oom.dialects import Match, Parsed, dialect
from vram.oom.passage import Passage
from vram.oom.sizes import SIZE, amount

_BYTES = r"[\d,]+\s+bytes"


@dialect(
    "cupy",
    needles=(b"memory allocating", b"memory to allocate"),
    start=re.compile(
        # XLA says the same of the host's memory, behind its own code.
        rf"(?<!EXHAUSTED: )Out\s+of\s+memory\s+allocating\s+(?P<asked>{_BYTES})"
        rf"(?:\s+\(allocated\s+so\s+far:\s+(?P<live>{_BYTES})(?:,\s+limit\s+set\s+to:\s+(?P<limit>{_BYTES}))?)?"
        rf"|out\s+of\s+memory\s+to\s+allocate\s+(?P<asked_once>{_BYTES})"
        rf"(?:\s+\(total\s+(?P<sum>{_BYTES})(?:,\s+limit\s+set\s+to\s+(?P<limit_once>{_BYTES}))?)?"
    ),
)
def cupy(found: Match, passage: Passage) -> Parsed:
    """CuPy's memory pool: what was asked for, what the pool has, and a limit where one is set."""
    asked = amount(found["asked"] or found["asked_once"])
    live = amount(found["live"])
    total = amount(found["sum"])
    if total and asked:  # before version 7 the sum contained what was asked for
        live = Amount(max(0, total.nbytes - asked.nbytes))
    reading = OomReading(
        dialect="cupy",
        wording="since 7" if found["asked"] else "before 7",
        asked=asked,
        live=live,
        limit=amount(found["limit"] or found["limit_once"]),
    )
    return reading, found.end()


_ASKED = re.compile(rf"(?:failed\s+to\s+allocate|to\s+allocate|[Rr]equested)\s+({SIZE})")
_LIMIT = re.compile(rf"(?:[Mm]aximum\s+pool\s+size|limit)[^\n]*?\(?(?:max|limit)[=:\s]+({SIZE})")


@dialect(
    "rmm",
    needles=(b"bad_alloc",),
    start=re.compile(
        r"std::bad_alloc:\s+(?:out_of_memory:\s+)?(?:RMM\s+failure|CUDA\s+error)"
        r"(?:\s+\(failed\s+to\s+allocate\s+(?P<early>[\d,]+)\s+bytes\))?\s+at:?"
        r"(?P<rest>[^\n]*(?:\n[^\n]*)?)"
    ),
)
def rmm(found: Match, passage: Passage) -> Parsed:
    """RAPIDS' memory manager: its pool reached its maximum, or the driver had nothing left for it."""
    rest = found["rest"]
    asked = _ASKED.search(rest)
    limit = _LIMIT.search(rest)
    pool = re.search(r"[Mm]aximum\s+pool\s+size\s+exceeded|[Ee]xceeded\s+memory\s+limit", rest)
    host = re.search(r"pinned_(?:host_)?memory_resource|cudaHostAlloc|cudaMallocHost", rest)
    reading = OomReading(
        dialect="rmm",
        wording="pool" if pool else "driver",
        where="pinned" if host else "device",
        asked=amount(asked.group(1)) if asked else amount(found["early"]),
        limit=amount(limit.group(1)) if limit else None,
        signs=("pool-maximum",) if pool else (),
    )
    return reading, found.end()


@dialect(
    "numba",
    needles=(b"OF_MEMORY",),
    start=re.compile(r"Call\s+to\s+(?P<call>cu\w+)\s+results\s+in\s+CUDA_ERROR_OUT_OF_MEMORY"),
)
def numba(found: Match, passage: Passage) -> Parsed:
    """Numba: the driver call that failed, by name, and no figures."""
    call = found["call"]
    where: Where = "pinned" if "Host" in call else "device"
    signs = ("context",) if re.search(r"Ctx|cuInit|cuModule", call) else ()
    return OomReading(dialect="numba", wording=call, where=where, signs=signs), found.end()


@dialect(
    "pycuda",
    needles=(b"failed: out of memory",),
    start=re.compile(r"(?P<call>cu[A-Z]\w+)\s+failed:\s+out\s+of\s+memory"),
)
def pycuda(found: Match, passage: Passage) -> Parsed:
    """PyCUDA: the driver call that failed, by name, and no figures."""
    call = found["call"]
    if call.startswith(("cuda", "cublas", "cudnn")):
        return None
    where: Where = "pinned" if "Host" in call else "device"
    signs = ("context",) if re.search(r"Ctx|cuInit|cuModule|cuLaunch", call) else ()
    return OomReading(dialect="pycuda", wording=call, where=where, signs=signs), found.end()
