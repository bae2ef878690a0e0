"""The finding that several causes end in: somebody who is no user of memory keeps it from coming back."""

from __future__ import annotations

from collections.abc import Iterable

from vram.diagnosis import remedies, words
from vram.diagnosis.holdings import Holding
from vram.model.finding import Finding, Remedy
from vram.model.observation import HostFacts


def kept(
    code: str, host: HostFacts, holding: Holding, *, title: str, cause: str, gentler: Iterable[Remedy]
) -> Finding:
    """What *holding* keeps, with the remedies of its cause besides ending its keepers."""
    ending = remedies.end(host, holding.keepers, certain=holding.certain, either=holding.either)
    return Finding(
        code=code,
        title=title,
        nbytes=holding.nbytes,
        cause=cause,
        gpus=holding.gpus,
        pids=tuple(keeper.pid for keeper in holding.keepers),
        evidence=words.evidence(holding.evidence),
        remedies=remedies.ordered((*gentler, *ending)),
    )
