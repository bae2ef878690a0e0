"""Starts many programs at once, each as its line of standard input says, and waits for the end of the test.

    crowd.py SOCKET

A line is a JSON object: ``argv``; ``environment``, added to ours; ``leads``, which is "session", "group" or
"nothing"; and ``adopted``, whether its parent dies at once.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import worker


def start(line: dict[str, Any]) -> None:
    if os.fork():
        return
    if line["adopted"] and os.fork():
        os._exit(0)
    if line["leads"] == "session":
        os.setsid()
    elif line["leads"] == "group":
        os.setpgid(0, 0)
    os.execve(sys.executable, line["argv"], {**os.environ, **line["environment"]})


def main() -> None:
    for line in sys.stdin:
        start(json.loads(line))
    worker.wait_for_end(worker.report(sys.argv[1], "crowd"))


if __name__ == "__main__":
    main()
