"""Memory by place while a program runs: the page itself, `vram run --live`, and the key in `vram top`."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.patience import has_ended, until, until_async, until_ended
from tests.recording.conftest import Workplace
from tests.recording.terminal import Terminal
from vram.host.local import LocalHost
from vram.live_reader import ReaderClient, ReaderOptions
from vram.model.trace import LiveTrace
from vram.top.app import TopApp
from vram.top.panels import DetailsPanel, TextPanel
from vram.top.run_live import LiveRun, last_lines
from vram.top.sites import FollowedTrace, SitesScreen
from vram.top.table import ProcessTable
from vram.trace.output import recorded_into

# Holds 96 MiB and 8 MiB, each by a line of its own; it prints, and ends when it is told so.
PROGRAM = """
from program import *
context()
def load_weights():
    found = []
    for _ in range(3): found.append(alloc(32 << 20))
    return found
def make_cache():
    return alloc(8 << 20)
held = load_weights(), make_cache()
say("loading\\r", "loaded\\x1b[2J")
say("ready")
"""
WAITING = f"{PROGRAM}\nsys.stdin.readline()"
SLEEPING = f"{PROGRAM}\nimport signal; signal.pause()"


def play(scene: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scene())


async def seen(pilot: Any, reached: Callable[[], Any]) -> None:
    """Come back when *reached* is true of the page, which is drawn meanwhile."""
    await until_async(reached, pause=pilot.pause)


def lines(page: SitesScreen) -> list[str]:
    return page.query_one(ProcessTable).shown


@pytest.fixture
def recorded(work: Workplace) -> Iterator[subprocess.Popen[str]]:
    """A program that is being recorded, and waits."""
    process = subprocess.Popen(
        [sys.executable, "-c", WAITING],
        env=work.recorder_environment("trace"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    while process.stdout.readline() != "ready\n":
        pass
    yield process
    process.kill()
    process.communicate()


class TestThePage:
    def test_the_largest_place_comes_first_with_its_stack(
        self, work: Workplace, recorded: subprocess.Popen[str]
    ) -> None:
        page = SitesScreen(FollowedTrace(prefix=str(work.folder / "trace")), "train", every_s=0.1)

        async def scene() -> None:
            from textual.app import App

            app: App[None] = App()
            async with app.run_test(size=(120, 30)) as pilot:
                await app.push_screen(page)
                await seen(pilot, lambda: len(lines(page)) >= 2)
                first, second = lines(page)[:2]
                assert first.split()[:5] == ["96.0", "MiB", "92", "%", "3"]
                assert second.split()[:5] == ["8.0", "MiB", "8", "%", "1"]
                assert "device" in first
                assert "alloc" in first
                assert "load_weights" in first
                gpus = page.query_one("#gpus", TextPanel).text
                assert gpus.startswith("GPU 0   104.0 MiB now   104.0 MiB at the peak")
                await pilot.press("d")
                panel = page.query_one(DetailsPanel)
                await seen(pilot, lambda: "load_weights" in panel.text)
                await pilot.press("down")
                await seen(pilot, lambda: "make_cache" in panel.text)
                await pilot.press("b")
                await seen(pilot, lambda: lines(page) == [])
                await pilot.press("q")
                await seen(pilot, lambda: app.screen is not page)

        play(scene)

    def test_a_narrow_page_tells_lines_of_one_place_apart(
        self, work: Workplace, recorded: subprocess.Popen[str]
    ) -> None:
        page = SitesScreen(FollowedTrace(prefix=str(work.folder / "trace")), "train", every_s=0.1)

        async def scene() -> None:
            from textual.app import App

            app: App[None] = App()
            async with app.run_test(size=(80, 24)) as pilot:
                await app.push_screen(page)
                await seen(pilot, lambda: len(lines(page)) >= 2)
                assert [line.rpartition("← ")[2].split()[0] for line in lines(page)] == [
                    "load_weights",
                    "make_cache",
                ]

        play(scene)

    def test_nothing_yet_is_said(self, work: Workplace) -> None:
        page = SitesScreen(FollowedTrace(prefix=str(work.folder / "trace")), "train", every_s=0.1)

        async def scene() -> None:
            from textual.app import App

            app: App[None] = App()
            async with app.run_test(size=(80, 24)) as pilot:
                await app.push_screen(page)
                facts = page.query_one("#facts", TextPanel)
                await seen(pilot, lambda: "it has not used CUDA" in facts.text)

        play(scene)

    def test_a_reading_that_ends_while_the_page_is_left_is_not_drawn(self, work: Workplace) -> None:
        """Panels are taken away one after the other; to find one missing would end the program."""
        may_end = threading.Event()

        class SlowTrace(FollowedTrace):
            readings = 0

            def read(self) -> LiveTrace:
                may_end.wait()
                self.readings += 1
                return super().read()

        source = SlowTrace(prefix=str(work.folder / "trace"))
        page = SitesScreen(source, "train", every_s=0.1)

        async def scene() -> None:
            from textual.app import App

            app: App[None] = App()
            async with app.run_test(size=(80, 24)) as pilot:
                await app.push_screen(page)
                await page.query_one("#facts").remove()
                may_end.set()
                await seen(pilot, lambda: source.readings >= 2)

        play(scene)


class TestInTop:
    def test_the_key_opens_the_page_of_a_recorded_process(
        self, work: Workplace, recorded: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name, value in work.environment.items():
            monkeypatch.setenv(name, value)

        async def scene() -> None:
            source = ReaderClient(ReaderOptions(deadline_s=30.0))
            source.launch()
            app = TopApp(source, LocalHost, every_s=0.2, deadline_s=30.0)
            async with app.run_test(size=(120, 30)) as pilot:
                await seen(pilot, lambda: app.selected is not None and app.selected.pid == recorded.pid)
                await pilot.press("a")
                await seen(pilot, lambda: isinstance(app.screen, SitesScreen) and len(lines(app.screen)) >= 2)
                await pilot.press("q")
                await seen(pilot, lambda: not isinstance(app.screen, SitesScreen))

        play(scene)

    def test_a_process_that_is_not_recorded_has_none(self) -> None:
        assert recorded_into(os.getpid()) is None

    def test_its_trace_is_found_by_the_files_that_it_has_open(
        self, work: Workplace, recorded: subprocess.Popen[str]
    ) -> None:
        assert recorded_into(recorded.pid) == str(work.folder / f"trace.{recorded.pid}.part")


class TestRunLive:
    """In a terminal, as people use it."""

    def shown(self, work: Workplace, program: str) -> Terminal:
        """`vram run --live` of *program*, when all it holds and prints is on the screen."""
        file = work.folder.with_name("train.py")
        file.write_text(program)
        screen = work.terminal()
        screen.type("export TERM=xterm-256color\n")
        screen.resize(rows=30, columns=120)
        screen.type(f"vram run --live -o t.vram -- {sys.executable} {file}\n")
        screen.read_page("96.0 MiB", "8.0 MiB", "ready")
        return screen

    def test_it_shows_memory_and_output_and_ends_with_the_commands_code(self, work: Workplace) -> None:
        screen = self.shown(work, SLEEPING)
        screen.type("\x03")
        screen.read_until("ended by signal 2")
        screen.type("q")
        screen.read_until("what the command printed is in t.vram.log")
        screen.read_until("peak 104.0 MiB on GPU 0")
        screen.read_until("ready> ")
        assert screen.code() == 128 + signal.SIGINT
        assert work.files() == ["t.vram", "t.vram.log"]
        assert "\nready\n" in (work.folder / "t.vram.log").read_text()

    def test_leaving_the_page_leaves_the_command_running(self, work: Workplace) -> None:
        screen = self.shown(work, SLEEPING)
        screen.type("q")
        screen.read_until("the command goes on; Ctrl-C interrupts it")
        screen.type("\x03")
        screen.read_until("ready> ")
        assert screen.code() == 128 + signal.SIGINT

    def test_whoever_ends_it_ends_the_command(self, work: Workplace) -> None:
        screen = self.shown(work, SLEEPING)
        pidfd, _ = _vram_and_command(work)
        signal.pidfd_send_signal(pidfd, signal.SIGTERM)
        screen.read_until("peak 104.0 MiB on GPU 0")
        screen.read_until("ready> ")
        assert screen.code() == 128 + signal.SIGTERM

    def test_a_closed_terminal_ends_both(self, work: Workplace) -> None:
        screen = self.shown(work, SLEEPING)
        pidfds = _vram_and_command(work)
        screen.close()
        for pidfd in pidfds:
            until_ended(pidfd)
        assert work.files() == ["t.vram", "t.vram.log"]
        assert work.view("t.vram").processes[0].end == "cut"

    def test_a_terminal_closed_after_the_end(self, work: Workplace) -> None:
        screen = self.shown(work, SLEEPING)
        pidfd, command = _vram_and_command(work)
        signal.pidfd_send_signal(command, signal.SIGTERM)
        screen.read_until("ended by signal 15")
        screen.close()
        until_ended(pidfd)
        assert work.files() == ["t.vram", "t.vram.log"]

    def test_a_command_that_ignores_a_closed_terminal_is_recorded_to_its_end(self, work: Workplace) -> None:
        told, rounds = work.folder.with_name("told"), work.folder.with_name("rounds")
        ending = (
            f"with open({str(rounds)!r}, 'ab', 0) as rounds:\n"
            f"    while not os.path.exists({str(told)!r}): time.sleep(0.02); rounds.write(b'.')"
        )
        ignoring = f"import signal, time; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n{PROGRAM}"
        screen = self.shown(work, f"{ignoring}\n{ending}\nmore = alloc(1 << 20)")
        pidfds = _vram_and_command(work)
        screen.close()
        done = rounds.stat().st_size
        until(lambda: rounds.stat().st_size > done + 20 or has_ended(pidfds[1]))
        assert not any(map(has_ended, pidfds))
        told.touch()
        for pidfd in pidfds:
            until_ended(pidfd)
        assert 1 << 20 in work.sizes("t.vram")[0]

    def test_the_log_must_not_be_there_already(self, work: Workplace) -> None:
        (work.folder / "t.vram.log").write_text("mine")
        screen = work.terminal()
        assert "t.vram.log exists already" in screen.run(
            "TERM=xterm vram run --live -o t.vram -- touch launched"
        )
        assert work.files() == ["t.vram.log"]


def _vram_and_command(work: Workplace) -> tuple[int, int]:
    """Handles of `vram run` and of its command, which recorded what is in the folder."""
    (part,) = work.folder.glob("t.vram.*.part")
    command = int(part.name.split(".")[-2])
    with open(f"/proc/{command}/stat") as file:
        vram = int(file.read().rpartition(")")[2].split()[1])
    return os.pidfd_open(vram), os.pidfd_open(command)


def test_output_is_shown_as_a_terminal_would_leave_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"first\n10 %\r50 %\r100 %\nsecond\r\n\nlast")
    assert last_lines(str(log), 1000) == ["first", "100 %", "second", "last"]
    assert last_lines(str(log), 12) == ["last"]
    assert last_lines(str(tmp_path / "none"), 100) == []


def test_the_app_is_made_for_a_child_of_ours() -> None:
    with pytest.raises(ProcessLookupError):
        LiveRun(2**22 - 1, FollowedTrace(prefix="/nonexistent/t"), "t", "/nonexistent/log", ascii_only=True)
