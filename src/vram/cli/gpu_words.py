"""The words of ``--gpu``: a GPU by number, UUID or PCI address; a MIG device by UUID or as GPU:DEVICE."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from vram.errors import UsageError
from vram.ledger.instances import alone
from vram.model.ledger import GpuLedger, Ledger

_HINT = "write --gpu 0 or --gpu 0,1; a UUID or PCI address; or 0:1 for MIG device 1 of GPU 0"
_NUMBER = re.compile(r"[0-9]{1,4}", re.ASCII)
_DEVICE = re.compile(r"([0-9]{1,4}):([0-9]{1,4})", re.ASCII)
_UUID = re.compile(r"(?:GPU|MIG)-[0-9a-f-]{1,40}", re.ASCII | re.IGNORECASE)

_ADDRESS = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}:[0-9a-f]{1,2}\.[0-7])", re.ASCII | re.IGNORECASE)

# A GPU; and its GPU instance and MIG device, where only those are meant.
Chosen = tuple[int, int | None, int | None]


def select(ledger: Ledger, words: Sequence[str]) -> Ledger:
    """Return *ledger* with only the GPUs and instances that *words* name, in its own order."""
    chosen = {found for word in words for found in [_find(ledger, word)]}
    return replace(ledger, gpus=tuple(_narrowed(ledger, chosen)))


def _narrowed(ledger: Ledger, chosen: set[Chosen]) -> Iterator[GpuLedger]:
    for gpu in ledger.gpus:
        if (gpu.index, None, None) in chosen:
            yield gpu
            continue
        for instance in gpu.instances:
            place = (gpu.index, instance.gpu_instance)
            named = [each.index for each in instance.devices if (*place, each.index) in chosen]
            if named:  # once, however many of its devices were named: their memory is the same
                yield alone(gpu, instance.gpu_instance, named[0])


def _find(ledger: Ledger, word: str) -> Chosen:
    word = _address(word)
    named = [place for place, names in _names(ledger) if word and word in names]
    if not named and _UUID.fullmatch(word):
        # CUDA takes the beginning of a UUID too, as long as it is enough to tell.
        start = word.lower()
        named = [place for place, names in _names(ledger) if any(n.lower().startswith(start) for n in names)]
    if len(set(named)) == 1:
        return named[0]
    if named:
        raise UsageError(f"{word} is the beginning of several UUIDs", hint="write more of it")
    raise _unknown(ledger, word)


def _names(ledger: Ledger) -> Iterator[tuple[Chosen, tuple[str, ...]]]:
    for gpu in ledger.gpus:
        address = gpu.facts.bus_id if gpu.facts else None
        yield (gpu.index, None, None), (str(gpu.index), gpu.uuid or "", _address(address or ""))
        for instance in gpu.instances:
            for device in instance.devices:
                place = (gpu.index, instance.gpu_instance, device.index)
                yield place, (f"{gpu.index}:{device.index}", device.uuid)


def _address(word: str) -> str:
    """A PCI address in one spelling: NVML writes eight digits of domain, the kernel four."""
    found = _ADDRESS.fullmatch(word)
    return f"{(found[1] or '').lstrip('0') or '0'}:{found[2]}".lower() if found else word


def _unknown(ledger: Ledger, word: str) -> UsageError:
    if not any(form.fullmatch(word) for form in (_NUMBER, _DEVICE, _UUID, _ADDRESS)):
        return UsageError(f"{word!r} is not the name of a GPU", hint=_HINT)
    known = [f"{names[0]} ({_label(ledger, place)})" for place, names in _names(ledger)]
    return UsageError(f"there is no GPU {word}", hint="these exist: " + ", ".join(known))


def _label(ledger: Ledger, place: Chosen) -> str:
    gpu = next(each for each in ledger.gpus if each.index == place[0])
    return gpu.name if place[1] is None else alone(gpu, place[1], place[2]).name
