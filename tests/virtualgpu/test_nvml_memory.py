"""A GPU's memory, as NVML's two versions tell it."""

from __future__ import annotations

import pytest

from tests.virtualgpu.conftest import Hold, ask
from vram.units import GIB, MIB
from vram.virtualgpu import VirtualGpu

pytestmark = pytest.mark.native

TOTAL = 143771 * MIB
RESERVED = 615 * MIB + 64 * 1024
CONTEXT = 518 * MIB
INIT = 3 * MIB + 256 * 1024
OVERHEAD = INIT + 5 * MIB + 576 * 1024
NOT_AVAILABLE = 2**64 - 1


def test_idle_memory_is_as_measured_on_an_h200(virtual_gpu: VirtualGpu) -> None:
    """Version 1 calls the reserved part used, version 2 tells it apart; both sum to the total."""
    told = ask(virtual_gpu, "memory()")
    assert told["v1"] == [TOTAL, TOTAL - RESERVED, RESERVED]
    assert told["v2"] == [TOTAL, RESERVED, TOTAL - RESERVED, 0]


def test_a_context_and_its_allocation_are_used_while_their_process_lives(
    virtual_gpu: VirtualGpu, hold: Hold
) -> None:
    holder = hold(virtual_gpu, 4 * GIB)
    used = CONTEXT + OVERHEAD + 4 * GIB
    told = ask(virtual_gpu, "memory()")
    assert told["v2"] == [TOTAL, RESERVED, TOTAL - RESERVED - used, used]
    assert told["v1"] == [TOTAL, TOTAL - RESERVED - used, RESERVED + used]
    holder.end()
    assert ask(virtual_gpu, "memory()")["v2"][3] == 0


def test_a_holder_uses_little_of_the_other_gpus(two_virtual_gpus: VirtualGpu, hold: Hold) -> None:
    hold(two_virtual_gpus, GIB, 1)
    used = ask(two_virtual_gpus, "[memory(0)['v2'][3], memory(1)['v2'][3]]")
    assert used == [INIT, CONTEXT + OVERHEAD + GIB]


def test_version_2_refuses_a_structure_of_another_version(virtual_gpu: VirtualGpu) -> None:
    wrong = "code(n.nvmlDeviceGetMemoryInfo, handle(0), 0x01000028)"
    assert ask(virtual_gpu, wrong) == 25


def test_a_sentinel_stands_where_bytes_would(virtual_gpu: VirtualGpu) -> None:
    virtual_gpu.fail("nvmlDeviceGetMemoryInfo*", sentinel=True)
    told = ask(virtual_gpu, "memory()")
    assert set(told["v1"]) == set(told["v2"]) == {NOT_AVAILABLE}


def test_bar1_is_told_with_what_is_in_use(virtual_gpu: VirtualGpu) -> None:
    virtual_gpu.set(bar1_bytes=256 * MIB, bar1_base_bytes=255 * MIB)
    bar1 = ask(
        virtual_gpu, "[b.bar1Total, b.bar1Free, b.bar1Used]", "b = n.nvmlDeviceGetBAR1MemoryInfo(handle(0))"
    )
    assert bar1 == [256 * MIB, MIB, 255 * MIB]


def test_all_memory_in_use_is_seen_through_bar1(virtual_gpu: VirtualGpu, hold: Hold) -> None:
    """As an H200 has it, whose window is larger than its memory; a smaller one is simply full."""
    seen = "n.nvmlDeviceGetBAR1MemoryInfo(handle(0)).bar1Used"
    base = 1703936
    assert ask(virtual_gpu, seen) == base
    hold(virtual_gpu, 4 * GIB)
    assert ask(virtual_gpu, seen) == base + CONTEXT + OVERHEAD + 4 * GIB + 64 * 1024
    virtual_gpu.set(bar1_bytes=256 * MIB)
    assert ask(virtual_gpu, f"[{seen}, n.nvmlDeviceGetBAR1MemoryInfo(handle(0)).bar1Free]") == [256 * MIB, 0]


def test_settings_of_one_gpu_leave_the_other_alone(two_virtual_gpus: VirtualGpu) -> None:
    two_virtual_gpus.set(gpu=1, total_bytes=8 * GIB)
    assert ask(two_virtual_gpus, "[memory(0)['v1'][0], memory(1)['v1'][0]]") == [TOTAL, 8 * GIB]
