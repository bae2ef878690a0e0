"""Programs whose traces the tests of ``vram report`` read: what each line of them does is known."""

from __future__ import annotations

# Weights that stay, a list that grows, a buffer that is freed at once, an allocation that is larger than any
# GPU, a context that is destroyed with memory in it. The list grows until its allocations lie in all
# quarters of the recording, however slow the machine is. Prints how many it has.
LEAKY = """\
import os
import sys
import time

import driver

driver.context()


def load():
    return [driver.alloc(64 << 20) for _ in range(4)]


def remember(history):
    history.append(driver.alloc(16 << 20))
    times.append(time.monotonic())


def work():
    driver.free(driver.alloc(8 << 20))


def too_much():
    assert driver.alloc_code(1 << 50)


def lose():
    with_memory = driver.new_context()
    driver.alloc(32 << 20)
    driver.destroy_context(with_memory)


def is_spread():
    whole = times[-1] - times[0]
    return whole > 0.02 and len({int(4 * (at - times[0]) / whole) for at in times[:-1]}) == 4


times, history = [], []
while len(history) < int(sys.argv[1]) or not is_spread():
    remember(history)
    if len(history) == 1:
        weights = load()
        lose()
        too_much()
        for _ in range(32):
            work()
    time.sleep(0.002)
print(len(history), flush=True)
os._exit(0)  # Python's own end may take as long as all the rest
"""
