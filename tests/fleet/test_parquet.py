"""Fleet history: one file a run, read by DuckDB and PyArrow with the queries of the guide."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.fleet.conftest import ROOT, vram_fleet
from tests.fleet.snapshots import haunted, healthy, judged, write
from tests.needs import needs, require
from vram.errors import UsageError
from vram.fleet.collect import fleet_report
from vram.fleet.parquet import append, escaped
from vram.model.fleet import FleetReport

pytestmark = needs("pyarrow")
GUIDE = ROOT / "docs" / "guides" / "fleet.md"


def report() -> FleetReport:
    nodes = (judged(healthy("gpu-1"), "gpu-1"), judged(haunted("gpu-2"), "gpu-2"), judged(b"x", "liar"))
    return fleet_report(nodes, source="recorded", took_s=0.1)


def query(folder: Path, text: str) -> list[Any]:
    require("duckdb")
    import duckdb

    return duckdb.sql(text.replace("history/", f"{folder}/")).fetchall()


def test_each_run_adds_one_file_by_day_and_host(tmp_path: Path) -> None:
    recorded = write(tmp_path, haunted("gpu-2"))
    for _ in range(2):
        assert vram_fleet("--snapshots", recorded, "--parquet", tmp_path / "history").status == 0
    files = [str(file.relative_to(tmp_path)) for file in (tmp_path / "history").rglob("*") if file.is_file()]
    assert len(files) == 2
    form = r"history/day=\d{4}-\d\d-\d\d/host=[^/]+/fleet-\d{6}-[0-9a-f]{12}\.parquet"
    assert all(re.fullmatch(form, name) for name in files), files


def test_rows_are_gpus_and_nodes_that_are_not_counted(tmp_path: Path) -> None:
    append(report(), str(tmp_path))
    counted = query(tmp_path, "select node, count(gpu) from 'history/**/*.parquet' group by 1 order by 1")
    assert counted == [("gpu-1", 2), ("gpu-2", 2), ("liar", 0)]


def queries() -> list[str]:
    return re.findall(r"```sql\n(.*?)```", GUIDE.read_text(), re.DOTALL)


@pytest.mark.parametrize("text", queries())
def test_the_queries_of_the_guide_run(tmp_path: Path, text: str) -> None:
    append(report(), str(tmp_path))
    assert query(tmp_path, text)


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", "a=b", "a b", "\0", "%2F", "é", "\udcff", "a" * 64])
def test_a_name_is_one_part_of_a_path(name: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9._%-]+", escaped(name))
    assert escaped(name) not in (".", "..")
    assert "/" not in escaped(name)


def test_a_folder_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (str(tmp_path / "file"), ""):
        with pytest.raises(UsageError):
            append(report(), folder)
