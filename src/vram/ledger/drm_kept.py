"""Dma-bufs of AMD's and Intel's drivers: they keep memory alive when no client has it any more."""

from __future__ import annotations

from collections.abc import Iterable

from vram.ledger.drm_clients import ClientGroup
from vram.ledger.holders import holder, holders
from vram.ledger.sightings import ExportedDescriptor, GpuSighting, Sightings, by_identity
from vram.model.ledger import Entry
from vram.units import size


def dmabuf_entries(seen: Sightings, gpu: GpuSighting, found: Iterable[ClientGroup], rest: int) -> list[Entry]:
    """Entries for buffers that no client of *gpu* can own, as far as *rest* has room for them.

    While its client lives, an exported buffer is part of the client's figures.
    """
    alone = sum(1 for each in seen.gpus.values() if each.driver == gpu.driver) == 1
    owned = max((_ownable(claim) for claim in found), default=0)
    entries = []
    for shares in by_identity(share for share in seen.shares if share.exporter == gpu.driver):
        nbytes = shares[0].nbytes
        if alone and owned < nbytes <= rest:
            rest -= nbytes
            entries.append(_entry(seen, shares))
    return entries


def _ownable(claim: ClientGroup) -> int:
    """The most that one exported buffer of these clients can have; older kernels tell no part."""
    return max((client.shared or client.dedicated or 0 for client in claim.clients), default=0)


def _entry(seen: Sightings, shares: list[ExportedDescriptor]) -> Entry:
    keeping = holders(seen, sorted({share.process.pid for share in shares}))
    first = keeping[0] if keeping else holder(seen, shares[0].process)
    words = [
        f"descriptor {share.fd} of pid {share.process.pid} is a dma-buf of {size(share.nbytes)}"
        for share in shares
    ]
    words.append("no client of the GPU has so much that it could be its maker")
    return Entry(
        kind="exported",
        nbytes=shares[0].nbytes,
        holder=first,
        co_holders=keeping[1:],
        sharing="all" if len(keeping) > 1 else None,
        evidence=tuple(words),
        confidence="likely",
        medium="dmabuf",
    )
