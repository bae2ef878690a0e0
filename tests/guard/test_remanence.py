"""The remanence test finds what is there, says how far it looked, and never says more."""

from __future__ import annotations

import pytest

from tests.guard.owner import told
from vram.model.leak import Remanence, Trial
from vram.units import MIB
from vram.virtualgpu import VirtualGpu

SMALL = "plain allocations of up to 1 MiB, beside a living one"
ERASED = "erased before the free"
PLACES = ["plain allocations", "stream-ordered pool", f"stream-ordered pool, {ERASED}"]


@pytest.mark.fault(32)
def test_it_finds_in_pools_and_in_small_pieces_what_large_ones_do_not_show(virtual_gpu: VirtualGpu) -> None:
    trials, left = told(
        virtual_gpu,
        """
        before = used()
        report = vram.remanence_test("8MiB")
        rows = [
            [t.source, t.sampled, t.control, t.found, t.nonzero, t.same_address]
            for t in report.trials if t.skipped is None]
        tell(rows, used() - before)
        """,
    )
    whole = 8 * MIB
    assert trials == [
        [PLACES[0], whole, whole, 0, 0, True],
        [SMALL, MIB, MIB, MIB, MIB, True],
        [f"{SMALL}, {ERASED}", MIB, MIB, 0, 0, True],
        [PLACES[1], whole, whole, whole, whole, True],
        [PLACES[2], whole, whole, 0, 0, True],
        ["plain allocations, after a killed process", whole, whole, 0, 0, False],
    ]
    assert left == 0


@pytest.mark.fault(32)
def test_it_states_its_scope(virtual_gpu: VirtualGpu) -> None:
    text, total = told(virtual_gpu, "r = vram.remanence_test('2MiB'); tell(str(r), r.total)")
    lines = text.splitlines()
    assert lines[0] == "on NVIDIA H200 (virtual), driver 580.159.04, default compute mode, ECC on:"
    sampled = f"2,097,152 of {total:,} bytes sampled"
    assert lines[1] == f"  plain allocations: {sampled}, none found (the control found all)"
    assert lines[2].startswith(f"  {SMALL}: 1,048,576 of ")
    assert lines[4] == f"  stream-ordered pool: {sampled}, every old byte found (the control found all)"
    assert lines[6] == "  PyTorch's cache: not measured, PyTorch is not loaded in this process"
    assert "wiped" not in text


@pytest.mark.parametrize("nbytes", [64, 4096, 65536])
def test_less_than_a_mebibyte(virtual_gpu: VirtualGpu, nbytes: int) -> None:
    found = told(
        virtual_gpu,
        f"""
        trials = [each for each in vram.remanence_test("{nbytes}B").trials if each.skipped is None]
        tell([[each.source, each.sampled, each.control, each.found] for each in trials])
        """,
    )
    assert all(row[1:3] == [nbytes, nbytes] for row in found)
    assert {row[0] for row in found if row[3]} == {SMALL, PLACES[1]}
    assert len(found) == 6


def test_it_takes_at_most_a_quarter_of_what_is_free(virtual_gpu: VirtualGpu) -> None:
    sampled, free = told(
        virtual_gpu,
        """
        def free():
            with driver().on_device(0):
                return driver().free_and_total()[0]
        hog = Buffer(free() - 20 * MIB)
        tell(vram.remanence_test("64MiB").trials[0].sampled, free())
        """,
    )
    assert 0 < sampled == free // 4 // MIB * MIB < 64 * MIB


def test_another_process_that_fails_is_said(virtual_gpu: VirtualGpu) -> None:
    skipped = told(
        virtual_gpu,
        """
        sys.executable = "/bin/false"
        tell(vram.remanence_test("1MiB").trials[-1].skipped)
        """,
    )
    assert skipped == "the other process did not answer: no reason given"


@pytest.mark.fault(32)
def test_a_control_that_fails_proves_nothing() -> None:
    trial = Trial(source="plain allocations", sampled=100, control=99)
    report = Remanence(gpu="G", driver="1", mode="m", total=1000, trials=(trial,))
    assert not trial.is_valid
    assert str(report).endswith("plain allocations: no result, the control found 99 of 100 bytes")


def test_what_fails_is_said_and_the_rest_is_measured(virtual_gpu: VirtualGpu) -> None:
    """And nothing stays behind: not the memory, not the pool."""
    answer = told(
        virtual_gpu,
        """
        from vram.virtualgpu import VirtualGpu
        before = used()
        VirtualGpu.inside().fail("cuMemAllocFromPoolAsync", nth=2, error=999)
        plain, _, _, pool, erased, *_ = vram.remanence_test("2MiB").trials
        VirtualGpu.inside().clear_faults()
        tell(plain.skipped, pool.skipped, erased.skipped, used() - before)
        """,
    )
    assert answer == [None, "cuMemAllocFromPoolAsync returned CUDA_ERROR_UNKNOWN (999)", None, 0]


@pytest.mark.parametrize("size", ["0", "-1", "'3 apples'", "63", "True", "1.5", "None"])
def test_sizes_that_are_none_are_refused(virtual_gpu: VirtualGpu, size: str) -> None:
    assert told(virtual_gpu, f"tell(error_of(vram.remanence_test, {size}))") == "UsageError"


def test_a_device_that_does_not_exist(virtual_gpu: VirtualGpu) -> None:
    assert told(virtual_gpu, "tell(error_of(vram.remanence_test, device=4))") == "NoSuchDevice"
