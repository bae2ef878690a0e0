"""Exported allocations: control descriptors that keep memory which no process list names.

Asking costs a process that loads the driver, so it is done only where it can matter: some
GPU uses more than its lists account for, and somebody has a descriptor that may be why.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from vram.host.ports import Candidate, Host, Proof
from vram.model.files import ExportFacts, FilesFacts
from vram.model.gpu import ChargeFacts, GpuFacts, MemoryFacts
from vram.model.observation import Observation
from vram.units import MIB

NAME = "exports"

_SMALLEST = 2 * MIB  # the driver exports nothing finer
# A context uses about 9 MiB more than it is charged (H200, driver 580.159); drivers differ.
_CONTEXT_OVERHEAD = 16 * MIB
# An import takes the driver about a millisecond; a context alone has ten control descriptors.
_MOST_CANDIDATES = 1024


def observe(host: Host, seen: Iterable[Observation], deadline_s: float) -> Iterator[Observation]:
    """Prove candidates of processes that hold no GPU; then, if bytes are still missing, the rest."""
    seen = list(seen)
    indices = {each.facts.uuid: each.gpu for each in seen if isinstance(each.facts, GpuFacts)}
    unexplained, contexts = residual(seen)
    deadline = host.clock.monotonic() + deadline_s
    for candidates, ordinary in zip(candidates_of(seen), (0, contexts * _CONTEXT_OVERHEAD), strict=True):
        if not candidates or unexplained < ordinary + _SMALLEST:
            continue
        sizes: dict[object, int] = {}
        untold: set[tuple[int, str | None]] = set()
        for proof in _prove(host, candidates, deadline - host.clock.monotonic()):
            sizes[_identity(proof.candidate)] = proof.nbytes or 0
            yield from _statement(proof, indices, untold)
        unexplained -= sum(sizes.values())


def residual(seen: Iterable[Observation]) -> tuple[int, int]:
    """Bytes in use that no list accounts for, over all GPUs, and how many contexts there are.

    Where the driver does not say how much a process has, nothing is known to be missing.
    """
    used: dict[int | None, int] = {}
    contexts = 0
    for each in seen:
        if isinstance(each.facts, MemoryFacts):
            used[each.gpu] = used.get(each.gpu, 0) + each.facts.used
        elif isinstance(each.facts, ChargeFacts):
            used[each.gpu] = used.get(each.gpu, 0) - (each.nbytes or 0)
            contexts += 1
    return sum(max(0, nbytes) for nbytes in used.values()), contexts


def candidates_of(seen: Iterable[Observation]) -> tuple[list[Candidate], list[Candidate]]:
    """Control descriptors of processes without a GPU file, and those of all others."""
    idle: list[Candidate] = []
    busy: list[Candidate] = []
    for each in seen:
        if each.process is None or not isinstance(each.facts, FilesFacts):
            continue
        has_gpu = any(file.kind == "gpu" for file in each.facts.files)
        controls = [file for file in each.facts.files if file.kind == "control"]
        found = [Candidate(each.process, file.fd, file.description) for file in controls]
        (busy if has_gpu else idle).extend(found)
    return idle, busy


def _prove(host: Host, candidates: list[Candidate], deadline_s: float) -> Iterator[Proof]:
    """Try one descriptor of each open file; what it shows holds for all that share it."""
    sharers: dict[object, list[Candidate]] = {}
    for each in candidates:
        sharers.setdefault(_identity(each), []).append(each)
    first = {members[0]: members for members in sharers.values()}
    for proof in host.exports.prove(list(first)[:_MOST_CANDIDATES], deadline_s):
        for member in first[proof.candidate]:
            yield Proof(member, proof.exported, proof.nbytes, proof.gpu_uuid, proof.status, proof.message)


def _identity(candidate: Candidate) -> object:
    # Where the kernel does not tell open files apart, every descriptor is its own.
    if candidate.description is not None:
        return candidate.description
    return candidate.process.pid, candidate.fd


def _statement(
    proof: Proof, indices: dict[str, int | None], untold: set[tuple[int, str | None]]
) -> Iterator[Observation]:
    """What a proof says; that something could not be tried is said once for a process."""
    failure = (proof.candidate.process.pid, proof.message)
    if proof.exported is False or (proof.exported is None and failure in untold):
        return
    untold.add(failure)
    yield Observation(
        probe="driver.exports",
        status=proof.status,
        gpu=indices.get(proof.gpu_uuid or ""),
        process=proof.candidate.process,
        nbytes=proof.nbytes,
        facts=ExportFacts(proof.candidate.fd, proof.candidate.description) if proof.exported else None,
        message=proof.message,
    )
