"""What a scope may gain at most: checked at its end, or watched while it runs."""

from __future__ import annotations

from tests.guard.scoping import result
from vram.units import MIB
from vram.virtualgpu import VirtualGpu


def test_a_limit_is_checked_at_the_end(virtual_gpu: VirtualGpu) -> None:
    program = """
        try:
            with vram.scope("bounded", leak="report", limit="32MiB"):
                raw.alloc(64 * MIB)
        except vram.LimitExceeded as error:
            tell([str(error), error.gained])
    """
    text, gained = result(virtual_gpu, program)
    assert gained == 64 * MIB
    assert "gained 64.0 MiB of device memory; its limit is 32.0 MiB" in text


def test_a_watcher_stops_growth_while_it_happens(virtual_gpu: VirtualGpu) -> None:
    """The loop has no end of its own."""
    program = """
        pointers = []
        try:
            with vram.scope("endless", leak="report", limit="32MiB", every_s=0.002):
                while True:
                    pointers.append(raw.alloc(2 * MIB))
        except vram.LimitExceeded as error:
            tell([len(pointers) > 16, "its limit is 32.0 MiB" in str(error)])
    """
    assert result(virtual_gpu, program) == [True, True]


def test_a_watcher_that_comes_too_late_interrupts_nothing(virtual_gpu: VirtualGpu) -> None:
    """A thousand scopes that end while their watcher looks: none is struck afterwards or left open."""
    program = """
        from vram.guard import scope_tree
        struck = 0
        for _ in range(1000):
            try:
                with vram.scope("race", leak="report", limit=0, every_s=0.00001):
                    pointer = raw.alloc(2 * MIB)
                    raw.call("cuMemFree_v2", pointer)
            except vram.LimitExceeded:
                struck += 1
            for _ in range(200):
                pass
        gc.collect()
        with vram.scope("after the race", leak="report"):
            pass
        tell([struck > 0, scope_tree._open, scope_tree._root.child_group.open])
    """
    assert result(virtual_gpu, program) == [True, [], 0]
