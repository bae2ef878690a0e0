"""Whose file it is: links, other users, other programs, newer and older versions, two writers."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.history.written import Written, at, ledger, process
from tests.needs import require
from vram.errors import BadInput, HistoryUnavailable, NothingFound, NotPermitted
from vram.history import schema
from vram.history.file import MAX_ASIDE, open_for_reading
from vram.history.questions import Questions
from vram.history.store import HistoryStore
from vram.model.ledger import Entry
from vram.units import GIB, MIB


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path


def refused(path: Path) -> str:
    """Why the service does not write to *path*."""
    store = HistoryStore(str(path))
    with pytest.raises((HistoryUnavailable, BadInput)) as error:
        store.open()
    assert error.value.hint
    return str(error.value)


def test_only_its_user_can_read_it(folder: Path) -> None:
    umask = os.umask(0)
    try:
        written = Written(folder).reads(ledger(process(7)), at(0))
        written.store.commit()
    finally:
        os.umask(umask)
    assert {each.stat().st_mode & 0o777 for each in folder.iterdir()} == {0o600}


def test_a_missing_folder_is_made_private(folder: Path) -> None:
    store = HistoryStore(str(folder / "state" / "vram" / "history.sqlite"))
    store.open()
    store.close()
    assert (folder / "state" / "vram").stat().st_mode & 0o777 == 0o700


def test_a_folder_that_others_can_write_to_is_refused(folder: Path) -> None:
    folder.chmod(0o777)
    assert "0777" in refused(folder / "history.sqlite")


@pytest.mark.parametrize(
    "name", ["history.sqlite", "history.sqlite-wal", "history.sqlite-shm", "history.sqlite-lock"]
)
def test_links_are_not_followed(folder: Path, name: str) -> None:
    target = folder / "target"
    (folder / name).symlink_to(target)
    refused(folder / "history.sqlite")
    assert not target.exists()


def test_a_second_name_of_the_file_is_refused(folder: Path) -> None:
    (folder / "other").write_bytes(b"")
    os.link(folder / "other", folder / "history.sqlite")
    assert "link" in refused(folder / "history.sqlite")


def test_a_file_of_another_user_is_refused(folder: Path) -> None:
    require("root", detail="only root can give files away")
    Written(folder).reads(ledger(process(7)), at(0)).store.close()
    os.chown(folder / "history.sqlite", 65534, 65534)
    assert "belongs to" in refused(folder / "history.sqlite")
    with pytest.raises(NotPermitted, match="belongs to"):
        open_for_reading(str(folder / "history.sqlite"))


def test_a_second_writer_is_refused(folder: Path) -> None:
    written = Written(folder).reads(ledger(process(7)), at(0))
    assert "another process writes" in refused(folder / "history.sqlite")
    assert written.pids() == [7]


def test_a_newer_file_is_refused_and_left_untouched(folder: Path) -> None:
    Written(folder).reads(ledger(process(7)), at(0)).store.close()
    path = folder / "history.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {schema.VERSION + 1}")
    before = path.read_bytes()
    assert "newer vram" in refused(path)
    with pytest.raises(BadInput, match="newer vram"):
        open_for_reading(str(path))
    assert path.read_bytes() == before
    assert not [each for each in folder.iterdir() if "foreign" in each.name or "damaged" in each.name]


def test_an_older_file_becomes_a_new_one_or_stays_as_it_is(folder: Path) -> None:
    """A migration happens whole or not at all."""
    Written(folder).reads(ledger(process(7)), at(0)).store.close()
    with closing(sqlite3.connect(folder / "history.sqlite", isolation_level=None)) as connection:
        better = (
            *schema.MIGRATIONS,
            "ALTER TABLE gpu ADD COLUMN bus_id TEXT; CREATE TABLE more (id INTEGER)",
        )
        broken = (*better[:-1], "ALTER TABLE gpu ADD COLUMN bus_id TEXT; CREATE TABLE gpu (id INTEGER)")
        with pytest.raises(sqlite3.Error):
            schema.upgrade(connection, broken)
        assert schema.version(connection) == schema.VERSION
        assert "bus_id" not in [row[1] for row in connection.execute("PRAGMA table_info(gpu)")]
        schema.upgrade(connection, better)
        assert schema.version(connection) == schema.VERSION + 1
        assert connection.execute("SELECT pid, bus_id FROM hold, gpu").fetchall() == [(7, None)]


def test_a_file_of_version_1_gets_the_columns_for_kinds_that_came_later(folder: Path) -> None:
    """What was recorded before stays, and what is recorded from now on has them."""
    path = folder / "history.sqlite"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        schema.upgrade(connection, schema.MIGRATIONS[:1])
        assert schema.version(connection) == 1
        columns = [row[1] for row in connection.execute("PRAGMA table_info(sample)")]
        assert "process" in columns
        assert not {"preallocated", "cpu"} & set(columns)
    path.chmod(0o600)
    reserve = Entry(kind="preallocated", nbytes=124 * MIB, medium="managed")
    programs = Entry(kind="cpu", nbytes=8 * GIB)
    written = Written(folder).reads(ledger(process(7), reserve, programs), at(0))
    written.store.commit()
    with closing(open_for_reading(str(path))) as connection:
        (found,) = connection.execute("SELECT preallocated, cpu FROM sample").fetchall()
        assert tuple(found) == (124 * MIB, 8 * GIB)
    assert written.pids() == [7]


def test_a_database_of_another_program_is_moved_aside(folder: Path) -> None:
    path = folder / "history.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE bookmarks (url TEXT)")
    before = path.read_bytes()
    with pytest.raises(BadInput, match="another program"):
        open_for_reading(str(path))
    written = Written(folder).reads(ledger(process(7)), at(0))
    (aside,) = folder.glob("history.sqlite.foreign-*")
    assert aside.read_bytes() == before
    assert aside.name in written.store.notice


def test_a_file_that_was_being_made_is_not_foreign(folder: Path) -> None:
    """Killed after its first page and before its tables: nothing is moved aside."""
    with closing(sqlite3.connect(folder / "history.sqlite")) as connection:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    assert (folder / "history.sqlite").stat().st_size
    written = Written(folder).reads(ledger(process(7)), at(0))
    assert (written.pids(), written.store.notice) == ([7], "")


def test_triggers_in_a_file_are_not_run(folder: Path) -> None:
    """Whoever could change the file does not decide what its reader or writer does."""
    Written(folder).reads(ledger(process(7)), at(0)).store.close()
    with closing(sqlite3.connect(folder / "history.sqlite")) as connection:
        connection.execute("CREATE TRIGGER evil AFTER INSERT ON moment BEGIN DELETE FROM hold; END")
        connection.commit()
    with pytest.raises(BadInput):
        open_for_reading(str(folder / "history.sqlite"))
    written = Written(folder).reads(ledger(process(7)), at(10)).reads(ledger(process(7)), at(20))
    assert written.pids() == [7]
    assert len(list(folder.glob("history.sqlite.foreign-*"))) == 1


def test_files_that_are_moved_aside_do_not_pile_up(folder: Path) -> None:
    for number in range(MAX_ASIDE):
        (folder / "history.sqlite").write_bytes(b"no database" * number + b"!")
        store = HistoryStore(str(folder / "history.sqlite"))
        store.open()
        store.close()
    (folder / "history.sqlite").write_bytes(b"one more")
    assert "moved aside there already" in refused(folder / "history.sqlite")
    assert (folder / "history.sqlite").read_bytes() == b"one more"


# ---- readers ----


def test_two_readers_see_one_state_each_while_the_service_writes(folder: Path) -> None:
    written = Written(folder).reads(ledger(process(7)), at(0))
    written.store.commit()
    path = str(folder / "history.sqlite")
    with closing(open_for_reading(path)) as first, closing(open_for_reading(path)) as second:
        first.execute("BEGIN")
        assert Questions(first).holders_at("0", None).holders[0].pid == 7
        written.reads(ledger(process(8)), at(10))
        written.store.commit()
        assert Questions(first).holders_at("0", None).holders[0].pid == 7
        assert Questions(second).holders_at("0", None).holders[0].pid == 8
        with pytest.raises(sqlite3.Error):
            second.execute("DELETE FROM hold")


def test_a_history_that_is_not_there_is_said(folder: Path) -> None:
    with pytest.raises(NothingFound) as error:
        open_for_reading(str(folder / "history.sqlite"))
    assert "vram serve" in error.value.hint
    assert not list(folder.iterdir())


def test_a_copy_where_others_can_write_is_not_trusted(folder: Path) -> None:
    """A log that somebody puts beside it would be taken for a part of it."""
    Written(folder).reads(ledger(process(7)), at(0)).store.close()
    folder.chmod(0o777)
    with pytest.raises(NotPermitted, match="others can change"):
        open_for_reading(str(folder / "history.sqlite"))
