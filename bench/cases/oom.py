"""Logs without a single message and logs of nothing but messages, beside `grep -c`.

`grep` looks for one pattern; vram for every wording of every framework, and counts lines. In a second log
every line sounds like a message and is none. In a third every line is one, of twenty different ones behind
timestamps, as a server writes them that fails for days; in a fourth no two are alike.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from bench.row import Row
from bench.timing import interleaved, program

MEGABYTES = 256
LINE = b"2026-11-15 05:00:01 INFO trainer step=%07d loss=2.1300 lr=1e-4 grad_norm=0.513 tokens/s=81234\n"
SOUNDING = b"2026-11-15 05:00:01 WARNING pool step=%07d failed to allocate ahead, nearly out of memory\n"
SOUNDING_LINES = 20_000
PATTERN = "out of memory"
# 200 MB/s; what starting Python costs is in it.
WHOLE_S = MEGABYTES * 1.048576 / 200
SOUNDING_S = SOUNDING_LINES * 0.0002
PEAK_BYTES = 40 * 1024**2
FAILING_MEGABYTES = 64
FAILING = (
    b"2026-11-15 05:%02d:%02d ERROR torch.OutOfMemoryError: CUDA out of memory. Tried to allocate %d.00 MiB."
    b" GPU 0 has a total capacity of 79.15 GiB of which 228.38 MiB is free. Including non-PyTorch memory,"
    b" this process has 78.93 GiB memory in use. Of the allocated memory 76.28 GiB is allocated by PyTorch,"
    b" and 2.14 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try"
    b" setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation"
    b" for Memory Management  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)\n"
)
DIFFERENT = 20
UNLIKE_MEGABYTES = 2
MAX_TIMES_LINES = 9.0
# 20 MB/s; what starting Python costs is in it.
FAILING_S = FAILING_MEGABYTES * 1.048576 / 20


def run(turns: int) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "train.log"
        _write(log)
        commands = {"vram": [program("vram") or "vram", "oom", str(log)]}
        if grep := program("grep"):
            commands["grep -c"] = [grep, "-c", PATTERN, str(log)]
        # Both say by their status that there is none: 9 and 1.
        samples = interleaved(commands, turns=min(turns, 5), accepted=(1, 9))
        sounding = Path(folder) / "sounding.log"
        sounding.write_bytes(b"".join(SOUNDING % number for number in range(SOUNDING_LINES)))
        nothing = {"vram": [program("vram") or "vram", "oom", str(sounding)]}
        alike = interleaved(nothing, turns=min(turns, 5), accepted=(9,))["vram"]
        failing = {
            "repeated": _failing(Path(folder) / "repeated.log", FAILING_MEGABYTES, DIFFERENT),
            "different": _failing(Path(folder) / "different.log", UNLIKE_MEGABYTES, 10**9),
        }
        reading = {name: [program("vram") or "vram", "oom", str(path)] for name, path in failing.items()}
        lines = [sys.executable, "-c", COUNT_LINES, str(failing["repeated"])]
        failures = interleaved({**reading, "lines": lines}, turns=min(turns, 5))
    ours, theirs = samples["vram"], samples.get("grep -c")
    what = f"vram oom, {MEGABYTES} MiB of log"
    sounds = f"vram oom, {SOUNDING_LINES:,} lines that only sound like it"
    messages = f"vram oom, {FAILING_MEGABYTES} MiB of nothing but messages"
    return [
        Row(what, ours.median_s, "s", target=WHOLE_S),
        Row(what, ours.median_s, "s", "grep -c", theirs.median_s if theirs else None),
        Row(f"{what}, peak memory", ours.peak_rss_bytes, "bytes", target=PEAK_BYTES),
        Row(sounds, alike.median_s, "s", target=SOUNDING_S),
        Row(f"{messages}, repeated", failures["repeated"].median_s, "s", target=FAILING_S),
        Row(
            *(f"{messages}, repeated", failures["repeated"].median_s, "s"),
            *("lines in Python, split into words", failures["lines"].median_s, MAX_TIMES_LINES),
        ),
        Row(f"{messages}, peak memory", failures["repeated"].peak_rss_bytes, "bytes", target=PEAK_BYTES),
        Row(f"vram oom, {UNLIKE_MEGABYTES} MiB of unlike messages", failures["different"].median_s, "s"),
    ]


def _write(path: Path) -> None:
    lines = b"".join(LINE % number for number in range(12_000))
    portion = lines[: 1 << 20]
    with path.open("wb") as log:
        for _ in range(MEGABYTES):
            log.write(portion)


# The least that a program in Python can do with a log: split it into lines, and those into words.
COUNT_LINES = """
import sys
words = 0
for line in open(sys.argv[1], "rb"):
    words += len(line.decode().split())
print(words)
"""


def _failing(path: Path, megabytes: int, different: int) -> Path:
    """Write a log of nothing but messages, of so many *different* ones."""
    most, size, number = megabytes << 20, 0, 0
    with path.open("wb") as log:
        while size < most:
            size += log.write(FAILING % (number // 60 % 60, number % 60, 300 + number % different))
            number += 1
    return path
