"""What the machine says now: the ledger with its findings, and the bytes in use on some GPUs.

The device's own bytes, read again, are the only proof that memory was freed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from vram import reading
from vram.diagnosis.engine import diagnose
from vram.diagnosis.words import where_to_look
from vram.errors import DeviceError, DriverMissing, UsageError
from vram.host.ports import Host
from vram.ledger.holds import find_holds
from vram.ledger.processes import living_holders
from vram.model.finding import Finding
from vram.model.gpu import GpuFacts, MemoryFacts, MigFacts
from vram.model.ledger import Ledger
from vram.model.observation import Observation
from vram.model.plan import Plan

READ_S = 5.0
# The driver frees memory as files close, which is over when a process has ended; where it tears down
# later, it is read again for this long before we say that nothing was freed.
SETTLE_S = 1.0
_PAUSE_S = 0.05


def read_ledger(host: Host, gpus: tuple[int, ...], deadline_s: float) -> Ledger:
    """Return the ledger, narrowed to *gpus* (empty: all). Raises where one of them does not exist."""
    ledger = _whole(host, gpus, deadline_s)
    return replace(ledger, gpus=tuple(gpu for gpu in ledger.gpus if gpu.index in gpus)) if gpus else ledger


def read_and_diagnose(
    host: Host, gpus: tuple[int, ...], deadline_s: float
) -> tuple[Ledger, tuple[Finding, ...]]:
    """Return the whole ledger and its findings. Raises where one of *gpus* does not exist.

    The effect of ending a process is judged by all of it: it may work on a GPU that was not asked about.
    """
    ledger = _whole(host, gpus, deadline_s)
    return ledger, diagnose(ledger)


def are_ending(host: Host, ledger: Ledger) -> bool:
    """Whether memory of a dead owner was still held at the reading, by a process that has ended since."""
    ghosts = (part.entry for hold in find_holds(ledger) if hold.what == "ghost" for part in hold.parts)
    lost = (entry for entry in ghosts if entry.nbytes and entry.kind_facts.held)
    return any(all(_is_ending(host, each.pid) for each in living_holders(entry)) for entry in lost)


def _is_ending(host: Host, pid: int) -> bool:
    found = host.proc.facts(pid)
    return found is None or found[1].is_dead or found[1].exiting


def _whole(host: Host, gpus: tuple[int, ...], deadline_s: float) -> Ledger:
    ledger = reading.read_ledger(host, deadline_s)
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


def available_bytes(ledger: Ledger) -> dict[int, int]:
    """What a program could still allocate on each GPU that says so; one with MIG devices does not."""
    answering = [gpu for gpu in ledger.gpus if gpu.status == "ok" and not gpu.instances]
    return {
        gpu.index: entry.nbytes
        for gpu in answering
        for entry in gpu.of_kind("free")
        if entry.nbytes is not None
    }


def missing_bytes(ledger: Ledger, plan: Plan) -> int | None:
    """What is missing now of the size that *plan* is to make available; None where it has none, or where
    its GPU no longer says."""
    if plan.available_bytes is None or len(plan.gpus) != 1:
        return None
    available = available_bytes(ledger).get(plan.gpus[0])
    return None if available is None else max(0, plan.available_bytes - available)


def used_in(ledger: Ledger, gpus: tuple[int, ...]) -> int | None:
    """What a ledger that was just read says is in use on *gpus*, as :func:`used_bytes` counts it.

    None where that is not one plain figure for each of them: then it has to be read.
    """
    found = {gpu.index: gpu for gpu in ledger.gpus}
    plain = [
        found[each].memory
        for each in gpus
        if each in found and found[each].driver == "nvidia" and not found[each].instances
    ]
    if len(plain) != len(gpus) or not gpus:
        return None
    return None if None in plain else sum(memory.used for memory in plain if memory is not None)


def used_bytes(host: Host, gpus: tuple[int, ...]) -> int | None:
    """What is in use on *gpus* together; None where one of them did not answer."""
    seen = list(host.nvml.read(READ_S))
    if host.drm.drivers:
        from vram.probes.sources import drm

        seen += drm.observe(host, list(seen))
    # Under MIG the whole GPU may be withheld from us; its instances are then what can be read.
    found = _in_instances(each for each in seen if each.gpu in gpus) | {
        each.gpu: each.facts.used
        for each in seen
        if isinstance(each.facts, MemoryFacts) and each.facts.total and each.gpu in gpus
    }
    # Some drivers never tell what is in use; they must not keep the others from being measured.
    mute = {each.gpu for each in seen if isinstance(each.facts, GpuFacts) and each.facts.driver != "nvidia"}
    wanted = set(gpus) - (mute - found.keys())
    return sum(found.values()) if found and len(found) == len(wanted) else None


def uses_system_memory(host: Host, gpus: tuple[int, ...]) -> bool:
    """Whether one of *gpus* has no memory of its own, but the machine's."""
    return any(
        isinstance(each.facts, MemoryFacts) and each.gpu in gpus and each.facts.counted_by == "kernel"
        for each in host.nvml.read(READ_S)
    )


def _in_instances(seen: Iterable[Observation]) -> dict[int | None, int]:
    """What all GPU instances of a GPU use; devices of the same one tell the same memory."""
    instances = {
        (each.gpu, each.facts.gpu_instance): each.facts.memory.used
        for each in seen
        if isinstance(each.facts, MigFacts) and each.facts.memory is not None
    }
    sums: dict[int | None, int] = {}
    for (gpu, _), used in instances.items():
        sums[gpu] = sums.get(gpu, 0) + used
    return sums


def settled_bytes(
    host: Host,
    gpus: tuple[int, ...],
    before: int | None,
    promised: int | None,
    *,
    rest: Callable[[float], None] = time.sleep,
) -> int | None:
    """What is in use once *promised* bytes are back, or when we stop waiting for them."""
    deadline = host.clock.monotonic() + SETTLE_S
    after = used_bytes(host, gpus)
    while before is not None and after is not None and promised and before - after < promised:
        if host.clock.monotonic() >= deadline:
            break
        rest(_PAUSE_S)
        after = used_bytes(host, gpus)
    return after
