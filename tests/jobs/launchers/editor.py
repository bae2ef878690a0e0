"""Debugs a program as an editor does: debugpy's adapter starts its launcher, and that starts the program.

    editor.py SOCKET PROGRAM [ARGUMENT ...]                          by the real debugpy
    editor.py --stand-in SOCKET PROGRAM [ARGUMENT ...]               as debugpy does

debugpy 1.8.22. adapter/launchers.py, spawn_debuggee(): the adapter starts ``python .../debugpy/launcher PORT
-- PROGRAM ...``. launcher/handlers.py, launch_request(): that starts ``python -X frozen_modules=off
.../debugpy/launcher/../../debugpy --connect 127.0.0.1:PORT --configure-qt none --adapter-access-token SECRET
PROGRAM ...``, and launcher/debuggee.py, spawn(): in a process group of its own. Its environment says nothing.

Measured: the program ends where the adapter, or the launcher alone, is killed: the other one ends it. It
lives on where both are killed at once.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import IO

import worker


def main() -> None:
    if sys.argv[1] == "--stand-in":
        stand_in(*sys.argv[2:])
        return
    address, program, *words = sys.argv[1:]
    adapter = subprocess.Popen(
        [sys.executable, "-m", "debugpy.adapter"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert adapter.stdin is not None
    assert adapter.stdout is not None
    ask(adapter.stdin, 1, "initialize", adapterID="python", pathFormat="path")
    ask(
        adapter.stdin,
        2,
        "launch",
        program=program,
        args=words,
        console="internalConsole",
        python=[sys.executable],
    )
    connection = worker.report_head(address)
    while answer := read(adapter.stdout):
        if answer.get("event") == "initialized":
            ask(adapter.stdin, 3, "configurationDone")
    worker.wait_for_end(connection)


def ask(to: IO[bytes], number: int, command: str, **arguments: object) -> None:
    """One request of the Debug Adapter Protocol."""
    body = json.dumps({"seq": number, "type": "request", "command": command, "arguments": arguments}).encode()
    to.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
    to.flush()


def read(adapter: IO[bytes]) -> dict[str, object]:
    """The next message; an empty one where the adapter has ended."""
    length = 0
    while line := adapter.readline().strip():
        name, _, value = line.partition(b":")
        length = int(value) if name.lower() == b"content-length" else length
    message: dict[str, object] = json.loads(adapter.read(length)) if length else {}
    return message


def stand_in(address: str, program: str, *words: str) -> None:
    """The launcher alone: its adapter is dead already, and this one is killed before it notices."""
    folder = f"{os.path.dirname(os.path.abspath(__file__))}/debugpy"
    options = ("--connect", "127.0.0.1:9", "--configure-qt", "none", "--adapter-access-token", "0" * 64)
    subprocess.Popen(
        [sys.executable, "-X", "frozen_modules=off", folder, *options, program, *words], preexec_fn=os.setpgrp
    )
    worker.wait_for_end(worker.report_head(address))


if __name__ == "__main__":
    main()
