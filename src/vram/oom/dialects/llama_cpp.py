"""llama.cpp and what is built on it: a buffer that did not fit, and the buffers made before it."""

from __future__ import annotations

import re

from msgspec.structs import replace

from vram.model.oom import Amount, Reading, Where
from vram.oom.sizes import SIZE, amount

NAME = "llama.cpp"
NEEDLES: tuple[bytes, ...] = (
    b"Malloc failed",
    b"failed to allocate",
    b"unable to allocate",
    b"more system memory",
)
START = re.compile(
    r"allocating\s+(?P<asked>[\d.,]+\s+MiB)\s+on\s+device\s+(?P<gpu>\d+):\s+(?:cuda|hip)Malloc\s+failed:\s+"
    r"out\s+of\s+memory"
    r"|failed\s+to\s+allocate\s+(?P<backend>[A-Za-z]+)(?P<number>\d*)(?P<host>_Host)?\s+buffer"
    r"(?:\s+of\s+size\s+(?P<nbytes>\d+))?"
    r"|unable\s+to\s+allocate\s+(?:backend|(?P<named>[A-Za-z]+)(?P<at>\d+))\s+buffer"
    r"|failed\s+to\s+allocate\s+(?P<pinned>[\d.,]+\s+MiB)\s+of\s+pinned\s+memory"
    rf"|requires\s+more\s+system\s+memory\s+\((?P<need>{SIZE})\)\s+than\s+is\s+available\s+\((?P<have>{SIZE})\)"
)
_FOLLOWS = re.compile(
    r"[^\n]*\n(?:[^\n]*failed to allocate \w+ buffer of size \d+[^\n]*\n?)?"
    r"(?:[^\n]*unable to allocate \w+ buffer[^\n]*\n?)?"
)
_BEGAN = re.compile(r"using\s+device\s+(?:CUDA|ROCm)(\d+)\s[^\n]*?-\s+(\d+)\s+MiB\s+free")
_CARD = re.compile(r"Device\s+(\d+):[^\n]*?VRAM:\s+(\d+)\s+MiB")
_BUFFER = re.compile(r"(?:CUDA|ROCm)(\d+)\s+(?:model|KV|compute|RS)?\s*buffer\s+size\s*=\s*([\d.]+)\s+MiB")


def read(found: re.Match[str], text: str, before: str) -> tuple[Reading, int] | None:
    if found["need"]:
        reading = Reading(
            dialect=NAME,
            wording="system memory",
            where="host",
            asked=amount(found["need"]),
            free=amount(found["have"]),
        )
        return reading, found.end()
    backend = found["backend"] or found["named"] or "CUDA"
    number = found["gpu"] or found["number"] or found["at"]
    asked = amount((found["asked"] or found["pinned"] or "").replace(",", ".")) or amount(found["nbytes"])
    where: Where = "pinned" if found["pinned"] or found["host"] else "host" if backend == "CPU" else "device"
    if backend not in ("CUDA", "ROCm", "CPU", "Vulkan", "Metal", "SYCL"):
        return None
    gpu = int(number) if number else None
    follows = _FOLLOWS.match(text, found.end())
    reading = Reading(
        dialect=NAME,
        wording="buffer",
        where=where,
        gpu=gpu if where == "device" else None,
        asked=asked,
        signs=("hip",) if backend == "ROCm" or "hipMalloc" in found.group() else (),
    )
    if where == "device":
        live, free, total = _history(gpu, before)
        reading = replace(reading, live=live, free=free, total=total)
    return reading, follows.end() if follows else found.end()


def _history(gpu: int | None, before: str) -> tuple[Amount | None, Amount | None, Amount | None]:
    """What it took, what is left of what was free at the start, and how large the card is."""
    began = [int(free) for number, free in _BEGAN.findall(before) if int(number) == gpu]
    cards = [int(total) for number, total in _CARD.findall(before) if int(number) == gpu]
    taken = [size for number, size in _BUFFER.findall(before) if int(number) == gpu]
    buffers = [each for each in (amount(size, "MiB") for size in taken) if each]
    live = (
        Amount(sum(each.nbytes for each in buffers), sum(each.slack for each in buffers)) if buffers else None
    )
    free = amount(str(began[-1]), "MiB") if began else None
    if free and live:
        free = Amount(max(0, free.nbytes - live.nbytes), free.slack + live.slack)
    total = amount(str(cards[-1]), "MiB") if cards else None
    return live, free, total
