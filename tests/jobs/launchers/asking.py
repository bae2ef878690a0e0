"""A rank that holds memory and has vram end its own job, once the test says so.

    asking.py SOCKET NAME

What came of it is in the file "answer" beside the socket.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import worker


def main() -> None:
    address, name = sys.argv[1:]
    worker.take_memory()
    connection = worker.report(address, name)
    if connection.recv(1) and name.format(**os.environ) == "rank0":
        words = [sys.executable, "-m", "vram", "kill", "--job", str(os.getpid()), "--yes"]
        done = subprocess.run(words, capture_output=True, text=True)
        path = os.path.join(os.path.dirname(address), "answer")
        with open(f"{path}.new", "w", encoding="utf-8") as file:
            json.dump([done.returncode, done.stdout, done.stderr], file)
        os.rename(f"{path}.new", path)
    worker.wait_for_end(connection)


if __name__ == "__main__":
    main()
