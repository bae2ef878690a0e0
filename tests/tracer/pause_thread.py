"""Keeps one thread of another process paused until its input ends: pause_thread.py TID."""

from __future__ import annotations

import sys

from vram.payloads import ptrace


def main() -> None:
    tid = int(sys.argv[1])
    ptrace.request(ptrace.SEIZE, tid)
    ptrace.request(ptrace.INTERRUPT, tid)
    while ptrace.look(tid) is None:
        pass
    print("stopped", flush=True)
    sys.stdin.read()


main()
