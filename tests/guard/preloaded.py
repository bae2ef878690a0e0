"""Numba programs without Numba's import: a process that has imported it forks a child for each program.

Importing Numba takes most of a second of processor time, and some forty tests need it. The server starts
CUDA never: each child does that itself, on its own virtual GPU, as a process of its own would.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any

from tests.patience import PATIENCE_S

# Exceptions and holders then name the program as they do under `python -c`.
START = "exec(__import__('tests.guard.preloaded', fromlist=['*']).next_program())"
MODULES = ("numpy", "numba.cuda")


# ---- in the tests ----


@cache
def _server(root: Path) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """The server of this test process."""
    from tests.search_path import search_path
    from vram.virtualgpu.folder import link_libraries

    folder = tempfile.TemporaryDirectory(prefix="vram-preloaded-")
    atexit.register(folder.cleanup)
    library = Path(folder.name) / "lib"
    link_libraries(library)
    ours, theirs = socket.socketpair()
    environment = os.environ | {
        "LD_LIBRARY_PATH": str(library),
        "PYTHONPATH": search_path(root),
        "PYTHONWARNINGS": "default",
    }
    process = subprocess.Popen(
        [sys.executable, "-c", START, str(theirs.fileno())],
        cwd=root,
        env=environment,
        pass_fds=[theirs.fileno()],
    )
    theirs.close()
    atexit.register(process.wait)
    atexit.register(ours.close)
    return process, ours


def run(program: str, environment: dict[str, str], root: Path) -> subprocess.CompletedProcess[str]:
    """As ``subprocess.run`` of `python -c program` in *root*, with its output as text."""
    process, channel = _server(root)
    outputs = [os.pipe(), os.pipe()]
    request = json.dumps({"program": program, "environment": environment}).encode()
    socket.send_fds(channel, [len(request).to_bytes(4, "big")], [write for _, write in outputs])
    channel.sendall(request)
    for _, write in outputs:
        os.close(write)
    # A child that prints much must not wait for us: both pipes are read at once.
    with open(outputs[0][0]) as stdout, open(outputs[1][0]) as stderr, ThreadPoolExecutor(2) as readers:
        reading = [readers.submit(stdout.read), readers.submit(stderr.read)]
        try:
            texts = [each.result(PATIENCE_S) for each in reading]
        except TimeoutError:
            process.kill()
            raise
    code = int.from_bytes(channel.recv(4), "big", signed=True)
    return subprocess.CompletedProcess(program, code, *texts)


# ---- in the server ----


def next_program() -> CodeType:
    """Serve until the tests end; returns in each child, with the program that it is to run."""
    for name in MODULES:
        __import__(name)
    channel = socket.socket(fileno=int(sys.argv[1]))
    while True:
        size, descriptors, _, _ = socket.recv_fds(channel, 4, 2)
        if not size:
            os._exit(0)
        request = json.loads(_read(channel, int.from_bytes(size, "big")))
        child = os.fork()
        if child == 0:
            channel.close()
            return _prepared(request, descriptors)
        for each in descriptors:
            os.close(each)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        channel.sendall(code.to_bytes(4, "big", signed=True))


def _read(channel: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        found += channel.recv(size - len(found))
    return found


def _prepared(request: dict[str, Any], descriptors: list[int]) -> CodeType:
    for number, descriptor in enumerate(descriptors, start=1):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = ["-c"]
    return compile(request["program"], "<string>", "exec")
