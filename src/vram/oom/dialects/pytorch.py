"""PyTorch's allocator on CUDA, ROCm and Intel GPUs: every wording from 0.4 to today.

Up to 2.0 the figures stand in parentheses ("already allocated", "cached" and later "reserved in
total"); since 2.1 they are sentences that also name the processes on the GPU. Whole cached blocks
have been given back before either is printed, so what is left as idle lies between live tensors.
"""

from __future__ import annotations

import re

from msgspec.structs import replace

from vram.model.oom import Amount, NamedProcess, Reading
from vram.oom.sizes import SIZE, amount

NAME = "pytorch"
NEEDLES: tuple[bytes, ...] = (b"Tried to allocate", b"total capac", b"already allocated;", b"by PyTorch")
START = re.compile(
    rf"Tried\s+to\s+allocate\s+(?:{SIZE}|more\s+than\s+1EB)(?!\s+on\s+(?:private|shared)\s+pool)"
    r"|total\s+capaci?ty[;\s]|already\s+allocated;|(?:reserved|allocated)\s+(?:in\s+total\s+)?by\s+PyTorch"
)
MOST = 3000
LEAD = 600
# No terminal is narrower or wider: other lines were not broken at its edge.
NARROWEST, WIDEST = 20, 400
# What the last figure of each generation is called: a line that has it was not broken before.
LAST = ("unallocated", "reserved in total", "cached)")

_OTHERS = re.compile(rf"Process\s+(\d+)\s+has\s+({SIZE})\s+memory\s+in\s+use")
_END = re.compile(
    r"environment-variables\)|PYTORCH_(?:CUDA_|HIP_)?ALLOC_CONF\b[^\n]{0,80}|unoccupied cached memory\."
)
_FIELDS = {
    "asked": rf"Tried\s+to\s+allocate\s+({SIZE})",
    "total": rf"(?:total\s+capaci?ty\s+of\s+({SIZE})|({SIZE})\s+total\s+capacity)",
    "free": rf"(?:of\s+which\s+({SIZE})\s+is\s+free|({SIZE})\s+free[;)])",
    "process": rf"this\s+process\s+has\s+({SIZE})\s+memory\s+in\s+use",
    "limit": rf"({SIZE})\s+allowed;",
    "live": rf"(?:({SIZE})\s+already\s+allocated|memory\s+({SIZE})\s+is\s+allocated\s+by\s+PyTorch)",
    "pooled": rf"with\s+({SIZE})\s+allocated\s+in\s+private\s+pools",
    "idle": rf"and\s+({SIZE})\s+is\s+reserved\s+by\s+PyTorch\s+but\s+unallocated",
    "reserved": rf"({SIZE})\s+reserved\s+in\s+total",
    "cached": rf"({SIZE})\s+cached\)",
}
_PATTERNS = {name: re.compile(pattern) for name, pattern in _FIELDS.items()}
# As it was set, not as every message advises.
_EXPANDABLE = re.compile(
    r"(?<!try setting )PYTORCH_(?:CUDA_|HIP_)?ALLOC_CONF\s*=\s*\S*expandable_segments:True"
)
_GPU = re.compile(r"GPU\s+(\d+)(?:;|\s+has\s)")


def read(found: re.Match[str], text: str, before: str) -> tuple[Reading, int] | None:
    # A message that is cut at its front is met at its first figure: its line has the rest.
    begin = max(text.rfind("\n", 0, found.start()) + 1, found.start() - LEAD)
    body = text[begin : begin + MOST]
    cut = START.search(body, found.end() - begin + 1)
    while cut and not body[cut.start() :].startswith("Tried"):
        cut = START.search(body, cut.end())
    as_it_stands = body[: cut.start()] if cut else body
    mended, width, breaks = _mended(as_it_stands)
    body = max(as_it_stands, mended, key=_told) if breaks else as_it_stands
    if (
        "PyTorch" not in body
        and not body[found.start() - begin :].startswith("Tried")
        and "capac" not in body
    ):
        return None
    matches = {name: pattern.search(body) for name, pattern in _PATTERNS.items()}
    figures = {name: _figure(match) for name, match in matches.items()}
    gpu = _GPU.search(body)
    ends = [match.end() for match in (*matches.values(), _END.search(body)) if match]
    reading = Reading(
        dialect=NAME,
        wording=_wording(body),
        gpu=int(gpu.group(1)) if gpu else None,
        others=_others(body),
        signs=_signs(body, before),
    )
    reading = replace(reading, **_settled(figures, "more than 1EB" in " ".join(body.split())))
    end = max(ends, default=found.end() - begin)
    return reading, begin + end + (min(breaks, end // width) if breaks and body is mended else 0)


def _mended(body: str) -> tuple[str, int, int]:
    """Join lines that the edge of a terminal broke, words and all; how long they are, and how many breaks."""
    lines = body.split("\n")
    width = len(lines[0])
    if not NARROWEST <= width <= WIDEST or any(word in lines[0] for word in LAST):
        return body, width, 0
    breaks = next((at for at, line in enumerate(lines) if len(line) != width), len(lines) - 1)
    if breaks == 0 or len(lines[breaks]) > width:
        return body, width, 0
    whole = "".join(lines[: breaks + 1])
    return "\n".join((whole, *lines[breaks + 1 :])), width, breaks


def _told(body: str) -> int:
    return sum(len(pattern.findall(body)) for pattern in (*_PATTERNS.values(), _OTHERS))


def _figure(found: re.Match[str] | None) -> Amount | None:
    return amount(next(filter(None, found.groups()))) if found else None


def _settled(figures: dict[str, Amount | None], endless: bool) -> dict[str, Amount | None]:
    """Bring both generations to one set: what is live, idle and pooled apart from each other."""
    reserved, cached = figures.pop("reserved"), figures.pop("cached")
    live, pooled = figures["live"], figures["pooled"]
    if reserved and live:
        figures["idle"] = Amount(max(0, reserved.nbytes - live.nbytes), reserved.slack + live.slack)
    figures["idle"] = figures["idle"] or cached
    if pooled and live:  # "allocated by PyTorch, with ... in private pools": the pools are part of it
        figures["live"] = Amount(max(0, live.nbytes - pooled.nbytes), live.slack + pooled.slack)
    if endless:
        figures["asked"] = Amount(1 << 60)
    return figures


def _others(body: str) -> tuple[NamedProcess, ...] | None:
    """The processes beside this one; None where the wording lists none at all."""
    shares = tuple(NamedProcess(int(pid), amount(nbytes)) for pid, nbytes in _OTHERS.findall(body))
    return shares if shares or _PATTERNS["process"].search(body) else None


def _wording(body: str) -> str:
    for word, version in (("cached)", "0.4-1.3"), ("reserved in total", "1.4-2.0"), ("capacty", "2.1")):
        if word in " ".join(body.split()):
            return version
    return "2.1 and later" if re.search(r"total\s+capacity\s+of|by\s+PyTorch", body) else "cut short"


def _signs(body: str, before: str) -> tuple[str, ...]:
    near = before[-300:] + body
    names = {"hip": "HIP out of memory", "xpu": "XPU out of memory"}
    signs = [sign for sign, words in names.items() if words in near]
    if "PYTORCH_ALLOC_CONF" in body:
        signs.append("alloc-conf")
    return (*signs, *(("expandable",) if "ALLOC_CONF" in before and _EXPANDABLE.search(before) else ()))
