"""The README and the quick start are literal: every command in them works as written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.needs import needs
from vram.virtualgpu import VirtualGpu

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
LINES = [line.split("  #")[0].strip() for block in BLOCKS for line in block.splitlines() if line.strip()]
INLINE = re.findall(r"`(vram [^`]+)`", re.sub(r"```.*?```", "", README, flags=re.DOTALL))
COMMANDS = list(dict.fromkeys([*INLINE, *(line for line in LINES if line.split()[0] == "vram")]))
QUICK_START = re.findall(r"```sh\n(.*?)```", (ROOT / "docs" / "quick-start.md").read_text(), re.DOTALL)
TARGETS = sorted(set(re.findall(r"\bmake ([a-z][a-z-]*)\b", README)))

# Whoever reads the page has one already.
TRAINING = """
import ctypes
cuda, context, address = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(1 << 20)) == 0
"""


def test_the_two_commands_stand_in_the_readme():
    """Whoever reads nothing else finds them."""
    assert [line for line in LINES if line.startswith("make ")][:2] == ["make demo", "make test"]


@needs("make")
@pytest.mark.parametrize("target", TARGETS)
def test_make_targets_exist(target):
    """Every target that the README names is one."""
    done = subprocess.run(["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("commands", [COMMANDS, QUICK_START], ids=["README", "quick start"])
def test_commands_work_as_written(commands, tmp_path):
    """In the order of the page, in one folder, on a GPU that nobody uses."""
    assert commands
    (tmp_path / "train.py").write_text(TRAINING)
    with VirtualGpu.create() as gpu:
        for line in commands:
            done = gpu.run(
                ["sh", "-c", line],
                cwd=tmp_path,
                env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
