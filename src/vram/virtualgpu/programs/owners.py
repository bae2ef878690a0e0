"""Who owns an allocation: a thread's raw pointer, an object that frees it, a kept exception."""

from __future__ import annotations

import gc
import sys
import threading

import driver
import protocol

THREADS = 4


def raw_pointers() -> None:
    """Four threads allocate through raw pointers and end; nothing is left that could free them."""
    nbytes = protocol.size_argument(protocol.GIB)
    context = driver.context()
    threads = [threading.Thread(target=_leak, args=(context, nbytes)) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    protocol.stage("threads ended", nbytes=THREADS * nbytes, threads_left=threading.active_count() - 1)
    driver.reset()
    protocol.stage("reset")


def _leak(context: int, nbytes: int) -> None:
    driver.use(context)
    driver.alloc(nbytes)


def owner_objects() -> None:
    """Four threads allocate through owner objects and end; the objects free what they own."""
    nbytes = protocol.size_argument(protocol.GIB)
    context = driver.context()
    barrier = threading.Barrier(THREADS + 1)
    arguments = (context, nbytes, barrier)
    threads = [threading.Thread(target=_own, args=arguments, daemon=True) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    barrier.wait()
    protocol.stage("threads hold", nbytes=THREADS * nbytes)
    barrier.wait()
    for thread in threads:
        thread.join()
    protocol.stage("threads ended")


def _own(context: int, nbytes: int, all_allocated: threading.Barrier) -> None:
    driver.use(context)
    owner = driver.AllocationOwner(nbytes)
    all_allocated.wait()
    all_allocated.wait()
    del owner


def kept_exception() -> None:
    """An exception that is kept holds its frames, and these hold device memory."""
    nbytes = protocol.size_argument(4 * protocol.GIB)
    driver.context()
    fail_and_keep(nbytes)
    protocol.stage("kept", nbytes=nbytes)
    sys.last_value = None
    gc.collect()
    protocol.stage("dropped")


def fail_and_keep(nbytes: int) -> None:
    """Let an exception pass through a frame with an owner object in it, and keep the exception."""
    try:
        _hold_and_fail(nbytes)
    except ValueError as error:
        # What an interactive interpreter does with every exception that reaches the prompt.
        sys.last_value = error
    gc.collect()


def _hold_and_fail(nbytes: int) -> None:
    owner = driver.AllocationOwner(nbytes)
    raise ValueError(f"the step failed with memory at {owner.pointer:#x}")


if __name__ == "__main__":
    protocol.main(raw_pointers, owner_objects, kept_exception)
