"""A program that leaks. A line is how many MiB it keeps now, or "leak": a part of what is left since then.

So it is always about twenty seconds before the GPU is full, and never there. It ends with its input.
"""

from __future__ import annotations

import os
import sys
import time
from math import exp

import driver

LEFT_S = 20.0
MIB = 1 << 20


def handle_request(nbytes: int) -> None:
    driver.alloc(nbytes)  # the leak


def main() -> None:
    driver.context()
    print(os.getpid(), flush=True)
    last = time.monotonic()
    for line in sys.stdin:
        now = time.monotonic()
        free, _ = driver.free_and_total()
        part = 1.0 - exp((last - now) / LEFT_S)
        nbytes = int(free * part) // MIB * MIB if line.strip() == "leak" else int(line) * MIB
        if nbytes:
            handle_request(nbytes)
            last = now
        print(nbytes, flush=True)


main()
