"""One look at the machine: the ledger of the chosen GPUs, and what it means."""

from __future__ import annotations

from msgspec.structs import replace

from vram.diagnosis.engine import diagnose
from vram.diagnosis.words import where_to_look
from vram.errors import DeviceError, DriverMissing, UsageError
from vram.host.ports import Host
from vram.ledger.build import build_ledger
from vram.model.finding import Finding
from vram.model.ledger import Ledger
from vram.probes.survey import survey


def look(host: Host, gpus: tuple[int, ...], deadline_s: float) -> tuple[Ledger, tuple[Finding, ...]]:
    """Return the ledger, narrowed to *gpus* (empty: all), and its findings."""
    ledger = _read(host, gpus, deadline_s)
    if gpus:
        ledger = replace(ledger, gpus=tuple(gpu for gpu in ledger.gpus if gpu.index in gpus))
    return ledger, diagnose(ledger)


def look_at_all(host: Host, gpus: tuple[int, ...], deadline_s: float) -> tuple[Ledger, tuple[Finding, ...]]:
    """Return the whole ledger and its findings, having made sure that *gpus* exist.

    What ending a process would do is judged by all of it: it may work on a GPU that nobody asked about.
    """
    ledger = _read(host, gpus, deadline_s)
    return ledger, diagnose(ledger)


def _read(host: Host, gpus: tuple[int, ...], deadline_s: float) -> Ledger:
    ledger = build_ledger(survey(host, deadline_s=deadline_s))
    if not ledger.gpus:
        raise _no_gpu(ledger)
    missing = set(gpus) - {gpu.index for gpu in ledger.gpus}
    if missing:
        raise UsageError(
            f"there is no GPU {min(missing)}",
            hint="these exist: " + ", ".join(f"{gpu.index} ({gpu.name})" for gpu in ledger.gpus),
        )
    return ledger


def _no_gpu(ledger: Ledger) -> DriverMissing | DeviceError:
    nvml = next((probe for probe in ledger.probes if probe.name == "nvml"), None)
    reason = (nvml and nvml.message) or "none was found"
    if nvml is not None and nvml.status == "unsupported":
        return DriverMissing(
            f"no NVIDIA driver answers on {ledger.host.name}: {reason}",
            hint=where_to_look(ledger.driver),
        )
    return DeviceError(f"no GPU answers on {ledger.host.name}: {reason}", hint="see `vram why`")
