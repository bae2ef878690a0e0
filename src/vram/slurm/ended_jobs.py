"""The jobs that ended on this node, as their epilogs saw it: only of these can a prolog free anything.

A list of Slurm's daemons proves that a job runs; that none is there does not prove that it has ended. What
an epilog has written does, for every process that was started before.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress

import msgspec
from msgspec import Struct

from vram.errors import AuditUnavailable
from vram.reclaim import state

FILE = "slurm-ended.jsonl"
MAX_BYTES = 1 << 20
"""About 10,000 jobs; then the older half goes."""
LOCK_S = 2.0


class EndedJob(Struct, frozen=True, kw_only=True):
    """A job whose epilog has run: ``ended_s`` counts from the boot that ``boot_id`` names."""

    job: str
    uid: int
    ended_s: float
    boot_id: str


def since_boot_s() -> float:
    """Now, as start times of processes count it: jumps of the wall clock change nothing."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def record(job: EndedJob) -> None:
    """Write down that *job* has ended. Raises AuditUnavailable where that cannot be."""
    file = state.open_file(FILE, os.O_RDWR | os.O_APPEND | os.O_CREAT)
    try:
        _lock(file)
        if os.fstat(file).st_size > MAX_BYTES:
            _drop_older_half(file)
        os.write(file, msgspec.json.encode(job) + b"\n")
    except OSError as error:
        raise AuditUnavailable(f"cannot write {FILE}: {error.strerror}") from error
    finally:
        os.close(file)


def ended_jobs(boot_id: str) -> dict[str, EndedJob]:
    """The jobs that ended since this boot, each as it ended last; none where nothing was written."""
    found: dict[str, EndedJob] = {}
    try:
        file = state.open_file(FILE, os.O_RDONLY)
    except AuditUnavailable:
        return found
    try:
        lines = os.pread(file, 2 * MAX_BYTES, 0).splitlines()
    finally:
        os.close(file)
    for line in lines:
        with suppress(msgspec.MsgspecError):
            job = msgspec.json.decode(line, type=EndedJob)
            if job.boot_id == boot_id:
                found[job.job] = job
    return found


def _lock(file: int) -> None:
    """One writer at a time. A stopped one must not hold up an epilog: then this job is not written down."""
    deadline = time.monotonic() + LOCK_S
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.002)


def _drop_older_half(file: int) -> None:
    kept = os.pread(file, 2 * MAX_BYTES, 0)[-MAX_BYTES // 2 :].partition(b"\n")[2]
    os.ftruncate(file, 0)
    os.write(file, kept)
