"""Ledgers as a reading brings them, made by hand: a GPU, its processes, and what the dead left behind."""

from __future__ import annotations

from typing import Any

from vram.model.gpu import DriverFacts, GpuFacts, MemoryFacts
from vram.model.ledger import Entry, GpuLedger, Holder, Ledger
from vram.model.moment import Moment
from vram.model.observation import HostFacts
from vram.model.process import Job, Workload
from vram.policy.config import read_policies
from vram.policy.engine import PolicyReading
from vram.policy.policy import Policy
from vram.units import GIB

TOTAL = 80 * GIB


class At(Moment, frozen=True):
    boot_id: str = "boot"


def holder(pid: int, **more: Any) -> Holder:
    facts: dict[str, Any] = {
        "started_at": pid * 10,
        "user": "alice",
        "command": "python train.py",
        "alive": True,
        "age_s": 9000.0,
        "state": "S",
        "executable": "/home/alice/python",
        "workload": Workload(unit="session-1.scope"),
    }
    return Holder(pid=pid, **{**facts, **more})


def orphan(pid: int, dead: int, nbytes: int = 4 * GIB, **more: Any) -> Entry:
    """Memory of the dead pid *dead*, held by *pid*."""
    entry = {key: more.pop(key) for key in ("confidence", "co_holders", "sharing", "kind") if key in more}
    return Entry(
        **{"kind": "orphaned", **entry},
        nbytes=nbytes,
        holder=holder(pid, **more),
        charged_pid=dead,
        evidence=(f"pid {pid} has the files of pid {dead} open",),
    )


def process(pid: int, nbytes: int = 8 * GIB, **more: Any) -> Entry:
    return Entry(kind="process", nbytes=nbytes, holder=holder(pid, **more))


def unexplained(nbytes: int) -> Entry:
    return Entry(kind="unattributed", nbytes=nbytes, evidence=("used by nobody who is listed",))


def gpu(*entries: Entry, index: int = 0, **more: Any) -> GpuLedger:
    used = sum(entry.nbytes or 0 for entry in entries)
    facts: dict[str, Any] = {
        "uuid": f"GPU-{index}",
        "name": "H200",
        "total_bytes": TOTAL,
        "facts": GpuFacts(name="H200", uuid=f"GPU-{index}", utilization=0),
        "memory": MemoryFacts(total=TOTAL, used=used, free=TOTAL - used),
    }
    free = Entry(kind="free", nbytes=TOTAL - used)
    return GpuLedger(index=index, entries=(*entries, free), **{**facts, **more})


def ledger(*gpus: GpuLedger, uid: int = 0, user: str = "root", version: str = "580.1") -> Ledger:
    return Ledger(
        taken_at="2026-01-01T00:00:00Z",
        host=HostFacts(name="node", kernel="6.1", user=user, uid=uid),
        gpus=gpus,
        driver=DriverFacts(driver_version=version),
    )


def reading(found: Ledger, boot: float, **more: Any) -> PolicyReading:
    moment = more.pop("moment", At(1_000_000.0 + boot, boot))
    return PolicyReading(ledger=found, moment=moment, **more)


def policy(**table: Any) -> Policy:
    """A policy as the file has it, acting, and soon; underscores stand for hyphens."""
    usual: dict[str, Any] = {
        "name": "p",
        "do": "end-leftovers",
        "mode": "act",
        "after": "60s",
        "readings": 3,
        "match": {"users": ["alice"]},
    }
    given = {**usual, **{key.replace("_", "-"): value for key, value in table.items()}}
    return read_policies([given])[0]


def rank(pid: int, number: int = 0, nbytes: int = 4 * GIB, **more: Any) -> Entry:
    """Memory of a torchrun rank whose agent is dead."""
    job = Job(by="torchrun", key="1000.torchrun.5eed.0", is_orphan=True, rank=number, size=2, local_size=2)
    return process(pid, nbytes, **{"job": job, "uid": 1000, "parent": 1, **more})
