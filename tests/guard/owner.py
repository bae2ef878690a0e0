"""Programs that own buffers on a virtual GPU: each acts in a process of its own, and tells JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

from tests.patience import PATIENCE_S
from vram.virtualgpu import VirtualGpu

SOURCE = Path(__file__).parents[2] / "src"

PREAMBLE = """
import atexit, ctypes, gc, json, os, sys, threading, weakref
import vram
from vram import Buffer
from vram.errors import *
from vram.guard.driver import driver
MIB = 1024**2

def tell(*values):
    print(json.dumps(values[0] if len(values) == 1 else values), flush=True)

def error_of(function, *words, **named):
    try:
        function(*words, **named)
    except Exception as error:
        return type(error).__name__
    return None

def used():
    "Bytes in use on the device, by the driver's own count."
    with driver().on_device(None):
        driver().must("cuCtxSynchronize")  # pools free what they do at this moment
        free, total = driver().free_and_total()
    return total - free

def reset(device=0):
    assert ctypes.CDLL("libcuda.so.1").cuDevicePrimaryCtxReset_v2(device) == 0

def in_thread(function):
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()

def in_child(function):
    "What a forked child tells by ending normally: its exit status."
    child = os.fork()
    if child == 0:
        sys.exit(function())
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""


def run(gpu: VirtualGpu, program: str) -> subprocess.CompletedProcess[str]:
    quiet = "ignore:This process:DeprecationWarning"  # of forks beside threads, which the driver has
    argv = [sys.executable, "-W", quiet, "-X", "faulthandler", "-c", PREAMBLE + dedent(program)]
    environment = gpu.environment() | {"PYTHONPATH": str(SOURCE)}
    return gpu.run(argv, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)


def told(gpu: VirtualGpu, program: str) -> Any:
    """Run *program* to its end, which must be a quiet one; the last value that it told."""
    done = run(gpu, program)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout.splitlines()[-1])
