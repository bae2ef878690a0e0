"""A process of its own between vram and a debugger: whatever becomes of vram, the target is let go.

Reads one JSON line of orders and writes one JSON line for every event. It lives in a session
of its own, so neither Ctrl-C nor the end of vram's terminal reaches it or the debugger. Where
vram is gone, or time is up, it lets go of the target at the next moment when that is safe:
never in the middle of a call that the debugger makes in the target's name.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from contextlib import suppress
from typing import Any

from vram.reach.gdb import Complaint, Gdb, Silence
from vram.reach.injection import Injection, Unsafe, inject


def main() -> None:
    """Do what the orders say; every way out leaves the target running."""
    orders = json.loads(sys.stdin.buffer.readline())
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    try:
        pidfd = os.pidfd_open(orders["pid"])
    except OSError:
        tell(event="gone")
        return
    if started_at(orders["pid"]) != orders["started_at"]:
        tell(event="gone")
        return
    visit(orders, pidfd)


def visit(orders: dict[str, Any], pidfd: int) -> None:
    gdb = None
    try:
        gdb = Gdb(orders["debugger"], orders["until"])
        stand(gdb, orders)
    except Complaint as error:
        tell(event="complaint", message=str(error))
    except (Unsafe, Silence, OSError) as error:
        tell(event="unsafe", message=str(error))
    finally:
        if gdb is not None:
            gdb.end()
        let_run(orders["pid"], pidfd)
        tell(event="left")


def stand(gdb: Gdb, orders: dict[str, Any]) -> None:
    """Stop the target, inject, let go of it."""
    began = time.monotonic()
    gdb.attach(orders["pid"])
    try:
        route = inject(gdb, Injection(orders["pid"], orders["minor"], orders["code"]))
    finally:
        with suppress(Complaint, Silence):
            gdb.detach()
    tell(event="sent", route=route, stopped_s=time.monotonic() - began)


def let_run(pid: int, pidfd: int) -> None:
    """A debugger killed while it attaches can leave its stop signal behind."""
    if state(pid) == "T":
        with suppress(OSError):
            signal.pidfd_send_signal(pidfd, signal.SIGCONT)


def state(pid: int) -> str:
    return stat_fields(pid)[0]


def started_at(pid: int) -> int:
    return int(stat_fields(pid)[19])


def stat_fields(pid: int) -> list[str]:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].decode().split()
    except OSError:
        return ["X"] + ["0"] * 19


def tell(**event: object) -> None:
    with suppress(OSError):  # vram is gone; there is still something to clean up
        os.write(1, json.dumps(event).encode() + b"\n")


if __name__ == "__main__":
    main()
