"""Bringing a parked process back to another GPU than it was on: judged here, before anything is touched.

The driver wants a pair of UUIDs for every GPU that the process sees, and takes the same chip alone. So both
GPUs change places where the process sees both, and all others stay what they are. As the driver's manual and
cuda-checkpoint's README have it: on real hardware it was not tried.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from vram.errors import CannotPark, UsageError
from vram.host.ports import Host
from vram.model.gpu import GpuFacts
from vram.model.parking import ON_ARM_SINCE, GpuShare, Parked
from vram.reclaim.preflight import read_driver, seen_by_cuda

SINCE = 580


class Remap(Struct, frozen=True):
    """*entry* as it will be, and old and new UUID of every GPU that its process sees."""

    entry: Parked
    pairs: tuple[tuple[str, str], ...]


def plan_remap(host: Host, entry: Parked, gpu: int) -> Remap:
    """How *entry* comes back on *gpu*; no pairs where it was there already. Raises why it cannot."""
    report = read_driver(host)
    pid = entry.target.process.pid
    if gpu not in report.gpus:
        raise UsageError(
            f"there is no GPU {gpu}", hint="these exist: " + ", ".join(map(str, sorted(report.gpus)))
        )
    share = _only_share(entry, pid)
    new = report.gpus[gpu]
    if share.uuid == new.uuid:
        return Remap(entry, ())
    _require_driver(report.driver_version)
    old = next((facts for facts in report.gpus.values() if facts.uuid == share.uuid), None)
    if old is None:
        raise CannotPark(f"the GPU that pid {pid} was on is not there any more, and its chip is unknown")
    _require_alike(gpu, new, old, pid)
    uuids = {index: facts.uuid for index, facts in report.gpus.items()}
    visible = host.limits.parked_memory(pid).visible_gpus
    seen = sorted(uuids) if visible is None else seen_by_cuda(visible, uuids)
    pairs = _pairs([uuids[index] for index in seen] or list(uuids.values()), share.uuid, new.uuid)
    return Remap(replace(entry, shares=(GpuShare(gpu, new.uuid, share.nbytes),)), pairs)


def _only_share(entry: Parked, pid: int) -> GpuShare:
    if len(entry.shares) != 1:
        reason = "on which GPUs it was is unknown" if not entry.shares else "it was on several GPUs"
        raise CannotPark(
            f"pid {pid} cannot be brought to another GPU: {reason}",
            hint=f"`vram unpark {pid}` brings it back",
        )
    return entry.shares[0]


def _require_driver(version: str | None) -> None:
    since = ON_ARM_SINCE if platform.machine() == "aarch64" else SINCE
    major = (version or "").partition(".")[0]
    if not major.isdigit() or int(major) < since:
        raise CannotPark(
            f"driver {version or 'of unknown version'} brings processes back to their own GPU only",
            hint=f"another one needs driver {since} or later here",
        )


def _require_alike(gpu: int, new: GpuFacts, old: GpuFacts, pid: int) -> None:
    if new.mig_enabled or old.mig_enabled:
        raise CannotPark("a GPU that is divided by MIG takes no parked process")
    if new.name != old.name:
        raise CannotPark(
            f"GPU {gpu} is {new.name}, and pid {pid} was on {old.name}: the driver takes the same chip only",
            hint="`vram why` shows which GPUs are alike",
        )


def _pairs(seen: list[str], old: str, new: str) -> tuple[tuple[str, str], ...]:
    swapped: Mapping[str, str] = {old: new, new: old}
    return tuple((uuid, swapped.get(uuid, uuid)) for uuid in seen)
