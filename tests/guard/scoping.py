"""Programs that use scopes on a virtual GPU, written into the tests that run them.

Each is a process of its own: vram's scopes measure the process that they run in.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

from tests.guard import preloaded
from tests.patience import PATIENCE_S
from tests.search_path import search_path
from vram.virtualgpu import VirtualGpu

ROOT = Path(__file__).parents[2]

PREAMBLE = """\
import gc, json, os, sys, threading, time, warnings, weakref
import vram
from tests.virtualgpu import libcuda as raw
from vram.units import GIB, MIB

def tell(value):
    print(json.dumps(value), flush=True)

def held(gib, device=0):
    # Another process that holds so much; it ends by a line on its stdin.
    import subprocess
    code = f"from tests.virtualgpu import libcuda as c; c.start({device}); c.alloc({gib} << 30)"
    code += "; print(flush=True); input()"
    other = subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1)
    other.stdout.readline()
    return other
"""

RAW = PREAMBLE + "raw.start()\n"

NUMBA = (
    PREAMBLE
    + """\
import numpy
from numba import cuda
cuda.current_context()

def array(nbytes):
    return cuda.device_array(nbytes, numpy.uint8)
"""
)


def result(gpu: VirtualGpu, program: str, preamble: str = RAW, code: int = 0) -> Any:
    """Run *program* to its end; the last JSON value that it told."""
    done = run(gpu, program, preamble)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def run(gpu: VirtualGpu, program: str, preamble: str = RAW, **options: Any) -> Any:
    if preamble is NUMBA and not options:
        return preloaded.run(preamble + dedent(program), environment(gpu), ROOT)
    return gpu.run(
        [sys.executable, "-c", preamble + dedent(program)],
        cwd=options.pop("cwd", ROOT),
        env=environment(gpu),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        **options,
    )


def environment(gpu: VirtualGpu) -> dict[str, str]:
    return gpu.environment() | {"PYTHONPATH": search_path(ROOT), "PYTHONWARNINGS": "default"}
