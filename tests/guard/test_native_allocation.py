"""Memory allocated and freed in one call each, by C and by Python: the same answers."""

from __future__ import annotations

import pytest

from tests.guard.scoping import RAW, result
from vram.guard.memory import LIBRARY
from vram.virtualgpu import VirtualGpu

pytestmark = pytest.mark.native

PROGRAM = """
import ctypes
from ctypes import byref, c_size_t, c_uint64
from vram.guard.driver import LOST, AllocationId, allocation_calls

cuda = ctypes.CDLL("libcuda.so.1")
allocate, free = allocation_calls(cuda, {path!r})

def taken(nbytes):
    made = AllocationId()
    return allocate(c_size_t(nbytes), byref(made)), made
"""


@pytest.fixture(params=[LIBRARY, "/nowhere.so"], ids=["C", "Python"])
def preamble(request: pytest.FixtureRequest) -> str:
    return RAW + PROGRAM.format(path=request.param)


def test_what_is_allocated_is_freed_once(virtual_gpu: VirtualGpu, preamble: str) -> None:
    program = """
        first, one = taken(3 << 30)
        second, two = taken(1)
        tell([first, second, one.number != two.number, bool(one.number and two.pointer),
              free(byref(one)), free(byref(one)) == LOST, free(byref(two))])
    """
    assert result(virtual_gpu, program, preamble) == [0, 0, True, True, 0, True, 0]


def test_another_allocation_at_the_same_address_is_left_alone(virtual_gpu: VirtualGpu, preamble: str) -> None:
    program = """
        _, lost = taken(1 << 30)
        cuda.cuMemFree_v2(c_uint64(lost.pointer))
        _, others = taken(1 << 30)
        tell([others.pointer == lost.pointer, free(byref(lost)) == LOST, free(byref(others))])
    """
    assert result(virtual_gpu, program, preamble) == [True, True, 0]


def test_a_failed_allocation_tells_the_drivers_code(virtual_gpu: VirtualGpu, preamble: str) -> None:
    assert result(virtual_gpu, "tell(taken(900 << 30)[0])", preamble) == 2
