"""A program that is looked into while it works: what that costs it, as it sees it; prints JSON.

python bench/visited.py OBJECTS ARRAYS

It makes so many objects, and so many arrays on one allocation, and then counts in steps of about a
millisecond. Each line that it reads begins a new account; at the next one it prints the number of
steps, their mean and the longest of them in seconds.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from statistics import mean

import vram
from vram.payloads import agent


def step() -> int:
    total = 0
    for number in range(12_000):
        total += number * number
    return total


def main(objects: int, arrays: int) -> None:
    whole = vram.Buffer("64MiB")
    kept = [{"name": [number], "pair": (number, [number])} for number in range(objects // 3)]
    views = [vram.Buffer.from_cuda_array_interface(whole) for _ in range(arrays)]
    agent.start()
    told: list[str] = []
    reading = threading.Thread(target=lambda: told.extend(iter(sys.stdin.readline, "")), daemon=True)
    reading.start()
    print(json.dumps({"pid": os.getpid(), "kept": len(kept) + len(views)}), flush=True)
    took: list[float] = []
    while reading.is_alive() or told:
        began = time.perf_counter()
        step()
        took.append(time.perf_counter() - began)
        if told:
            told.pop()
            print(json.dumps([len(took), mean(took), max(took)]), flush=True)
            took.clear()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
