"""Ledgers in a few words: only what a test is about is said, the rest is a quiet machine."""

from __future__ import annotations

from typing import Any

from vram.model.gpu import GpuFacts, MemoryFacts
from vram.model.ledger import Entry, GpuLedger, Holder, Ledger, OpenOnly, known_bytes
from vram.model.observation import HostFacts
from vram.model.process import Job
from vram.units import GIB, MIB

TOTAL = 80 * GIB
CONTEXT = 518 * MIB


def holder(pid: int = 1234, **facts: Any) -> Holder:
    """A healthy Python process of alice."""
    about: dict[str, Any] = {
        "started_at": 100,
        "user": "alice",
        "command": "python train.py",
        "alive": True,
        "state": "S",
        "parent": 900,
        "executable": "/home/alice/venv/bin/python3.12",
    }
    return Holder(pid=pid, **(about | facts))


def job(**facts: Any) -> Job:
    """One rank of two that torchrun started, and that lost its launcher."""
    about = {"by": "torchrun", "key": "1.torchrun", "is_orphan": True, "rank": 0, "size": 2, "local_size": 2}
    return Job(**(about | facts))


def dead(pid: int) -> Holder:
    return Holder(pid=pid, started_at=None, user=None, command=None, alive=False)


def entry(kind: str = "process", nbytes: int | None = 4 * GIB, **about: Any) -> Entry:
    return Entry(kind=kind, nbytes=nbytes, **about)  # type: ignore[arg-type]


def process(pid: int = 1234, nbytes: int = 4 * GIB, **facts: Any) -> Entry:
    """A living process that is charged with memory."""
    return entry(nbytes=nbytes, holder=holder(pid, **facts))


def gpu(*entries: Entry, index: int = 0, **about: Any) -> GpuLedger:
    """One GPU whose free memory makes the entries balance."""
    free = TOTAL - known_bytes(entries)
    filled = (*entries, Entry(kind="free", nbytes=free))
    given: dict[str, Any] = {"uuid": f"GPU-{index}", "name": "Virtual GPU", "total_bytes": TOTAL}
    return GpuLedger(index=index, entries=filled, **(given | about))


def silent_gpu(status: str, message: str | None = None, index: int = 0, code: str | None = None) -> GpuLedger:
    """A GPU that could not be read."""
    return GpuLedger(
        index=index,
        uuid=None,
        name="unknown GPU",
        total_bytes=None,
        entries=(),
        status=status,  # type: ignore[arg-type]
        message=message,
        code=code,
    )


def facts(**about: Any) -> GpuFacts:
    return GpuFacts(uuid="GPU-0", name="Virtual GPU", **about)


def memory(**about: Any) -> MemoryFacts:
    given: dict[str, Any] = {"total": TOTAL, "free": TOTAL, "used": 0}
    return MemoryFacts(**(given | about))


def forked_child(pid: int, of: int | None) -> OpenOnly:
    """A process that holds the device files of another."""
    return OpenOnly(holder=holder(pid, descriptors=23), inherited_from=of)


def host(user: str = "alice", uid: int = 1000, **about: Any) -> HostFacts:
    return HostFacts(name="box", kernel="6.18", user=user, uid=uid, **about)


def ledger(*gpus: GpuLedger, **about: Any) -> Ledger:
    given: dict[str, Any] = {"taken_at": "2026-01-01T00:00:00Z", "host": host()}
    return Ledger(gpus=gpus, **(given | about))
