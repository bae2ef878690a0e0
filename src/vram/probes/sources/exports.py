"""Exported allocations: control descriptors that keep memory which no process list names.

Asking costs a process that loads the driver, so it is done only where it can matter: some
GPU uses more than its lists account for, and a process has a descriptor that may be why.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from vram.host.ports import ExportCandidate, Host, Proof
from vram.model.files import ExportFacts, FilesFacts
from vram.model.gpu import ChargeFacts, GpuFacts, MemoryFacts, MigFacts
from vram.model.ledger import MAX_CONTEXT_OVERHEAD
from vram.model.observation import Observation
from vram.payloads import GONE
from vram.units import MIB

NAME = "exports"

_MIN_NBYTES = 2 * MIB  # the driver exports nothing finer
# An import takes the driver about a millisecond; a context alone has ten control descriptors.
_MAX_CANDIDATES = 1024

_ANY = 1 << 64  # a charge without a figure may be of any size

# A GPU, and its GPU instance where MIG divides it.
Place = tuple[int | None, int | None]


def observe(host: Host, observed: Iterable[Observation], deadline_s: float) -> Iterator[Observation]:
    """Prove candidates of processes that hold no GPU; then, if bytes are still missing, the rest.

    What a listed process may be charged for explains nothing that is missing. Where programs on the processor
    use the same memory, bytes are always missing: there the rest is not asked.
    """
    observed = list(observed)
    places = _places(observed)
    views = _views(observed)
    unexplained, contexts = residual(observed)
    own, _ = residual(observed, shared=False)
    charges = [each.nbytes for each in observed if isinstance(each.facts, ChargeFacts)]
    chargeable = max((_ANY if nbytes is None else nbytes for nbytes in charges), default=0)
    deadline = host.clock.monotonic() + deadline_s
    explained = 0
    for candidates, missing, ordinary in zip(
        candidates_of(observed), (unexplained, own), (0, contexts * MAX_CONTEXT_OVERHEAD), strict=True
    ):
        if not candidates or missing - explained < ordinary + _MIN_NBYTES:
            continue
        sizes: dict[object, int] = {}
        reported: set[tuple[int, str | None]] = set()
        for proof in _prove(host, candidates, deadline, views):
            sizes[_identity(proof.candidate)] = proof.nbytes or 0
            yield from _statement(proof, places, reported)
        explained += sum(nbytes for nbytes in sizes.values() if nbytes > chargeable)


def asks_all(observed: Sequence[Observation]) -> bool:
    """Whether every descriptor that can be an export was asked, and answered."""
    idle, busy = candidates_of(observed)
    unexplained, contexts = residual(observed)
    missing = unexplained - sum(each.nbytes or 0 for each in observed if each.probe == "driver.exports")
    is_enough = missing >= contexts * MAX_CONTEXT_OVERHEAD + _MIN_NBYTES or not busy
    failed = any(each.probe == "driver.exports" and each.status != "ok" for each in observed)
    files = {_identity(candidate) for candidate in (*idle, *busy)}
    return is_enough and not failed and len(files) <= _MAX_CANDIDATES


def residual(observed: Sequence[Observation], *, shared: bool = True) -> tuple[int, int]:
    """Bytes in use that no list accounts for, over all GPUs, and how many contexts there are.

    Where the driver does not say how much a process has, nothing is known to be missing. Without *shared*,
    GPUs that use the machine's memory are left out.
    """
    if not shared:
        apart = {each.gpu for each in observed if isinstance(each.facts, MemoryFacts) and each.facts.system}
        observed = [each for each in observed if each.gpu not in apart or each.gpu is None]
    used: dict[int | None, int] = {}
    instances: dict[Place, int] = {}
    contexts = 0
    for each in observed:
        if isinstance(each.facts, MemoryFacts):
            used[each.gpu] = used.get(each.gpu, 0) + each.facts.used
        elif isinstance(each.facts, MigFacts) and each.facts.memory:
            instances[each.gpu, each.facts.gpu_instance] = each.facts.memory.used
        elif isinstance(each.facts, ChargeFacts):
            used[each.gpu] = used.get(each.gpu, 0) - (each.nbytes or 0)
            contexts += 1
    whole = {each.gpu for each in observed if isinstance(each.facts, MemoryFacts)}
    for (gpu, _), nbytes in instances.items():
        if gpu not in whole:  # the whole GPU is withheld from us: its instances speak for it
            used[gpu] = used.get(gpu, 0) + nbytes
    return sum(max(0, nbytes) for nbytes in used.values()), contexts


def candidates_of(observed: Iterable[Observation]) -> tuple[list[ExportCandidate], list[ExportCandidate]]:
    """Control descriptors of processes without a GPU file, and those of all others."""
    idle: list[ExportCandidate] = []
    busy: list[ExportCandidate] = []
    for each in observed:
        if each.process is None or not isinstance(each.facts, FilesFacts):
            continue
        has_gpu = any(file.kind == "gpu" for file in each.facts.files)
        controls = [file for file in each.facts.files if file.kind == "control"]
        found = [ExportCandidate(each.process, file.fd, file.description) for file in controls]
        (busy if has_gpu else idle).extend(found)
    return idle, busy


def _places(observed: Iterable[Observation]) -> dict[str, Place]:
    """Every GPU and MIG device by the digits of its UUID, which are all that an import reports."""
    places: dict[str, Place] = {}
    for each in observed:
        if isinstance(each.facts, GpuFacts):
            places[each.facts.uuid[4:]] = (each.gpu, None)
        elif isinstance(each.facts, MigFacts):
            places[each.facts.uuid[4:]] = (each.gpu, each.facts.gpu_instance)
    return places


def _views(observed: Iterable[Observation]) -> list[str]:
    """What each try may see: one device of every GPU instance, then all GPUs that are whole."""
    instances: dict[Place, str] = {}
    whole: list[str] = []
    for each in observed:
        if isinstance(each.facts, MigFacts):
            instances.setdefault((each.gpu, each.facts.gpu_instance), each.facts.uuid)
        elif isinstance(each.facts, GpuFacts) and not each.facts.mig_enabled:
            whole.append(each.facts.uuid)
    if not instances:
        return []
    return [*instances.values(), *([",".join(whole)] if whole else [])]


def _prove(
    host: Host, candidates: list[ExportCandidate], deadline: float, views: list[str]
) -> Iterator[Proof]:
    """Try one descriptor of each open file; what it shows holds for all that share it.

    One that is gone by then shows nothing: then another that shares the file is tried.
    """
    by_open_file: dict[object, list[ExportCandidate]] = {}
    for each in candidates:
        by_open_file.setdefault(_identity(each), []).append(each)
    left = list(by_open_file.values())[:_MAX_CANDIDATES]
    while left:
        first = {members[0]: members for members in left}
        left = []
        for proof in host.exports.prove(list(first), deadline - host.clock.monotonic(), views):
            members = first[proof.candidate]
            if proof.code != GONE:
                yield from (replace(proof, candidate=member) for member in members)
            elif members[1:]:
                left.append(members[1:])


def _identity(candidate: ExportCandidate) -> object:
    # Where the kernel does not tell open files apart, every descriptor is its own.
    if candidate.description is not None:
        return candidate.description
    return candidate.process.pid, candidate.fd


def _statement(
    proof: Proof, places: dict[str, Place], reported: set[tuple[int, str | None]]
) -> Iterator[Observation]:
    """What a proof says; that something could not be tried is said once for a process."""
    failure = (proof.candidate.process.pid, proof.message)
    if proof.exported is False or (proof.exported is None and failure in reported):
        return
    reported.add(failure)
    gpu, instance = places.get((proof.gpu_uuid or "")[4:], (None, None))
    candidate = proof.candidate
    yield Observation(
        probe="driver.exports",
        status=proof.status,
        gpu=gpu,
        process=candidate.process,
        nbytes=proof.nbytes,
        facts=ExportFacts(candidate.fd, candidate.description, instance) if proof.exported else None,
        message=proof.message,
        code=proof.code,
    )
