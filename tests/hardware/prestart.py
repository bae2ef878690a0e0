"""Pythons that import a framework before a test needs them.

On the machine with the H200 (16 cores) the import of PyTorch takes 3.3 s and most tests take less than one,
so it is hidden behind the tests before. An import makes no CUDA call: a Python that waits has no device file
open and uses no device memory.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import deque
from collections.abc import Mapping
from importlib.util import find_spec

from tests.search_path import search_path

# How many wait, by the module that they have imported.
WAITING = {"torch": 3, "jax": 2}

# What comes by stdin runs as if it had been given to -c; end of file ends a Python that nobody needed.
STUB = """
import json, os, sys
__import__(sys.argv.pop())
def _code():
    line = sys.stdin.readline()
    if not line:
        sys.exit()
    sent = json.loads(line)
    os.environ.update(sent["environment"])
    return compile(sent["code"], "<string>", "exec")
exec(_code())
"""

_waiting: dict[str, deque[subprocess.Popen[str]]] = {module: deque() for module in WAITING}


def prestart(module: str) -> None:
    """Have enough of them wait, where *module* is installed."""
    while find_spec(module) is not None and len(_waiting[module]) < WAITING[module]:
        _waiting[module].append(
            subprocess.Popen(
                [sys.executable, "-X", "faulthandler", "-c", STUB, module],
                env={**os.environ, "PYTHONPATH": search_path()},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )


def start_with(module: str, code: str, environment: Mapping[str, str]) -> subprocess.Popen[str]:
    """Run *code* in a Python that has imported *module*; its stdin, stdout and stderr are pipes.

    *environment* is set before *code* runs: it is for what Python reads, not for the loader.
    """
    prestart(module)
    process = _waiting[module].popleft()
    prestart(module)
    assert process.stdin is not None
    process.stdin.write(json.dumps({"code": code, "environment": dict(environment)}) + "\n")
    process.stdin.flush()
    return process


def run_with(
    module: str, code: str, environment: Mapping[str, str], timeout_s: float
) -> subprocess.CompletedProcess[str]:
    """Run *code* to its end, as ``subprocess.run`` with ``capture_output`` does."""
    process = start_with(module, code, environment)
    try:
        out, err = process.communicate(timeout=timeout_s)
    except BaseException:
        process.kill()
        process.communicate()
        raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def close() -> None:
    """End those that still wait."""
    for process in (each for waiting in _waiting.values() for each in waiting):
        process.kill()
        process.communicate()
