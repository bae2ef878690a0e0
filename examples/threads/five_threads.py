"""Run the same work in five threads at once, with a step while all of them hold their memory."""

from __future__ import annotations

import threading
from collections.abc import Callable

from step import step


def run_five(work: Callable[[Callable[[], None]], None]) -> None:
    """Call *work* in five threads; it calls what it is passed while it holds its memory."""
    together = threading.Barrier(6)

    def hold() -> None:
        together.wait()
        together.wait()

    def run() -> None:
        try:
            work(hold)
        except BaseException:
            together.abort()  # nobody waits for a thread that has failed
            raise

    threads = [threading.Thread(target=run) for _ in range(5)]
    for thread in threads:
        thread.start()
    together.wait()
    step("threads hold")
    together.wait()
    for thread in threads:
        thread.join()
    step("threads ended")
