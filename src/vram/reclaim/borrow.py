"""Whom to park so that a command has room: the fewest bytes, idle processes first, only one's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct

from vram.errors import DeviceError, GoalImpossible, NotOnGpu, NotPermitted, Refused, UsageError, VramError
from vram.host.ports import Host
from vram.model.parking import Parked, ProcessLimits, Share
from vram.model.plan import Target
from vram.reclaim.parking import Moved, Parking
from vram.reclaim.preflight import Devices, admit, require_checkpoints, seen_by_cuda
from vram.units import MIB, counted, size

# The checkpoint worker of the loans has the driver open while the command runs: 3.25 MiB on an H200.
WORKER_BYTES = 8 * MIB
IDLE_WINDOW_S = 0.25
# Of one processor, over the window: a training loop or a busy kernel's waiting thread uses all of one.
IDLE_SHARE = 0.2
# The command's memory is back 110 ms after its end on an H200; others may leave it too.
ROOM_PATIENCE_S = 5.0

About = Callable[[int, int], None]
"""Hears the pid and the bytes that are about to be moved."""
Told = Callable[[Moved], None]


class Candidate(Struct, frozen=True):
    """A process that may be parked, and what that would free on the GPU in question."""

    target: Target
    shares: tuple[Share, ...]
    nbytes: int
    idle: bool


class Loan(Struct, frozen=True):
    """Where the command will have its room, and who makes it."""

    gpu: int
    uuid: str
    free_bytes: int
    chosen: tuple[Candidate, ...]
    is_one_of_several: bool = False


def arrange(
    host: Host,
    devices: Devices,
    nbytes: int,
    *,
    gpu: int | None = None,
    visible: str | None = None,
    pids: Sequence[int] = (),
) -> Loan:
    """Choose the GPU and the processes; raises where *nbytes* cannot be had, having touched nothing.

    *visible* is the command's CUDA_VISIBLE_DEVICES where it is set: room elsewhere is of no use to it.
    """
    _known(devices, gpu)
    seen = list(devices.memory) if visible is None else _seen(devices, visible, gpu)
    indices = seen if gpu is None else [gpu]
    largest = max((devices.memory[index].total for index in indices if index in devices.memory), default=0)
    if nbytes > largest:
        raise GoalImpossible(
            f"{size(nbytes)} is more than a GPU here has ({size(largest)})", hint="ask for less"
        )
    loans, reasons = [], []
    for index in indices:
        try:
            loans.append(_arrange_on(host, devices, index, nbytes, pids))
        except (Refused, DeviceError) as error:
            reasons.append(error)
    if not loans:
        raise reasons[0]
    return min(loans, key=lambda loan: sum(each.nbytes for each in loan.chosen))


def _known(devices: Devices, gpu: int | None) -> None:
    if gpu is not None and gpu not in devices.gpus:
        raise UsageError(
            f"there is no GPU {gpu}", hint="these exist: " + ", ".join(map(str, sorted(devices.gpus)))
        )


def _seen(devices: Devices, visible: str, gpu: int | None) -> list[int]:
    seen = seen_by_cuda(visible, {index: facts.uuid for index, facts in devices.gpus.items()})
    if not seen or (gpu is not None and gpu not in seen):
        unseen = "any GPU of this machine" if gpu is None else f"GPU {gpu}"
        raise UsageError(
            f"the command would not see {unseen}: CUDA_VISIBLE_DEVICES is {visible!r}",
            hint="unset it, and the command is led to the GPU that has the room",
        )
    return list(seen)


def _arrange_on(host: Host, devices: Devices, gpu: int, nbytes: int, pids: Sequence[int]) -> Loan:
    if gpu not in devices.memory:
        raise DeviceError(f"GPU {gpu} does not tell its memory", hint="see `vram why`")
    free = devices.memory[gpu].free
    missing = nbytes - free
    several = len(devices.gpus) > 1
    if missing <= 0:
        return Loan(gpu, devices.gpus[gpu].uuid, free, (), several)
    require_checkpoints(host)
    candidates, reasons = _candidates(host, devices, gpu, pids)
    chosen = enough(candidates, missing + WORKER_BYTES)
    if chosen is None:
        raise _impossible(gpu, nbytes, free, candidates, reasons)
    return Loan(gpu, devices.gpus[gpu].uuid, free, chosen, several)


def _candidates(
    host: Host, devices: Devices, gpu: int, pids: Sequence[int]
) -> tuple[list[Candidate], list[VramError]]:
    """Who may be parked; why each of the others may not."""
    admitted: list[tuple[Target, tuple[Share, ...]]] = []
    reasons: list[VramError] = []
    for pid in pids or sorted(devices.listed):
        if not pids and not any(share.gpu == gpu for share in devices.shares(pid)):
            continue
        try:
            admitted.append(_admit(host, devices, pid, gpu, sum(map(_whole, admitted)), named=bool(pids)))
        except VramError as error:
            if pids:
                raise
            reasons.append(error)
    idle = idlers(host, devices, gpu, [target.process.pid for target, _ in admitted])
    return [
        Candidate(target, shares, _on(shares, gpu), target.process.pid in idle) for target, shares in admitted
    ], reasons


def _admit(
    host: Host, devices: Devices, pid: int, gpu: int, taken: int, *, named: bool
) -> tuple[Target, tuple[Share, ...]]:
    target, shares = admit(host, devices, pid, taken_before=taken)
    if target.uid != host.facts().uid:
        raise NotPermitted(
            f"pid {pid} belongs to {target.user}: one borrows only from oneself", hint="ask them"
        )
    if named and not _on(shares, gpu):
        raise NotOnGpu(f"pid {pid} has nothing on GPU {gpu}", hint="see `vram who`")
    return target, shares


def _whole(admitted: tuple[Target, tuple[Share, ...]]) -> int:
    return sum(share.nbytes for share in admitted[1])


def _on(shares: Iterable[Share], gpu: int) -> int:
    return sum(share.nbytes for share in shares if share.gpu == gpu)


def idlers(host: Host, devices: Devices, gpu: int, pids: Sequence[int]) -> frozenset[int]:
    """Those of *pids* that use neither the GPU nor, over a quarter of a second, a processor."""
    if devices.gpus[gpu].utilization == 0 or not pids:
        return frozenset(pids)
    before = {pid: host.limits.read(pid) for pid in pids}
    began = host.clock.monotonic()
    host.clock.sleep(IDLE_WINDOW_S)
    after = {pid: host.limits.read(pid) for pid in pids}
    window_s = host.clock.monotonic() - began
    return frozenset(pid for pid in pids if _idled(before[pid], after[pid], window_s))


def _idled(before: ProcessLimits, after: ProcessLimits, window_s: float) -> bool:
    """On a crowded machine a busy process gets little time: it is then seen waiting for it, twice."""
    if before.runnable and after.runnable:
        return False
    return (after.cpu_s or 0.0) - (before.cpu_s or 0.0) < IDLE_SHARE * window_s


def enough(candidates: Sequence[Candidate], missing: int) -> tuple[Candidate, ...] | None:
    """The least harm that frees *missing* bytes: idle ones first, of these the smallest that does,
    and where none does alone, the largest and then on; None where all of them are too few."""
    chosen: list[Candidate] = []
    left = list(candidates)
    while missing > 0 and left:
        kind = [each for each in left if each.idle] or left
        alone = [each for each in kind if each.nbytes >= missing]
        pick = min(alone, key=_nbytes) if alone else max(kind, key=_nbytes)
        chosen.append(pick)
        left.remove(pick)
        missing -= pick.nbytes
    return tuple(chosen) if missing <= 0 else None


def _nbytes(candidate: Candidate) -> int:
    return candidate.nbytes


def _impossible(
    gpu: int, nbytes: int, free: int, candidates: Sequence[Candidate], reasons: Sequence[VramError]
) -> GoalImpossible:
    parkable = sum(each.nbytes for each in candidates)
    others = f"; {counted(len(reasons), 'process')} may not be parked: {reasons[0]}" if reasons else ""
    return GoalImpossible(
        f"GPU {gpu} cannot make {size(nbytes)} free: {size(free)} are, "
        f"and parking would add {size(parkable)}{others}",
        hint="ask for less, or see `vram free`",
    )


def take(parking: Parking, loan: Loan, about: About, told: Told) -> list[Parked]:
    """Park everybody who was chosen, on loan: leaving *parking* brings them back."""
    lent = []
    for each in loan.chosen:
        about(each.target.process.pid, sum(share.nbytes for share in each.shares))
        moved = parking.park(each.target, each.shares, purpose="borrow")
        told(moved)
        lent.append(moved.entry)
    return lent


def give_back(parking: Parking, lent: Iterable[Parked], about: About, told: Told) -> list[VramError]:
    """Bring everybody back; what keeps one away does not keep the others."""
    kept: list[VramError] = []
    for entry in lent:
        about(entry.target.process.pid, entry.nbytes)
        try:
            told(parking.unpark(entry, room_patience_s=ROOM_PATIENCE_S))
        except VramError as error:
            kept.append(error)
    return kept
