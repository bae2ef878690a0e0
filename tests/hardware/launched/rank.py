"""One rank or worker: takes 2 GiB of GPU 0 with PyTorch, writes its pid into the folder, and waits."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

NBYTES = 2 << 30


def work(folder: str, name: str) -> None:
    import torch

    kept = torch.zeros(NBYTES, dtype=torch.uint8, device="cuda:0")
    torch.cuda.synchronize()
    (Path(folder) / f"{name}.new").write_text(str(os.getpid()))
    (Path(folder) / f"{name}.new").rename(Path(folder) / f"{name}.pid")
    while Path(folder).exists():  # the test ends it; where that failed, the end of its folder does
        time.sleep(0.2)
    del kept


if __name__ == "__main__":
    work(sys.argv[1], os.environ["RANK"])
