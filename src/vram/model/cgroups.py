"""Control groups that limit GPU memory, and what the kernel counts for each."""

from __future__ import annotations

from msgspec import Struct

from vram.model.process import Workload


class CgroupLimit(Struct, frozen=True):
    """A control group's limits on one GPU: ``hard`` is the most it may have (None: no limit), ``soft`` is
    guaranteed to it, ``used`` is what it has now. ``cgroup`` is its path below the root of all groups."""

    cgroup: str
    hard: int | None
    soft: int = 0
    used: int | None = None


class DmemFacts(Struct, frozen=True, tag="dmem"):
    """What the kernel counts for one control group on one GPU. The observation's bytes are the group's own,
    without those of groups below it, which are in ``limit.used`` too."""

    limit: CgroupLimit
    workload: Workload = Workload()


class CgroupHolder(Struct, frozen=True):
    """The control group that bytes are counted for, and what it is."""

    path: str
    workload: Workload


class GroupLimit(Struct, frozen=True, kw_only=True):
    """A control group's limit and use on one GPU, and what the group is."""

    gpu: int
    limit: CgroupLimit
    workload: Workload = Workload()


class LimitChange(Struct, frozen=True, kw_only=True):
    """A limit that is to be set. ``before`` None: it could not be read, as where there is none."""

    gpu: int
    uuid: str
    cgroup: str
    hard: int | None
    soft: int
    before: CgroupLimit | None
    gpu_bytes: int | None
