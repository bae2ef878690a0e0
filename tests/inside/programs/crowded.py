"""Threads fill tuples all the time while the program is searched again and again; prints how many failed."""

import json
import sys
import threading
import time

import stand_ins

from vram.guard.live import live
from vram.payloads.inside import read_arrays
from vram.payloads.pace import Pace
from vram.payloads.trim.framework import alive

stand_ins.torch()
kept = [stand_ins.TensorBase(256, 256), (stand_ins.TensorBase(2, 2),)]
is_ending = threading.Event()
failures = []


def fill(length):
    while not is_ending.is_set():
        try:
            tuple(number for number in range(length))
        except SystemError as error:
            failures.append(str(error))


def look():
    """Return how many arrays each way of looking finds."""
    pace = Pace().begin(time.monotonic())
    inside = read_arrays(60.0, 0, pace, [])
    pace.end()
    return [len(inside.arrays), len(live()), len(alive((stand_ins.TensorBase,)))]


threads = [threading.Thread(target=fill, args=(length,)) for length in (100_000, 3_000, 30)]
sys.setswitchinterval(0.0005)
for thread in threads:
    thread.start()
found = [look() for _ in range(int(sys.argv[1]))]
is_ending.set()
for thread in threads:
    thread.join()
print(json.dumps([failures, found]))
