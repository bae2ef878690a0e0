"""What is written: holds from when to when, their sizes, who was idle; across restarts, boots and clocks."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.history.written import START, TOTAL, Written, at, ghost, ledger, process
from vram.history.schema import KIND_NUMBERS, SAMPLED
from vram.history.times import read_time
from vram.model.ledger import KINDS
from vram.units import GIB


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return Written(tmp_path)


def test_every_kind_has_a_number_and_a_column() -> None:
    asked_only = "outside"  # of processes that were asked; the service asks nobody
    assert set(KIND_NUMBERS) == set(KINDS) == {*SAMPLED, "free", asked_only}
    assert len(set(KIND_NUMBERS.values())) == len(KINDS)


@given(
    st.lists(st.dictionaries(st.integers(1, 6), st.integers(1, 4), max_size=5), min_size=1, max_size=40),
    st.sets(st.integers(1, 39)),
)
def test_the_answer_for_each_reading_is_what_was_read(
    readings: list[dict[int, int]], restarts: set[int]
) -> None:
    """Whoever came and went in whatever order, and however often the service was restarted meanwhile."""
    with TemporaryDirectory() as folder:
        written = Written(Path(folder))
        for number, held in enumerate(readings):
            if number in restarts:
                written.restarts(killed=number % 2 == 0)
            entries = [process(pid, nbytes * GIB) for pid, nbytes in held.items()]
            written.reads(ledger(*entries), at(number * 10))
        ask = written.ask()
        for number, held in enumerate(readings):
            for later_s in (0, 5):
                # After a pause the time between two readings is before it.
                if later_s and number + 1 in restarts:
                    continue
                report = ask.holders_at("0", START + number * 10 + later_s)
                assert {each.pid: each.nbytes for each in report.holders} == {
                    pid: nbytes * GIB for pid, nbytes in held.items()
                }
                assert not report.notes
        everything = ask.series("0", None, None, points=1000).points
        most = max(sum(held.values()) for held in readings) * GIB
        assert max(point.kinds.get("process", 0) for point in everything if point.total_bytes) == most
        assert all(sum(point.kinds.values()) == TOTAL for point in everything if point.total_bytes)
        written.store.close()


def test_a_reused_pid_is_another_process(written: Written) -> None:
    written.reads(ledger(process(7, started_at=1)), at(0)).reads(ledger(process(7, started_at=2)), at(10))
    rows = written.ask().search("7.py", None, None).rows
    assert [(each.started_at, each.until is None) for each in rows] == [(2, True), (1, False)]


def test_a_ghost_stays_the_same_when_another_process_holds_it(written: Written) -> None:
    written.reads(ledger(ghost(5, 7)), at(0)).reads(ledger(ghost(5, 8)), at(10)).reads(
        ledger(ghost(5, 8)), at(20)
    )
    (found,) = written.ask().ghosts(None, None).ghosts
    assert (found.dead_pid, found.pid, found.held_s, found.code) == (5, 8, 20.0, "VR101")


def test_a_command_that_is_changed_at_the_start_is_followed(written: Written) -> None:
    """As by exec; a program that writes its progress into its name every reading is not followed for ever."""
    for number in range(30):
        written.reads(ledger(process(7, command=f"step {number}")), at(number * 10))
    (row,) = written.ask().search("step", None, None).rows
    assert row.command == "step 12"
    assert written.ask().search("step 1", None, None).rows[0].command == "step 12"
    connection = written.store.connection
    assert connection is not None
    assert connection.execute("SELECT count(*) FROM program").fetchone()[0] == 1


def test_questions_do_not_make_commits_more_frequent(written: Written) -> None:
    """Asked after every reading, as a page does: the file is written to once a minute all the same."""
    commits = 0
    for number in range(61):
        written.reads(ledger(process(7, number * GIB + GIB)), at(number * 5))
        connection = written.store.connection
        assert connection is not None
        commits += not connection.in_transaction
        written.ask().waste(None, None)
    assert commits <= 6


def test_a_gpu_that_does_not_answer_ends_nothing(written: Written) -> None:
    """What was there is still there when it answers again; in between nothing is known of its memory."""
    written.reads(ledger(process(7)), at(0)).reads(ledger(status="timeout"), at(10))
    written.reads(ledger(process(7)), at(20))
    (row,) = written.ask().search("7.py", None, None).rows
    assert (row.held_s, row.until) == (20.0, None)
    points = written.ask().series("0", None, None).points
    assert [point.total_bytes for point in points] == [TOTAL, None, TOTAL]


def test_a_gpu_that_is_gone_ends_what_was_on_it(written: Written) -> None:
    written.reads(ledger(process(7), more_gpus=[(process(8),)]), at(0))
    written.reads(ledger(process(7)), at(10))
    (row,) = written.ask().search("8.py", None, None).rows
    assert row.until is not None
    assert written.pids(10, gpu="1") == []


def test_unknown_sizes_stay_unknown(written: Written) -> None:
    written.reads(ledger(process(7, None)), at(0)).reads(ledger(process(7, 3 * GIB)), at(10))
    ask = written.ask()
    assert [ask.holders_at("0", START + after).holders[0].nbytes for after in (0, 10)] == [None, 3 * GIB]


# ---- clocks, boots, pauses ----


def test_ages_do_not_follow_a_clock_that_is_set(written: Written) -> None:
    """The wall clock goes back an hour and forward a year; the process was there for 30 s."""
    for seconds, clock in ((0, 0), (10, -3600), (20, 365 * 86400), (30, 0)):
        written.reads(ledger(process(7)), at(seconds, clock=clock))
    (row,) = written.ask().holders_at("0", None).holders
    assert row.held_s == 30.0


def test_a_time_that_came_twice_is_said(written: Written) -> None:
    written.reads(ledger(process(7)), at(0)).reads(ledger(process(7)), at(10))
    written.reads(ledger(process(8)), at(20, clock=-20)).reads(ledger(process(8)), at(30, clock=-20))
    report = written.ask().holders_at("0", START + 5)
    assert [each.pid for each in report.holders] == [8]
    assert "set back" in report.notes[0]


def test_the_times_of_a_series_find_what_it_shows_then(written: Written) -> None:
    """Times are given in whole seconds, and what is read twice a second begins and ends between two."""
    for seconds, entries in ((0.9, []), (1.4, [process(7)]), (1.9, [process(7)]), (2.4, []), (2.9, [])):
        written.reads(ledger(*entries), at(seconds))
    ask = written.ask()
    for point in ask.series("0", None, None).points:
        report = ask.holders_at("0", read_time(point.at, START).wall)
        held = sum(each.nbytes or 0 for each in report.holders)
        assert held == point.kinds.get("process", 0), point
    assert written.pids(1.6) == [7]
    assert written.pids(2.3) == [7]
    assert written.pids(2) == []


def test_no_process_outlives_a_boot(written: Written) -> None:
    """The same pid with the same start time after a boot is somebody else; what was there ended unseen."""
    written.reads(ledger(process(7)), at(0)).reads(ledger(process(7)), at(10)).restarts(killed=True)
    written.reads(ledger(process(7)), at(-900, clock=1500, boot_id="two"))
    new, old = written.ask().search("7.py", None, None).rows
    assert (old.until is None, old.until_seen, round(old.held_s)) == (False, False, 10)
    assert (new.until, new.since_seen) == (None, False)


def test_what_ended_while_nobody_looked_has_no_exact_end(written: Written) -> None:
    written.reads(ledger(process(7), process(8)), at(0)).reads(
        ledger(process(7), process(8)), at(10)
    ).restarts()
    written.reads(ledger(process(8)), at(5000))
    ended = written.ask().search("7.py", None, None).rows[0]
    going = written.ask().search("8.py", None, None).rows[0]
    assert (ended.until_seen, round(ended.held_s)) == (False, 10)
    assert (going.until, going.held_s) == (None, 5000.0)
    report = written.ask().holders_at("0", START + 2000)
    assert [each.pid for each in report.holders] == [7, 8]
    assert "nothing was recorded between" in report.notes[0]


def test_a_pause_of_the_readings_is_a_gap_in_the_series(written: Written) -> None:
    """As while the driver hangs: no restart, only no readings."""
    written.reads(ledger(process(7)), at(0)).reads(ledger(process(7)), at(1000))
    points = written.ask().series("0", None, None).points
    assert [point.total_bytes for point in points] == [TOTAL, None, TOTAL]


# ---- waste ----


def test_only_lasting_idleness_is_waste(written: Written) -> None:
    """Asleep between two batches is work; asleep for minutes while the GPU rests is not."""
    for number in range(120):
        rests = number >= 60 or number % 2 == 0
        what = ledger(process(7, 2 * GIB, state="S"), utilization=0 if rests else 80)
        written.reads(what, at(number * 10))
    (user,) = written.ask().waste(None, None).users
    assert user.user == "ada"
    assert user.held_byte_s == 2 * GIB * 1190
    assert user.idle_byte_s == 2 * GIB * 590
    (worst,) = user.longest
    assert (worst.pid, worst.idle_s) == (7, 590.0)


def test_a_stopped_process_wastes_on_a_busy_gpu(written: Written) -> None:
    for number in range(31):
        written.reads(ledger(process(7, state="T"), process(8, uid=1001, user="ben")), at(number * 10))
    users = {each.user: each for each in written.ask().waste(None, None).users}
    assert users["ada"].idle_byte_s == 300 * GIB
    assert users["ben"].idle_byte_s == 0


def test_ghosts_are_waste_of_their_holders(written: Written) -> None:
    for number in range(7):
        written.reads(ledger(ghost(5, 7, GIB)), at(number * 10))
    (user,) = written.ask().waste(None, None).users
    assert (user.leftover_byte_s, user.idle_byte_s) == (60 * GIB, 0)
    assert user.longest[0].dead_pid == 5


def test_rest_before_a_pause_does_not_count_beyond_it(written: Written) -> None:
    what = ledger(process(7, state="S"), utilization=0)
    for number in range(10):
        written.reads(what, at(number * 10))
    written.restarts().reads(what, at(86400))
    (row,) = written.ask().holders_at("0", None).holders
    assert row.idle_s == 90.0


def test_hostile_text_is_kept_and_found(written: Written) -> None:
    """Half characters, zero bytes, quotes, escape codes, a command of a megabyte."""
    nasty = "x\udc80\0'\";--\x1b]0;\u202e"
    written.reads(ledger(process(7, command=nasty, user=nasty), process(8, command="A" * 1_000_000)), at(0))
    assert [each.pid for each in written.ask().search("';--", None, None).rows] == []
    assert [each.pid for each in written.ask().search("'\";--", None, None).rows] == [7]
    assert len(written.ask().search("AAAA", None, None).rows[0].command or "") == 1000
    assert [each.pid for each in written.ask().search("%", None, None).rows] == []
