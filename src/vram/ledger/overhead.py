"""What CUDA itself costs beyond what the driver charges anybody for."""

from __future__ import annotations

from collections.abc import Iterator

from vram.ledger.sightings import GpuSighting, Sightings
from vram.model.ledger import Entry
from vram.units import KIB, MIB, counted, size

# Used and in no list, measured on an H200 with driver 580.159: once on a GPU as soon as any
# process has initialised CUDA, and for each context beyond the 518 MiB that its process is charged.
_INITIALISED = 3328 * KIB
_CONTEXT = 5696 * KIB
# Drivers differ; up to this much for a context is still called overhead.
_MOST = 16 * MIB


def expected(seen: Sightings, gpu: GpuSighting) -> int:
    """Bytes that the GPU's contexts and onlookers use without a charge."""
    if gpu.lists != "ok":
        return 0
    contexts = _contexts(gpu)
    initialised = bool(contexts) or any(seen.files[pid].mappings for pid in _uncharged(seen, gpu))
    return initialised * _INITIALISED + contexts * _CONTEXT


def _contexts(gpu: GpuSighting) -> int:
    return len(gpu.charges) + len(gpu.unnamed) + len(gpu.ended)


def overhead_entry(seen: Sightings, gpu: GpuSighting, rest: int, *, whole: bool) -> Entry | None:
    """The part of *rest* that is overhead; all of it, if *whole* and it is little enough."""
    usual = expected(seen, gpu)
    most = usual + _contexts(gpu) * (_MOST - _CONTEXT)
    if not usual and rest <= _INITIALISED and _is_in_use(seen):
        usual = rest
    nbytes = rest if whole and rest <= most else min(rest, usual)
    if not nbytes:
        return None
    return Entry(kind="overhead", nbytes=nbytes, evidence=_evidence(seen, gpu), confidence="likely")


def _evidence(seen: Sightings, gpu: GpuSighting) -> tuple[str, ...]:
    measured = "(measured on an H200, driver 580.159)"
    lines = []
    if gpu.charges or gpu.ended:
        contexts = counted(_contexts(gpu), "context")
        lines.append(f"{contexts}, each about {size(_CONTEXT)} more than its process is charged {measured}")
    elif onlookers := _onlookers(seen, gpu):
        lines.append(f"CUDA is initialised, without a context, in {pids_of(onlookers)} {measured}")
    else:
        lines.append(f"no more than CUDA takes here for a process on another GPU {measured}")
    return tuple(lines)


def _is_in_use(seen: Sightings) -> bool:
    """Whether CUDA runs on any GPU. It opens all of them, and who comes or goes is not seen to have."""
    if seen.made_in_use is None:
        seen.made_in_use = any(gpu.lists == "ok" and (gpu.charges or gpu.ended) for gpu in seen.gpus.values())
    return seen.made_in_use


def pids_of(pids: list[int]) -> str:
    """Name processes: "pid 7", "pids 7, 9"."""
    return f"{'pid' if len(pids) == 1 else 'pids'} {', '.join(map(str, pids))}"


def _onlookers(seen: Sightings, gpu: GpuSighting) -> list[int]:
    """Processes that CUDA runs in (it maps the GPU's files) and that are charged nothing."""
    return [pid for pid in open_on(seen, gpu) if seen.files[pid].mappings]


def open_on(seen: Sightings, gpu: GpuSighting) -> list[int]:
    """Processes that have the GPU's own files open and are charged nothing."""
    return sorted(_uncharged(seen, gpu))


def _uncharged(seen: Sightings, gpu: GpuSighting) -> Iterator[int]:
    charged = gpu.listed
    return (pid for pid in seen.opened(gpu.facts.minor if gpu.facts else None) if pid not in charged)
