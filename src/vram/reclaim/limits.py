"""Limits of GPU memory by control group: what there are, and setting one, logged and read again.

Nothing is taken from a group that has more already: its next allocation fails.
"""

from __future__ import annotations

from collections.abc import Iterable

from vram.errors import DeviceError, GoalImpossible, NotPermitted, UsageError
from vram.host.ports import Host, LimitAnswer
from vram.model.cgroups import CgroupLimit, GroupLimit, LimitChange
from vram.model.gpu import DriverFacts, GpuFacts, MemoryFacts
from vram.model.observation import Observation
from vram.model.process import Workload
from vram.reclaim import audit

SINCE = 615
_NOT_SUPPORTED, _NO_PERMISSION, _NOT_FOUND, _NO_FUNCTION = 3, 4, 6, 13
_READ_S = 5.0


def list_limits(host: Host, observed: Iterable[Observation], deadline_s: float = _READ_S) -> list[GroupLimit]:
    """Every group that has a limit or memory, as the kernel counts; where it does not, groups of processes
    that the driver lists, as NVML answers."""
    observed = list(observed)
    gpus = _gpus(observed)
    by_address = {_plain(facts.bus_id): index for index, facts in gpus.items() if facts.bus_id}
    found = [
        GroupLimit(gpu=gpu, limit=use.facts.limit, workload=use.facts.workload)
        for use in host.cgroups.device_memory()
        if (gpu := by_address.get(_plain(use.address))) is not None
    ]
    if found or not _knows_limits(observed):
        return found
    groups: dict[str, Workload] = {}
    for each in observed:
        known = host.proc.facts(each.process.pid) if each.process is not None else None
        if known is not None and known[1].cgroup:
            groups[known[1].cgroup] = known[1].workload
    return [
        GroupLimit(gpu=index, limit=answer.limit, workload=groups[answer.limit.cgroup])
        for index, facts in gpus.items()
        for answer in host.cgroups.limits(facts.uuid, sorted(groups), deadline_s)
        if answer.limit is not None and (answer.limit.hard is not None or answer.limit.soft)
    ]


def plan_limit(
    host: Host,
    observed: Iterable[Observation],
    gpu: int,
    cgroup: str,
    hard: int | None,
    soft: int = 0,
    deadline_s: float = _READ_S,
) -> LimitChange:
    """What would be set; raises where that is not possible, with nothing touched."""
    observed = list(observed)
    gpus = _gpus(observed)
    if gpu not in gpus:
        raise UsageError(f"there is no GPU {gpu}", hint="these exist: " + ", ".join(map(str, sorted(gpus))))
    if not _knows_limits(observed):
        raise GoalImpossible(
            f"driver {_version(observed) or 'of unknown version'} knows no limits by control group",
            hint=f"that needs driver {SINCE} or later; MIG instances divide a GPU's memory on older ones",
        )
    facts = gpus[gpu]
    if facts.mig_enabled:
        raise GoalImpossible(f"GPU {gpu} is divided by MIG, where the driver takes no limits")
    total = _device_bytes(observed, gpu)
    _require_sizes(gpu, hard, soft, total)
    if (problem := host.cgroups.problem(cgroup)) is not None:
        raise UsageError(problem, hint="`cat /proc/PID/cgroup` shows a process's group")
    if host.facts().uid != 0:
        raise NotPermitted("only root may set limits", hint='sudo "$(command -v vram)" limit ...')
    (answer,) = host.cgroups.limits(facts.uuid, [cgroup], deadline_s)
    if answer.code not in (0, _NOT_FOUND, _NOT_SUPPORTED):  # the last: none was ever set, or unsupported
        raise _failure(answer)
    return LimitChange(
        gpu=gpu, uuid=facts.uuid, cgroup=cgroup, hard=hard, soft=soft, before=answer.limit, gpu_bytes=total
    )


def set_limit(host: Host, change: LimitChange, deadline_s: float = _READ_S) -> CgroupLimit | None:
    """Set it, in the audit log before and after; what the driver says of the group then."""
    record = {
        "action": "limit",
        "gpu": change.gpu,
        "uuid": change.uuid,
        "cgroup": change.cgroup,
        "hard": change.hard,
        "soft": change.soft,
        "before": None if change.before is None else [change.before.soft, change.before.hard],
    }
    token = audit.log_intent(record)
    with audit.failures_logged(token):
        answer = host.cgroups.set_limit(change.uuid, change.cgroup, change.soft, change.hard, deadline_s)
        if answer.code != 0:
            raise _failure(answer)
    (after,) = host.cgroups.limits(change.uuid, [change.cgroup], deadline_s)
    found = after.limit
    done = found is not None and (found.hard, found.soft) == (change.hard, change.soft)
    status = "done" if done or (change.hard is None and not change.soft) else "failed"
    audit.log_outcome(token, {"status": status, "after": None if found is None else [found.soft, found.hard]})
    if status == "failed":
        raise DeviceError(
            "the driver took the limit and does not answer it when it is read again",
            hint="`vram limit` shows what there is",
        )
    return found


def _require_sizes(gpu: int, hard: int | None, soft: int, total: int | None) -> None:
    if hard is not None and soft > hard:
        raise UsageError("more would be guaranteed than allowed", hint="--guarantee is at most the limit")
    if hard is not None and total is not None and hard > total:
        raise UsageError(f"that is more than GPU {gpu} has", hint="--remove takes a limit off")


def _failure(answer: LimitAnswer) -> Exception:
    if answer.code == _NO_PERMISSION:
        return NotPermitted("the driver lets only root set limits", hint="run it with sudo")
    if answer.code == _NOT_FOUND:
        return GoalImpossible(
            "the control group has no controller for device memory (dmem): the driver takes no limit there",
            hint="limit the nearest group above it that has dmem.max, or add +dmem to the parent's"
            " cgroup.subtree_control",
        )
    if answer.code in (_NOT_SUPPORTED, _NO_FUNCTION):
        return GoalImpossible("the driver does not support limits on this GPU")
    if answer.code is None:
        return DeviceError("the driver did not answer in time", hint="see `vram why`")
    return DeviceError(f"the driver refused the limit (NVML error {answer.code})", hint="see `vram doctor`")


def _gpus(observed: Iterable[Observation]) -> dict[int, GpuFacts]:
    return {
        each.gpu: each.facts for each in observed if isinstance(each.facts, GpuFacts) and each.gpu is not None
    }


def _version(observed: Iterable[Observation]) -> str | None:
    versions = (each.facts.driver_version for each in observed if isinstance(each.facts, DriverFacts))
    return next(versions, None)


def _knows_limits(observed: Iterable[Observation]) -> bool:
    major = (_version(observed) or "").partition(".")[0]
    return major.isdigit() and int(major) >= SINCE


def _device_bytes(observed: Iterable[Observation], gpu: int) -> int | None:
    for each in observed:
        if isinstance(each.facts, MemoryFacts) and each.gpu == gpu:
            return each.facts.device_total or each.facts.total
    return None


def _plain(address: str) -> str:
    return address.lower().lstrip("0")
