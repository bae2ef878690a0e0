"""Days of a service within seconds; `python -m tests.serve.soak --days 30` is the whole promise."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from vram.units import MIB

ROOT = Path(__file__).parents[2]


def test_days_of_a_busy_machine_make_nothing_grow() -> None:
    """Memory, descriptors, the disk and the answers; in a process of its own, as a service is."""
    argv = [sys.executable, "-m", "tests.serve.soak", "--days", "6", "--interval", "600"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    days = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(days) == 6
    early, late = days[2], days[-1]
    assert late["rss_bytes"] - early["rss_bytes"] < 4 * MIB
    assert late["descriptors"] == early["descriptors"]
    assert late["disk_bytes"] < 64 * MIB
    assert late["readings"] > 6 * 130
    for path in ("/metrics", "/healthz", "/api/v1/why", "/api/v1/ps", "/api/v1/ghosts"):
        assert late["answers"][path] < 2 * early["answers"][path] + 2000, path
