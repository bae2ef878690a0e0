"""Programs that hold memory on a virtual GPU, and NVML asked by a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE_S, until_ended
from vram.virtualgpu import VirtualGpu

HOLDER = Path(__file__).with_name("holder.py")

PREAMBLE = """
import ctypes, json, sys
import pynvml as n

def code(function, *arguments):
    try:
        function(*arguments)
    except n.NVMLError as error:
        return error.value
    return 0

def memory(gpu=0):
    one = n.nvmlDeviceGetMemoryInfo(handle(gpu))
    two = n.nvmlDeviceGetMemoryInfo(handle(gpu), version=n.nvmlMemory_v2)
    return {"v1": [one.total, one.free, one.used], "v2": [two.total, two.reserved, two.free, two.used]}

def processes(gpu=0):
    found = n.nvmlDeviceGetComputeRunningProcesses_v3(handle(gpu))
    return [[process.pid, process.usedGpuMemory] for process in found]

handle = n.nvmlDeviceGetHandleByIndex
n.nvmlInit()
"""


def ask(gpu: VirtualGpu, expression: str, *setup: str) -> Any:
    """The value of *expression* in a fresh process that has NVML initialized as ``n``."""
    program = "\n".join([PREAMBLE, *setup, f"print(json.dumps({expression}))"])
    done = gpu.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


class Holder:
    """A running holder program: the process we started, and the one that lives on in it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdin is not None
        assert process.stdout is not None
        self.stdin, self.stdout = process.stdin, process.stdout
        self.pid = process.pid
        self.living_pid = int(self.stdout.readline())
        self._pidfd = os.pidfd_open(self.living_pid)

    def end(self) -> None:
        """Close the program's stdin, and come back when its files are closed."""
        self.stdin.close()
        # A pidfd becomes readable when the process has closed its files; its pipes may end sooner.
        until_ended(self._pidfd)
        self.process.wait(PATIENCE_S)

    def close(self) -> None:
        self.end()
        self.stdout.close()
        os.close(self._pidfd)


Hold = Callable[..., Holder]


@pytest.fixture
def hold() -> Iterator[Hold]:
    """Start a process that holds memory; each one is ended and waited for after the test."""
    with ExitStack() as holders:

        def start(
            gpu: VirtualGpu,
            nbytes: int = 0,
            index: int = 0,
            *words: str,
            env: dict[str, str] | None = None,
            under: Sequence[str] = (),
        ) -> Holder:
            argv = [*under, sys.executable, str(HOLDER), str(nbytes), str(index), *words]
            options: dict[str, Any] = {"env": {**os.environ, **(env or {})}}
            process = gpu.popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options)
            holder = Holder(process)
            holders.callback(holder.close)
            return holder

        yield start
