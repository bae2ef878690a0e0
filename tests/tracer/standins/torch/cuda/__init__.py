"""Initialised as PyTorch does it: the driver, then what was queued, under a lock that is not reentrant."""

import threading

import driver_program as driver

from torch.cuda import memory as memory

_initialization_lock = threading.Lock()
_queued_calls = []
_initialized = False


def is_initialized():
    return _initialized


def _lazy_call(call):
    with _initialization_lock:
        _queued_calls.append((call, []))


def init():
    global _initialized
    with _initialization_lock:
        driver.begin()
        for call, _ in _queued_calls:
            call()
        _initialized = True


def memory_snapshot():
    return memory._snapshot()["segments"]
