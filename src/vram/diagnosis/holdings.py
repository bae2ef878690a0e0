"""What one keeper keeps: the entries of all GPUs gathered by who must let go of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain

from msgspec import Struct

from vram.model.ledger import Entry, GpuLedger, Holder

IN_USE = ("context", "live", "cached", "fragmented", "process", "overhead")
"""The kinds that a process is charged with while it works."""


class Holding(Struct, frozen=True):
    """Entries with the same keeper and the same charged pid, on one GPU or several."""

    entries: tuple[Entry, ...]
    gpus: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return sum(entry.nbytes for entry in self.entries)

    @property
    def holder(self) -> Holder | None:
        return self.entries[0].holder

    @property
    def charged_pid(self) -> int | None:
        return self.entries[0].charged_pid

    @property
    def keepers(self) -> tuple[Holder, ...]:
        """Everyone alive who must let go before these bytes come back; of ``either``, who may have to."""
        named = chain.from_iterable((entry.holder, *entry.sharers) for entry in self.entries)
        living = {identity(holder): holder for holder in named if holder is not None and holder.alive}
        return tuple(living.values())

    @property
    def evidence(self) -> tuple[str, ...]:
        return tuple(chain.from_iterable(entry.evidence for entry in self.entries))

    @property
    def either(self) -> bool:
        """True where not all of the keepers have these bytes: which of them does cannot be told."""
        return any(entry.either for entry in self.entries)

    @property
    def certain(self) -> bool:
        """True where every entry is a fact, so the pid surely names who it seems to name."""
        return all(entry.confidence == "fact" for entry in self.entries)


def identity(holder: Holder | None) -> tuple[int, int | None] | None:
    """Tell two processes apart that had the same pid one after the other."""
    return None if holder is None else (holder.pid, holder.started_at)


def gather(
    gpus: Iterable[GpuLedger], wanted: Callable[[Entry], bool], *, least: int = 1
) -> tuple[Holding, ...]:
    """Gather the *wanted* entries of at least *least* bytes by keeper, the largest holding first."""
    found: dict[object, list[tuple[int, Entry]]] = {}
    for gpu in gpus:
        for entry in gpu.accounted:
            if entry.nbytes >= least and wanted(entry):
                found.setdefault((identity(entry.holder), entry.charged_pid), []).append((gpu.index, entry))
    holdings = (_holding(placed) for placed in found.values())
    return tuple(sorted(holdings, key=lambda holding: -holding.nbytes))


def keeper(entry: Entry) -> Holder | None:
    """The living process that keeps *entry*, if one is known."""
    holder = entry.holder
    if holder is None or not holder.alive:
        return None
    # Whoever has a dead process's pid now is a newcomer that was given a used number.
    newcomer = entry.kind == "orphaned" and holder.pid == entry.charged_pid
    return None if newcomer else holder


def keepers(entry: Entry) -> tuple[Holder, ...]:
    """Everyone alive who must release *entry* before its bytes come back."""
    first = keeper(entry)
    return tuple(holder for holder in (first, *entry.sharers) if holder is not None and holder.alive)


def in_use(entry: Entry) -> bool:
    """A living process is charged with this entry."""
    return entry.kind in IN_USE and entry.holder is not None and entry.holder.alive


def _holding(placed: list[tuple[int, Entry]]) -> Holding:
    return Holding(
        entries=tuple(entry for _, entry in placed),
        gpus=tuple(dict.fromkeys(index for index, _ in placed)),
    )
