"""The live view: reads every few seconds, shows what has changed, and acts on the selected line."""

from __future__ import annotations

import asyncio
import gc
import signal
import time
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import ClassVar, Protocol

from msgspec.structs import replace
from rich.cells import cell_len
from rich.console import RenderableType
from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.css.query import NoMatches
from textual.widgets import Input

from vram.errors import VramError
from vram.host.ports import Host
from vram.live_reader import LiveReading
from vram.model.finding import Finding
from vram.model.ledger import Ledger, known_bytes
from vram.report.forecast import forecast_text
from vram.report.job_rows import ORPHANS, rows_by_job
from vram.report.layout import RenderOptions
from vram.report.process_rows import JobRow, ProcessRow, rows
from vram.report.process_table import age
from vram.report.screen import problem_lines, unseen
from vram.top.actions import ActionName, ActionRequest, PreparedAction, prepare
from vram.top.dialogs import KEYS, LEFT_OUT_FIRST, Notice, Question, Running, error_text, help_text
from vram.top.forecasts import TopForecasts
from vram.top.panels import DetailsPanel, GpuPanel, History, KeyBar, TextPanel, trend
from vram.top.table import ProcessTable, TableHeader, formatted, trend_width
from vram.top.terminal_app import TerminalApp
from vram.top.view import SORTS, ViewLine, ViewState, basis, details, key_of, lines
from vram.units import counted

_DETAILS_FROM_LINES = 36
_PATIENCE = 1.5
"""A reading that takes this many times its deadline is reported as late."""
_GARBAGE_AFTER = 20_000


class ReadingSource(Protocol):
    """Where readings come from: a process of its own, or a test."""

    @property
    def waiting_s(self) -> float: ...
    def listen(self, on_reading: Callable[[LiveReading], None]) -> None: ...
    def ask(self, whole: bool = False) -> bool: ...
    def close(self) -> None: ...


class TopApp(TerminalApp):
    """One view of one host."""

    TITLE = "vram top"
    CSS = """
    Screen { layout: vertical; }
    #search { display: none; height: 1; border: none; padding: 0; }
    #search.open { display: block; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "leave", "quit"),
        Binding("ctrl+c,ctrl+q", "leave", "quit", priority=True, show=False),
        Binding("question_mark,f1", "help", "help"),
        Binding("slash", "search", "search"),
        Binding("escape", "clear", "clear filters", show=False),
        Binding("t", "tree", "tree"),
        Binding("enter,d", "details", "details"),
        Binding("tab", "switch", "to the details", show=False),
        Binding("less_than_sign", "sort(-1)", "sort", show=False),
        Binding("greater_than_sign", "sort(1)", "sort", show=False),
        Binding("r", "reverse", "reverse", show=False),
        Binding("space", "read_now", "read now", show=False),
        Binding("U", "filter('user')", "this user", show=False),
        Binding("G", "filter('gpu')", "this GPU", show=False),
        Binding("S", "filter('state')", "this state", show=False),
        Binding("a", "sites", "allocations", show=False),
        Binding("f", "act('free')", "free"),
        Binding("F", "free_all", "free all", show=False),
        Binding("R", "act('release')", "release"),
        Binding("m", "act('trim')", "trim"),
        Binding("p", "act('park')", "park"),
        Binding("u", "undo", "undo"),
        Binding("k", "act('kill')", "kill"),
    ]

    def __init__(
        self,
        source: ReadingSource,
        host: Callable[[], Host],
        *,
        every_s: float = 2.0,
        deadline_s: float = 5.0,
        ascii_only: bool = False,
        narrow: Callable[[Ledger], Ledger] | None = None,
        read_only: str = "",
        clock: Callable[[], float] = time.monotonic,
        forecasts: TopForecasts | None = None,
    ) -> None:
        """*host* makes the machine that actions act on; *read_only* says why there are none.

        *narrow* leaves only the GPUs of a ledger that are to be shown.
        """
        super().__init__()
        self._source = source
        self._open_host = host
        self._host: Host | None = None
        self._every_s = every_s
        self._deadline_s = deadline_s
        self._ascii = ascii_only
        self._narrow = narrow
        self._read_only = read_only
        self._clock = clock
        self.view = ViewState()
        self.history = History(every_s)
        self.forecasts = forecasts or TopForecasts(every_s)
        self.ledger: Ledger | None = None
        self.findings: tuple[Finding, ...] = ()
        self.refreshes = 0
        self._rows: tuple[ProcessRow, ...] = ()
        self._figures: dict[Hashable, int] = {}
        self._cpu_percent: dict[int, int] = {}
        self._shown_cpu_percent: dict[int, int] = {}
        self._shown_ages: list[str] = []
        self._lines: list[ViewLine] = []
        self._ages_behind_s = 0.0
        self._taken_at = ""
        self._trouble = ""
        self._basis: tuple[object, ...] | None = None
        self._busy = ""
        self.failure: VramError | None = None
        """Why the view ended, where the user did not end it."""

    # ---- what is on the screen ----

    def compose(self) -> ComposeResult:
        yield TextPanel(id="facts")
        yield GpuPanel()
        yield TableHeader()
        yield ProcessTable()
        yield TextPanel(id="problem")
        yield DetailsPanel(classes="ascii" if self._ascii else "")
        yield Input(id="search", placeholder="words in the command, user, pid, state or job; Esc clears")
        yield KeyBar(KEYS, LEFT_OUT_FIRST, id="keys")

    def on_mount(self) -> None:
        self.query_one("#search", Input).cursor_blink = False
        self.query_one(ProcessTable).focus()
        if self.size.height >= _DETAILS_FROM_LINES:
            self.query_one(DetailsPanel).add_class("open")
        self._end_on_signals()
        gc.collect()
        gc.freeze()  # what was imported stays: looking through it again and again is wasted
        gc.set_threshold(_GARBAGE_AFTER)
        self._source.listen(self._arrived)
        self._source.ask()
        self.set_interval(self._every_s, self._tick)
        self._show_facts()

    def _end_on_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):
            try:
                loop.add_signal_handler(number, self.exit)
            except (ValueError, RuntimeError):  # not in the main thread: a program that runs this view
                return

    def on_unmount(self) -> None:
        self._source.close()

    def on_resize(self) -> None:
        self._basis = None
        if self.ledger is not None:
            self.call_after_refresh(self._show)

    # ---- readings ----

    def _tick(self) -> None:
        waited = self._source.waiting_s
        if waited > self._deadline_s * _PATIENCE:
            self._trouble = f"the last reading has not ended for {waited:.0f} s: the driver or /proc hangs"
            self._show_facts()
        self._source.ask()

    def _arrived(self, reading: LiveReading) -> None:
        """Take a reading into the view. Whatever it says is a state, and no reason to end."""
        self._taken_at, self._ages_behind_s = reading.taken_at, reading.ages_behind_s
        self._trouble = reading.error or ""
        self._cpu_percent = reading.cpu_percent
        try:
            if reading.ledger is not None:
                shown = reading.ledger if self._narrow is None else self._narrow(reading.ledger)
                self._take(shown, reading.findings)
        except VramError as error:
            if self.ledger is None:
                self.failure = error
                self.exit()
                return
            self._trouble = str(error)
        with suppress(NoMatches):  # a view that is ending loses its panels one after the other
            if self.ledger is None:
                self._show_facts()
            else:
                now = self._clock()
                self.forecasts.take(self.ledger, now, failed=reading.error is not None)
                has_new_point = self.history.add(now, self._figures)
                if reading.ledger is not None:
                    self._show()
                else:
                    self._show_time(has_new_point)
        self.refreshes += 1

    def _take(self, ledger: Ledger, findings: tuple[Finding, ...]) -> None:
        self._rows = rows_by_job(ledger, ORPHANS)
        self.ledger, self.findings = ledger, findings
        self._figures = {key_of(row): row.nbytes or 0 for row in self._rows}
        if any(isinstance(row, JobRow) for row in self._rows):  # the tree has a line for each process
            self._figures |= {key_of(row): row.nbytes or 0 for row in rows(ledger)}
        for gpu in ledger.gpus:
            if gpu.total_bytes is not None:
                used = known_bytes(entry for entry in gpu.entries if entry.kind_facts.used)
                self._figures["gpu", gpu.index] = used

    def _ages(self) -> list[str]:
        """The ages as they would be shown now."""
        behind = self._ages_behind_s
        return [age(row.age_s + behind) for row in self._rows if row.age_s is not None]

    @property
    def options(self) -> RenderOptions:
        return RenderOptions(width=max(40, self.size.width), ascii=self._ascii, colored=not self.no_color)

    def _show(self) -> None:
        if self.ledger is None or not self.is_running:
            return
        self._show_facts()
        self._show_gpus()
        self._show_lines()
        self._show_problem()
        self._show_details()

    def _show_time(self, has_new_point: bool) -> None:
        """Show what changes by time alone: the clock, ages, and memory over time."""
        assert self.ledger is not None
        self._show_facts()
        if has_new_point:
            self._show_gpus()
        shown = (self._shown_ages, self._shown_cpu_percent)
        if has_new_point or (self._ages(), self._cpu_percent) != shown:
            self._draw_lines()

    def _show_gpus(self) -> None:
        assert self.ledger is not None
        age_s = self.forecasts.age_s(self._clock())
        full = [forecast_text(each, age_s) for each in self.forecasts.forecasts]
        self.query_one(GpuPanel).show(self.ledger, self.history, self.options, full)

    def _show_facts(self) -> None:
        options = self.options
        found = [Text.assemble((_fitting(self._facts(), options), "dim"))]
        for problem in self._state_lines():
            found.append(Text.assemble((options.short(problem, options.width), "bold red")))
        self.query_one("#facts", TextPanel).set_lines(found)

    def _facts(self) -> list[str]:
        """Where and when this was read, the most important first."""
        ledger = self.ledger
        if ledger is None:
            return ["vram top", "reading"]
        parts = ["vram top", ledger.host.name, f"{self._taken_at[11:19]} UTC"]
        if self.view.filters:
            parts.append(f"only {self.view.filters}")
        parts.append(counted(sum(max(1, len(row.identities)) for row in self._rows), "process"))
        parts.append(f"every {self._every_s:g} s")
        if ledger.driver and ledger.driver.driver_version:
            parts.append(f"driver {ledger.driver.driver_version}")
        if ledger.host.virtual:
            parts.append("virtual GPUs")
        return parts

    def _state_lines(self) -> list[str]:
        """What could not be read."""
        found = [self._trouble] if self._trouble else []
        if self.ledger is not None:
            found += unseen(self.ledger)
            if not self.ledger.gpus:
                found += [each.message for each in self.ledger.probes if each.name == "nvml" and each.message]
        return list(dict.fromkeys(found))[:2]

    def _show_lines(self) -> None:
        assert self.ledger is not None
        self._lines = lines(self.ledger, self._rows, self.view)
        self._draw_lines()

    def _draw_lines(self) -> None:
        table = self.query_one(ProcessTable)
        self._shown_ages, self._shown_cpu_percent = self._ages(), self._cpu_percent
        width = self._table_width()
        cells = trend_width(width)
        options = self.options._replace(width=width - cells - (1 if cells else 0))
        heading, texts = formatted(self._lines, self._ages_behind_s, self._cpu_percent, options)
        trends = [self._trend(line, cells) for line in self._lines]
        first = next((at for at, line in enumerate(self._lines) if line.row is not None), 0)
        table.set_lines([line.key for line in self._lines], texts, trends, first)
        header = self.query_one(TableHeader)
        header.set_heading(heading, self.view.sort, self.view.reverse, cells)

    def _table_width(self) -> int:
        table = self.query_one(ProcessTable)
        return max(40, table.scrollable_content_region.width or self.size.width)

    def _trend(self, line: ViewLine, width: int) -> str:
        if not width or line.row is None:
            return " " * width
        return trend(self.history.points(line.key), width, ascii_only=self._ascii)

    def _show_problem(self) -> None:
        problems = [each for each in self.findings if each.severity != "info"]
        shown = []
        if problems:
            more = f"  +{len(problems) - 1} more" if len(problems) > 1 else ""
            options = self.options
            first = problem_lines(problems[0], "", options._replace(width=options.width - len(more)))[0]
            shown = [first.append(more, style="dim")]
        self.query_one("#problem", TextPanel).set_lines(shown)

    # ---- the selected line ----

    @property
    def selected(self) -> ProcessRow | None:
        """The process under the cursor; None on the heading of a group."""
        key = self.query_one(ProcessTable).selected
        return next((line.row for line in self._lines if line.key == key), None)

    def _show_details(self) -> None:
        panel = self.query_one(DetailsPanel)
        row = self.selected
        if not panel.is_open or self.ledger is None:
            return
        width = max(40, self.size.width - 4)
        if row is None:
            now: tuple[object, ...] = (None, width)
        else:
            now = (key_of(row), width, basis(self.ledger, self.findings, row))
        if now == self._basis:
            return
        another = self._basis is None or now[0] != self._basis[0]
        self._basis = now
        if row is None:
            panel.show([Text("No process is selected.", style="dim")], width, from_top=True)
            return
        points = self.history.points(key_of(row))
        options = self.options._replace(width=width)
        parts = details(self.ledger, self.findings, row, points, options)
        panel.show(parts, width, from_top=another)

    def on_process_table_moved(self) -> None:
        with suppress(NoMatches):  # as above: messages come until the last panel has gone
            self._show_details()

    def on_process_table_opened(self) -> None:
        self.action_details()

    def on_table_header_clicked(self, message: TableHeader.Clicked) -> None:
        if message.column == self.view.sort:
            self.action_reverse()
        else:
            self._look(sort=message.column, reverse=False)

    # ---- what is shown: sorted, filtered, searched ----

    def _look(self, **changes: object) -> None:
        """Show another part of the same reading."""
        self.view = replace(self.view, **changes)
        if self.ledger is not None:
            self._show()

    def action_sort(self, by: int) -> None:
        at = (SORTS.index(self.view.sort) + by) % len(SORTS)
        self._look(sort=SORTS[at], reverse=False)

    def action_reverse(self) -> None:
        self._look(reverse=not self.view.reverse)

    def action_tree(self) -> None:
        self._look(tree=not self.view.tree)

    def action_filter(self, what: str) -> None:
        """Show only those that share this with the selected line; again, show all."""
        if getattr(self.view, what) is not None:
            self._look(**{what: None})
            return
        row = self.selected
        if row is None:
            return
        places = {
            "user": row.user,
            "state": row.state,
            "gpu": str(row.gpus[0]) if row.gpus else None,
        }
        if places[what] is not None:
            self._look(**{what: places[what]})

    def action_clear(self) -> None:
        box = self.query_one("#search", Input)
        box.value = ""
        box.remove_class("open")
        self.query_one(ProcessTable).focus()
        self._look(search="", user=None, gpu=None, state=None)

    def action_search(self) -> None:
        box = self.query_one("#search", Input)
        box.add_class("open")
        box.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        self._look(search=event.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if not event.value:
            event.input.remove_class("open")
        self.query_one(ProcessTable).focus()

    def action_details(self) -> None:
        self.query_one(DetailsPanel).toggle(self.query_one(ProcessTable))
        self._basis = None
        self.call_after_refresh(self._show)

    def action_switch(self) -> None:
        self.query_one(DetailsPanel).switch_focus(self.query_one(ProcessTable))

    def action_read_now(self) -> None:
        self._source.ask(whole=True)

    def on_key_bar_chosen(self, message: KeyBar.Chosen) -> None:
        self.simulate_key(message.key)

    def action_help(self) -> None:
        self.push_screen(Notice("keys", [help_text(self.options)], ascii_only=self._ascii))

    def action_leave(self) -> None:
        if self._busy:
            self.notify(f"{self._busy} is under way: wait until it is done", markup=False)
        else:
            self.exit()

    def action_sites(self) -> None:
        """The page of the selected process by place, where it is being recorded."""
        from vram.top.sites import FollowedTrace, SitesScreen
        from vram.trace.output import recorded_into

        row = self.selected
        trace = recorded_into(row.pid) if row is not None and row.pid is not None else None
        if row is None or trace is None:
            begin = "PID" if row is None or row.pid is None else str(row.pid)
            self.notify(f"it is not being recorded: `vram attach {begin}` begins", markup=False)
            return
        title = self.options.clean(f"pid {row.pid}: {row.command or ''}")
        self.push_screen(SitesScreen(FollowedTrace(file=trace), title, ascii_only=self._ascii))

    # ---- actions on processes ----

    def action_free_all(self) -> None:
        """Free caches and leftovers of what is shown, and of nothing else."""
        shown = self.ledger.gpus if self.ledger is not None and self._narrow is not None else ()
        if self._narrow is not None and not shown:
            self.notify("none of the chosen GPUs is there", markup=False)
        elif any(gpu.mig is not None for gpu in shown):
            self.notify("memory is freed by whole GPUs or by process: select a process", markup=False)
        else:
            self._begin(ActionRequest(name="free", gpus=tuple(gpu.index for gpu in shown)))

    def action_undo(self) -> None:
        """Bring back what was parked; of who is not, what a server released."""
        row = self.selected
        self.action_act("unpark" if row is not None and row.state == "parked" else "release --undo")

    def action_act(self, name: ActionName) -> None:
        row = self.selected
        if row is None or row.pid is None or row.state == "windows":
            self.notify("there is no process on this line", markup=False)
            return
        # One rank of an orphan is of no use without the others, and nobody starts it again.
        ends_job = name == "kill" and row.state == "orphan"
        self._begin(
            ActionRequest(
                name=name,
                pid=row.pid,
                started_at=row.started_at,
                others=row.identities[1:],
                job=ends_job,
            )
        )

    def _begin(self, request: ActionRequest) -> None:
        if self._read_only:
            self.notify(self._read_only, markup=False)
        elif self._busy:
            self.notify(f"{self._busy} is under way: wait until it is done", markup=False)
        else:
            self._busy = request.title
            self.run_worker(self._act(request), exit_on_error=True)

    async def _act(self, request: ActionRequest) -> None:
        """Plan, ask, run, and show the receipt; what is refused is shown, and nothing was touched."""
        try:
            await self._plan_and_run(request)
        finally:
            self._busy = ""
            self._source.ask(whole=True)

    async def _plan_and_run(self, request: ActionRequest) -> None:
        options = self.options._replace(width=min(106, max(40, self.size.width * 9 // 10 - 6)))
        title = self.options.clean(f"vram {request.title}")
        try:
            prepared = await asyncio.to_thread(self._prepare, request)
        except VramError as error:
            self.push_screen(Notice(title, [error_text(error, options)], ascii_only=self._ascii))
            return
        plan = prepared.shown(options)
        if not prepared.does_something:
            self.push_screen(Notice(title, [plan], ascii_only=self._ascii))
            return
        if not await self.push_screen_wait(Question(title, [plan], ascii_only=self._ascii)):
            self.notify("nothing was touched", markup=False)
            return
        dialog = Running(title, [plan, Text()], ascii_only=self._ascii)
        await self.push_screen(dialog)

        def on_line(line: RenderableType) -> None:
            # Where the view has ended meanwhile (its terminal was closed), what was agreed to goes on.
            with suppress(Exception):
                self.call_from_thread(dialog.add, line)

        try:
            result: RenderableType = await asyncio.to_thread(prepared.run, on_line, options)
        except VramError as error:
            result = error_text(error, options)
        dialog.finish(result)

    def _prepare(self, request: ActionRequest) -> PreparedAction:
        if self._host is None:
            self._host = self._open_host()
        return prepare(self._host, request, self._deadline_s)

    def on_key(self, event: events.Key) -> None:
        if event.key == "escape" and self.query_one("#search", Input).has_focus:
            self.action_clear()


def _fitting(parts: list[str], options: RenderOptions) -> str:
    """As many of *parts* as fit a line, the first ones first."""
    line = options.clean(parts[0])
    for part in parts[1:]:
        longer = line + options.clean(f" · {part}")
        if cell_len(longer) > options.width:
            break
        line = longer
    return line
