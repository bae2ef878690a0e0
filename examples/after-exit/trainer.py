"""A training program: it uses the GPU, and starts a worker that loads its batches.

    python trainer.py fork|spawn

Prints the worker's pid, and trains until somebody ends it.
"""

from __future__ import annotations

import multiprocessing
import sys
import time

import vram


def load_batches() -> None:
    while True:
        time.sleep(1)


def main() -> None:
    weights = vram.Buffer("1GiB")
    worker = multiprocessing.get_context(sys.argv[1]).Process(target=load_batches)
    worker.start()
    print(worker.pid, flush=True)
    while weights.nbytes:
        time.sleep(1)


if __name__ == "__main__":
    main()
