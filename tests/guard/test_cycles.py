"""What keeps a cycle: nothing but itself, or also somebody whom Python does not see."""

from __future__ import annotations

from typing import Any

import pytest

from tests.guard.scoping import NUMBA, result
from tests.needs import needs
from vram.virtualgpu import VirtualGpu

pytestmark = needs("numba")

# Nothing but `hold` differs. What it takes is put back at the end, and then the collector frees all.
PROGRAM = """
    import ctypes
    take, give = ctypes.pythonapi.Py_IncRef, ctypes.pythonapi.Py_DecRef
    take.argtypes = give.argtypes = [ctypes.py_object]
    gc.disable()

    class Node:
        pass

    class Watched(list):
        pass

    def make(hold):
        node, other = Node(), Node()
        node.other, other.back, other.list = other, node, Watched([node])
        node.array = array(8 * MIB)
        held = hold(node)
        if held is None:
            return None
        take(held)
        return id(held)

    def put_back(number):
        held = ctypes.cast(number, ctypes.py_object).value
        give(held)

    number = make({hold})
    said = [each.holder for each in vram.live()]
    gc.collect()
    stayed = len(vram.live(holders=False))
    if number is not None:
        put_back(number)
    gc.collect()
    tell([[[each.text, each.kind] for each in said], stayed, len(vram.live(holders=False))])
"""


def told(gpu: VirtualGpu, hold: str) -> Any:
    return result(gpu, PROGRAM.replace("{hold}", hold), NUMBA)


def test_a_cycle_of_its_own_is_the_collectors(virtual_gpu: VirtualGpu) -> None:
    [[[text, kind]], stayed, left] = told(virtual_gpu, "lambda node: None")
    assert text.startswith("a cycle through a ")
    assert text.endswith(": gc.collect() frees it")
    assert (kind, stayed, left) == ("cycle", 0, 0)


@pytest.mark.parametrize("member", ["node", "node.other", "node.other.list"])
def test_a_cycle_that_native_code_holds_too_is_not(virtual_gpu: VirtualGpu, member: str) -> None:
    """Whichever member it holds; the claim and what the collector does agree."""
    [[[text, kind]], stayed, left] = told(virtual_gpu, f"lambda node: {member}")
    assert text.startswith("a cycle through a ")
    assert text.endswith(", and something that Python cannot see")
    assert (kind, stayed, left) == ("native", 1, 0)
