"""Within its age and its size: what goes first, what stays, and that the limit always holds."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.simulated_node import SimulatedNode
from tests.history.written import START, Written, at, ghost, ledger, process
from vram.errors import HistoryUnavailable
from vram.history.store import HistoryStore
from vram.model.ledger import Entry
from vram.units import GIB, MIB

DAY = 86400.0


def tended(written: Written, seconds: float, times: int = 400, **more: float) -> None:
    """So many readings without a change, each with a little deleting."""
    what = ledger(process(1))
    for number in range(times):
        written.reads(what, at(seconds + number * 10, **more))


def count(written: Written, table: str) -> int:
    connection = written.store.connection
    assert connection is not None
    return int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


def test_what_is_too_old_goes_and_what_is_still_held_stays(tmp_path: Path) -> None:
    """A process that is older than the history has its beginning when all else of then is gone."""
    written = Written(tmp_path, keep_s=DAY)
    for number in range(200):
        written.reads(ledger(process(1), process(100 + number)), at(number * 10))
    tended(written, 2 * DAY)
    assert written.ask().search("150.py", None, None).rows == ()
    (row,) = written.ask().holders_at("0", None).holders
    assert (row.pid, row.held_s) == (1, 2 * DAY + 3990)
    assert count(written, "hold") == 1
    assert count(written, "program") == 1
    assert written.ask().holders_at("0", None).recorded.readings == 401


def test_a_clock_that_is_wrong_for_a_while_deletes_nothing(tmp_path: Path) -> None:
    """After a boot the clock is ten years ahead for half an hour."""
    written = Written(tmp_path, keep_s=DAY)
    for number in range(50):
        written.reads(ledger(process(100 + number)), at(number * 10))
    written.restarts()
    tended(written, -900, times=180, clock=10 * 365 * DAY, boot_id="two")
    assert len(written.ask().search("100.py", None, None).rows) == 1


def test_old_detail_keeps_its_peaks_and_its_last_value(tmp_path: Path) -> None:
    """After a week ten minutes have two points: the highest, and the one that holds from then on."""
    written = Written(tmp_path)
    sizes = [(number * 7919) % 40 + 1 for number in range(600)]
    for number, size in enumerate(sizes):
        written.reads(ledger(process(1, size * GIB)), at(number * 10))
    before = count(written, "sample")
    tended(written, 8 * DAY)
    assert count(written, "sample") < before / 10
    assert count(written, "step") < before / 10
    points = written.ask().series("0", START, START + 6000, points=1000).points
    assert max(point.kinds["process"] for point in points if point.total_bytes) == max(sizes) * GIB
    (held,) = written.ask().holders_at("0", START + 5990).holders
    assert held.nbytes == sizes[-1] * GIB


def crowded(number: int, count: int = 60) -> Iterator[Entry]:
    """Short processes of one reading, with long commands: a few hundred readings fill eight MiB."""
    for pid in range(1000 + number * 300, 1000 + number * 300 + count):
        yield process(pid, command=f"{pid} {'x' * 900}")


def test_the_file_never_exceeds_its_limit(tmp_path: Path) -> None:
    """Where short processes fill it, the oldest of them go; long ones and ghosts stay from the first on."""
    written = Written(tmp_path, most_bytes=8 * MIB)
    largest = 0
    for number in range(250):
        lasting = (process(1), *((ghost(5, 7),) if number < 3 else ()))
        written.reads(ledger(*lasting, *crowded(number)), at(number * 10))
        largest = max(largest, sum(each.stat().st_size for each in tmp_path.iterdir()))
    assert largest <= 8 * MIB
    (kept,) = written.ask().ghosts(None, None).ghosts
    assert kept.held_s == 30.0
    assert written.pids(0) == [1, 7]
    pids = written.pids(2490)
    assert len(pids) == 61
    short = count(written, "hold")
    assert 1000 < short < 250 * 60


def test_a_slow_machine_loses_nothing_because_deleting_takes_too_long(tmp_path: Path) -> None:
    """Each reading brings more than one step deletes in its time: a full file deletes for longer."""
    written = Written(tmp_path, most_bytes=8 * MIB, budget_s=0.0)
    for number in range(60):
        written.reads(ledger(process(1), *crowded(number, 200)), at(number * 10))
    assert written.pids(0) == [1]
    assert len(written.pids(590)) == 201


def test_a_smaller_limit_shrinks_the_file(tmp_path: Path) -> None:
    written = Written(tmp_path)
    for number in range(140):
        written.reads(ledger(*crowded(number, 100)), at(number * 10))
    written.store.commit()
    assert written.store.nbytes > 12 * MIB
    written.store.limit(30 * DAY, 8 * MIB)
    tended(written, 1400)
    assert written.store.nbytes <= 8 * MIB


def test_a_reader_that_does_not_end_stops_the_recording_and_not_the_limit(tmp_path: Path) -> None:
    """It holds on to an old state, so that the log cannot be emptied; when it ends, recording goes on."""
    tmp_path.chmod(0o700)
    path = tmp_path / "history.sqlite"
    store = HistoryStore(str(path), most_bytes=8 * MIB, interval_s=10.0)
    readings = SimulatedNode(gpus=2, short=1000).readings(24 * 3600)
    store.record(*next(readings))
    store.commit()
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM hold").fetchone()
    troubles: list[str] = []
    for what, when in readings:
        try:
            store.record(what, when)
            store.tend(when)
        except HistoryUnavailable as error:
            troubles.append(str(error))
        assert sum(each.stat().st_size for each in tmp_path.iterdir()) <= 8 * MIB
        if len(troubles) == 20:
            break
    assert "a reader of" in troubles[0]
    assert not store.is_open
    reader.close()
    recorded = 0
    for what, when in readings:
        store.record(what, when)
        store.tend(when)
        recorded += store.is_open
        if recorded > 20:
            break
    assert recorded > 20
    store.close()


def test_more_at_once_than_there_is_room_for_is_recovered_from(tmp_path: Path) -> None:
    """Forty thousand processes in one reading do not fit; what comes after them does."""
    written = Written(tmp_path, most_bytes=8 * MIB)
    for number in range(40):
        written.reads(ledger(*crowded(number, 100)), at(number * 10))
    crowd = ledger(
        *(process(pid, command=f"{pid} {'x' * 900}", nbytes=1) for pid in range(10**5, 10**5 + 10**4))
    )
    with pytest.raises(HistoryUnavailable, match="no room"):
        written.reads(crowd, at(400))
    assert not written.store.is_open
    written.reads(ledger(process(7)), at(420)).reads(ledger(process(7)), at(430))
    assert written.pids() == [7]
    assert written.store.nbytes <= 8 * MIB
