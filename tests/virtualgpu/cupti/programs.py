"""Programs that subscribe to the virtual CUPTI, written into the tests that run them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

from tests.patience import PATIENCE_S
from vram.virtualgpu import VirtualGpu

HERE = Path(__file__).parent
PREAMBLE = """
import ctypes, json, os, sys, threading
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p
from subscriber import DRIVER, RESOURCE, Subscriber, allocate, cuda, start

def tell(value):
    print(json.dumps(value), flush=True)
"""


def environment(gpu: VirtualGpu, **variables: str) -> dict[str, str]:
    return gpu.environment() | {"PYTHONPATH": str(HERE)} | variables


def run(gpu: VirtualGpu, program: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run *program* to its end, with *variables* in its environment."""
    argv = [sys.executable, "-c", PREAMBLE + dedent(program)]
    return subprocess.run(
        argv,
        env=environment(gpu, **variables),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def result(gpu: VirtualGpu, program: str, **variables: str) -> Any:
    """The last JSON value that *program* told."""
    done = run(gpu, program, **variables)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def compiled(source: Path, output: Path, *words: str) -> Path:
    """*source* compiled with warnings as errors."""
    command = ["cc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-o", output, source]
    subprocess.run([*command, *words, "-pthread", "-ldl"], check=True)
    return output
