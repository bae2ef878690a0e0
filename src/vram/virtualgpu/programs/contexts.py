"""What contexts cost, one after the other or in many processes, and what a reset releases."""

from __future__ import annotations

import driver
import protocol

PROCESSES = 4


def one_by_one() -> None:
    """Initialise the driver, make a context, make a second one, and release both."""
    driver.init()
    protocol.stage("init")
    primary = driver.context()
    free, total = driver.free_and_total()
    protocol.stage("context", free=free, total=total, free_of_null=driver.free_code(0))
    handle = driver.new_context()
    protocol.stage("second")
    driver.destroy_context(handle)
    driver.use(primary)
    protocol.stage("one again")
    driver.call("cuDevicePrimaryCtxRelease_v2", 0)
    protocol.stage("none")


def reset() -> None:
    """Reset the primary context, which releases all that the process held."""
    nbytes = protocol.size_argument(4 * protocol.GIB)
    driver.context()
    driver.alloc(nbytes)
    protocol.stage("allocated", nbytes=nbytes)
    driver.reset()
    protocol.stage("reset")


def small() -> None:
    """Have many processes hold a context each and next to nothing in it."""
    nbytes = protocol.size_argument(2 * protocol.MIB)
    workers = [protocol.ForkedWorker(_hold, nbytes) for _ in range(PROCESSES)]
    pids = {f"worker{number}": worker.pid for number, worker in enumerate(workers)}
    protocol.stage("idle", pids=pids, nbytes=PROCESSES * nbytes)
    for worker in workers:
        worker.kill()
    protocol.stage("ended", pids=pids)


def _hold(nbytes: int) -> protocol.Turns:
    driver.context()
    driver.alloc(nbytes)
    yield None


if __name__ == "__main__":
    protocol.main(one_by_one, reset, small)
