"""Open device files and dma-bufs of every process: what really keeps memory alive."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from vram.host.ports import FileScan, Host
from vram.model.files import ClientFacts, DmabufFacts, FilesFacts, UnreadableFacts
from vram.model.gpu import ChargeFacts
from vram.model.observation import Observation

NAME = "files"
LATE_NAME = "files.late"


def observe(host: Host, deadline_s: float) -> Iterator[Observation]:
    """The device files of all processes."""
    scan = host.files.scan(deadline_s)
    yield from _holders(scan)
    if scan.denied_processes:
        facts = UnreadableFacts(scan.denied_processes, scan.denied_users)
        yield Observation(probe="proc.unreadable", status="denied", code="unreadable", facts=facts)
    if not scan.complete:
        message = f"the scan of all processes was stopped after {deadline_s:.1f} s: holders may be missing"
        yield Observation(probe="proc.files", status="timeout", code="cut-off", message=message)
    if scan.full:
        message = "processes have more device files open than can be read: holders may be missing"
        yield Observation(probe="proc.files", status="failed", code="too-many-files", message=message)


def observe_latecomers(
    host: Host, observed: Iterable[Observation], deadline_s: float
) -> Iterator[Observation]:
    """The files of charged processes that started after the scan had passed their number.

    Without them a newcomer would look like a stranger that took over a dead pid.
    """
    observed = list(observed)
    charged = {each.process.pid for each in observed if each.process and isinstance(each.facts, ChargeFacts)}
    known = {each.process.pid for each in observed if each.process and isinstance(each.facts, FilesFacts)}
    late: FileScan = host.files.scan(deadline_s, sorted(charged - known))
    yield from _holders(late)


def _holders(scan: FileScan) -> Iterator[Observation]:
    for holder in scan.holders:
        if holder.files:
            facts = FilesFacts(holder.files, holder.mappings, holder.managed_bytes)
            yield Observation(probe="proc.files", process=holder.process, facts=facts)
        for client in holder.clients:
            yield Observation(
                probe="drm.clients",
                status=client.status,
                process=holder.process,
                nbytes=_dedicated(client.facts),
                facts=client.facts,
                message=client.message,
                code=client.code,
            )
        for buffer in holder.dmabufs:
            yield Observation(
                probe="proc.dmabuf",
                process=holder.process,
                nbytes=buffer.nbytes,
                facts=DmabufFacts(buffer.fd, buffer.inode, buffer.exporter),
            )
    many = len(scan.cut) > 1
    whose = f"{len(scan.cut)} processes of {', '.join(scan.cut_users)} have"
    for process in scan.cut:
        who = whose if many else f"pid {process.pid} has"
        message = f"{who} thousands of device files open: only the first ones were read"
        yield Observation(
            probe="proc.files", status="failed", code="too-many-files", process=process, message=message
        )


def _dedicated(client: ClientFacts) -> int | None:
    """What a client has of the GPU's own memory; None where that is unknown."""
    sizes = [region.nbytes for region in client.regions if region.dedicated]
    return sum(nbytes or 0 for nbytes in sizes) if sizes and None not in sizes else None
