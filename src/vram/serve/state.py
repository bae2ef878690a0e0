"""What the service knows now: the last reading, the changes before it, ghosts and since when they are there.

Nothing here grows with time: changes are the last thousand, ghosts those of the last ledger.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence

from msgspec import Struct

from vram.diagnosis.changes import READINGS_TO_CONFIRM, Comparison
from vram.diagnosis.leftover import ghost_code
from vram.diagnosis.since import HoldMemory
from vram.ledger.holds import find_holds
from vram.live_reader import LiveReading
from vram.model.change import Change, Event
from vram.model.finding import Finding
from vram.model.hold import Hold
from vram.model.ledger import Entry, Ledger, known_bytes
from vram.serve.clock import Moment
from vram.units import MIB

MAX_CHANGES = 1000
MIN_CHANGE = 64 * MIB
_ANSWERS = ("ok", "denied", "unsupported")


class Reading(Struct, frozen=True, kw_only=True):
    """One reading as the parts get it.

    ``ledger`` and ``findings`` are the last known ones: the same objects as before where nothing has changed,
    and where ``error`` says why there is nothing newer. None: nothing was ever read.
    """

    moment: Moment
    ledger: Ledger | None
    findings: tuple[Finding, ...]
    changes: tuple[Change, ...] = ()
    error: str | None = None
    took_s: float = 0.0
    cpu_s: float = 0.0
    ages_behind_s: float = 0.0


class NumberedChange(Struct, frozen=True):
    """A change and its place in the order of all that this service has reported, from 1."""

    number: int
    change: Change


class Ghost(Struct, frozen=True, kw_only=True):
    """Memory of a dead owner on one GPU, and the moment from which this service knows it."""

    gpu: int
    hold: Hold
    entries: tuple[Entry, ...]
    code: str
    since: Moment

    @property
    def nbytes(self) -> int:
        return known_bytes(self.entries)


class ServiceState:
    """The last readings in short. ``last`` is the newest, ``good`` the newest without an error."""

    def __init__(self, started: Moment) -> None:
        self.started = started
        self.last: Reading | None = None
        self.good: Reading | None = None
        self.changes: deque[NumberedChange] = deque(maxlen=MAX_CHANGES)
        self.changes_by_event: Counter[Event] = Counter()
        self.ghosts: tuple[Ghost, ...] = ()
        self._times: HoldMemory[Moment] = HoldMemory()
        self.readings: Counter[str] = Counter()
        self.reader_restarts = 0
        self._last_number = 0
        self._compared = 0  # how often the ledger of now was compared
        self._comparison = Comparison(MIN_CHANGE)

    @property
    def needs_confirmation(self) -> bool:
        """Whether another reading should follow soon."""
        return self._comparison.needs_confirmation

    def take(self, found: LiveReading, moment: Moment) -> Reading:
        """Remember what was read at *moment*; returns it for the parts."""
        before = self.last
        ledger, findings = (before.ledger, before.findings) if before else (None, ())
        changes: tuple[Change, ...] = ()
        if found.error is None and found.ledger is not None:
            ledger, findings, self._compared = found.ledger, found.findings, 0
        if found.error is None and ledger is not None and self._compared < READINGS_TO_CONFIRM:
            self._compared += 1
            changes = self._comparison.compare(ledger, findings)
            self._number(changes)
            self._note_ghosts(ledger, moment)
        reading = Reading(
            moment=moment,
            ledger=ledger,
            findings=findings,
            changes=changes,
            error=found.error,
            took_s=found.took_s,
            cpu_s=found.cpu_s,
            ages_behind_s=found.ages_behind_s,
        )
        self.readings["ok" if found.error is None else "failed"] += 1
        self.last = reading
        if found.error is None:
            self.good = reading
        return reading

    def changes_after(self, number: int) -> tuple[NumberedChange, ...]:
        return tuple(each for each in self.changes if each.number > number)

    def _number(self, changes: tuple[Change, ...]) -> None:
        for change in changes:
            self._last_number += 1
            self.changes_by_event[change.event] += 1
            self.changes.append(NumberedChange(self._last_number, change))

    def _note_ghosts(self, ledger: Ledger, moment: Moment) -> None:
        """A GPU that does not answer proves nothing: its ghosts are kept."""
        silent = {gpu.index for gpu in ledger.gpus if gpu.status not in _ANSWERS}
        holds = [hold for hold in find_holds(ledger) if hold.what == "ghost"]
        self._times.update(holds, lambda _, known: known.value if known else moment, silent)
        kept = [each for each in self.ghosts if each.gpu in silent and not _is_shown(each, holds)]
        self.ghosts = (*kept, *(each for hold in holds for each in self._ghosts_of(hold)))

    def _ghosts_of(self, hold: Hold) -> Iterator[Ghost]:
        known = self._times.find(hold)
        assert known is not None
        for gpu in hold.gpus:
            entries = tuple(part.entry for part in hold.parts if part.gpu == gpu)
            yield Ghost(gpu=gpu, hold=hold, entries=entries, code=ghost_code(entries[0]), since=known.value)


def _is_shown(ghost: Ghost, holds: Sequence[Hold]) -> bool:
    return any(ghost.gpu in hold.gpus and ghost.hold.is_same(hold) for hold in holds)
