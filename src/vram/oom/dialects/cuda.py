"""CUDA's own words, from whichever program passes them on: they carry no figures.

Their line, and less surely the frames of their traceback, often tell what was being made: a context,
pinned memory, a library's handle.
"""

from __future__ import annotations

import re

from vram.model.oom import Reading, Where
from vram.oom.frames import frames
from vram.oom.sizes import SIZE, amount

NAME = "cuda"
NEEDLES: tuple[bytes, ...] = (b"ut of memory", b"OF_MEMORY", b"MemoryAllocation", b"OutOfMemory")
_CALL = r"\s+failed[:\s]+(?:cudaErrorMemoryAllocation:\s+)?out\s+of\s+memory"
_WORDS = r"[^\n]{0,60}?(?:[Ee]rror|[Ff]ail\w*|:)[^\n]{0,20}?'?out\s+of\s+memory'?"
# Each alternative begins with a letter that is itself: so most of a text is passed over at once.
START = re.compile(
    rf"parallel_for{_CALL}|get_temporary_buffer{_CALL}"
    r"|CUDA(?:_|\s)(?:runtime\s+)?[Ee]rror(?:\s*\(2\))?\s*:?\s+out\s+of\s+memory"
    r"|cuda\s+runtime\s+error\s+\(2\)\s*:\s+out\s+of\s+memory"
    r"|CUDA_ERROR_OUT_OF_MEMORY(?:\s*\(?2\)?)?(?::\s+out\s+of\s+memory)?"
    # PyTorch 2.9 and later tell where to look the error's name up: that is no second error.
    r"|(?<!Search for `)cudaErrorMemoryAllocation(?:\s+\(error\s+2\))?(?:[:\s]+out\s+of\s+memory)?"
    r"|(?<!Search for `)hipErrorOutOfMemory|HIP\s+error:\s+out\s+of\s+memory"
    r"|CUDA\s+out\s+of\s+memory|HIP\s+out\s+of\s+memory|XPU\s+out\s+of\s+memory"
    r"|Error\s+out\s+of\s+memory\s+at\s+line\s+\d+\s+in\s+file"
    r"|GPUassert:\s+out\s+of\s+memory"
    rf"|C(?:UDA|uda){_WORDS}|cuda{_WORDS}"
    r"|cudaMalloc\w*\s*(?:\(\))?\s*(?:failed|returned)[^\n]{0,40}?out\s+of\s+memory"
)
_MORE = re.compile(r"\W{0,8}Tried\s+to\s+allocate")
# As a call or a frame: as an option of a data loader it tells nothing.
_PINNED = re.compile(
    r"\bpin_memory(?:\(|\.py\b)|\bin pin_memory$|pin memory thread"
    r"|HostAlloc|MallocHost|CachingHostAllocator|MemHostRegister",
    re.MULTILINE,
)
_CONTEXT = re.compile(
    r"_cuda_init|_lazy_init|cuCtxCreate|PrimaryCtxRetain|cuInit|cudaSetDevice|make_context|cublasCreate|cudnnCreate"
    r"|set_device|ncclCommInit|runtime implicit initialization"
)
_POOL = re.compile(r"MemPool|cudaMallocAsync|cuMemAllocAsync|MallocFromPoolAsync")
_FREE = re.compile(rf"[Ff]ree\s+memory:?\s+({SIZE}|\d+)")
_WANTED = re.compile(rf"(?:[Rr]equested(?:\s+memory)?:?|tried to allocate|allocating)\s+({SIZE}|\d{{5,}})")


def read(found: re.Match[str], text: str, before: str) -> tuple[Reading, int] | None:
    if _MORE.match(text, found.end()):
        return None  # a wrapped message of PyTorch, which goes on in the next line
    begin = text.rfind("\n", 0, found.start()) + 1
    line = text[begin : found.end()] + text[found.end() : found.end() + 300].partition("\n")[0]
    near = f"{frames(before)}\n{line}"
    pinned = _PINNED.search(near) is not None
    where: Where = "pinned" if pinned else "device"
    signs = [sign for sign, pattern in (("context", _CONTEXT), ("pool", _POOL)) if pattern.search(near)]
    if pinned and not _PINNED.search(line):
        signs.append("by-frames")
    free, wanted = _FREE.search(line), _WANTED.search(line)
    reading = Reading(
        dialect="bitsandbytes" if "bitsandbytes" in near else NAME,
        wording=" ".join(found.group().split())[:60],
        where=where,
        asked=amount(wanted.group(1)) if wanted else None,
        free=amount(free.group(1)) if free else None,
        signs=tuple(signs),
    )
    return reading, found.end()
