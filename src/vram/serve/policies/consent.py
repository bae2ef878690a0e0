"""What owners agreed to when they started a process: asked of its environment again and again, and seldom."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import get_args

from vram.ledger.processes import processes
from vram.model.ledger import Ledger
from vram.policy.policy import Consent, Identity

CONSENTS: tuple[Consent, ...] = get_args(Consent)

# What a process was started with may still change by an exec soon after; so often it is read again.
_ASK_AGAIN_S = 60.0


class Consents:
    """*agrees* says of a process whether its owner does; only those that are there are remembered."""

    def __init__(self, agrees: Callable[[int, int], bool]) -> None:
        self._agrees = agrees
        self._known: dict[Identity, tuple[bool, float]] = {}

    def among(self, there: Iterable[Identity], boot: float) -> frozenset[Identity]:
        """Those of *there* whose owners agree."""
        self._known = {each: self._ask(each, boot) for each in there}
        return frozenset(each for each, (agrees, _) in self._known.items() if agrees)

    def _ask(self, identity: Identity, boot: float) -> tuple[bool, float]:
        known = self._known.get(identity)
        if known is not None and boot - known[1] < _ASK_AGAIN_S:
            return known
        return self._agrees(*identity), boot


def may_be_allowed(ledger: Ledger, what: Consent) -> list[Identity]:
    """The processes whose owners are asked about *what*; about parking, those that are idle already."""
    return [
        (each.pid, each.holder.started_at)
        for each in processes(ledger).values()
        if each.charged and each.holder.started_at is not None and (each.idle or what != "park")
    ]
