"""Which processes to park so that a command has room: the fewest bytes, idle ones first, only one's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct

from vram.errors import (
    DeviceError,
    GoalImpossible,
    NoSuchProcess,
    NotOnGpu,
    NotPermitted,
    Refused,
    UsageError,
    VramError,
)
from vram.host.ports import Host
from vram.model.parking import GpuShare, Parked, ProcessLimits
from vram.model.plan import Target
from vram.reclaim.parking import Moved, Parking
from vram.reclaim.preflight import (
    DriverReport,
    ParkOptions,
    identify_parkable,
    require_checkpoints,
    seen_by_cuda,
)
from vram.reclaim.selection import fewest
from vram.units import MIB, counted, size

# The checkpoint worker has the driver open while the command runs: 3.25 MiB on an H200.
WORKER_BYTES = 8 * MIB
IDLE_WINDOW_S = 0.25
# Of one processor, over the window: a training loop or a busy kernel's waiting thread uses all of one.
IDLE_SHARE = 0.2
# The command's memory is back 110 ms after its end on an H200; others may leave it too.
ROOM_PATIENCE_S = 5.0

OnBegin = Callable[[int, int], None]
"""Called with the pid and the bytes that are about to be moved."""
OnMoved = Callable[[Moved], None]


class ParkCandidate(Struct, frozen=True):
    """A process that may be parked, and what that would free on the GPU in question."""

    target: Target
    shares: tuple[GpuShare, ...]
    nbytes: int
    idle: bool

    @property
    def pids(self) -> frozenset[int]:
        return frozenset((self.target.process.pid,))


class BorrowPlan(Struct, frozen=True):
    """Where the command will have its room, and which processes are parked for it."""

    gpu: int
    uuid: str
    free_bytes: int
    chosen: tuple[ParkCandidate, ...]
    is_one_of_several: bool = False


def plan_borrow(
    host: Host,
    report: DriverReport,
    nbytes: int,
    *,
    gpu: int | None = None,
    visible: str | None = None,
    pids: Sequence[int] = (),
) -> BorrowPlan:
    """Choose the GPU and the processes; raises where *nbytes* cannot be had, having touched nothing.

    *visible* is the command's CUDA_VISIBLE_DEVICES where it is set: room elsewhere is of no use to it.
    """
    if gpu is not None and gpu not in report.gpus:
        raise UsageError(
            f"there is no GPU {gpu}", hint="these exist: " + ", ".join(map(str, sorted(report.gpus)))
        )
    seen = list(report.memory) if visible is None else _seen(report, visible, gpu)
    indices = seen if gpu is None else [gpu]
    largest = max((report.memory[index].total for index in indices if index in report.memory), default=0)
    if nbytes > largest:
        raise GoalImpossible(
            f"{size(nbytes)} is more than a GPU here has ({size(largest)})", hint="request less"
        )
    plans, reasons = [], []
    for index in indices:
        try:
            plans.append(_plan_on(host, report, index, nbytes, pids))
        except (Refused, DeviceError) as error:
            reasons.append(error)
    if not plans:
        raise reasons[0]
    return min(plans, key=lambda plan: sum(each.nbytes for each in plan.chosen))


def _seen(report: DriverReport, visible: str, gpu: int | None) -> list[int]:
    seen = seen_by_cuda(visible, {index: facts.uuid for index, facts in report.gpus.items()})
    if not seen or (gpu is not None and gpu not in seen):
        unseen = "any GPU of this machine" if gpu is None else f"GPU {gpu}"
        raise UsageError(
            f"the command would not see {unseen}: CUDA_VISIBLE_DEVICES is {visible!r}",
            hint="unset it: vram sets it to the GPU with enough room",
        )
    return list(seen)


def _plan_on(host: Host, report: DriverReport, gpu: int, nbytes: int, pids: Sequence[int]) -> BorrowPlan:
    if gpu not in report.memory:
        raise DeviceError(f"GPU {gpu} does not report its memory", hint="see `vram why`")
    free = report.memory[gpu].free
    missing = nbytes - free
    several = len(report.gpus) > 1
    if missing <= 0:
        return BorrowPlan(gpu, report.gpus[gpu].uuid, free, (), several)
    require_checkpoints(host)
    candidates, refusals = _candidates(host, report, gpu, pids)
    chosen = enough(candidates, missing + WORKER_BYTES)
    if chosen is None:
        dead = [pid for pid, error in refusals.items() if isinstance(error, NoSuchProcess)]
        left = sum(_on(report.shares(pid), gpu) for pid in dead)
        reasons = [error for pid, error in refusals.items() if pid not in dead]
        raise _impossible(gpu, nbytes, free, candidates, reasons, left)
    return BorrowPlan(gpu, report.gpus[gpu].uuid, free, chosen, several)


def _candidates(
    host: Host, report: DriverReport, gpu: int, pids: Sequence[int]
) -> tuple[list[ParkCandidate], dict[int, VramError]]:
    """Who may be parked; why each of the others may not, by pid."""
    admitted: list[tuple[Target, tuple[GpuShare, ...]]] = []
    refusals: dict[int, VramError] = {}
    for pid in pids or sorted(report.listed):
        if not pids and not any(share.gpu == gpu for share in report.shares(pid)):
            continue
        try:
            taken = sum(share.nbytes for _, shares in admitted for share in shares)
            admitted.append(_admit(host, report, pid, gpu, taken, named=bool(pids)))
        except VramError as error:
            if pids:
                raise
            refusals[pid] = error
    idle = idle_pids(host, report, gpu, [target.process.pid for target, _ in admitted])
    return [
        ParkCandidate(target, shares, _on(shares, gpu), target.process.pid in idle)
        for target, shares in admitted
    ], refusals


def _admit(
    host: Host, report: DriverReport, pid: int, gpu: int, taken: int, *, named: bool
) -> tuple[Target, tuple[GpuShare, ...]]:
    target, shares = identify_parkable(host, report, pid, ParkOptions(taken_before=taken))
    if target.uid != host.facts().uid:
        raise NotPermitted(
            f"pid {pid} belongs to {target.user}: borrow parks only your own processes", hint="ask them"
        )
    if named and not _on(shares, gpu):
        raise NotOnGpu(f"pid {pid} has nothing on GPU {gpu}", hint="see `vram who`")
    return target, shares


def _on(shares: Iterable[GpuShare], gpu: int) -> int:
    return sum(share.nbytes for share in shares if share.gpu == gpu)


def idle_pids(host: Host, report: DriverReport, gpu: int, pids: Sequence[int]) -> frozenset[int]:
    """Those of *pids* that use neither the GPU nor, over a quarter of a second, a processor."""
    if report.gpus[gpu].utilization == 0 or not pids:
        return frozenset(pids)
    before = {pid: host.limits.read(pid) for pid in pids}
    began = host.clock.monotonic()
    host.clock.sleep(IDLE_WINDOW_S)
    after = {pid: host.limits.read(pid) for pid in pids}
    window_s = host.clock.monotonic() - began
    return frozenset(pid for pid in pids if idled(before[pid], after[pid], window_s))


def idled(before: ProcessLimits, after: ProcessLimits, window_s: float) -> bool:
    """On a crowded machine a busy process gets little time: it is then seen waiting for it, twice."""
    if before.runnable and after.runnable:
        return False
    return (after.cpu_s or 0.0) - (before.cpu_s or 0.0) < IDLE_SHARE * window_s


def enough(candidates: Sequence[ParkCandidate], missing: int) -> tuple[ParkCandidate, ...] | None:
    """The least harm that frees *missing* bytes, idle ones first; None where all of them are too few."""
    chosen = fewest(candidates, missing, harm=lambda each: not each.idle)
    return chosen if sum(each.nbytes for each in chosen) >= missing else None


def _impossible(
    gpu: int,
    nbytes: int,
    free: int,
    candidates: Sequence[ParkCandidate],
    reasons: Sequence[VramError],
    left: int,
) -> GoalImpossible:
    """*left* is what the driver charges to pids that are dead: nothing to park, but much to free."""
    parkable = sum(each.nbytes for each in candidates)
    others = f"; {counted(len(reasons), 'process')} cannot be parked: {reasons[0]}" if reasons else ""
    dead = f"; {size(left)} belongs to dead processes" if left else ""
    hint = (
        (f"`vram free --gpu {gpu}` frees memory of dead processes")
        if left
        else "request less, or see `vram free`"
    )
    return GoalImpossible(
        f"GPU {gpu} cannot free {size(nbytes)}: {size(free)} is free, and parking would add"
        f" {size(parkable)}{dead}{others}",
        hint=hint,
    )


def park_all(parking: Parking, plan: BorrowPlan, on_begin: OnBegin, on_moved: OnMoved) -> list[Parked]:
    """Park every process that was chosen, or none: leaving *parking* brings them back."""
    if not plan.chosen:
        return []
    for each in plan.chosen:
        on_begin(each.target.process.pid, sum(share.nbytes for share in each.shares))
    moved = parking.park_together([(each.target, each.shares) for each in plan.chosen], purpose="borrow")
    for done in moved:
        on_moved(done)
    return [done.entry for done in moved]


def unpark_all(
    parking: Parking, parked: Iterable[Parked], on_begin: OnBegin, on_moved: OnMoved
) -> list[VramError]:
    """Bring all of them back; return the errors of those that stay parked."""
    errors: list[VramError] = []
    for entry in parked:
        on_begin(entry.target.process.pid, entry.nbytes)
        try:
            on_moved(parking.unpark(entry, room_patience_s=ROOM_PATIENCE_S))
        except VramError as error:
            errors.append(error)
    return errors
