"""What `vram watch` reports: its lines are in changes.log, and each brings about the next change.

The process grows, ends and leaves its memory to a forked child, which ends too. With NOW it begins large.
"""

import os
import signal
import time
from pathlib import Path

from cuda.bindings import driver


def wait_for(event: str) -> None:
    log = Path("changes.log")
    while not log.exists() or f" {event} " not in log.read_text():
        time.sleep(0.05)


driver.cuInit(0)
driver.cuCtxSetCurrent(driver.cuDevicePrimaryCtxRetain(0)[1])
driver.cuMemAlloc(40 << 30 if "NOW" in os.environ else 4 << 30)
print("ready", flush=True)
wait_for("state")
if "NOW" not in os.environ:
    driver.cuMemAlloc(36 << 30)
    wait_for("grew")
if os.fork():
    os.kill(os.getpid(), signal.SIGKILL)
wait_for("ghost")
