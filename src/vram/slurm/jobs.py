"""The job that a hook runs for, as slurmd's variables say, and the jobs that ended on this node before.

A list of Slurm's daemons proves that a job runs; that none is there does not prove that it has ended. What
an epilog has written does, for every process that was started before: a prolog frees only these.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Mapping
from contextlib import suppress

import msgspec
from msgspec import Struct

from vram.errors import AuditUnavailable, UsageError
from vram.model.ledger import Ledger
from vram.model.slurm import SlurmJob
from vram.reclaim import state

_MAX_WORD_LENGTH = 64
_MAX_GPUS = 1024
_HINT = "slurmd sets it for the programs that Prolog and Epilog in slurm.conf name"
FILE = "slurm-ended.jsonl"
MAX_BYTES = 1 << 20
"""About 10,000 jobs; then the older half goes."""
LOCK_S = 2.0


def job_of(variables: Mapping[str, str]) -> SlurmJob:
    """Read which job this is, and which GPUs it has. Raises UsageError where slurmd does not say so."""
    job = variables.get("SLURM_JOB_ID") or variables.get("SLURM_JOBID") or ""
    uid = variables.get("SLURM_JOB_UID") or variables.get("SLURM_UID") or ""
    for name, value in (("SLURM_JOB_ID", job), ("SLURM_JOB_UID", uid)):
        if not (value.isascii() and value.isdigit() and len(value) <= 10):
            what = f"is {value[:_MAX_WORD_LENGTH]!r}" if value else "is not set"
            raise UsageError(f"{name} {what}: which job has ended is unknown", hint=_HINT)
    words, by_uuid = _gpu_words(variables)
    return SlurmJob(
        job=str(int(job)),
        uid=int(uid),
        user=variables.get("SLURM_JOB_USER") or None,
        node=variables.get("SLURMD_NODENAME") or None,
        gpu_words=words,
        by_uuid=by_uuid,
    )


def _gpu_words(variables: Mapping[str, str]) -> tuple[tuple[str, ...] | None, bool]:
    """The words that name the job's GPUs, and whether they are UUIDs, as under MIG."""
    named = [word for word in _words(variables.get("CUDA_VISIBLE_DEVICES")) if not word.isdigit()]
    if named and all(word.upper().startswith(("GPU-", "MIG-")) for word in named):
        return tuple(named), True
    # Numbers of CUDA_VISIBLE_DEVICES may count within the job's own devices; SLURM_JOB_GPUS are the node's.
    for name in ("SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "CUDA_VISIBLE_DEVICES"):
        if words := _words(variables.get(name)):
            return words, False
    return None, False


def _words(text: str | None) -> tuple[str, ...]:
    """As Slurm lists them: commas between them, and ranges as in 0-3."""
    found: list[str] = []
    for word in (text or "").split(",")[:_MAX_GPUS]:
        word = word.strip()[:_MAX_WORD_LENGTH]
        if span := re.fullmatch(r"(\d{1,4})-(\d{1,4})", word, re.ASCII):
            found += map(str, range(int(span[1]), min(int(span[2]), int(span[1]) + _MAX_GPUS) + 1))
        elif word and word not in ("NoDevFiles", "(null)"):
            found.append(word)
    return tuple(dict.fromkeys(found))


def gpus_of(job: SlurmJob, ledger: Ledger) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The job's GPUs by the driver's numbers, and the words that name none of them."""
    found: dict[int, None] = {}
    missing = []
    for word in job.gpu_words or ():
        index = _by_uuid(word, ledger) if job.by_uuid else _by_device_file(word, ledger)
        if index is None:
            missing.append(word)
        else:
            found[index] = None
    return tuple(sorted(found)), tuple(missing)


def _by_uuid(word: str, ledger: Ledger) -> int | None:
    start = word.lower()
    for gpu in ledger.gpus:
        devices = [device.uuid for instance in gpu.instances for device in instance.devices]
        if any(name.lower().startswith(start) for name in (gpu.uuid or "", *devices)):
            return gpu.index
    return None


def _by_device_file(word: str, ledger: Ledger) -> int | None:
    """Slurm's number is that of the device file, /dev/nvidiaN; the driver may count in another order."""
    if not (word.isascii() and word.isdigit()):
        return None
    by_minor = {
        gpu.facts.minor: gpu.index for gpu in ledger.gpus if gpu.facts and gpu.facts.minor is not None
    }
    known = {gpu.index for gpu in ledger.gpus}
    return by_minor.get(int(word)) if by_minor else int(word) if int(word) in known else None


# ---- jobs whose epilog has run ----


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
