"""Ten ways to leak, each found, named and freed, with real frameworks on the virtual GPU."""

from __future__ import annotations

import pytest

from tests.guard.acting import act_out, check
from tests.installed import is_installed
from vram.units import MIB
from vram.virtualgpu import VirtualGpu

NEEDS = {"numba": "numba_cuda", "cuda_core": "cuda.core", "buffer": "vram", "pycuda": "pycuda"}


@pytest.mark.parametrize("framework", NEEDS)
def test_ten_ways_to_leak_are_named_and_come_back(virtual_gpu: VirtualGpu, framework: str) -> None:
    if not is_installed(NEEDS[framework]):
        pytest.skip(f"{NEEDS[framework]} is not installed")
    check(act_out(framework, 64 * MIB, virtual_gpu.environment()), 64 * MIB)
