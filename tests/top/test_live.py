"""What the view shows of real processes while they come, change and go."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from rich.cells import cell_len

from tests.needs import skip_without
from tests.top.conftest import Company, View, run, viewing
from vram.cli.arguments import narrowed
from vram.report.process_table import COLUMNS
from vram.top.dialogs import KEYS
from vram.top.panels import DetailsPanel, KeyBar
from vram.top.table import ProcessTable, TableHeader
from vram.units import GIB
from vram.virtualgpu import VirtualGpu
from vram.virtualgpu.demos import PROGRAMS

SIZES = [(80, 24), (200, 50)]


@pytest.fixture
def two_gpus(
    two_virtual_gpus: VirtualGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Company]:
    for name, value in two_virtual_gpus.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with ExitStack() as stack:
        yield Company(two_virtual_gpus, stack)


@pytest.mark.parametrize("size", SIZES)
def test_a_ghost_that_appears_is_the_first_line(company: Company, size: tuple[int, int]) -> None:
    worker = company.demo("memory.plain", 40 * GIB).pids["self"]
    family = company.demo("forks.orphan", 20 * GIB)

    async def play() -> None:
        async with viewing(size) as view:
            await view.until(lambda: view.pids == [worker, family.pids["parent"]])
            family.kill("parent")
            await view.until(lambda: view.pids == [family.pids["child"], worker])
            first = view.lines[0]
            assert "GHOST" in first
            assert "20.5 GiB" in first
            assert f"memory of dead pid {family.pids['parent']}" in first
            # Nobody has moved the cursor, so it is on the trouble.
            assert view.app.selected is not None
            assert view.app.selected.pid == family.pids["child"]
            assert "61.6/140.4 GiB" in view.gpus
            assert "▚" in view.gpus

    run(play)


def test_the_cursor_stays_on_its_process(company: Company) -> None:
    small = company.demo("memory.plain", 1 * GIB).pids["self"]
    large = company.demo("memory.plain", 4 * GIB)

    async def play() -> None:
        async with viewing() as view:
            await view.until(lambda: view.pids == [large.pids["self"], small])
            await view.press("down")
            await view.until(lambda: view.app.selected is not None and view.app.selected.pid == small)
            largest = company.demo("memory.plain", 8 * GIB).pids["self"]
            await view.until(lambda: view.pids == [largest, large.pids["self"], small])
            assert view.app.selected is not None
            assert view.app.selected.pid == small
            large.kill("self")
            await view.until(lambda: view.pids == [largest, small])
            assert view.app.selected.pid == small

    run(play)


def test_what_has_ended_leaves_the_table_and_the_history(company: Company) -> None:
    demo = company.demo("memory.plain", 1 * GIB)

    async def play() -> None:
        async with viewing() as view:
            await view.until(lambda: view.pids)
            (key,) = (line.key for line in view.app._lines)
            assert view.app.history.points(key)
            demo.kill("self")
            await view.until(lambda: not view.lines)
            assert set(view.app.history.keys()) == {("gpu", 0)}

    run(play)


def test_memory_that_changes_is_shown_and_remembered(company: Company) -> None:
    demo = company.demo("memory.plain", 4 * GIB)

    async def play() -> None:
        async with viewing() as view:
            await view.until(lambda: "4.5 GiB" in (view.line_of(demo.pids["self"]) or ""))
            demo.go()
            await view.until(lambda: " MiB " in (view.line_of(demo.pids["self"]) or ""))
            (key,) = (line.key for line in view.app._lines)
            assert max(view.app.history.points(key)) > 4 * GIB

    run(play)


def test_a_process_that_is_stopped_is_trouble_at_once(company: Company) -> None:
    company.demo("memory.plain", 8 * GIB)
    pid = company.demo("memory.plain", 1 * GIB).pids["self"]

    async def play() -> None:
        async with viewing() as view:
            await view.until(lambda: view.line_of(pid))
            os.kill(pid, signal.SIGSTOP)
            await view.until(lambda: view.pids[:1] == [pid])
            assert "STOPPED" in view.lines[0]
            os.kill(pid, signal.SIGCONT)
            await view.until(lambda: view.pids[-1:] == [pid])

    run(play)


def test_details_say_what_why_says(company: Company) -> None:
    family = company.demo("forks.orphan", 2 * GIB)
    family.kill("parent")

    async def play() -> None:
        async with viewing() as view:
            await view.until(lambda: view.pids == [family.pids["child"]])
            await view.press("d")
            await view.until(lambda: "VR101" in view.details)
            for words in ("ghost", "Its family", "Why", "vram free", str(family.pids["parent"])):
                assert words in view.details
            await view.press("d")
            await view.until(lambda: view.table.has_focus)

    run(play)


def test_free_all_touches_only_the_gpus_that_are_shown(two_gpus: Company) -> None:
    """Chosen by UUID: what is on the other GPU, a ghost of GPU 0, is not planned for."""
    ghost = two_gpus.demo("forks.orphan", 1 * GIB)
    ghost.kill("parent")

    async def play() -> None:
        async with viewing(narrow=lambda ledger: narrowed(ledger, [ledger.gpus[1].uuid or ""])) as view:
            assert view.pids == []
            await view.press("F")
            assert str(ghost.pids["child"]) not in await view.notice()

    run(play)
    assert os.path.exists(f"/proc/{ghost.pids['child']}")


def test_a_lost_gpu_is_a_state_and_the_other_goes_on(two_gpus: Company) -> None:
    worker = two_gpus.demo("memory.plain", 1 * GIB).pids["self"]

    async def play() -> None:
        async with viewing() as view:
            await view.until(lambda: view.pids == [worker])
            two_gpus.gpu.fail("nvmlDeviceGet*", gpu=1, error="GPU_IS_LOST")
            await view.until(lambda: "lost" in view.gpus)
            assert view.pids == [worker]
            two_gpus.gpu.clear_faults()
            await view.until(lambda: "lost" not in view.gpus)
            assert view.pids == [worker]

    run(play)


def test_a_driver_that_goes_and_comes_back(company: Company) -> None:
    worker = company.demo("memory.plain", 1 * GIB).pids["self"]

    async def play() -> None:
        async with viewing() as view:
            await view.until(lambda: view.pids == [worker])
            company.gpu.fail("nvml*", error="DRIVER_NOT_LOADED")
            await view.until(lambda: "not loaded" in view.facts)
            await view.press("t", "t", "question_mark")
            await view.notice()
            await view.close_dialog()
            company.gpu.clear_faults()
            await view.until(lambda: view.pids == [worker] and "not loaded" not in view.facts)

    run(play)


def test_no_driver_at_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("VRAM_VIRTUAL_GPU", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    async def play() -> None:
        async with viewing() as view:
            assert "No GPU was found." in view.gpus
            assert "libnvidia-ml" in view.facts or "driver" in view.facts
            await view.press("k", "F")
            assert "driver" in await view.notice()

    if Path("/dev/nvidiactl").exists() or Path("/dev/dxg").exists():
        skip_without("no-driver", "this machine has a driver")
    run(play)


def test_a_driver_that_hangs_leaves_the_keys_alive(company: Company) -> None:
    worker = company.demo("memory.plain", 1 * GIB).pids["self"]

    async def play() -> None:
        async with viewing(deadline_s=1.0) as view:
            await view.until(lambda: view.pids == [worker])
            company.gpu.fail("nvmlDeviceGetMemoryInfo*", hang=True)
            await view.until(lambda: "timeout" in view.gpus)
            await view.press("question_mark")
            assert "Act on the line" in await view.notice()
            await view.close_dialog()
            company.gpu.clear_faults()
            await view.until(lambda: view.pids == [worker] and "timeout" not in view.gpus)

    run(play)


def test_a_reading_process_that_is_killed_is_started_again(company: Company) -> None:
    worker = company.demo("memory.plain", 1 * GIB).pids["self"]

    async def play() -> None:
        async with viewing() as view:
            await view.until(lambda: view.pids == [worker])
            source = view.app._source
            first = source.pid  # type: ignore[attr-defined]
            os.kill(first, signal.SIGKILL)
            await view.until(lambda: source.pid not in (None, first))  # type: ignore[attr-defined]
            await view.readings()
            assert view.pids == [worker]

    run(play)


HOSTILE = "[bold]x[/bold] [@click=app.exit]y[/] \x1b[2J\x1b]0;z\x07 \u202eabc \r\n[link=file:///]"


def test_a_hostile_command_line_is_only_text(company: Company) -> None:
    argv = [sys.executable, "memory.py", "plain", str(1 * GIB), HOSTILE]
    with company.gpu.popen(argv, cwd=PROGRAMS, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()

        async def play() -> None:
            async with viewing((200, 50)) as view:
                await view.until(lambda: view.pids == [process.pid])
                line = view.lines[0]
                assert "[bold]x[/bold] [@click=app.exit]y[/] \\x1b[2J\\x1b]0;z\\x07 \\u202eabc" in line
                assert line.isprintable()
                await view.until(lambda: "[@click=app.exit]" in view.details)
                plan = await view.ask("k")
                assert "[link=file:///]" in plan
                assert "\x1b" not in plan
                picture = view.app.export_screenshot()
                assert "\x1b" not in picture
                assert "\u202e" not in picture
                await view.press("n")

        run(play)
        process.stdin.close()  # type: ignore[union-attr]


def test_a_click_on_a_heading_sorts_and_another_one_reverses(company: Company) -> None:
    pids = [company.demo("memory.plain", nbytes * GIB).pids["self"] for nbytes in (1, 3, 2)]

    async def play() -> None:
        async with viewing() as view:
            await view.until(lambda: len(view.pids) == 3)
            assert view.pids == [pids[1], pids[2], pids[0]]
            await view.settled()
            heading = view.app.query_one(TableHeader)._heading
            at = (heading.index(COLUMNS["pid"].heading) + 1, 0)
            await view.pilot.click(TableHeader, offset=at)
            await view.until(lambda: view.pids == sorted(pids))
            await view.pilot.click(TableHeader, offset=at)
            await view.until(lambda: view.pids == sorted(pids, reverse=True))

    run(play)


def test_a_click_selects_a_line_and_a_double_click_opens_its_details(company: Company) -> None:
    pids = [company.demo("memory.plain", nbytes * GIB).pids["self"] for nbytes in (3, 2, 1)]

    async def play() -> None:
        async with viewing() as view:
            await view.until(lambda: view.pids == pids)
            await view.settled()
            await view.pilot.click("ProcessTable", offset=(10, 2))
            await view.until(lambda: view.app.selected is not None and view.app.selected.pid == pids[2])
            # Two clicks are a double click only within half a second, which a slow machine may miss.
            while not view.app.query_one(DetailsPanel).is_open:
                await view.pilot.click("ProcessTable", offset=(10, 1), times=2)
            await view.until(lambda: f"pid {pids[1]}" in view.details)

    run(play)


def test_keys_sort_search_and_filter(two_gpus: Company) -> None:
    plain = two_gpus.demo("memory.plain", 3 * GIB).pids["self"]
    pool = two_gpus.demo("pools.trim", 2 * GIB).pids["self"]
    family = two_gpus.demo("forks.orphan", 1 * GIB)
    family.kill("parent")
    ghost = family.pids["child"]

    async def play() -> None:
        async with viewing() as view:
            await view.until(lambda: view.pids == [ghost, plain, pool])
            await view.press("greater_than_sign", "greater_than_sign")
            await view.until(lambda: view.app.view.sort == "size" and view.pids == [plain, pool, ghost])
            await view.press("r")
            await view.until(lambda: view.pids == [ghost, pool, plain])
            await view.press("slash", *"pool")
            await view.until(lambda: view.pids == [pool])
            assert "search 'pool'" in view.facts
            await view.press("escape")
            await view.until(lambda: view.pids == [ghost, pool, plain])
            await view.select(ghost)
            await view.press("S")
            await view.until(lambda: view.pids == [ghost])
            await view.press("S", "G")
            await view.until(lambda: view.app.view.gpu == "0" and len(view.pids) == 3)
            await view.press("escape", "U")
            await view.until(lambda: view.app.view.user is not None and len(view.pids) == 3)

    run(play)


@pytest.mark.parametrize("size", SIZES)
def test_the_tree_shows_families(company: Company, size: tuple[int, int]) -> None:
    plain = company.demo("memory.plain", 3 * GIB).pids["self"]
    family = company.demo("forks.orphan", 1 * GIB)
    parent, child = family.pids["parent"], family.pids["child"]

    async def play() -> None:
        async with viewing(size) as view:
            await view.until(lambda: view.pids == [plain, parent])
            await view.press("t")
            await view.until(lambda: child in view.pids)
            assert view.pids.index(child) == view.pids.index(parent) + 1
            assert "└─" in str(view.line_of(child))
            family.kill("parent")
            await view.until(lambda: any(f"pid {parent}: dead" in line for line in view.lines))
            assert "GHOST" in str(view.line_of(child))
            await view.press("t")
            await view.until(lambda: view.pids == [child, plain])

    run(play)


@pytest.mark.parametrize(("width", "left_out"), [(60, {"t", "d", "slash"}), (80, {"t"}), (100, set())])
def test_a_narrow_bottom_line_leaves_out_the_least_important_keys(
    company: Company, width: int, left_out: set[str]
) -> None:
    async def play() -> None:
        async with viewing(size=(width, 24)) as view:
            bar = view.app.query_one(KeyBar)
            shown = bar.render()
            assert shown.cell_len <= width
            assert {name for _, _, name in KEYS} - {name for _, name in bar._ends} == left_out

    run(play)


@pytest.mark.parametrize("size", [(80, 24), (100, 24), (200, 50), (60, 15)])
def test_nothing_is_wider_than_the_terminal(company: Company, size: tuple[int, int]) -> None:
    family = company.demo("forks.orphan", 1 * GIB)
    family.kill("parent")

    async def play() -> None:
        async with viewing(size) as view:
            await view.until(lambda: view.pids)
            for text in (view.facts, view.gpus, *view.lines):
                assert all(len(line) <= size[0] for line in text.splitlines())
            # Everything has its place: the last line is the keys, and the table has some lines.
            assert view.table.size.height >= 3
            bar = view.app.query_one("#keys")
            assert (bar.region.bottom, bar.size.height) == (size[1], 1)

    run(play)


def test_without_unicode(company: Company) -> None:
    company.demo("memory.plain", 1 * GIB)

    async def play() -> None:
        async with viewing(ascii_only=True) as view:
            await view.until(lambda: view.pids)
            await view.press("t", "d")
            await view.readings()
            shown = (view.facts, view.gpus, *view.lines, view.details)
            assert all(text.isascii() for text in shown)

    run(play)


def test_a_quiet_machine_redraws_nothing_but_ages(company: Company) -> None:
    company.demo("memory.plain", 1 * GIB)
    company.demo("memory.plain", 2 * GIB)

    async def play() -> None:
        async with viewing() as view:
            await view.until(lambda: len(view.pids) == 2)
            for _ in range(10):
                before, began = view.table.redrawn, time.monotonic()
                await view.readings(30)
                # An age changes once a second at most; the rest is for a state that changes for a moment.
                seconds = int(time.monotonic() - began) + 1
                assert view.table.redrawn - before <= 2 * seconds + 8
                if seconds < 20:
                    return
            pytest.fail("too slow to tell: every reading may have redrawn everything")

    run(play)


# ---- whether somebody works with it ----

BUSY = "import driver; driver.context(); driver.alloc(1 << 30); print(flush=True)\nwhile True: pass"


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("count", [1, 8])
def test_utilization_stands_beside_the_bar_of_each_gpu(
    count: int, size: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with VirtualGpu.create(gpus=count, utilization=37) as gpus:
        for name, value in {**gpus.environment(), "XDG_STATE_HOME": str(tmp_path)}.items():
            monkeypatch.setenv(name, value)

        async def play() -> None:
            async with viewing(size) as view:
                await view.until(lambda: view.gpus.count("UTIL  37%") == count)
                assert max(map(cell_len, view.gpus.splitlines())) <= size[0]
                for number in range(count):
                    assert f"GPU {number} " in view.gpus

        run(play)


@pytest.mark.parametrize("size", SIZES)
def test_a_process_that_computes_is_told_from_one_that_sleeps(
    company: Company, size: tuple[int, int]
) -> None:
    sleeping = company.demo("memory.plain", 8 * GIB).pids["self"]
    environment = {**company.gpu.environment(), "PYTHONPATH": str(PROGRAMS)}
    with subprocess.Popen([sys.executable, "-c", BUSY], env=environment, stdout=subprocess.PIPE) as busy:
        assert busy.stdout is not None
        busy.stdout.readline()

        def percent(view: View, pid: int) -> int | None:
            """What stands under the heading %CPU; None where nothing is known yet."""
            heading = view.app.query_one(TableHeader).text
            line = view.line_of(pid) or ""
            end = heading.index("%CPU") + len("%CPU")
            word = line[:end].split()[-1] if line else "-"
            return int(word) if word.isdigit() else None

        async def play() -> None:
            async with viewing(size) as view:
                # However many others want the cores: it gets more than nothing, and not more than one.
                await view.until(lambda: 5 < (percent(view, busy.pid) or 0) <= 110)
                await view.until(lambda: percent(view, sleeping) == 0)

        try:
            run(play)
        finally:
            busy.kill()


def test_a_view_that_ends_still_gets_readings_and_messages(
    company: Company,
) -> None:
    company.demo("memory.plain", GIB)

    async def play() -> None:
        async with viewing() as view:
            await view.app.query_one(DetailsPanel).remove()
            before = view.app.refreshes
            view.app.query_one(ProcessTable).post_message(ProcessTable.Moved())
            await view.until(lambda: view.app.refreshes > before + 1)

    run(play)
