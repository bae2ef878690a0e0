"""The worker's calls of the CUDA runtime: which library, and what its first call answers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from vram.lab.worker import MemoryBudget, WorkerClient
from vram.units import GIB, MIB
from vram.virtualgpu import VirtualGpu
from vram.virtualgpu.demos import PROGRAMS

OUT_OF_MEMORY, DEVICES_UNAVAILABLE = 2, 46


@contextmanager
def worker_on(gpu: VirtualGpu, **environment: str) -> Iterator[WorkerClient]:
    worker = WorkerClient({**gpu.environment(), **environment})
    worker.left_s, worker.budget = (lambda: 30.0), MemoryBudget(GIB)
    try:
        yield worker
    finally:
        worker.close()


def test_the_runtimes_own_call_is_made(virtual_gpu: VirtualGpu) -> None:
    with worker_on(virtual_gpu) as worker:
        assert worker.call("free_null_code") == ["cudaFree", 0]
        assert worker.call("cuda_free_code", worker.call("cuda_alloc", MIB)) == ["cudaFree", 0]
        assert worker.call("reset_code") == ["cudaDeviceReset", 0]


def test_what_a_refused_allocation_leaves_in_its_variable_is_told(virtual_gpu: VirtualGpu) -> None:
    """And what is granted after all is freed again."""
    with worker_on(virtual_gpu) as worker:
        other = worker.call("cuda_alloc", MIB)
        free, total = worker.call("free_and_total")
        assert worker.call("cuda_alloc_refused", other, total + GIB) == [OUT_OF_MEMORY, 0]
        code, pointer = worker.call("cuda_alloc_refused", other, 64 * MIB)
        assert code == 0
        assert pointer not in (0, other)
        assert worker.call("free_and_total") == [free, total]


def test_without_a_runtime_library_the_drivers_calls_are_named(virtual_gpu: VirtualGpu) -> None:
    """And no vendor's runtime is taken instead, though one may be installed: it needs a vendor's driver."""
    for library in (virtual_gpu.folder / "lib").glob("libcudart*"):
        library.unlink()
    with worker_on(virtual_gpu) as worker:
        assert worker.call("free_null_code") == ["cuMemFree", 0]
        assert worker.call("cuda_free_code", worker.call("cuda_alloc", MIB)) == ["cuMemFree", 0]
        assert worker.call("cuda_reset_code") is None
        assert worker.call("cuda_alloc_refused", 0, GIB) is None
        assert worker.call("reset_code") == ["cuDevicePrimaryCtxReset", 0]
    with worker_on(virtual_gpu, CUDA_VISIBLE_DEVICES="") as worker:
        assert worker.call("free_null_code") == ["cuInit", 100]


def test_the_first_call_fails_on_a_full_gpu(native_libraries: object) -> None:
    """An H200 answered the same: 2."""
    with (
        VirtualGpu.create(memory_bytes=2 * GIB, reserved_bytes=0) as small,
        worker_on(small) as hog,
        worker_on(small) as late,
    ):
        hog.call("context")
        free = hog.call("free_and_total")[0]
        hog.budget = MemoryBudget(free)
        hog.call("alloc", free - 64 * MIB)
        assert late.call("free_null_code") == ["cudaFree", OUT_OF_MEMORY]


@pytest.mark.parametrize("mode", ["prohibited", "exclusive_process"])
def test_the_first_call_fails_where_no_further_process_is_admitted(
    mode: str, native_libraries: object
) -> None:
    with VirtualGpu.create() as gpu, worker_on(gpu) as first, worker_on(gpu) as second:
        first.call("context")
        gpu.set(compute_mode=mode)
        assert second.call("free_null_code") == ["cudaFree", DEVICES_UNAVAILABLE]


SEARCH = f"""
import sys
sys.path.insert(0, {str(PROGRAMS)!r})
import driver
driver.RUNTIMES = ("libcudart-of-a-test.so.13",)
print(driver.runtime_library()._name)
"""


def test_packages_and_toolkits_are_searched_after_the_loader(virtual_gpu: VirtualGpu, tmp_path: Path) -> None:
    """The loader's choice comes first, then NVIDIA's packages, then the toolkit.

    Under a name of its own: this machine may have a toolkit."""
    name = "libcudart-of-a-test.so.13"
    packages, toolkit = tmp_path / "site" / "nvidia" / "cu13" / "lib", tmp_path / "cuda" / "lib64"
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "site"), "CUDA_HOME": str(tmp_path / "cuda")}

    def found(**more: str) -> str:
        command = [sys.executable, "-c", SEARCH]
        ran = subprocess.run(command, env=environment | more, capture_output=True, text=True, check=True)
        return ran.stdout.strip()

    for folder in (toolkit, packages):
        folder.mkdir(parents=True)
        shutil.copy(virtual_gpu.folder / "lib" / "libcudart.so.13", folder / name)
        assert found() == str(folder / name)
    assert found(LD_LIBRARY_PATH=str(toolkit)) == name
