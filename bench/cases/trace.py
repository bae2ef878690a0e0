"""A trace of ten million events: its size, and how long and with how much memory it is read.

The trace is like that of a program with a caching allocator: eight threads, 500 stacks of 20 frames
(bench/trace_events.c). A second one has nothing but allocations that are never freed: the most that can be
live at once.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from bench.native import build
from bench.row import Row
from bench.timing import interleaved, program

EVENTS = 10_000_000
MAX_BYTES_AN_EVENT = 40
VIEW_S = 6.0
VIEW_BYTES = 1 << 30
REPORT_S = 10.0
REPORT_BYTES = 3 << 29
VIEW = """
import sys
from pathlib import Path
from vram.trace.reader import open_trace
open_trace([Path(sys.argv[1])]).view()
"""


def run(turns: int) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        write = build("trace_events", Path(folder))
        usual, leaking = Path(folder) / "usual.vram", Path(folder) / "leaking.vram"
        subprocess.run([write, usual, str(EVENTS)], check=True)
        subprocess.run([write, leaking, str(EVENTS), "leaking"], check=True)
        commands = {path.stem: [sys.executable, "-c", VIEW, str(path)] for path in (usual, leaking)}
        commands["report"] = [program("vram") or "vram", "report", str(usual)]
        samples = interleaved(commands, turns=min(turns, 3))
        return [
            Row(
                "trace of 10 million events: size",
                usual.stat().st_size,
                "bytes",
                target=EVENTS * MAX_BYTES_AN_EVENT,
                note=f"{usual.stat().st_size / EVENTS:.1f} bytes an event",
            ),
            Row("its view", samples["usual"].median_s, "s", target=VIEW_S),
            Row("its view: memory", samples["usual"].peak_rss_bytes, "bytes", target=VIEW_BYTES),
            Row("vram report of it", samples["report"].median_s, "s", target=REPORT_S),
            Row("vram report of it: memory", samples["report"].peak_rss_bytes, "bytes", target=REPORT_BYTES),
            Row(
                "10 million allocations, none freed: view", samples["leaking"].median_s, "s", target=REPORT_S
            ),
            Row("the same: memory", samples["leaking"].peak_rss_bytes, "bytes", target=VIEW_BYTES),
        ]
