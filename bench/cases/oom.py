"""A log without a single message, beside `grep -c`: how long it takes to learn that there is nothing.

`grep` looks for one pattern; vram for every wording of every framework, and counts lines. In a second log
every line sounds like a message and is none.
"""

from __future__ import annotations

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
    ours, theirs = samples["vram"], samples.get("grep -c")
    what = f"vram oom, {MEGABYTES} MiB of log"
    lines = f"vram oom, {SOUNDING_LINES:,} lines that only sound like it"
    return [
        Row(what, ours.median_s, "s", target=WHOLE_S),
        Row(what, ours.median_s, "s", "grep -c", theirs.median_s if theirs else None),
        Row(f"{what}, peak memory", ours.peak_rss_bytes, "bytes", target=PEAK_BYTES),
        Row(lines, alike.median_s, "s", target=SOUNDING_S),
    ]


def _write(path: Path) -> None:
    lines = b"".join(LINE % number for number in range(12_000))
    portion = lines[: 1 << 20]
    with path.open("wb") as log:
        for _ in range(MEGABYTES):
            log.write(portion)
