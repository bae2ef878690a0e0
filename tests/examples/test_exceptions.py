"""The example of exceptions, libraries and contexts does what its first lines say."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.needs import needs
from tests.patience import PATIENCE_S
from vram.units import GIB
from vram.virtualgpu import VirtualGpu

FOLDER = Path(__file__).parents[2] / "examples" / "out-of-memory"


@pytest.fixture
def small_gpu(native_libraries: Path) -> Iterator[VirtualGpu]:
    with VirtualGpu.create(memory_bytes=2 * GIB) as gpu:
        yield gpu


def shown(gpu: VirtualGpu, name: str) -> str:
    argv = [sys.executable, str(FOLDER / name)]
    done = gpu.run(argv, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


@needs("numba")
def test_before_there_is_no_room_and_the_holders_are_named(small_gpu: VirtualGpu) -> None:
    said = shown(small_gpu, "before.py")
    assert "CUDA_ERROR_OUT_OF_MEMORY" in said
    assert "local 'out' in frame of kept exception (sys.last_value)" in said
    assert "module library: _cache['warm-up']" in said


@needs("numba")
def test_after_the_next_step_fits(small_gpu: VirtualGpu) -> None:
    said = shown(small_gpu, "after.py")
    assert said.startswith("512.0 MiB freed")
    assert "module library: _cache['warm-up']" in said
    assert said.endswith("the next step: done\nand without the library's cache, 256 MiB more\n")
