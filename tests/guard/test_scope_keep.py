"""What is said to be meant to stay: each piece of memory once, and only while it is there."""

from __future__ import annotations

from tests.guard.scoping import NUMBA, result
from tests.installed import needs
from vram.units import MIB
from vram.virtualgpu import VirtualGpu


def test_what_is_kept_several_times_counts_once(virtual_gpu: VirtualGpu) -> None:
    program = """
        with vram.scope("load", leak="report") as s:
            model = s.keep(vram.Buffer("8MiB"))
            s.keep(model)
            s.keep([model, {"again": model}])
            forgotten = vram.Buffer("8MiB")
        tell(s.leak.nbytes)
    """
    assert result(virtual_gpu, program) == 8 * MIB


def test_what_was_kept_and_then_freed_excuses_nothing(virtual_gpu: VirtualGpu) -> None:
    """The driver gives the same address to the next one."""
    program = """
        with vram.scope("load", leak="report") as s:
            model = s.keep(vram.Buffer("8MiB"))
            address = model.pointer
            model.close()
            forgotten = vram.Buffer("8MiB")
        tell([forgotten.pointer == address, s.leak and s.leak.nbytes])
    """
    assert result(virtual_gpu, program) == [True, 8 * MIB]


def test_what_was_kept_and_then_dropped_excuses_nothing(virtual_gpu: VirtualGpu) -> None:
    program = """
        with vram.scope("load", leak="report") as s:
            s.keep(vram.Buffer("8MiB"))
            forgotten = vram.Buffer("8MiB")
        tell(s.leak and s.leak.nbytes)
    """
    assert result(virtual_gpu, program) == 8 * MIB


@needs("numba")
def test_memory_that_was_kept_by_a_view_stays_kept_without_it(virtual_gpu: VirtualGpu) -> None:
    """As PyTorch's state_dict() does, whose tensors are new ones each time."""
    program = """
        with vram.scope("load", leak="report") as s:
            model = array(8 * MIB)
            s.keep({"weights": model[4:]})
        tell(s.leak)
    """
    assert result(virtual_gpu, program, NUMBA) is None
