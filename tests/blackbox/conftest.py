"""Which GPU the rows run on: a virtual one, or with ``--real-gpu`` the machine's own."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.needs import skip_without

sys.path.insert(0, str(Path(__file__).resolve().parent))

from machine import Machine


@pytest.fixture(scope="module")
def machine(real_gpu: bool, request: pytest.FixtureRequest) -> Iterator[Machine]:
    """One GPU and one observer for all rows: every row leaves the GPU as it found it."""
    if real_gpu:
        try:
            ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            skip_without("real-gpu", "no NVIDIA driver on this machine")
        place = Machine()
        yield place
        place.close()
        return
    request.getfixturevalue("native_libraries")
    from vram.virtualgpu import VirtualGpu

    with VirtualGpu.create() as gpu:
        place = Machine(gpu.environment())
        yield place
        place.close()
