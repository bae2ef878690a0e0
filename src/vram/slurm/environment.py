"""The job that a hook runs for, from the variables that slurmd sets for prolog and epilog."""

from __future__ import annotations

import re
from collections.abc import Mapping

from vram.errors import UsageError
from vram.model.ledger import Ledger
from vram.model.slurm import SlurmJob

_MAX_WORD_LENGTH = 64
_MAX_GPUS = 1024
_HINT = "slurmd sets it for the programs that Prolog and Epilog in slurm.conf name"


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
        gpus=words,
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
    for word in job.gpus or ():
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
