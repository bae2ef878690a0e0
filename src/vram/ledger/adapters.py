"""Which of Windows' adapters is which GPU: by their place on PCI, else by name, else not at all."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from vram.ledger.sightings import GpuSighting, Sightings
from vram.model.windows import AdapterFacts

_NVIDIA = 0x10DE
# Windows' figure leaves out what the driver reserves: a few hundred MiB of some GiB.
_CLOSE = 8


class AdapterMatch(Struct, frozen=True):
    """A GPU's adapter. Without one, ``candidates`` are those that it may be."""

    adapter: AdapterFacts | None = None
    certain: bool = False
    candidates: tuple[AdapterFacts, ...] = ()


def join(seen: Sightings) -> dict[int, AdapterMatch]:
    """For every GPU its adapter; none is given to two."""
    gpus = {index: gpu for index, gpu in seen.gpus.items() if gpu.driver == "nvidia"}
    adapters = _present([each for each in seen.adapters if each.vendor in (None, _NVIDIA)])
    joined: dict[int, AdapterMatch] = {}
    for fits in (_same_place, _same_card):
        for index, gpu in list(gpus.items()):
            matches = [adapter for adapter in adapters if fits(gpu, adapter)]
            if len(matches) == 1 and _is_only(gpu, matches[0], gpus, fits):
                joined[index] = AdapterMatch(matches[0], certain=True)
                adapters.remove(matches[0])
                del gpus[index]
    for index in gpus:
        lone = len(gpus) == 1 and len(adapters) == 1
        joined[index] = AdapterMatch(adapters[0]) if lone else AdapterMatch(candidates=tuple(adapters))
    return joined


def _present(adapters: list[AdapterFacts]) -> list[AdapterFacts]:
    """Without those that are only remembered: the registry keeps a card's entries of earlier drivers.

    Windows has a counter for every adapter that is there, used or not, and tells places of no others.
    """
    return [each for each in adapters if (each.local, each.bus) != (None, None)] or adapters


def _is_only(
    gpu: GpuSighting,
    adapter: AdapterFacts,
    gpus: dict[int, GpuSighting],
    fits: Callable[[GpuSighting, AdapterFacts], bool],
) -> bool:
    return not any(fits(other, adapter) for other in gpus.values() if other is not gpu)


def _same_place(gpu: GpuSighting, adapter: AdapterFacts) -> bool:
    return adapter.bus is not None and adapter.bus == _place(gpu.facts.bus_id if gpu.facts else None)


def _place(bus_id: str | None) -> tuple[int, int, int] | None:
    """Bus, device and function of "00000000:01:00.0"; Windows counts no domains."""
    try:
        _, bus, rest = (bus_id or "").split(":")
        device, function = rest.split(".")
        return int(bus, 16), int(device, 16), int(function, 16)
    except ValueError:
        return None


def _same_card(gpu: GpuSighting, adapter: AdapterFacts) -> bool:
    if gpu.facts is None or adapter.name is None or _plain(gpu.facts.name) != _plain(adapter.name):
        return False
    # Where both places are known and differ, equal names are two cards.
    known = adapter.bus is not None and _place(gpu.facts.bus_id) is not None
    return not known and _same_total(gpu, adapter)


def _same_total(gpu: GpuSighting, adapter: AdapterFacts) -> bool:
    if gpu.memory is None or not adapter.total:
        return True
    return abs(gpu.memory.total - adapter.total) <= gpu.memory.total // _CLOSE


def _plain(name: str) -> str:
    return " ".join(name.casefold().removesuffix("(virtual)").removeprefix("nvidia").split())
