"""CuPy, RMM, Numba, PyCUDA, PaddlePaddle, CatBoost and CUDA.jl."""

from __future__ import annotations

import re

from vram.model.oom import Amount, OomMessage
from vram.oom.dialects import NUMBER, SIZE, Match, Parsed, amount, amount_in, dialect, minus, plus
from vram.oom.passage import Passage
from vram.oom.sums import ANY_GPU

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
    return OomMessage(
        dialect="cupy",
        wording="since 7" if found["asked"] else "before 7",
        asked=asked,
        live=live,
        limit=amount(found["limit"] or found["limit_once"]),
    )


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
    pool = re.search(r"[Mm]aximum\s+pool\s+size\s+exceeded|[Ee]xceeded\s+memory\s+limit", rest)
    host = re.search(r"pinned_(?:host_)?memory_resource|cudaHostAlloc|cudaMallocHost", rest)
    return OomMessage(
        dialect="rmm",
        wording="pool" if pool else "driver",
        where="pinned" if host else "device",
        asked=amount_in(_ASKED, rest) or amount(found["early"]),
        limit=amount_in(_LIMIT, rest),
        signs=("pool-maximum",) if pool else (),
    )


@dialect(
    "numba",
    needles=(b"OF_MEMORY",),
    start=re.compile(r"Call\s+to\s+(?P<call>cu\w+)\s+results\s+in\s+CUDA_ERROR_OUT_OF_MEMORY"),
)
def numba(found: Match, passage: Passage) -> Parsed:
    """Numba: the driver call that failed, by name, and no figures."""
    return _read_failed_call("numba", found["call"], r"Ctx|cuInit|cuModule")


@dialect(
    "pycuda",
    needles=(b"failed: out of memory",),
    start=re.compile(r"(?P<call>cu[A-Z]\w+)\s+failed:\s+out\s+of\s+memory"),
)
def pycuda(found: Match, passage: Passage) -> Parsed:
    """PyCUDA: the driver call that failed, by name, and no figures."""
    if found["call"].startswith(("cuda", "cublas", "cudnn")):
        return None
    return _read_failed_call("pycuda", found["call"], r"Ctx|cuInit|cuModule|cuLaunch")


def _read_failed_call(dialect: str, call: str, makes_context: str) -> OomMessage:
    return OomMessage(
        dialect=dialect,
        wording=call,
        where="pinned" if "Host" in call else "device",
        signs=("context",) if re.search(makes_context, call) else (),
    )


_PADDLE_SIZE = r"[\d.]+[kMGTPE]?B"
_PADDLE_FRACTION = re.compile(r"FLAGS_fraction_of_gpu_memory_to_use\s+is\s+([\d.]*\d)\s+now")
_PADDLE_LIMIT = re.compile(r"FLAGS_gpu_memory_limit_mb`?\s+is\s+(\d+)")


@dialect(
    "paddle",
    needles=(b"memory error on GPU", b"memory error on CPU", b"memory error on NPU"),
    start=re.compile(
        rf"Out\s+of\s+memory\s+error\s+on\s+GPU\s+(?P<gpu>\d+)\.\s+Cannot\s+allocate\s+(?P<asked>{_PADDLE_SIZE})\s+"
        rf"(?:CUDA\s+managed\s+|GPU\s+)?memory(?:\s+on\s+GPU\s+\d+)?"
        rf"(?:,\s+(?P<used>{_PADDLE_SIZE})\s+memory\s+has\s+been\s+allocated)?"
        rf"(?:,?(?:\s+and)?\s+available\s+memory\s+is\s+(?:only\s+)?(?P<free>{_PADDLE_SIZE}))?"
    ),
)
def paddle(found: Match, passage: Passage) -> Parsed:
    """What was asked for, what is free, and what is in use on the GPU, by any process.

    Paddle calls that "allocated", and works it out as the GPU's total less what is free, or as the limit
    less what is free where FLAGS_gpu_memory_limit_mb is set.
    """
    used, free = _read_figure(found["used"]), _read_figure(found["free"])
    body = passage.text[found.end() : found.end() + 800]
    limit, share = _PADDLE_LIMIT.search(body), _PADDLE_FRACTION.search(body)
    total = plus(used, free)
    known = total is not None and 0 < total.nbytes < ANY_GPU
    reading = OomMessage(
        dialect="paddle",
        wording="limited" if limit else "fraction" if share else "driver",
        gpu=int(found["gpu"]),
        asked=_read_figure(found["asked"]),
        total=total if known and not limit else None,
        free=free if known or used is None else None,
        live=used if limit and known else None,
        limit=amount(f"{limit.group(1)} MiB") if limit else None,
        utilization=float(share.group(1)) if share else None,
    )
    ends = [found.end(), *(found.end() + each.end() for each in (limit, share) if each)]
    return reading, max(ends)


def _read_figure(words: str | None) -> Amount | None:
    return amount(words.replace("kB", "KB")) if words else None


@dialect(
    "catboost",
    needles=(b"Out of memory. Requested",),
    start=re.compile(
        rf"stack_like_memory_pool\.h:\d+:\s+Error:\s+Out\s+of\s+memory\.\s+Requested\s+(?P<asked>{NUMBER})"
        rf"(?:\s+MB)?;\s+Free\s+(?P<left>{NUMBER})(?:\s+MB)?"
    ),
)
def catboost(found: Match, passage: Passage) -> Parsed:
    """CatBoost takes its share of the GPU (gpu_ram_part) at the start: both figures are about that share.

    Its MB are of 1024^2 bytes.
    """
    return OomMessage(
        dialect="catboost",
        wording="pool",
        asked=amount(found["asked"], "MiB"),
        idle=amount(found["left"], "MiB"),
    )


_JULIA_GPU = re.compile(rf"Effective\s+GPU\s+memory\s+usage:[^\n(]*\((?P<used>{SIZE})/(?P<total>{SIZE})\)")
_JULIA_POOL = re.compile(
    rf"(?:Memory\s+pool|CUDA\s+allocator)\s+usage:\s+(?P<live>{SIZE})"
    rf"(?:\s+\((?:(?P<reserved>{SIZE})\s+reserved|capped\s+at\s+(?P<limit>{SIZE})|[^)\n]*?(?P<cached>{SIZE})\s+cached)\))?"
)


@dialect(
    "cuda.jl",
    needles=(b"Out of GPU memory",),
    start=re.compile(rf"Out\s+of\s+GPU\s+memory(?:\s+trying\s+to\s+allocate\s+(?P<asked>{SIZE}))?"),
)
def cuda_jl(found: Match, passage: Passage) -> Parsed:
    """Julia: what is used on the GPU by any process, and what its own pool has of it."""
    body = passage.text[found.end() : found.end() + 500]
    gpu, pool = _JULIA_GPU.search(body), _JULIA_POOL.search(body)
    total = amount(gpu["total"]) if gpu else None
    live = amount(pool["live"]) if pool else None
    reserved = amount(pool["reserved"]) if pool else None
    reading = OomMessage(
        dialect="cuda.jl",
        wording="pool" if pool else "bare",
        asked=amount(found["asked"]),
        total=total,
        free=minus(total, amount(gpu["used"])) if gpu else None,
        live=live,
        idle=minus(reserved, live) or (amount(pool["cached"]) if pool else None),
        limit=amount(pool["limit"]) if pool else None,
    )
    return reading, found.end() + max((each.end() for each in (gpu, pool) if each), default=0)
