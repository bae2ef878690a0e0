"""PyTorch's messages, and those of the Triton kernels that it compiles."""

from __future__ import annotations

import re

from msgspec.structs import replace

from vram.model.oom import Amount, NamedProcess, OomMessage
from vram.oom.dialects import SIZE, Match, Parsed, amount, dialect, minus, plus
from vram.oom.passage import Passage


@dialect(
    "pytorch-mps",
    needles=(b"MPS backend out",),
    start=re.compile(
        rf"MPS\s+backend\s+out\s+of\s+memory\s+\(MPS\s+allocated:\s+(?P<live>{SIZE}),\s+other\s+allocations:\s+"
        rf"(?P<other>{SIZE}),\s+max\s+allowed:\s+(?P<limit>{SIZE})\)\.\s+Tried\s+to\s+allocate\s+(?P<asked>{SIZE})"
    ),
)
def mps(found: Match, passage: Passage) -> Parsed:
    """PyTorch on Apple GPUs: one budget for all, set by a high watermark."""
    live, other = amount(found["live"]), amount(found["other"])
    return OomMessage(
        dialect="pytorch-mps",
        wording="allowed",
        asked=amount(found["asked"]),
        live=plus(live, other) or live,
        limit=amount(found["limit"]),
    )


_ASYNC_FIGURES = re.compile(
    # A program in another language prints it on one line.
    rf"[^\n]{{0,200}}?(?:\n[^\n]{{0,200}}?)?Currently\s+allocated\s*:\s+(?P<live>{SIZE})\s+Requested\s*:\s+(?P<asked>{SIZE})"
    rf"(?:\s+Device\s+limit\s*:\s+(?P<total>{SIZE}))?(?:\s+Free\s+\(according\s+to\s+CUDA\)\s*:\s+(?P<free>{SIZE}))?"
    rf"(?:\s+PyTorch\s+limit\s+\([^)\n]*\)\s*:\s+(?P<limit>{SIZE}))?"
)


@dialect(
    "pytorch",
    needles=(b"Allocation on device",),
    start=re.compile(
        r"(?:OutOfMemoryError:|Exception\s+Message:\W*)\s+Allocation\s+on\s+device\b(?:\s+(?P<named>\d+)\b)?"
        r"|Allocation\s+on\s+device\s+(?P<gpu>\d+)\s+would\s+exceed\s+allowed\s+memory"
    ),
)
def driver_pool(found: Match, passage: Passage) -> Parsed:
    """PyTorch with the driver's own pool (backend:cudaMallocAsync): one figure a line.

    What the pool keeps unused is not printed. A limit that was not set is printed as 2^64 bytes. ComfyUI,
    which switches this backend on by itself, prints the first words alone.
    """
    number = found["named"] or found["gpu"]
    printed = _ASYNC_FIGURES.match(passage.text, found.end())
    figures = {name: amount(words) for name, words in printed.groupdict().items()} if printed else {}
    reading = OomMessage(
        dialect="pytorch",
        wording="cudaMallocAsync",
        gpu=int(number) if number else None,
        asked=figures.get("asked"),
        total=figures.get("total"),
        free=figures.get("free"),
        live=figures.get("live"),
        limit=_limit_that_binds(figures.get("limit"), figures.get("total")),
        signs=("driver-pool",),
    )
    return reading, printed.end() if printed else found.end()


def _limit_that_binds(limit: Amount | None, total: Amount | None) -> Amount | None:
    """A limit that binds: below what the GPU has."""
    return limit if limit and total and limit.nbytes < total.nbytes else None


_MAX_MESSAGE_LENGTH = 3000
_MAX_LEAD_LENGTH = 600
# No terminal is narrower or wider: other lines were not broken at its edge.
_NARROWEST, _WIDEST = 20, 400
# What the last figure of each generation is called: a line that has it was not broken before.
_LAST_FIGURES = ("unallocated", "reserved in total", "cached)")
_OTHERS = re.compile(rf"Process\s+(\d+)\s+has\s+({SIZE})\s+memory\s+in\s+use")
_END = re.compile(
    r"environment-variables\)|PYTORCH_(?:CUDA_|HIP_)?ALLOC_CONF\b[^\n]{0,80}|unoccupied cached memory\."
)
# By figure: a word without which it is not there, and how it is printed since 2.1 and before. A pattern that
# begins with letters is found much faster than one that begins with a number.
_FIELDS = {
    name: (word, tuple(map(re.compile, patterns)))
    for name, word, *patterns in (
        ("asked", "Tried", rf"Tried\s+to\s+allocate\s+({SIZE})"),
        ("total", "capac", rf"total\s+capaci?ty\s+of\s+({SIZE})", rf"({SIZE})\s+total\s+capacity"),
        ("free", "free", rf"of\s+which\s+({SIZE})\s+is\s+free", rf"({SIZE})\s+free[;)]"),
        ("process", "this", rf"this\s+process\s+has\s+({SIZE})\s+memory\s+in\s+use"),
        ("limit", "allowed;", rf"({SIZE})\s+allowed;"),
        (
            *("live", "allocated"),
            *(rf"memory\s+({SIZE})\s+is\s+allocated\s+by\s+PyTorch", rf"({SIZE})\s+already\s+allocated"),
        ),
        ("pooled", "pools", rf"with\s+({SIZE})\s+allocated\s+in\s+private\s+pools"),
        ("idle", "unallocated", rf"and\s+({SIZE})\s+is\s+reserved\s+by\s+PyTorch\s+but\s+unallocated"),
        ("reserved", "total", rf"({SIZE})\s+reserved\s+in\s+total"),
        ("cached", "cached)", rf"({SIZE})\s+cached\)"),
    )
}
_EXPANDABLE = re.compile(r"PYTORCH_(?:CUDA_|HIP_)?ALLOC_CONF\s*=\s*\S*expandable_segments:True")
_NEXT = re.compile(
    rf"Tried\s+to\s+allocate\s+(?:{SIZE}|more\s+than\s+1EB)(?!\s+on\s+(?:private|shared)\s+pool)"
)
_GPU = re.compile(r"GPU\s+(\d+)(?:;|\s+has\s)")


@dialect(
    "pytorch",
    needles=(b"Tried to allocate", b"total capac", b"already allocated;", b"by PyTorch"),
    start=re.compile(
        rf"Tried\s+to\s+allocate\s+(?:{SIZE}|more\s+than\s+1EB)(?!\s+on\s+(?:private|shared)\s+pool)"
        r"|total\s+capaci?ty[;\s]|already\s+allocated;|(?:reserved|allocated)\s+(?:in\s+total\s+)?by\s+PyTorch"
    ),
)
def allocator(found: Match, passage: Passage) -> Parsed:
    """PyTorch's allocator on CUDA, ROCm and Intel GPUs: every wording from 0.4 to today.

    Up to 2.0 the figures are in parentheses ("already allocated", "cached" and later "reserved in
    total"); since 2.1 they are sentences that also name the processes on the GPU. Whole cached blocks
    have been returned to the driver before either is printed: what is left as idle lies between live tensors.
    """
    # A message that is cut at its front is met at its first figure: its line has the rest.
    text = passage.text
    begin = max(text.rfind("\n", 0, found.start()) + 1, found.start() - _MAX_LEAD_LENGTH)
    body = text[begin : begin + _MAX_MESSAGE_LENGTH]
    cut = _NEXT.search(body, found.end() - begin + 1)
    as_printed = body[: cut.start()] if cut else body
    unwrapped, width, breaks = _unwrap(as_printed)
    body = max(as_printed, unwrapped, key=_count_figures) if breaks else as_printed
    if (
        "PyTorch" not in body
        and not body[found.start() - begin :].startswith("Tried")
        and "capac" not in body
    ):
        return None
    matches = {name: _find_field(name, body) for name in _FIELDS}
    figures = {name: amount(match.group(1)) if match else None for name, match in matches.items()}
    gpu = _GPU.search(body)
    ends = [match.end() for match in (*matches.values(), _END.search(body)) if match]
    reading = OomMessage(
        dialect="pytorch",
        wording=_name_wording(body),
        gpu=int(gpu.group(1)) if gpu else None,
        others=_read_others(body),
        signs=_read_signs(body, passage.before),
    )
    reading = replace(reading, **_normalize(figures, "more than 1EB" in " ".join(body.split())))
    end = max(ends, default=found.end() - begin)
    return reading, begin + end + (min(breaks, end // width) if breaks and body is unwrapped else 0)


def _unwrap(body: str) -> tuple[str, int, int]:
    """Join lines that the edge of a terminal broke, words and all; how long they are, and how many breaks."""
    lines = body.split("\n")
    width = len(lines[0])
    if not _NARROWEST <= width <= _WIDEST or any(word in lines[0] for word in _LAST_FIGURES):
        return body, width, 0
    breaks = next((at for at, line in enumerate(lines) if len(line) != width), len(lines) - 1)
    if breaks == 0 or len(lines[breaks]) > width:
        return body, width, 0
    whole = "".join(lines[: breaks + 1])
    return "\n".join((whole, *lines[breaks + 1 :])), width, breaks


def _count_figures(body: str) -> int:
    patterns = [pattern for _, each in _FIELDS.values() for pattern in each]
    return sum(len(pattern.findall(body)) for pattern in (*patterns, _OTHERS))


def _find_field(name: str, body: str) -> Match | None:
    word, patterns = _FIELDS[name]
    if word not in body:
        return None
    return next(filter(None, (pattern.search(body) for pattern in patterns)), None)


def _normalize(figures: dict[str, Amount | None], endless: bool) -> dict[str, Amount | None]:
    """Bring both generations to one set of figures, with live, idle and pooled memory apart."""
    reserved, cached = figures.pop("reserved"), figures.pop("cached")
    live, pooled = figures["live"], figures["pooled"]
    figures["idle"] = minus(reserved, live) or figures["idle"] or cached
    if figures["process"] and not figures["process"].nbytes and live and live.nbytes:
        figures["process"] = None  # NVML had no figure, and PyTorch printed it as 0 bytes
    if pooled and live:  # "allocated by PyTorch, with ... in private pools": the pools are part of it
        figures["live"] = minus(live, pooled)
    if endless:
        figures["asked"] = Amount(1 << 60)
    return figures


def _read_others(body: str) -> tuple[NamedProcess, ...] | None:
    """The processes beside this one; None where the wording lists none at all."""
    shares = tuple(NamedProcess(int(pid), amount(nbytes)) for pid, nbytes in _OTHERS.findall(body))
    return shares if shares or _find_field("process", body) else None


def _name_wording(body: str) -> str:
    words = " ".join(body.split())
    for word, version in (("cached)", "0.4-1.3"), ("reserved in total", "1.4-2.0"), ("capacty", "2.1")):
        if word in words:
            return version
    return "2.1 and later" if re.search(r"total\s+capacity\s+of|by\s+PyTorch", body) else "cut short"


def _read_signs(body: str, before: str) -> tuple[str, ...]:
    near = before[-300:] + body
    names = {"hip": "HIP out of memory", "xpu": "XPU out of memory"}
    signs = [sign for sign, words in names.items() if words in near]
    if "PYTORCH_ALLOC_CONF" in body:
        signs.append("alloc-conf")
    # As it was set, not as every message advises.
    set_before = (
        each for each in _EXPANDABLE.finditer(before) if not before.endswith("try setting ", 0, each.start())
    )
    return (*signs, *(("expandable",) if any(set_before) else ()))


@dialect(
    "triton",
    needles=(b"f resource",),
    start=re.compile(
        r"out\s+of\s+resource:\s+(?P<what>shared\s+memory|tensor\s+memory|registers),?\s+Required:\s+(?P<asked>\d+),\s+"
        r"Hardware\s+limit:\s+(?P<limit>\d+)"
    ),
)
def triton(found: Match, passage: Passage) -> Parsed:
    """Triton kernels: the memory that ran out is on the chip, a few hundred kilobytes per block."""
    return OomMessage(
        dialect="triton",
        wording=" ".join(found["what"].split()),
        where="on-chip",
        asked=amount(found["asked"]),
        limit=amount(found["limit"]),
    )
