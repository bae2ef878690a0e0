"""What `vram why` says is kept by somebody whom the driver's process list does not name."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any


def kept() -> list[str]:
    """A line for each holder, with the finding that explains it."""
    done = subprocess.run(
        [sys.executable, "-m", "vram", "why", "--json"], stdout=subprocess.PIPE, check=True, text=True
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    codes = {pid: finding["code"] for finding in answer["findings"] for pid in finding["pids"]}
    entries = [entry for gpu in answer["gpus"] for entry in gpu["entries"]]
    ghosts = [entry for entry in entries if entry["kind"] in ("orphaned", "exported")]
    return [_line(entry, codes) for entry in ghosts] or ["nothing is left on the GPU"]


def _line(entry: dict[str, Any], codes: dict[int, str]) -> str:
    pid = entry["holder"]["pid"]
    return f"{entry['nbytes'] >> 20} MiB are left on the GPU, held by pid {pid} ({codes.get(pid)})"
