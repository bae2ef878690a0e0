"""llama.cpp, and Ollama, which is built on it."""

from __future__ import annotations

import re

from msgspec.structs import replace

from vram.model.oom import Amount, OomReading, Where
from vram.oom.dialects import Match, Parsed, dialect
from vram.oom.passage import Passage
from vram.oom.sizes import SIZE, amount

_FOLLOWS = re.compile(
    r"[^\n]*\n(?:[^\n]*failed to allocate \w+ buffer of size \d+[^\n]*\n?)?"
    r"(?:[^\n]*unable to allocate \w+ buffer[^\n]*\n?)?"
)
_BEGAN = re.compile(r"using\s+device\s+(?:CUDA|ROCm)(\d+)\s[^\n]*?-\s+(\d+)\s+MiB\s+free")
_CARD = re.compile(r"Device\s+(\d+):[^\n]*?VRAM:\s+(\d+)\s+MiB")
_BUFFER = re.compile(r"(?:CUDA|ROCm)(\d+)\s+(?:model|KV|compute|RS)?\s*buffer\s+size\s*=\s*([\d.]+)\s+MiB")


@dialect(
    "llama.cpp",
    needles=(
        b"Malloc failed",
        b"failed to allocate",
        b"unable to allocate",
        b"more system memory",
        b"too large for system",
        b"layout cannot be allocated",
        b"memory allocation of size",
        b"for kv cache",
    ),
    start=re.compile(
        r"allocating\s+(?P<asked>[\d.,]+\s+MiB)\s+on\s+device\s+(?P<gpu>\d+):\s+(?:cuda|hip)Malloc\s+failed:\s+"
        r"out\s+of\s+memory"
        r"|failed\s+to\s+allocate\s+(?P<backend>[A-Za-z]+)(?P<number>\d*)(?P<host>_Host)?\s+buffer"
        r"(?:\s+of\s+size\s+(?P<nbytes>\d+))?"
        r"|unable\s+to\s+allocate\s+(?:backend|(?P<named>[A-Za-z]+)(?P<at>\d+))\s+buffer"
        r"|failed\s+to\s+allocate\s+(?P<pinned>[\d.,]+\s+MiB)\s+of\s+pinned\s+memory"
        r"|failed\s+to\s+allocate\s+(?P<what>compute(?:\s+\w+)?\s+buffers?|buffer\s+for\s+(?:the\s+)?kv\s+cache)"
        r"|Device\s+memory\s+allocation\s+of\s+size\s+(?P<vulkan>\d+)\s+failed"
        r"|memory\s+(?P<layout>layout\s+cannot\s+be\s+allocated)(?:\s+with\s+num_gpu\s+=\s+\d+)?"
        rf"|model\s+request\s+too\s+large\s+for\s+system\"?\s+requested=\"?(?P<want>{SIZE})\"?\s+available=\"?(?P<left>{SIZE}|\d+)"
        rf"|requires\s+more\s+system\s+memory\s+\((?P<need>{SIZE})\)\s+than\s+is\s+available\s+\((?P<have>{SIZE})\)"
    ),
)
def llama_cpp(found: Match, passage: Passage) -> Parsed:
    """llama.cpp and what is built on it: a buffer that did not fit, and the buffers made before it."""
    if found["need"] or found["want"]:
        reading = OomReading(
            dialect="llama.cpp",
            wording="system memory",
            where="host",
            asked=amount(found["need"] or found["want"]),
            free=amount(found["have"] or found["left"]),
        )
        return reading, found.end()
    if found["layout"] or found["what"]:
        wording = "layout" if found["layout"] else "buffer"
        live, free, total = _history(_last_gpu(passage.before), passage.before)
        reading = OomReading(dialect="llama.cpp", wording=wording, live=live, free=free, total=total)
        return reading, found.end()
    backend = "Vulkan" if found["vulkan"] else found["backend"] or found["named"] or "CUDA"
    number = found["gpu"] or found["number"] or found["at"]
    asked = amount((found["asked"] or found["pinned"] or "").replace(",", ".")) or amount(
        found["nbytes"] or found["vulkan"]
    )
    where: Where = "pinned" if found["pinned"] or found["host"] else "host" if backend == "CPU" else "device"
    if backend not in ("CUDA", "ROCm", "CPU", "Vulkan", "Metal", "SYCL"):
        return None
    gpu = int(number) if number else None
    follows = _FOLLOWS.match(passage.text, found.end())
    reading = OomReading(
        dialect="llama.cpp",
        wording="buffer",
        where=where,
        gpu=gpu if where == "device" else None,
        asked=asked,
        signs=("hip",) if backend == "ROCm" or "hipMalloc" in found.group() else (),
    )
    if where == "device":
        live, free, total = _history(gpu, passage.before)
        reading = replace(reading, live=live, free=free, total=total)
    return reading, follows.end() if follows else found.end()


def _last_gpu(before: str) -> int | None:
    found = _BEGAN.findall(before)
    return int(found[-1][0]) if found else None


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
