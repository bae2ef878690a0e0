"""The screen, the table, the watch and the live view on a real card, with a ghost that comes and goes.

python -m pytest --real-gpu -s tests/hardware/test_views.py
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tests.hardware.conftest import Record
from tests.needs import needs
from tests.reclaim.conftest import Bench
from tests.reclaim.test_free import ghost
from vram.units import GIB, MIB

pytestmark = pytest.mark.gpu

BARE = Path(__file__).parents[2] / "bench" / "bare_pynvml.py"
TURNS = 11


@pytest.fixture
def bench(tmp_path: Path):
    place = Bench(dict(os.environ), tmp_path / "state", real=True)
    yield place
    place.close()


def test_a_ghost_is_the_first_line_with_its_command_below(bench: Bench, record: Record):
    holder = ghost(bench, "VR101", 4 * GIB)
    worker = bench.demo("memory.plain", 1 * GIB).pids["self"]
    lines = bench.vram("why").stdout.splitlines()
    rows = [line.split() for line in lines if line.split()[3:4] and line.split()[3].isdigit()]
    assert [int(row[3]) for row in rows][:2] == [holder, worker]
    assert rows[0][6] == "GHOST"
    assert any("vram free" in line for line in lines)
    assert len(lines) < 24
    listed = json.loads(bench.vram("ps", "--json").stdout)["processes"]
    assert (listed[0]["pid"], listed[0]["state"]) == (holder, "ghost")
    record(screen=lines[: 3 + len(rows)])


def test_a_watch_sees_it_come_and_go(bench: Bench, record: Record):
    watch = subprocess.Popen(
        [sys.executable, "-m", "vram", "watch", "--json", "--every", "0.5s", "--events", "ghosts"],
        env=bench.environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert watch.stdout is not None
        assert json.loads(watch.stdout.readline())["gpus"]  # the state at the start
        holder = ghost(bench, "VR101", 4 * GIB)
        came = json.loads(watch.stdout.readline())
        assert (came["event"], came["pid"]) == ("ghost", holder)
        assert came["nbytes"] >= 4 * GIB
        assert bench.vram("free", "--yes").returncode == 0
        gone = json.loads(watch.stdout.readline())
        assert (gone["event"], gone["nbytes"]) == ("ghost-gone", -came["nbytes"])
        record(came=came["nbytes"] // MIB, went=gone["nbytes"] // MIB)
    finally:
        watch.kill()
        watch.communicate()


@needs("textual")
def test_the_live_view_frees_it(bench: Bench, record: Record):
    from tests.top.conftest import run, viewing

    holder = ghost(bench, "VR101", 4 * GIB)
    worker = bench.demo("memory.plain", 1 * GIB).pids["self"]
    told: dict[str, Any] = {}

    async def play() -> None:
        async with viewing() as view:
            await view.select(holder)
            told["first"] = view.lines[0]
            told["plan"] = await view.ask("f")
            await view.press("y")
            told["receipt"] = await view.receipt()

    run(play)
    record(first_line=told["first"].split()[:7])
    assert str(holder) in told["first"]
    assert str(holder) in told["plan"]
    assert "freed 4.5 GiB" in told["receipt"]
    assert os.path.exists(f"/proc/{worker}")
    assert bench.vram("check", "--leftovers").returncode == 0


def test_the_answer_beside_a_bare_script(bench: Bench, record: Record):
    """Figures for the record: machines differ, so nothing is asked of them here."""
    bench.demo("memory.plain", 1 * GIB)
    commands = {
        "vram why --json": [sys.executable, "-m", "vram", "why", "--json"],
        "vram": [sys.executable, "-m", "vram"],
        "bare pynvml script": [sys.executable, str(BARE)],
        "python -c pass": [sys.executable, "-c", "pass"],
    }
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    used: dict[str, list[float]] = {name: [] for name in commands}
    for turn in range(TURNS + 1):
        for name, command in commands.items():
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            began = time.perf_counter()
            subprocess.run(command, env=bench.environment(), check=True, stdout=subprocess.DEVNULL)
            if turn:  # the first one reads files into the cache
                after = resource.getrusage(resource.RUSAGE_CHILDREN)
                seconds[name].append(time.perf_counter() - began)
                used[name].append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    record(
        wall_ms={name: round(median(each) * 1e3, 1) for name, each in seconds.items()},
        cpu_ms={name: round(median(each) * 1e3, 1) for name, each in used.items()},
    )
