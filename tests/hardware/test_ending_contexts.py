"""What ends a context from Python, what a reset of it breaks, and what a leak checker reports.

The figures of docs/guides/contexts.md, shut-down.md and leaks.md and of docs/concepts/context-reset.md.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tests.hardware.conftest import Record
from tests.hardware.prestart import run_with
from tests.needs import needs, skip_without
from tests.search_path import search_path

pytestmark = pytest.mark.gpu

NEAR = 16  # MiB
CONTEXT = 527
INITIALISED = 3  # what cuInit takes: it stays until the process ends
ARRAY = 256

PREAMBLE = """\
import ctypes, gc, json, os, sys
import pynvml

pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
steps = {}

def used():
    return pynvml.nvmlDeviceGetMemoryInfo(gpu, version=pynvml.nvmlMemory_v2).used >> 20

before = used()

def step(name, call=lambda: None):
    try:
        call()
        answer = "done"
    except Exception as error:
        answer = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    steps[name] = [used() - before, answer]

def reset():
    assert ctypes.CDLL("libcuda.so.1").cuDevicePrimaryCtxReset_v2(0) == 0
"""

# Some of these contexts cannot be taken down in an orderly way any more.
POSTSCRIPT = "\nprint(json.dumps(steps), flush=True)\nos._exit(0)\n"


def played(program: str) -> dict[str, tuple[int, str]]:
    """For each step of *program*: MiB in use more than before it, and "done" or the error."""
    code = PREAMBLE + dedent(program) + POSTSCRIPT
    if "import torch" in program:
        done = run_with("torch", code, {}, timeout_s=110)
    else:
        environment = os.environ | {"PYTHONPATH": search_path()}
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=110
        )
    assert done.returncode == 0, done.stderr[-4000:]
    return {name: tuple(values) for name, values in json.loads(done.stdout.splitlines()[-1]).items()}


def about(nbytes_mib: int) -> Any:
    return pytest.approx(nbytes_mib, abs=NEAR)


@needs("numba")
def test_numba_closes_its_context(record: Record) -> None:
    steps = played(
        """
        from numba import cuda
        step("array", lambda: globals().update(array=cuda.device_array(256 << 20, "u1")))
        step("context reset", lambda: cuda.current_context().reset())
        step("close", cuda.close)
        step("array again", lambda: cuda.device_array(1 << 20, "u1"))
        """
    )
    record(numba=steps)
    assert steps["array"] == (about(CONTEXT + ARRAY), "done")
    assert steps["context reset"] == (about(CONTEXT), "done")
    assert steps["close"] == (about(INITIALISED), "done")


@needs("pycuda")
def test_pycuda_ends_a_context_by_detach_or_with_its_last_reference(record: Record) -> None:
    steps = played(
        """
        import pycuda.driver as cuda
        cuda.init()
        context = cuda.Device(0).make_context()
        memory = cuda.mem_alloc(256 << 20)
        step("allocated")
        step("primary context reset", reset)
        step("pop", context.pop)
        step("detach", context.detach)
        del context, memory
        context = cuda.Device(0).make_context()
        memory = cuda.mem_alloc(256 << 20)
        context.pop()
        del memory
        gc.collect()
        step("allocation dropped")
        del context
        gc.collect()
        step("context dropped")
        """
    )
    record(pycuda=steps)
    for name in ("allocated", "primary context reset", "pop"):
        assert steps[name] == (about(CONTEXT + ARRAY), "done"), name
    assert steps["detach"] == (about(INITIALISED), "done")
    assert steps["allocation dropped"] == (about(CONTEXT), "done")
    assert steps["context dropped"] == (about(INITIALISED), "done")


@needs("pycuda")
def test_a_pool_of_pycuda_releases_what_it_holds(record: Record) -> None:
    steps = played(
        """
        import pycuda.autoinit, pycuda.tools
        pool = pycuda.tools.DeviceMemoryPool()
        memory = pool.allocate(256 << 20)
        step("allocated")
        del memory
        step("dropped")
        step("free_held", pool.free_held)
        memory = pool.allocate(256 << 20)
        step("stop_holding", pool.stop_holding)
        del memory
        step("dropped then")
        """
    )
    record(pool=steps)
    assert steps["dropped"] == steps["allocated"]
    assert steps["free_held"] == (about(CONTEXT), "done")
    assert steps["dropped then"] == (about(CONTEXT), "done")


def breaks(steps: dict[str, tuple[int, str]]) -> bool:
    return all(answer != "done" for name, (_, answer) in steps.items() if name.startswith("then "))


@needs("torch")
def test_a_reset_breaks_pytorch(record: Record) -> None:
    """One that has worked: a PyTorch that only allocated goes on, with memory that is not its own."""
    steps = played(
        """
        import torch
        weights = torch.full((64 << 20,), 7, dtype=torch.uint8, device="cuda")
        model = torch.nn.Linear(512, 512).cuda()
        model(torch.randn(512, 512, device="cuda")).sum().backward()
        torch.cuda.synchronize()
        step("worked")
        step("reset", reset)
        step("then an old tensor", lambda: weights[:1024].sum().item())
        step("then a new tensor", lambda: torch.ones(16, device="cuda").sum().item())
        step("then a product", lambda: (torch.ones(9, 9, device="cuda") @ weights[:9].float()).sum().item())
        """
    )
    record(torch=steps)
    assert steps["reset"] == (about(INITIALISED), "done")
    assert breaks(steps)


@needs("cupy")
def test_a_reset_breaks_cupy(record: Record) -> None:
    steps = played(
        """
        import cupy
        array = cupy.full(64 << 20, 7, dtype="uint8")
        float((cupy.ones((512, 512)) @ cupy.ones((512, 512))).sum())
        step("worked")
        step("reset", reset)
        step("then an old array", lambda: int(array[:1024].sum()))
        step("then a new array", lambda: float(cupy.ones(16).sum()))
        """
    )
    record(cupy=steps)
    assert steps["reset"] == (about(INITIALISED), "done")
    assert breaks(steps)


@needs("cuda.core")
def test_a_reset_leaves_the_pool_of_cuda_core(record: Record) -> None:
    steps = played(
        """
        from cuda.core import Device
        device = Device()
        device.set_current()
        buffer = device.allocate(256 << 20, stream=device.default_stream)
        step("allocated")
        step("reset", reset)
        step("then a buffer", lambda: device.allocate(1 << 20, stream=device.default_stream))
        """
    )
    record(cuda_core=steps)
    assert steps["allocated"] == (about(CONTEXT + ARRAY), "done")
    assert steps["reset"] == (about(INITIALISED + ARRAY), "done")
    assert breaks(steps)


LEAKS = """\
#include <cuda_runtime.h>
int main(int count, char **words) {
    void *plain, *pooled;
    cudaMalloc(&plain, 64 << 20);
    cudaMallocAsync(&pooled, 32 << 20, 0);
    cudaDeviceSynchronize();
    return count > 1 ? cudaDeviceReset() : 0;
}
"""


def test_the_sanitizer_finds_leaks_with_a_reset_and_without(tmp_path: Path, record: Record) -> None:
    nvcc = os.environ.get("NVCC") or shutil.which("nvcc")
    sanitizer = shutil.which("compute-sanitizer") or (nvcc and Path(nvcc).with_name("compute-sanitizer"))
    if not nvcc or not Path(sanitizer).exists():
        skip_without("cuda-toolkit", "there is no nvcc or no compute-sanitizer here")
    (tmp_path / "leaks.cu").write_text(LEAKS)
    subprocess.run([nvcc, "-o", tmp_path / "leaks", tmp_path / "leaks.cu"], check=True, timeout=110)
    reports = []
    for words in ([], ["reset"]):
        argv = [sanitizer, "--leak-check", "full", tmp_path / "leaks", *words]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=110)
        reports.append([line for line in done.stdout.splitlines() if "LEAK SUMMARY" in line])
    record(sanitizer=reports)
    assert reports[0] == reports[1]
    assert "100663296 bytes leaked in 2 allocations" in reports[0][0]
