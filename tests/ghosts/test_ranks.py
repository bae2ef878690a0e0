"""Ranks of one job, each with its memory on a GPU of its own, and contexts where none should be."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.ghosts.conftest import Machine, finding
from vram.units import GIB
from vram.virtualgpu import VirtualGpu
from vram.virtualgpu.demos import PROGRAMS

GPUS = 3
# It makes its first CUDA call before it chooses its GPU, unless it is told to choose first.
RANK = f"""
import driver, os, sys
rank = int(os.environ["RANK"])
if sys.argv[1] == "late":
    driver.context()
driver.init()
handle = driver.result(driver.c_void_p, "cuDevicePrimaryCtxRetain", rank)
driver.call("cuCtxSetCurrent", handle)
driver.alloc({2 * GIB})
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def three_gpus(native_libraries: Path) -> Iterator[Machine]:
    with VirtualGpu.create(gpus=GPUS) as gpus:
        yield Machine(gpus.environment(), real=False)


def start_ranks(machine: Machine, stack: ExitStack, when: str) -> list[int]:
    """One process for each rank, up to where it has its memory; they end with *stack*."""
    ranks = []
    for rank in range(GPUS):
        said = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": GPUS, "LOCAL_WORLD_SIZE": GPUS}
        env = {key: str(value) for key, value in said.items()}
        env |= {"TORCHELASTIC_RUN_ID": "one", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
        argv = [sys.executable, "-u", "-c", RANK, when]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        process = machine.popen(argv, cwd=PROGRAMS, env=env, start_new_session=True, **pipes)
        stack.enter_context(process)
        stack.callback(process.kill)
        ranks.append(process)
    for process in ranks:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
    return [process.pid for process in ranks]


def test_ranks_that_choose_their_gpu_too_late_are_named(three_gpus: Machine) -> None:
    with ExitStack() as stack:
        first, *others = start_ranks(three_gpus, stack, "late")
        answer = three_gpus.why()
    found = finding(answer, "VR210", others[0])
    assert (found["pids"], found["gpus"]) == (others, [0])
    assert "Ranks 1, 2 of a torchrun job" in found["cause"]
    held = answer["gpus"][0]["entries"]
    contexts = [each["nbytes"] for each in held if each["holder"] and each["holder"]["pid"] in others]
    assert found["nbytes"] == sum(contexts)
    assert first not in found["pids"]


def test_ranks_that_choose_their_gpu_first_are_not(three_gpus: Machine) -> None:
    with ExitStack() as stack:
        start_ranks(three_gpus, stack, "first")
        answer = three_gpus.why()
    assert "VR210" not in {each["code"] for each in answer["findings"]}
