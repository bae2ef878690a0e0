"""A process of its own between vram and a debugger: whatever becomes of vram, the target is let go.

Reads one JSON line of orders and writes one JSON line for every event. It lives in a session
of its own, so neither Ctrl-C nor the end of vram's terminal reaches it or the debugger. Where
vram is gone, or time is up, it lets go of the target at the next moment when that is safe:
never in the middle of a call that the debugger makes in the target's name.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from contextlib import suppress
from typing import Any

from vram.reach.gdb import Gdb
from vram.reach.injection import GONE, Complaint, Debugger, Injection, Silence, Unsafe, inject
from vram.reach.lldb import Lldb


def main() -> None:
    """Do what the orders say; every way out leaves the target running."""
    orders = json.loads(sys.stdin.buffer.readline())
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    pidfd = held(orders["pid"], orders["started_at"])
    if pidfd is None:
        tell(event="left", message=GONE)
    else:
        visit(orders, pidfd)


def held(pid: int, since: int) -> int | None:
    """A pidfd of the process that was meant; None where it has ended."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return None
    return pidfd if started_at(pid) == since else None


def visit(orders: dict[str, Any], pidfd: int) -> None:
    debugger: Debugger | None = None
    try:
        debugger = begin(orders["debugger"], orders["until"])
        stand(debugger, orders)
    except Complaint as error:
        tell(event="complaint", message=str(error))
    except (Unsafe, Silence, OSError) as error:
        tell(event="unsafe", message=str(error))
    finally:
        if debugger is not None:
            debugger.end()
        let_run(orders["pid"], pidfd)
        if not tell(event="left"):
            # Nobody is left to call the visit off: without its files it does nothing.
            shutil.rmtree(orders["folder"], ignore_errors=True)


def begin(program: str, until: float) -> Debugger:
    return Lldb(program, until) if os.path.basename(program).startswith("lldb") else Gdb(program, until)


def stand(debugger: Debugger, orders: dict[str, Any]) -> None:
    """Stop the target, inject, let go of it."""
    began = time.monotonic()
    debugger.attach(orders["pid"])
    try:
        route = inject(debugger, Injection(orders["pid"], orders["minor"], orders["code"]))
    finally:
        with suppress(Complaint, Silence):
            debugger.detach()
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


def tell(**event: object) -> bool:
    """Whether vram is still there to hear it."""
    try:
        os.write(1, json.dumps(event).encode() + b"\n")
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main()
