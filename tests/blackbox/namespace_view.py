"""Run inside a fresh PID namespace: make a context there, and tell whom the driver lists there."""

from __future__ import annotations

import json
import sys

from theatre import Theatre


def main() -> None:
    theatre = Theatre()
    with theatre.scene("context_only") as actor:
        actor.go()
        listed = theatre.look().listed
        print(json.dumps({"mine": actor.pids["self"], "listed": dict(listed)}), flush=True)
        sys.stdin.readline()
    theatre.close()


if __name__ == "__main__":
    main()
