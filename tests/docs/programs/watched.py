"""What `vram watch` reports: its lines are in changes.log, and each brings about the next change.

The process grows, ends and leaves its memory to a forked child, which ends too. With $NOW it is large at
first.
"""

import os
from pathlib import Path

import driver
import protocol

from tests.patience import until


def wait_for(event: str) -> None:
    log = Path("changes.log")
    until(lambda: log.exists() and f" {event} " in log.read_text())


driver.context()
driver.alloc((40 if "NOW" in os.environ else 4) * protocol.GIB)
print(os.getpid(), flush=True)
wait_for("state")
if "NOW" not in os.environ:
    driver.alloc(36 * protocol.GIB)
    wait_for("grew")
if os.fork():
    os._exit(0)
wait_for("ghost")
