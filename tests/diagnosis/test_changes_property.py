"""Whatever happens between readings, and whatever fails: who replays the changes knows the state."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from tests.diagnosis.test_changes import HELD, judged, ledger
from tests.ledger.world import CONTEXT, OVERHEAD, World
from vram.diagnosis.changes import Comparison
from vram.model.change import Change
from vram.model.ledger import Ledger
from vram.model.observation import ProbeRun
from vram.units import MIB

MIN_BYTES = 64 * MIB
PIDS = (100, 110, 120)


class Reading(Struct, frozen=True):
    """What is there, and how the reading goes."""

    sizes: dict[int, int]
    ghost: bool
    stopped: frozenset[int]
    fault: str

    def ledger(self) -> Ledger:
        fine = ProbeRun("nvml", "ok", 0.01)
        if self.fault == "gone":
            return ledger(World(), ProbeRun("nvml", "unsupported", 0.01, "not loaded", "nvml-9"))
        if self.fault == "lost":
            return ledger(World().lost(0), ProbeRun("nvml", "lost", 0.01))
        if self.fault == "cut off":
            # Nobody's files were read: who is charged looks dead, and the ghost has no holder.
            return ledger(self._world(files=False), fine, ProbeRun("files", "timeout", 5.0, "cut", "cut-off"))
        if self.fault == "unlisted":
            return ledger(World().gpu(0, used=self._used()).unlisted("timeout"), fine)
        return ledger(self._world(), fine)

    def _used(self) -> int:
        charged = [*self.sizes.values(), *[HELD] * self.ghost]
        return sum(charged) + len(charged) * OVERHEAD

    def _world(self, *, files: bool = True) -> World:
        world = World().gpu(0, used=self._used())
        for pid, nbytes in self.sizes.items():
            world.process(pid, state="T" if pid in self.stopped else "S").charge(pid, nbytes)
            if files:
                world.files(pid, family=pid)
        if self.ghost:
            world.charge(200, HELD).process(201)
            if files:
                world.files(201, family=200)
        return world


READINGS = st.builds(
    Reading,
    sizes=st.dictionaries(st.sampled_from(PIDS), st.integers(0, 40).map(lambda n: CONTEXT + n * 20 * MIB)),
    ghost=st.booleans(),
    stopped=st.frozensets(st.sampled_from(PIDS)),
    fault=st.sampled_from(["", "", "", "gone", "lost", "cut off", "unlisted"]),
)


class Replayed:
    """The state as somebody knows it who has only the changes; each must fit what came before it."""

    def __init__(self) -> None:
        self.sizes: dict[int, int] = {}
        self.ghosts: set[int] = set()
        self.stopped: set[int] = set()
        self.away: set[str] = set()
        self.findings: set[str] = set()

    def apply(self, changes: Iterable[Change]) -> None:
        for change in changes:
            self._apply(change)

    def _apply(self, change: Change) -> None:
        pid, nbytes = change.pid or 0, change.nbytes or 0
        match change.event:
            case "started":
                assert pid not in self.sizes
                self.sizes[pid] = nbytes
            case "ended" | "released":
                assert abs(self.sizes.pop(pid) + nbytes) < MIN_BYTES
                self.stopped.discard(pid)
            case "grew" | "shrank":
                assert abs(nbytes) >= MIN_BYTES
                self.sizes[pid] += nbytes
                assert self.sizes[pid] == change.held_bytes
            case "ghost":
                assert change.dead_pid not in self.ghosts
                self.ghosts.add(change.dead_pid or 0)
            case "ghost-gone":
                self.ghosts.remove(change.dead_pid or 0)
            case "stopped":
                assert pid not in self.stopped
                self.stopped.add(pid)
            case "continued":
                self.stopped.remove(pid)
            case "driver-gone" | "probe-failed":
                assert change.event not in self.away
                self.away.add(change.event)
            case "gpu-lost" | "gpu-unreadable":
                assert change.event not in self.away
                self.away = self.away - {"gpu-lost", "gpu-unreadable"} | {change.event}
            case "driver-back":
                self.away.remove("driver-gone")
            case "gpu-back":
                assert self.away & {"gpu-lost", "gpu-unreadable"}
                self.away -= {"gpu-lost", "gpu-unreadable"}
            case "probe-recovered":
                self.away.remove("probe-failed")
            case "finding":
                assert change.code not in self.findings
                self.findings.add(change.code or "")
            case "finding-resolved":
                self.findings.remove(change.code or "")
            case "gpu-added" | "freed":
                pass
            case _:
                raise AssertionError(f"nothing of that kind was there: {change}")


@given(first=READINGS, then=st.lists(READINGS, max_size=12), last=READINGS)
def test_who_replays_the_changes_knows_the_state(first: Reading, then: list[Reading], last: Reading) -> None:
    comparison, replayed = Comparison(MIN_BYTES), Replayed()
    # A source that fails from the beginning on is taken as it is; tested elsewhere.
    calm = Reading(first.sizes, first.ghost, first.stopped, "")
    replayed.apply(comparison.begin(*judged(calm.ledger())).present)
    for reading in then:
        replayed.apply(comparison.compare(*judged(reading.ledger())))
    truth = Reading(last.sizes, last.ghost, last.stopped, "")
    for _ in range(2):
        replayed.apply(comparison.compare(*judged(truth.ledger())))
    assert replayed.sizes.keys() == truth.sizes.keys()
    assert all(abs(nbytes - truth.sizes[pid]) < MIN_BYTES for pid, nbytes in replayed.sizes.items())
    assert replayed.ghosts == ({200} if truth.ghost else set())
    assert replayed.stopped == truth.stopped & truth.sizes.keys()
    assert not replayed.away
    # Findings take their time; then nothing is left to report.
    for _ in range(3):
        replayed.apply(comparison.compare(*judged(truth.ledger())))
    assert comparison.compare(*judged(truth.ledger())) == ()
    reported = {each.code for each in judged(truth.ledger())[1] if each.code == "VR205"}
    assert replayed.findings == reported
