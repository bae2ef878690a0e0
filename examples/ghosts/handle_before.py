"""Memory is in use and no process is listed: a service that never called CUDA holds its descriptor.

    vram virtual -- python examples/ghosts/handle_before.py

A program hands the descriptor of an allocation to a broker and crashes. Its context is gone, the
driver's list is empty, and the allocation stays as long as the broker has the descriptor open.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from account import kept

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
                print("the maker is gone:", *kept())
            finally:
                broker.kill()


if __name__ == "__main__":
    handed_over_and_crashed("keeps")
