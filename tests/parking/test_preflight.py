"""What is judged before anything is touched, on what was read: pure, so every case can be had."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from vram.errors import CannotPark, DeviceError, NotOnGpu
from vram.model.gpu import GpuFacts, MemoryFacts
from vram.model.parking import GpuShare, ProcessLimits, reserve
from vram.model.plan import Target
from vram.model.process import ProcessFacts, ProcessRef
from vram.reclaim.borrow import ParkCandidate, enough
from vram.reclaim.preflight import DriverReport, ListedProcess, ParkOptions, parkable_shares
from vram.units import GIB, MIB

PID = 4711
SHARE = GpuShare(0, "GPU-0", 8 * GIB)
TARGET = Target(process=ProcessRef(PID, 1), uid=1000, user="ana", command="train", executable="/bin/train")
RUNNING = ProcessFacts("train", uid=1000, state="S")
ROOMY = ProcessLimits(memory_left=64 * GIB, memory_total=100 * GIB)


LISTED = ListedProcess(SHARE, ("compute",), 0)


def devices(line: ListedProcess = LISTED, version: str = "580.159.04") -> DriverReport:
    gpu, memory = GpuFacts("GPU-0", "H200"), MemoryFacts(140 * GIB, 100 * GIB, 40 * GIB)
    return DriverReport(version, {0: gpu}, {0: memory}, {PID: (line,)})


def test_a_healthy_process_may_be_parked_with_all_it_has() -> None:
    assert parkable_shares(devices(), TARGET, RUNNING, ROOMY) == (SHARE,)


@pytest.mark.fault(19)
@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (devices(ListedProcess(SHARE, ("compute", "mps"), 0)), "MPS"),
        (devices(ListedProcess(None, ("compute",), 0)), "does not report how much"),
        (devices(version="560.28.03"), "560.28.03"),
        (replace(devices(), driver_version=None), "unknown version"),
        (replace(devices(), gpus={0: GpuFacts("GPU-0", "H200", mig_enabled=True)}), "MIG"),
    ],
)
def test_what_the_driver_cannot_park(seen: DriverReport, words: str) -> None:
    with pytest.raises(CannotPark, match=words):
        parkable_shares(seen, TARGET, RUNNING, ROOMY)


@pytest.mark.parametrize("state", ["T", "t", "D", "Z"])
def test_who_is_paused_cannot_be_parked(state: str) -> None:
    with pytest.raises(CannotPark, match="only a running process"):
        parkable_shares(devices(), TARGET, replace(RUNNING, state=state), ROOMY)


def test_who_is_not_listed_is_not_on_a_gpu() -> None:
    with pytest.raises(NotOnGpu):
        parkable_shares(replace(devices(), listed={}), TARGET, RUNNING, ROOMY)


def test_who_is_not_listed_may_be_on_a_gpu_that_does_not_answer() -> None:
    with pytest.raises(DeviceError, match="GPU 1 does not answer: whether pid 4711 holds memory there"):
        parkable_shares(replace(devices(), listed={}, silent=(1,)), TARGET, RUNNING, ROOMY)


@pytest.mark.fault(19)
def test_host_memory_is_counted_beside_a_reserve_and_what_goes_before() -> None:
    just = 8 * GIB + reserve(ROOMY.memory_total)
    assert parkable_shares(devices(), TARGET, RUNNING, replace(ROOMY, memory_left=just))
    for limits, before in ((replace(ROOMY, memory_left=just - 1), 0), (replace(ROOMY, memory_left=just), 1)):
        with pytest.raises(CannotPark, match="host memory left"):
            parkable_shares(devices(), TARGET, RUNNING, limits, ParkOptions(taken_before=before))


def test_a_control_group_can_be_what_is_too_small() -> None:
    tight = replace(ROOMY, memory_left=4 * GIB, memory_limited_by="/docker/abc")
    with pytest.raises(CannotPark, match="cgroup /docker/abc"):
        parkable_shares(devices(), TARGET, RUNNING, tight)


def test_memory_that_cannot_be_read_is_not_taken_for_plenty() -> None:
    with pytest.raises(CannotPark):
        parkable_shares(devices(), TARGET, RUNNING, ProcessLimits())


@pytest.mark.parametrize(
    ("total", "kept"), [(None, 512 * MIB), (4 * GIB, 512 * MIB), (100 * GIB, 5 * GIB), (1024 * GIB, 8 * GIB)]
)
def test_the_reserve_is_a_twentieth_within_bounds(total: int | None, kept: int) -> None:
    assert reserve(total) == kept


def candidate(nbytes: int, *, idle: bool = True) -> ParkCandidate:
    return ParkCandidate(TARGET, (SHARE,), nbytes, idle)


@pytest.mark.parametrize(
    ("sizes", "missing", "chosen"),
    [
        ([40, 3, 5], 3, [3]),
        ([40, 3, 5], 4, [5]),
        ([2, 3, 4], 6, [4, 2]),
        ([2, 3], 6, None),
        ([], 1, None),
        ([1], 0, []),
    ],
)
def test_the_fewest_bytes_are_chosen(sizes: list[int], missing: int, chosen: list[int] | None) -> None:
    found = enough([candidate(size) for size in sizes], missing)
    assert (None if found is None else [each.nbytes for each in found]) == chosen


def test_a_busy_one_goes_only_when_the_idle_are_too_few() -> None:
    idle, busy = candidate(4), candidate(6, idle=False)
    assert enough([busy, idle], 4) == (idle,)
    assert enough([busy, idle], 8) == (idle, busy)


def test_nobody_is_parked_whom_the_others_make_superfluous() -> None:
    """As for every plan that frees a size."""
    idle, busy = candidate(4), candidate(10, idle=False)
    assert enough([busy, idle], 8) == (busy,)
