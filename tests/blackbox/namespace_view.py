"""Run inside a fresh PID namespace: make a context there, and tell whom the driver lists there."""

from __future__ import annotations

import json
import sys

from machine import Machine


def main() -> None:
    machine = Machine()
    with machine.start("contexts.one_by_one") as program:
        program.go()
        listed = machine.read().listed
        print(json.dumps({"mine": program.pids["self"], "listed": dict(listed)}), flush=True)
        sys.stdin.readline()
    machine.close()


if __name__ == "__main__":
    main()
