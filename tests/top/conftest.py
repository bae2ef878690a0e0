"""The live view in this process, driven by Textual's pilot; real processes on a virtual GPU."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from tests.patience import until_async
from tests.release.conftest import StandIn
from tests.search_path import search_path
from tests.worker_pool import WorkerPool
from vram.host.local import LocalHost
from vram.live_reader import ReaderClient, ReaderOptions
from vram.top.app import TopApp
from vram.top.dialogs import Dialog, Question, Running
from vram.top.panels import DetailsPanel, GpuPanel, TextPanel
from vram.top.table import ProcessTable, TableHeader
from vram.virtualgpu import VirtualGpu
from vram.virtualgpu.demos import PROGRAMS, DemoProgram

EVERY_S = 0.2


class View:
    """A running view, and what a person would see in it."""

    def __init__(self, app: TopApp, pilot: Pilot[None]) -> None:
        self.app = app
        self.pilot = pilot

    async def until(self, what: Callable[[], Any]) -> Any:
        """Come back when *what* is true."""
        return await until_async(what, self.picture, self.pilot.pause)

    async def settled(self) -> None:
        """Come back when everything is where it belongs: a click earlier could meet something else."""
        header = self.app.query_one(TableHeader)
        above = len(self.facts.splitlines()) + len(self.gpus.splitlines())
        await self.until(lambda: header.region.y == above and self.table.region.y == above + 1)

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)

    async def readings(self, count: int = 2) -> None:
        """Come back after so many more readings: the last one began after now."""
        wanted = self.app.refreshes + count
        await self.until(lambda: self.app.refreshes >= wanted)

    @property
    def table(self) -> ProcessTable:
        return self.app.query_one(ProcessTable)

    @property
    def lines(self) -> list[str]:
        return self.table.shown

    @property
    def facts(self) -> str:
        return self.app.query_one("#facts", TextPanel).text

    @property
    def gpus(self) -> str:
        return self.app.query_one(GpuPanel).query_one("#gpu-bars", TextPanel).text

    @property
    def details(self) -> str:
        return self.app.query_one(DetailsPanel).text

    def line_of(self, pid: int) -> str | None:
        """The line that begins with *pid* in its column, alone or for a job ("4711+3")."""
        return next((line for line in self.lines if f" {pid} " in line or f" {pid}+" in line), None)

    @property
    def pids(self) -> list[int]:
        return [line.row.pid for line in self.app._lines if line.row is not None]

    async def select(self, pid: int) -> None:
        await self.until(lambda: self.line_of(pid))
        key = next(line.key for line in self.app._lines if line.row is not None and line.row.pid == pid)
        self.table.select(key)
        await self.until(lambda: self.app.selected is not None and self.app.selected.pid == pid)

    @property
    def dialog(self) -> Dialog | None:
        screen = self.app.screen
        return screen if isinstance(screen, Dialog) else None

    @property
    def dialog_text(self) -> str:
        dialog = self.dialog
        return "" if dialog is None or not dialog.is_mounted else _plain(dialog._text())

    @property
    def dialog_title(self) -> str:
        dialog = self.dialog
        return "" if dialog is None else dialog._title

    async def ask(self, key: str) -> str:
        """Press an action's key; return the plan that is shown with its question."""
        await self.press(key)
        await self.until(lambda: isinstance(self.dialog, Question) and self.dialog_text)
        return self.dialog_text

    async def notice(self) -> str:
        """Come back with the text of a dialog that only wants to be read."""
        await self.until(lambda: self.dialog is not None and not isinstance(self.dialog, Question | Running))
        return str(await self.until(lambda: self.dialog_text))

    async def receipt(self) -> str:
        """Come back with what the action did."""
        await self.until(lambda: isinstance(self.dialog, Running) and self.dialog.finished)
        return self.dialog_text

    async def close_dialog(self) -> None:
        await self.press("escape")
        await self.until(lambda: self.dialog is None)

    def picture(self) -> str:
        shown = "\n".join(self.lines)
        return f"{self.facts}\n{self.gpus}\n{shown}\n--\n{self.dialog_text}"


def _plain(shown: Any) -> str:
    from io import StringIO

    from rich.console import Console

    console = Console(width=100, file=StringIO(), color_system=None)
    console.print(shown)
    return console.file.getvalue()  # type: ignore[attr-defined]


@asynccontextmanager
async def viewing(size: tuple[int, int] = (100, 30), **options: Any) -> AsyncIterator[View]:
    """The view, with at least one reading in it."""
    deadline_s = options.pop("deadline_s", 30.0)
    source = ReaderClient(ReaderOptions(deadline_s=deadline_s, measure_cpu=True))
    source.launch()
    app = TopApp(source, LocalHost, every_s=EVERY_S, deadline_s=deadline_s, **options)
    async with app.run_test(size=size) as pilot:
        view = View(app, pilot)
        await view.until(lambda: app.refreshes)
        yield view


def run(play: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Play an asynchronous scene to its end."""
    asyncio.run(play())


class Company:
    """Starts demo programs on the virtual GPU, and ends them."""

    def __init__(self, gpu: VirtualGpu, stack: ExitStack) -> None:
        self.gpu = gpu
        self._stack = stack

    def demo(self, program: str, nbytes: int, *, stages: int = 0) -> DemoProgram:
        demo = self._stack.enter_context(DemoProgram(self.gpu, program, nbytes))
        for _ in range(stages):
            demo.go()
        return demo

    def server(self, *words: str) -> StandIn:
        """A stand-in for a server; it has 1.5 GiB and a context."""
        path = {"PYTHONPATH": search_path(PROGRAMS)}
        server = StandIn({**os.environ, **path}, *words)
        self._stack.callback(server.close)
        return server

    def pool(self, *does: str) -> WorkerPool:
        """Workers of one job; each has 1 GiB and a context."""
        return self._stack.enter_context(WorkerPool(self.gpu.environment(), *does))


@pytest.fixture
def company(virtual_gpu: VirtualGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Company]:
    """A machine whose GPU is virtual, for this process and those that it starts."""
    for name, value in virtual_gpu.environment().items():
        monkeypatch.setenv(name, value)
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    with ExitStack() as stack:
        yield Company(virtual_gpu, stack)
