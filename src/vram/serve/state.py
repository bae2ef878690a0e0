"""What the service knows now: the last reading, the changes before it, ghosts and since when they are there.

Nothing here grows with time: changes are the last thousand, ghosts those of the last ledger.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence

from msgspec import Struct

from vram.diagnosis.busy import BusyTime
from vram.diagnosis.changes import READINGS_TO_CONFIRM, Comparison
from vram.diagnosis.leftover import ghost_code
from vram.diagnosis.tracker import KnownHold, Tracker
from vram.ledger.holds import find_holds
from vram.live_reader import LiveReading
from vram.model.change import Change, Event
from vram.model.finding import Finding
from vram.model.hold import Hold
from vram.model.ledger import Entry, Ledger, known_bytes
from vram.model.moment import Moment
from vram.units import MIB

MAX_CHANGES = 1000
MIN_CHANGE = 64 * MIB
ANSWERING = ("ok", "denied", "unsupported")
"""The states of a GPU that answers, however little it says."""


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
        self._times: Tracker[KnownHold[Moment]] = Tracker()
        self.readings: Counter[str] = Counter()
        self.reader_restarts = 0
        self._last_number = 0
        self._compared = 0  # how often the ledger of now was compared
        self._judged: tuple[Finding, ...] = ()  # of the ledger of now, by what it alone shows
        self._busy = BusyTime()
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
            ledger, self._judged, self._compared = found.ledger, found.findings, 0
        if found.error is None and ledger is not None:
            judged_before, findings = findings, self._busy.judge(ledger, self._judged, moment.boot)
            self._compared = self._compared if findings is judged_before else 0
        if found.error is None and ledger is not None and self._compared < READINGS_TO_CONFIRM:
            self._compared += 1
            changes = self._comparison.compare(ledger, findings)
            for change in changes:
                self._last_number += 1
                self.changes_by_event[change.event] += 1
                self.changes.append(NumberedChange(self._last_number, change))
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

    def since(self, hold: Hold) -> Moment | None:
        """From when on this service knows a ghost; None where it does not."""
        known = self._times.find(hold)
        return known.value if known else None

    def changes_after(self, number: int) -> tuple[NumberedChange, ...]:
        return tuple(each for each in self.changes if each.number > number)

    def _note_ghosts(self, ledger: Ledger, moment: Moment) -> None:
        """A GPU that does not answer proves nothing: its ghosts are kept."""
        silent = {gpu.index for gpu in ledger.gpus if gpu.status not in ANSWERING}
        holds = [hold for hold in find_holds(ledger) if hold.what == "ghost"]
        ghosts = [each for each in self.ghosts if each.gpu in silent and not _is_shown(each, holds)]
        for hold, _, before in self._times.match(holds):
            since = before.value if before else moment
            self._times.keep(KnownHold(hold, since))
            ghosts += _ghosts_of(hold, since)
        self._times.missing(lambda each: silent.isdisjoint(each.hold.gpus))
        self.ghosts = tuple(ghosts)


def _ghosts_of(hold: Hold, since: Moment) -> Iterator[Ghost]:
    for gpu in hold.gpus:
        entries = tuple(part.entry for part in hold.parts if part.gpu == gpu)
        yield Ghost(gpu=gpu, hold=hold, entries=entries, code=ghost_code(entries[0]), since=since)


def _is_shown(ghost: Ghost, holds: Sequence[Hold]) -> bool:
    return any(ghost.gpu in hold.gpus and ghost.hold.is_same(hold) for hold in holds)
