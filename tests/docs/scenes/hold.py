"""A process that holds $GIB GiB of GPU memory and sleeps. It prints its pid when it has them.

With DIES it forks and ends: the forked child, whose pid it prints, holds the memory of a dead process.
"""

import os
import signal
import time

from cuda.bindings import driver

driver.cuInit(0)
driver.cuCtxSetCurrent(driver.cuDevicePrimaryCtxRetain(0)[1])
driver.cuMemAlloc(int(os.environ["GIB"]) << 30)
owner = os.getpid()
if "DIES" in os.environ:
    if os.fork():
        signal.pause()
    os.kill(owner, signal.SIGKILL)
    while os.getppid() == owner:
        time.sleep(0.01)
print(os.getpid(), flush=True)
time.sleep(3600)
