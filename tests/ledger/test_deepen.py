"""A process's own account splits its entry; whatever it says, the sum stays."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.ledger.world import CONTEXT, OVERHEAD, World
from vram.ledger.build import build_ledger
from vram.ledger.deepen import Measured, caches_nothing, deepen
from vram.model.inside import CacheLine, Trimmed, Via
from vram.model.ledger import Ledger, known_bytes
from vram.units import GIB


def ledger() -> Ledger:
    world = World().gpu(0, used=10 * GIB + CONTEXT + OVERHEAD).gpu(1)
    return build_ledger(world.cuda(100, 10 * GIB + CONTEXT).survey())


def line(held: int, reclaimable: int | None, used: int | None, device: int | None = 3) -> CacheLine:
    return CacheLine(
        name="PyTorch",
        memory="device",
        device=device,
        held=held,
        reclaimable=reclaimable,
        held_after=held,
        used=used,
    )


def told(*lines: CacheLine, via: Via = "agent") -> dict[int, Measured]:
    uuid = ledger().gpus[0].uuid
    return {100: Measured(via, Trimmed(status="done", devices={"3": uuid, "0": "GPU-other"}, lines=lines))}


def split(*lines: CacheLine, via: Via = "agent") -> dict[str, int]:
    gpu = deepen(ledger(), told(*lines, via=via)).gpus[0]
    return {entry.kind: entry.nbytes for entry in gpu.entries if entry.holder and entry.holder.pid == 100}


def test_live_cached_and_fragmented_are_told_apart_and_the_rest_is_the_context() -> None:
    found = split(line(10 * GIB, 6 * GIB, 3 * GIB))
    assert found == {"live": 3 * GIB, "cached": 6 * GIB, "fragmented": GIB, "context": CONTEXT}


def test_lines_about_other_gpus_do_not_count() -> None:
    assert split(line(4 * GIB, 4 * GIB, 0, device=0)) == {"outside": 10 * GIB + CONTEXT}


def test_what_is_not_told_stays_with_the_rest() -> None:
    assert split(line(4 * GIB, None, None)) == {"outside": 10 * GIB + CONTEXT}


def test_what_no_framework_accounts_for_is_a_context_only_up_to_what_one_costs() -> None:
    """41 GiB of raw cuMemAlloc are no context; 518 MiB, and a library's code, may be."""
    assert split(line(10 * GIB, 0, 10 * GIB)) == {"live": 10 * GIB, "context": CONTEXT}
    assert split(line(8 * GIB, 0, 8 * GIB)) == {"live": 8 * GIB, "outside": 2 * GIB + CONTEXT}
    assert split() == {"outside": 10 * GIB + CONTEXT}


def test_a_program_without_python_allocates_by_itself() -> None:
    found = split(line(10 * GIB, 0, 10 * GIB), via="native")
    assert found == {"live": 10 * GIB, "outside": CONTEXT}


def test_other_processes_stay_as_they_are() -> None:
    assert deepen(ledger(), {}) == ledger()


@given(st.lists(st.tuples(*[st.integers(0, 20 * GIB)] * 3), max_size=4))
def test_the_sum_holds_whatever_a_process_says(figures: list[tuple[int, int, int]]) -> None:
    for gpu in deepen(ledger(), told(*(line(*each) for each in figures))).gpus:
        assert known_bytes(gpu.entries) == gpu.total_bytes
        assert all(entry.nbytes is None or entry.nbytes >= 0 for entry in gpu.entries)


def test_only_a_native_program_that_reports_no_unused_byte_caches_nothing() -> None:
    """What a framework in Python keeps beside its cache it does not report; unknown is not zero."""

    def answer(via: Via, *reclaimable: int | None) -> Measured:
        lines = tuple(
            CacheLine(name="pool", memory="device", device=0, held=GIB, reclaimable=each, held_after=GIB)
            for each in reclaimable
        )
        return Measured(via, Trimmed(status="done", lines=lines))

    assert caches_nothing(answer("native"))
    assert caches_nothing(answer("native", 0, 0))
    assert not caches_nothing(answer("native", 0, 1))
    assert not caches_nothing(answer("native", None))
    assert not caches_nothing(answer("agent", 0))
