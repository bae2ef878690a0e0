"""Starts two workers by Python's multiprocessing, in one of its three ways: spawn, forkserver or fork.

    pool.py WAY SOCKET

They know nothing of their own end: the program that started them would have to say so.
"""

from __future__ import annotations

import multiprocessing
import os
import sys

import worker


def main() -> None:
    way, address = sys.argv[1:]
    context = multiprocessing.get_context(way)
    for at in range(2):
        context.Process(target=worker.hold, args=(address, f"worker{at}")).start()
    worker.wait_for_end(worker.report_head(address))
    os._exit(0)  # at its exit multiprocessing would wait for the workers


if __name__ == "__main__":
    main()
