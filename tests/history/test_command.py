"""`vram history` as people and programs use it: words, tables, Parquet, read-only file systems."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from tests.history.written import START, Written, at, example, ghost, ledger, process
from tests.needs import require, skip_without
from vram.cli.app import main
from vram.model.history import HistoryReport
from vram.report.history import Page, history_text
from vram.report.layout import RenderOptions
from vram.units import GIB

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)}
NASTY = "\x1b[2Jevil\r\n\u202e`rm -rf`"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    written = example(tmp_path_factory.mktemp("example"))
    written.store.close()
    return str(written.path)


def answer(capfd: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main(["history", *words, "--json"]) == 0
    return json.loads(capfd.readouterr().out)


def test_times_and_options_may_stand_anywhere(path: str, capfd: pytest.CaptureFixture[str]) -> None:
    asked = (
        ("--at", f"{START + 60:.0f}", "--gpu", "0"),
        ("--gpu", "0", "holders", f"--at={START + 60:.0f}"),
        ("--at", datetime.fromtimestamp(START + 60, timezone.utc).isoformat(), "--gpu=0"),
    )
    answers = [answer(capfd, *words, "--file", path) for words in asked]
    assert [each["pid"] for each in answers[0]["holders"]] == [4101]
    assert answers[0] == answers[1] == answers[2]


def test_a_time_may_begin_with_a_minus(path: str, capfd: pytest.CaptureFixture[str]) -> None:
    report = answer(capfd, "ghosts", "--since", "-3650d", "--file", path)
    assert len(report["ghosts"]) == 1


def test_a_gpu_by_its_uuid(path: str, capfd: pytest.CaptureFixture[str]) -> None:
    report = answer(capfd, "--gpu", "GPU-00000001", "--at", f"{START + 60:.0f}", "--file", path)
    assert [each["pid"] for each in report["holders"]] == [4101, 4102]


def test_what_cannot_go_together_is_refused(path: str, capfd: pytest.CaptureFixture[str]) -> None:
    for words in (
        ("series", "--file", path),  # two GPUs
        ("waste", "word", "--file", path),
        ("--points", "3", "--file", path),
        ("--since", "-1h", "--file", path),
        ("ghosts", "--since", "-1h", "--until", "-2h", "--file", path),
        ("ghosts", "--limit", "0", "--file", path),
        ("--json", "--parquet", "x.parquet", "--file", path),
    ):
        assert main(["history", *words]) == 2, words
        said = capfd.readouterr()
        assert "hint:" in said.err
        assert not said.out


@pytest.mark.parametrize("width", [40, 80, 200])
def test_no_line_is_wider_than_the_terminal_and_no_name_steers_it(tmp_path: Path, width: int) -> None:
    written = Written(tmp_path)
    entries = (process(7, command=NASTY * 9, user=NASTY), ghost(5, 8, command=NASTY))
    for number in range(20):
        written.reads(ledger(*entries, utilization=0), at(number * 10))
    ask = written.ask()
    reports: tuple[HistoryReport, ...] = (
        ask.holders_at(None, None),
        ask.ghosts(None, None),
        ask.waste(None, None),
        ask.series("0", None, None),
        ask.search("evil", None, None),
    )
    for report in reports:
        for ascii_only in (False, True):
            text = history_text(report, Page(RenderOptions(width, ascii=ascii_only), timezone.utc))
            assert all(line.isprintable() for line in text.splitlines()), text
            assert not ascii_only or text.isascii()
            if width >= 80:
                assert max(map(len, text.splitlines())) <= width, text


def test_the_rows_as_parquet(path: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Every view can be read back with its types, by pyarrow and by DuckDB."""
    require("pyarrow.parquet", "duckdb")
    import duckdb
    from pyarrow import parquet as pq

    counts = {}
    views: tuple[tuple[str, ...], ...] = (
        ("search", "python"),
        ("ghosts",),
        ("waste",),
        ("series", "--gpu", "1"),
    )
    for view in views:
        file = tmp_path / f"{view[0]}.parquet"
        assert main(["history", *view, "--parquet", str(file), "--file", path]) == 0
        counts[view[0]] = pq.read_table(file).num_rows
    assert counts == {"search": 4, "ghosts": 1, "waste": 2, "series": counts["series"]}
    assert not capfd.readouterr().out
    found = duckdb.sql(
        f"SELECT pid, most_bytes, since < until FROM '{tmp_path}/search.parquet'"
        " WHERE until IS NOT NULL AND gpu = 0"
    ).fetchall()
    assert found == [(4101, 25 * GIB, True)]
    assert main(["history", "ghosts", "--parquet", str(tmp_path / "ghosts.parquet"), "--file", path]) == 2
    assert "exists" in capfd.readouterr().err


def test_where_nothing_can_be_written_it_is_read_all_the_same(path: str, tmp_path: Path) -> None:
    """On a file system that is mounted read-only, with a log beside it that was not copied into the file."""
    tmp_path.chmod(0o700)
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    written = Written(state).reads(ledger(process(7)), at(0)).reads(ledger(process(8)), at(10))
    written.store.commit()
    assert (state / "history.sqlite-wal").stat().st_size
    (state / "history.sqlite-shm").unlink()
    mount = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0"'
    script = f'{mount} && exec "$1" -m vram history --json --file "$2"'
    done = subprocess.run(
        [
            *("unshare", "--mount", "--map-root-user", "sh", "-c", script),
            state,
            sys.executable,
            state / "history.sqlite",
        ],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    if "unshare" in done.stderr or "mount:" in done.stderr:
        skip_without("mounts", "no mount namespace here")
    assert done.returncode == 0, done.stderr
    assert [each["pid"] for each in json.loads(done.stdout)["holders"]] == [8]
