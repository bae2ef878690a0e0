"""What must hold before a process is parked: read first, judged here, nothing touched.

Memory shared with other processes, and small managed memory, cannot be seen from outside: there
the driver itself refuses, and the process is unlocked. Room on the GPU for bringing it back is checked
by the checkpoint worker, right before the driver is asked.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from vram.errors import CannotPark, DeviceError, DriverMissing, NoSuchProcess, NotOnGpu
from vram.host.ports import Host
from vram.model.gpu import ChargeFacts, DriverFacts, GpuFacts, MemoryFacts
from vram.model.observation import Observation
from vram.model.parking import CHECKPOINT_SINCE, ON_ARM_SINCE, GpuShare, ProcessLimits, reserve
from vram.model.plan import Target
from vram.model.process import ProcessFacts
from vram.reach.container_filters import let_visits_pass
from vram.reclaim import identity
from vram.units import size

_FILES_S = 5.0
_CANNOT_RUN = {
    "T": "is stopped",
    "t": "is stopped by a debugger",
    "D": "is stuck in the kernel",
    "Z": "has exited",
    "X": "has exited",
}
_BROKEN = ("failed", "timeout", "lost")


class ParkOptions(Struct, frozen=True, kw_only=True):
    """How a process is to be parked.

    ``taken_before`` is host memory that will be taken before its turn comes. So many processes are parked
    ``together``: all ranks of an NCCL job may be. ``anyway`` leaves the decision to the driver where NCCL
    peers or managed memory speak against it.
    """

    taken_before: int = 0
    together: int = 1
    anyway: bool = False


_ALONE = ParkOptions()


class ListedProcess(Struct, frozen=True):
    """One line of the driver's process lists."""

    share: GpuShare | None
    lists: tuple[str, ...]
    gpu: int


class DriverReport(Struct, frozen=True):
    """What the driver reports: its version, its GPUs and the processes on them."""

    driver_version: str | None
    gpus: Mapping[int, GpuFacts]
    memory: Mapping[int, MemoryFacts]
    listed: Mapping[int, tuple[ListedProcess, ...]]
    silent: tuple[int, ...] = ()
    """GPUs whose process lists could not be read: a process that is not listed may be on one of these."""

    def shares(self, pid: int) -> tuple[GpuShare, ...]:
        return tuple(each.share for each in self.listed.get(pid, ()) if each.share is not None)


def read_driver(host: Host, deadline_s: float = 5.0) -> DriverReport:
    """Read the driver; raises where there is none, or where it does not answer."""
    seen = list(host.nvml.read(deadline_s))
    versions = [each.facts.driver_version for each in seen if isinstance(each.facts, DriverFacts)]
    gpus = {
        each.gpu: each.facts for each in seen if isinstance(each.facts, GpuFacts) and each.gpu is not None
    }
    if not gpus:
        raise _no_devices(seen)
    memory = {
        each.gpu: each.facts for each in seen if isinstance(each.facts, MemoryFacts) and each.gpu is not None
    }
    silent = sorted({each.gpu for each in seen if each.gpu is not None and each.status in _BROKEN})
    return DriverReport(next(iter(versions), None), gpus, memory, _listed(seen, gpus), tuple(silent))


def require_checkpoints(host: Host) -> None:
    """Raise where no process can be parked at all."""
    if host.facts().wsl_facts is not None:
        raise CannotPark(
            "processes cannot be parked under WSL2: NVIDIA's Linux kernel driver does that, and here the"
            " kernel driver is Windows'",
            hint="`vram trim PID` releases unused cached memory, `vram kill PID` terminates the process",
        )


def room_at_most(host: Host, pid: int) -> tuple[GpuShare, ...]:
    """The most that a parked process can need on each GPU that it may use, where it has no journal entry.

    What it had there lies in its own host memory; which GPU it was on cannot be seen. Raises where
    that memory or the GPUs cannot be read.
    """
    memory = host.limits.parked_memory(pid)
    if memory.private_bytes is None:
        raise CannotPark(
            f"the host memory of pid {pid} is not readable, so whether it would fit is unknown",
            hint=f"`vram unpark --anyway {pid}` lets the driver try",
        )
    uuids = {index: facts.uuid for index, facts in read_driver(host).gpus.items()}
    seen = None if memory.visible_gpus is None else seen_by_cuda(memory.visible_gpus, uuids)
    return tuple(GpuShare(index, uuids[index], memory.private_bytes) for index in seen or sorted(uuids))


def seen_by_cuda(visible: str, uuids: Mapping[int, str]) -> tuple[int, ...]:
    """The GPUs that a value of CUDA_VISIBLE_DEVICES leaves visible: up to the first word that names none."""
    seen: list[int] = []
    for word in map(str.strip, visible.split(",")):
        is_uuid = word.startswith("GPU-")
        named = [at for at, uuid in uuids.items() if str(at) == word or (is_uuid and uuid.startswith(word))]
        if len(named) != 1:
            break
        seen += named
    return tuple(seen)


def _no_devices(seen: Iterable[Observation]) -> DriverMissing | DeviceError:
    worst = next((each for each in seen if each.status != "ok"), None)
    if worst is None or worst.status == "unsupported":
        return DriverMissing(
            f"no NVIDIA GPU answers here: {worst.message if worst else 'there is none'}",
            hint="`vram virtual -- bash` gives you a virtual one to try",
        )
    return DeviceError(f"cannot read the driver: {worst.message}", hint="see `vram why`")


def _listed(
    seen: Iterable[Observation], gpus: Mapping[int, GpuFacts]
) -> dict[int, tuple[ListedProcess, ...]]:
    found: dict[int, tuple[ListedProcess, ...]] = {}
    for each in seen:
        if isinstance(each.facts, ChargeFacts) and each.process is not None and each.gpu is not None:
            known = each.nbytes is not None and each.gpu in gpus
            share = GpuShare(each.gpu, gpus[each.gpu].uuid, each.nbytes or 0) if known else None
            line = ListedProcess(share, each.facts.lists, each.gpu)
            found[each.process.pid] = (*found.get(each.process.pid, ()), line)
    return found


def identify_parkable(
    host: Host,
    report: DriverReport,
    pid: int,
    options: ParkOptions = _ALONE,
) -> tuple[Target, tuple[GpuShare, ...]]:
    """Say who has *pid* and what it has on each GPU, or raise why it must not be parked."""
    require_checkpoints(host)
    target = identity.identify(host, pid)
    return target, require_parkable(host, report, target, options)


def require_parkable(
    host: Host,
    report: DriverReport,
    target: Target,
    options: ParkOptions = _ALONE,
) -> tuple[GpuShare, ...]:
    """Return what *target* has on each GPU, or raise why it must not be parked; see :func:`parkable_shares`.

    Whether its pid still means the same process is not judged here.
    """
    require_checkpoints(host)
    pid = target.process.pid
    seen = host.proc.facts(pid)
    if seen is None:
        raise NoSuchProcess(f"process {pid} has exited")
    holdings = host.files.scan(_FILES_S, [pid]).holders
    if pid not in report.listed and any(holding.clients for holding in holdings):
        raise CannotPark(
            f"pid {pid} has its memory on a GPU that is not NVIDIA's; no other driver can park processes",
            hint=f"`vram kill {pid}` terminates it",
        )
    return parkable_shares(
        report,
        target,
        seen[1],
        host.limits.read(pid),
        options,
        managed_bytes=next((each.managed_bytes for each in holdings if each.process.pid == pid), None),
    )


def parkable_shares(
    report: DriverReport,
    target: Target,
    facts: ProcessFacts,
    limits: ProcessLimits,
    options: ParkOptions = _ALONE,
    *,
    managed_bytes: int | None = None,
) -> tuple[GpuShare, ...]:
    """Return what the process has on each GPU, or raise the reason why it must stay there."""
    pid = target.process.pid
    lines = report.listed.get(pid, ())
    if not lines:
        raise _not_listed(report, pid)
    _driver_can(report.driver_version)
    _gpus_can(report, lines)
    _process_can(pid, facts, lines)
    _calls_allowed(pid, limits)
    if not options.anyway:
        _nothing_warns(pid, limits, managed_bytes, options.together)
    _host_has_room(pid, sum(share.nbytes for share in report.shares(pid)), limits, options.taken_before)
    return report.shares(pid)


def _not_listed(report: DriverReport, pid: int) -> NotOnGpu | DeviceError:
    if report.silent:
        return DeviceError(
            f"GPU {report.silent[0]} does not answer: whether pid {pid} holds memory there is unknown",
            hint="`vram why` shows more about the GPU",
        )
    return NotOnGpu(
        f"pid {pid} holds no GPU memory that the driver lists",
        hint="`vram who` lists the processes that hold some",
    )


def _nothing_warns(pid: int, limits: ProcessLimits, managed_bytes: int | None, together: int) -> None:
    if limits.nccl_peers and together < (limits.nccl_ranks or math.inf):
        raise CannotPark(
            f"pid {pid} is one of several NCCL ranks ({limits.nccl_peers}): while one is paused, the"
            " others may hang",
            hint="park all ranks of the job at once, for example by its launcher: `vram park --tree PID`;"
            " --anyway parks this process nevertheless",
        )
    if managed_bytes:
        raise CannotPark(
            f"pid {pid} has {size(managed_bytes)} of managed memory, which the driver cannot park",
            hint="ask its owner to save the work and end it; --anyway lets the driver try",
        )


def _driver_can(version: str | None) -> None:
    since = ON_ARM_SINCE if platform.machine() == "aarch64" else CHECKPOINT_SINCE
    major = (version or "").split(".")[0]
    if not major.isdigit() or int(major) < since:
        raise CannotPark(
            f"driver {version or 'of unknown version'} cannot park processes",
            hint=f"that needs version {since} or later here",
        )


def _gpus_can(report: DriverReport, lines: Sequence[ListedProcess]) -> None:
    for line in lines:
        gpu = report.gpus.get(line.gpu)
        if gpu is not None and gpu.mig_enabled:
            raise CannotPark(
                f"GPU {line.gpu} is divided by MIG, where the driver cannot park processes",
                hint="ask its owner to save the work and end it",
            )
        memory = report.memory.get(line.gpu)
        if memory is not None and memory.counted_by == "kernel":
            raise CannotPark(
                f"GPU {line.gpu} has no memory of its own: to park a process would free nothing, its memory"
                " would stay in the machine's",
                hint="`vram trim PID` releases unused cached memory, `vram kill PID` terminates the process",
            )


def _process_can(pid: int, facts: ProcessFacts, lines: Sequence[ListedProcess]) -> None:
    if any("mps" in line.lists for line in lines):
        raise CannotPark(
            f"pid {pid} uses the GPU through MPS, where the driver cannot park processes",
            hint="ask its owner to save the work and end it",
        )
    if any(line.share is None for line in lines):
        raise CannotPark(
            f"the driver does not report how much memory pid {pid} has, so whether it would fit is unknown",
            hint="see `vram who`",
        )
    if facts.state in _CANNOT_RUN:
        raise CannotPark(
            f"pid {pid} {_CANNOT_RUN[facts.state]}: only a running process can be parked",
            hint=f"resume a stopped one with `kill -CONT {pid}`" if facts.state == "T" else "see `vram why`",
        )


def _calls_allowed(pid: int, limits: ProcessLimits) -> None:
    """Parking stops the process, and the driver works in it: either may need a call that kills it."""
    if limits.given_up is not None and not let_visits_pass(pid):
        raise CannotPark(
            f"pid {pid} has given up system calls (seccomp), and may be killed when it is parked",
            hint="ask its owner to save the work and end it",
        )


def _host_has_room(pid: int, nbytes: int, limits: ProcessLimits, taken_before: int) -> None:
    if limits.memory_left is None:
        raise CannotPark("available host memory is unknown", hint="see /proc/meminfo")
    kept = 0 if limits.memory_limited_by else reserve(limits.memory_total)
    left = max(0, limits.memory_left - taken_before - kept)
    if nbytes <= left:
        return
    where = f"its cgroup {limits.memory_limited_by}" if limits.memory_limited_by else "this machine"
    beside = f", with {size(kept)} kept in reserve" if kept else ""
    raise CannotPark(
        f"pid {pid} has {size(nbytes)} on the GPU, but {where} has only {size(left)} of host memory"
        f" left{beside}",
        hint="free host memory, or park a smaller process",
    )
