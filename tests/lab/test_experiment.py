"""An experiment on a host whose readings are written by hand: others who move, and limits that hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from vram.lab.claim import CannotTell, Takes, judge, mostly
from vram.lab.experiment import Experiment, LabDevice, LabSession
from vram.lab.topics import CLAIMS
from vram.lab.worker import MemoryBudget, WorkerPool
from vram.model.gpu import ChargeFacts, DriverFacts, GpuFacts, MemoryFacts
from vram.model.lab import Result
from vram.model.observation import Observation
from vram.model.process import ProcessRef
from vram.units import GIB, MIB

TOTAL, RESERVED = 8 * GIB, 600 * MIB
DEVICE = LabDevice(0, GpuFacts(uuid="GPU-0", name="NVIDIA Test"), DriverFacts())


class Readings:
    """A host whose GPU shows one reading after the other, then the last for ever."""

    def __init__(self, *steps: tuple[int, Mapping[int, int]]) -> None:
        self._steps = list(steps)
        self.nvml: Any = self
        self.clock: Any = self

    def read(self, deadline_s: float) -> Iterator[Observation]:
        used, charges = self._steps.pop(0) if len(self._steps) > 1 else self._steps[0]
        memory = MemoryFacts(TOTAL, TOTAL - used - RESERVED, used, RESERVED, v1_used=used + RESERVED)
        yield Observation(probe="nvml.memory", gpu=0, facts=memory)
        for pid, nbytes in charges.items():
            facts = ChargeFacts(("compute",))
            yield Observation(
                probe="nvml.processes", gpu=0, process=ProcessRef(pid), nbytes=nbytes, facts=facts
            )

    def sleep(self, seconds: float) -> None:
        """Time does not matter here."""


def run(host: Readings) -> Result:
    """Test a claim that starts no process."""
    return LabSession(host, DEVICE).run(CLAIMS["used-includes-reserved"])  # type: ignore[arg-type]


def experiment_on(*steps: tuple[int, Mapping[int, int]], takes: Takes | None = None) -> Experiment:
    return Experiment(Readings(*steps), DEVICE, WorkerPool("GPU-0"), takes or Takes(), 20.0)  # type: ignore[arg-type]


def test_memory_of_others_that_moves_disturbs() -> None:
    experiment = experiment_on((GIB, {7: GIB}), (2 * GIB, {7: 2 * GIB}))
    experiment.read_device("later")
    assert (
        experiment.disturbance
        == "memory of pid 7, which is not part of the experiment, changed by 1.0 GiB meanwhile"
    )


def test_a_newcomer_disturbs_too() -> None:
    experiment = experiment_on((0, {}), (0, {8: 64 * MIB}))
    experiment.read_device("later")
    assert experiment.disturbance is not None


def test_others_who_keep_still_do_not_disturb() -> None:
    experiment = experiment_on((GIB, {7: GIB}), (GIB + MIB, {7: GIB + MIB}))
    experiment.read_device("later")
    assert experiment.disturbance is None


def test_a_disturbed_experiment_is_tried_again() -> None:
    """The first attempt sees a neighbour move; the second one is quiet, and counts."""
    quiet = (2 * GIB, {7: 2 * GIB})
    host = Readings((GIB, {7: GIB}), *[quiet] * 8)
    result = run(host)
    assert result.verdict == "true here"


def test_an_experiment_that_is_disturbed_again_cannot_tell() -> None:
    steps = [(step * GIB, {7: step * GIB}) for step in (1, 2, 3, 4)]
    host = Readings(*steps, (4 * GIB, {7: 4 * GIB}), (5 * GIB, {7: 5 * GIB}))
    result = run(host)
    assert result.verdict == "cannot tell"
    assert "changed" in result.because


def test_memory_that_moves_without_a_name_cannot_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is listed, and yet the device is not where it was when the experiment began."""
    monkeypatch.setattr("vram.lab.experiment.SETTLE_S", 0.0)
    host = Readings((0, {}), (0, {}), (GIB, {}), (GIB, {}), (GIB, {}), (2 * GIB, {}))
    result = run(host)
    assert result.because == "device memory did not return to its first value: other memory changed meanwhile"


def test_more_than_an_experiment_names_ends_it() -> None:
    experiment = experiment_on((0, {}), (3 * GIB, {}), takes=Takes(GIB, contexts=1))
    with pytest.raises(CannotTell, match="more than its page says"):
        experiment.read_device("later")


def test_asking_for_more_than_is_named_is_refused() -> None:
    budget = MemoryBudget(10)
    budget.take(6)
    with pytest.raises(CannotTell, match="more than its page says"):
        budget.take(5)
    budget.release(6)
    budget.take(10)


def test_nothing_begins_without_room() -> None:
    with pytest.raises(CannotTell, match=r"it needs 1\.8 GiB of free memory"):
        experiment_on((7 * GIB, {}), takes=Takes(GIB))


def test_what_the_device_did_not_show_decides_nothing() -> None:
    experiment = experiment_on((0, {}), (100 * MIB, {}))
    with pytest.raises(CannotTell, match=r"showed 100\.0 MiB of the 256\.0 MiB"):
        experiment.must_show("allocated", 256 * MIB)


@pytest.mark.parametrize(
    ("nbytes", "share"),
    [(0, False), (25 * MIB, False), (128 * MIB, None), (240 * MIB, True), (256 * MIB, True), (-MIB, False)],
)
def test_a_share_is_most_or_hardly_any_or_neither(nbytes: int, share: bool | None) -> None:
    assert mostly(nbytes, 256 * MIB) is share


def test_a_claim_of_hardly_any_is_judged_the_other_way() -> None:
    assert judge(0, GIB, "left").holds is False
    assert judge(0, GIB, "left", claimed=False).holds is True
    assert judge(GIB // 2, GIB, "left", claimed=False).holds is None


@pytest.mark.parametrize(("nbytes", "words"), [(0, "0 B"), (3407872, "3.2 MiB"), (-MIB, "0 B")])
def test_a_sentence_says_what_was_read(nbytes: int, words: str) -> None:
    """CUDA's 3 MiB, which a reset leaves, are too few to decide, and not nothing."""
    assert judge(nbytes, 256 * MIB, "left").because == f"{words} of 256.0 MiB left"
