"""Which processes end together so that leftovers come back, and how many bytes that surely gives back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct

from vram.diagnosis.held import living_holders
from vram.diagnosis.leftover import ORPHANED, code_of, doubt, working
from vram.model.ledger import Entry, Ledger
from vram.reclaim.accounts import Account


class Leftover(Struct, frozen=True):
    """Processes that must all end before these bytes come back: ``entries`` by GPU."""

    accounts: tuple[Account, ...]
    entries: tuple[tuple[int, Entry], ...]

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(account.holder.pid for account in self.accounts)

    @property
    def code(self) -> str:
        """The finding that speaks of most of it."""
        return code_of(max(self.entries, key=lambda each: each[1].nbytes or 0)[1]) or ORPHANED

    @property
    def gpus(self) -> tuple[int, ...]:
        return tuple(sorted({gpu for gpu, _ in self.entries}))

    def nbytes(self, gpus: tuple[int, ...] = ()) -> int:
        """What surely comes back on *gpus* (empty: all) when all of them have ended."""
        return sum(surely_returned(entry for at, entry in self.entries if not gpus or at in gpus))


def surely_returned(entries: Iterator[Entry]) -> Iterator[int]:
    """The bytes of *entries*, less the largest of those that nobody among their holders may have."""
    alternatives: dict[tuple[int, ...], list[Entry]] = {}
    for entry in entries:
        if entry.sharing == "one" and entry.unheld:
            alternatives.setdefault(tuple(each.pid for each in living_holders(entry)), []).append(entry)
        else:
            yield entry.nbytes or 0
    for found in alternatives.values():
        sizes = sorted(entry.nbytes or 0 for entry in found)
        yield sum(sizes[: max(0, len(sizes) - found[0].unheld)])


def leftovers(ledger: Ledger, known: Mapping[int, Account], codes: tuple[str, ...] = ()) -> list[Leftover]:
    """What can be given back by ending holders and harms nobody, the largest first.

    Entries that share a holder are one leftover. *codes* narrows it down to those findings.
    """
    group_of: dict[int, _Group] = {}
    works = working(ledger)
    for gpu, entry in _entries(ledger):
        if doubt(entry, works, ledger.host) is not None or (codes and code_of(entry) not in codes):
            continue
        people = [holder.pid for holder in living_holders(entry)]
        joined = {id(group_of[pid]): group_of[pid] for pid in people if pid in group_of}
        # The smaller groups move into the largest: each pid moves a few times at most.
        group = max(joined.values(), key=lambda each: len(each.pids), default=_Group([], []))
        for other in joined.values():
            if other is not group:
                group.pids += other.pids
                group.entries += other.entries
                group_of.update(dict.fromkeys(other.pids, group))
        group.pids += [pid for pid in people if group_of.get(pid) is not group]
        group.entries.append((gpu, entry))
        group_of.update(dict.fromkeys(people, group))
    distinct = {id(group): group for group in group_of.values()}.values()
    found = [
        Leftover(tuple(known[pid] for pid in sorted(group.pids)), tuple(group.entries)) for group in distinct
    ]
    return sorted(found, key=lambda each: (-each.nbytes(), each.pids))


class _Group(Struct):
    pids: list[int]
    entries: list[tuple[int, Entry]]


def _entries(ledger: Ledger) -> Iterator[tuple[int, Entry]]:
    for gpu in ledger.gpus:
        for entry in gpu.accounted:
            if code_of(entry) is not None:
                yield gpu.index, entry
