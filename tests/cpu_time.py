"""What work takes of a processor, at best: others on the machine make it more, never less.

How fast something is belongs into `make bench`; here what grows without bound is told from what does not.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

TRIES = 4


def cpu_s(work: Callable[[], object]) -> float:
    """The time of this thread, without collections of garbage: a command is over before garbage matters."""
    gc.collect()
    gc.disable()
    try:
        begin = time.thread_time()
        work()
        return time.thread_time() - begin
    finally:
        gc.enable()


def least_cpu_s(work: Callable[[], object], enough_s: float) -> float:
    """The least of several tries; no further one where the last took less than *enough_s*."""
    least_s = float("inf")
    for _ in range(TRIES):
        least_s = min(least_s, cpu_s(work))
        if least_s < enough_s:
            break
    return least_s


def growth(few: Callable[[], object], many: Callable[[], object], enough: float) -> float:
    """How many times as long *many* takes as *few*; no further try where it is less than *enough*."""
    least_few = least_many = float("inf")
    for _ in range(TRIES):
        least_few = min(least_few, cpu_s(few))
        least_many = min(least_many, cpu_s(many))
        if least_many <= enough * least_few:
            break
    return least_many / least_few
