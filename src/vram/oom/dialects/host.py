"""Host memory: the kernel's OOM killer, job schedulers, and allocators of the CPU side."""

from __future__ import annotations

import re

from vram.model.oom import Amount, OomMessage
from vram.oom.dialects import SIZE, Match, Parsed, amount, dialect
from vram.oom.passage import Passage

_RSS = re.compile(r"anon-rss:(\d+)kB")
# By the group of the pattern that is there.
_WORDINGS = {
    "killer": "kernel",
    "slurm": "slurm",
    "srun": "srun",
    "systemd": "systemd",
    "ray": "ray",
    "kube": "kubernetes",
    "worker": "worker",
    "cpu": "cpu allocator",
    "cpu2": "cpu allocator",
    "numpy": "numpy",
    "shape": "numpy",
    "array": "numpy",
    "python": "python",
    "native": "bad_alloc",
    "pin": "pinned",
    "shell": "shell",
}


@dialect(
    "host",
    needles=(
        b"Killed",
        b"killed by",
        b"Kill process",
        b"oom-kill",
        b"oom_kill",
        b"emory limit",
        b"Out Of Memory",
        b"low on memory",
        b"CPUAllocator",
        b"Unable to allocate",
        b"MemoryError",
        b"std::bad_alloc",
        b"HostAlloc",
        b"MallocHost",
        b"HostRegister",
        b"AllocHost",
    ),
    start=re.compile(
        r"(?P<killer>Out\s+of\s+memory:\s+Kill(?:ed)?\s+process|Memory\s+cgroup\s+out\s+of\s+memory:?\s+Kill(?:ed)?\s+process"
        r"|Killed\s+process\s+\d+\s+\()(?P<victim>[^\n]*)"
        r"|(?P<slurm>slurmstepd:[^\n]*oom[-_]kill|oom[-_]kill\s+event"
        r"|slurmstepd:[^\n]{0,80}?xceeded\s+(?:job\s+|step\s+)?memory\s+limit)[^\n]*"
        r"|(?P<srun>srun:\s+error:[^\n]{0,80}?Out\s+Of\s+Memory)"
        r"|(?P<systemd>of\s+this\s+unit\s+has\s+been\s+killed\s+by\s+the\s+OOM\s+killer)"
        r"|(?P<ray>killed\s+due\s+to\s+the\s+node\s+running\s+low\s+on\s+memory)"
        r"|(?P<kube>OOMKilled)\b"
        r"|(?P<worker>DataLoader\s+worker\s+\(pid(?:\(s\))?\s+[\d,\s]+\)\s+is\s+killed\s+by\s+signal:\s+"
        r"(?P<signal>Killed|Bus\s+error))"
        rf"|DefaultCPUAllocator:[^\n]*?(?:can't|not\s+enough)\s+[^\n]*?(?:allocate\s+(?P<cpu>[\d,]+)\s+bytes|memory:\s+you\s+tried\s+to\s+allocate\s+(?P<cpu2>[\d,]+)\s+bytes)"
        rf"|Unable\s+to\s+allocate\s+(?:(?P<numpy>{SIZE})\s+for\s+an\s+)?array\s+with\s+shape\s+"
        r"(?P<shape>\([\d,\s]*\))\s+and\s+data\s+type\s+(?P<type>[<>|]?\w+)"
        rf"|Unable\s+to\s+allocate\s+(?P<array>{SIZE})\s+for\s+an\s+array"
        r"|^(?P<python>MemoryError)(?::\s*)?$"
        r"|(?:^|instance\s+of\s+'|what\(\):\s+|MemoryError:\s+|RuntimeError:\s+)(?P<native>std::bad_alloc)'?\s*$"
        r"|(?P<shell>(?:line\s+\d+:|^)\s*\d+\s+Killed\s[^\n]*|^Killed\s*$)"
        r"|(?P<pin>cudaHostAlloc|cudaMallocHost|cuMemHostAlloc|cuMemAllocHost|cudaHostRegister|cuMemHostRegister)"
        r"[^\n]{0,80}?(?:out\s+of\s+memory|OUT_OF_MEMORY|cudaErrorMemoryAllocation|failed)",
        re.MULTILINE,
    ),
)
def host(found: Match, passage: Passage) -> Parsed:
    """Host memory: the kernel's killer, job schedulers, and allocators of the CPU side."""
    wording = next((name for group, name in _WORDINGS.items() if found[group]), "host")
    rss = _RSS.search(passage.text[found.start() : found.end() + 400])
    asked = amount(found["cpu"] or found["cpu2"]) or amount(found["numpy"] or found["array"])
    if found["shape"] and not asked:
        asked = _compute_nbytes(found["shape"], found["type"])
    bus = found["signal"] and found["signal"].startswith("Bus")
    return OomMessage(
        dialect="host",
        wording=wording,
        where="pinned" if found["pin"] else "host",
        asked=asked,
        live=amount(f"{rss.group(1)} KiB") if rss and wording == "kernel" else None,
        signs=("shared-memory",) if bus else _read_signs(wording, found),
    )


_KILLED = ("kernel", "slurm", "srun", "systemd", "ray", "kubernetes", "worker", "shell")
_BOUNDED = ("slurm", "srun", "kubernetes")


def _read_signs(wording: str, found: Match) -> tuple[str, ...]:
    """A container or a job can reach its own limit while the machine has memory left."""
    if wording not in _KILLED:
        return ()
    bounded = wording in _BOUNDED or (found["killer"] or "").startswith("Memory")
    return ("killed", "bounded") if bounded else ("killed",)


# numpy's names end with the number of bits, its short codes with the number of bytes.
_BITS = re.compile(r"(?:int|float|complex|uint)(\d+)$|[<>|]?[fiuc](\d+)$")


def _compute_nbytes(shape: str, kind: str) -> Amount | None:
    """The size of an array that numpy before 1.18 described by its shape alone."""
    width = _BITS.match(kind)
    if width is None:
        return None
    nbytes = int(width.group(1)) // 8 if width.group(1) else int(width.group(2))
    for side in re.findall(r"\d+", shape):
        nbytes *= int(side)
    return amount(str(nbytes))
