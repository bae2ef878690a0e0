"""Memory is in use and no process is listed: a service that never called CUDA holds its descriptor.

    vram virtual -- python examples/no-process/handle_before.py

A program hands the descriptor of an allocation to a broker and crashes. Its context is gone, the
driver's list is empty, and the allocation stays as long as the broker has the descriptor open.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import vram

HERE = Path(__file__).parent


def handed_over_and_crashed(manners: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/broker"
        argv = [sys.executable, HERE / "broker.py", path, manners]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as broker:
            assert broker.stdout is not None
            try:
                broker.stdout.readline()
                subprocess.run([sys.executable, HERE / "maker.py", path])
                broker.stdout.readline()
                print("the maker is gone:", *held_by_others())
            finally:
                broker.kill()


def held_by_others() -> list[str]:
    """A line for each dead process whose memory is held, with its holder and the finding that explains it."""
    answer = vram.account()
    codes = {pid: finding.code for finding in answer.findings for pid in finding.pids}
    held = [
        f"{(hold.nbytes or 0) >> 20} MiB are left on the GPU, held by pid {hold.pid} ({codes.get(hold.pid)})"
        for hold in answer.ghosts
    ]
    return held or ["nothing is left on the GPU"]


if __name__ == "__main__":
    handed_over_and_crashed("keeps")
