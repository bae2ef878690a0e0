"""VR405 No answer: a driver call failed, or did not return in time.

What it detects
---------------
A GPU or a whole source of information could not be read: the call failed, or did not return by
the deadline. Everything else is still reported; this finding says what is missing.

Why it happens
--------------
After a driver fault a call may never return. A GPU that is being reset, a very busy machine or a
broken installation make calls slow or fail.

How to confirm
--------------
Check whether the driver's own tool answers, and read the kernel log:

    timeout 20 nvidia-smi
    sudo dmesg --ctime | grep -iE 'xid|nvrm'

Remedies and their risk
-----------------------
- Run it again: the machine may have been busy. No risk.
- If it happens again, read the kernel log; an Xid line names the fault. No risk.
- Processes that wait in the driver cannot be killed (VR202). The last resort is to restart the
  machine, which ends everything on it.

Source
------
Calls that never return are reported in open-gpu-kernel-modules #1333. Measured on an H200, driver
580.159: a memory call takes 8 to 11 µs, a process list 38 µs.
"""

from __future__ import annotations

from collections.abc import Iterator

from vram.diagnosis import remedies, words
from vram.model.finding import Finding, Remedy
from vram.model.ledger import GpuLedger, Ledger
from vram.model.observation import NVML_MISMATCH, NVML_RESET_REQUIRED, ProbeRun
from vram.units import counted

CODE = "VR405"

_COLUMNS = 28  # a title has 70 columns; more names than fit are counted
_WORDS = {"timeout": "did not answer in time", "failed": "failed"}


def judge(ledger: Ledger) -> Iterator[Finding]:
    gpus = [gpu for gpu in ledger.gpus if _is_silent(gpu)]
    # Where Windows does not answer, the driver is well, and VR603 says what is missing.
    probes = [probe for probe in ledger.probes if _is_silent(probe) and probe.name != "windows"]
    if gpus or probes:
        yield _finding(gpus, probes)


def _is_silent(source: GpuLedger | ProbeRun) -> bool:
    """Failed or too late, for a reason that no other rule explains better."""
    return source.status in _WORDS and source.code not in (NVML_RESET_REQUIRED, NVML_MISMATCH)


def _finding(gpus: list[GpuLedger], probes: list[ProbeRun]) -> Finding:
    indices = tuple(gpu.index for gpu in gpus)
    what = words.gpus(indices) if gpus else _named(probes)
    if len(what) > _COLUMNS:
        what = f"{len(gpus)} GPUs" if gpus else counted(len(probes), "probe")
    return Finding(
        code=CODE,
        title=f"No answer from {what}: the report is incomplete",
        nbytes=None,
        cause=_cause(gpus, probes),
        gpus=indices,
        evidence=words.evidence(map(_gpu_told, gpus), map(_probe_told, probes)),
        remedies=(
            Remedy(step="wait", target="host", text="Run it again.", command="vram why"),
            remedies.kernel_log("host", {gpu.driver for gpu in gpus} or ("nvidia",)),
        ),
        severity="problem" if gpus else "warning",
    )


def _cause(gpus: list[GpuLedger], probes: list[ProbeRun]) -> str:
    who = _who(tuple(gpu.index for gpu in gpus), probes)
    if gpus and all(gpu.total_bytes is not None for gpu in gpus):
        return f"The process lists of {who} could not be read. Who holds memory there is unknown."
    return (
        f"{who} could not be read and {'is' if len(gpus or probes) == 1 else 'are'} missing in this report."
    )


def _who(indices: tuple[int, ...], probes: list[ProbeRun]) -> str:
    if indices:
        return words.gpus(indices)
    return f"The {_named(probes)}"


def _named(probes: list[ProbeRun]) -> str:
    return f"probe{'s' if len(probes) > 1 else ''} {', '.join(words.shown(p.name) for p in probes)}"


def _gpu_told(gpu: GpuLedger) -> str:
    return f"GPU {gpu.index} {_WORDS[gpu.status]}{': ' if gpu.message else ''}{gpu.message or ''}"


def _probe_told(probe: ProbeRun) -> str:
    told = f"probe {probe.name} {_WORDS[probe.status]} after {probe.duration_s:.1f} s"
    return f"{told}: {probe.message}" if probe.message else told
