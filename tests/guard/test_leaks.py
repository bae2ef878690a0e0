"""Ten ways to leak, each found, named and freed, with real frameworks on the virtual GPU."""

from __future__ import annotations

import pytest

from tests.guard.acting import act_out, check
from tests.needs import require
from vram.units import MIB
from vram.virtualgpu import VirtualGpu

NEEDS = {"numba": ("numba_cuda",), "cuda_core": ("cuda.core",), "buffer": (), "pycuda": ("pycuda",)}


@pytest.mark.parametrize("framework", NEEDS)
def test_ten_ways_to_leak_are_named_and_come_back(virtual_gpu: VirtualGpu, framework: str) -> None:
    require(*NEEDS[framework])
    check(act_out(framework, 64 * MIB, virtual_gpu.environment()), 64 * MIB)
