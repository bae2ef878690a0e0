"""The page of a process that is being recorded: GPU memory by the place that allocated it, while it runs."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Protocol

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.css.query import NoMatches
from textual.screen import Screen

from vram.errors import VramError
from vram.model.trace import BLOCKS, ON_HOST, CallStack, LiveTrace, Site, stack_of
from vram.report.layout import RenderOptions
from vram.top.panels import DetailsPanel, History, KeyBar, TextPanel, sparkline
from vram.top.table import ProcessTable
from vram.trace.places import place
from vram.trace_report.lines import PlaceLabel, place_text
from vram.units import counted, duration, size

KEYS = (("q", "leave", "q"), ("d", "stack", "d"), ("b", "blocks of frameworks", "b"))
EVERY_S = 1.0
_TREND = 40
_MAX_LINES = 500
_OUTPUT_LINES = 8
_HEADING = f"{'LIVE':>10} {'SHARE':>6} {'COUNT':>9}  {'KIND':<14} PLACE"


class SitesSource(Protocol):
    """Where the figures come from: a trace that still grows, or a test."""

    def read(self) -> LiveTrace: ...
    def close(self) -> None: ...


class FollowedTrace:
    """A trace that is still written: the parts of *prefix*, of *run* alone where it is given, or one file."""

    def __init__(self, *, prefix: str | None = None, file: str | None = None, run: str | None = None) -> None:
        from vram.trace.reader import Follower
        from vram.trace.symbols import GrowingNames

        parts = [] if file is None else [Path(file)]
        self._follower = Follower(None if prefix is None else Path(prefix), parts, run=run)
        self._names = GrowingNames()

    def read(self) -> LiveTrace:
        self._follower.advance()
        return self._names.named(self._follower.live(), self._follower.builds)

    def close(self) -> None:
        self._follower.close()


class SitesScreen(Screen[None]):
    """Live memory by place, largest first; the stack of the selected place below; what the command prints."""

    CSS = """
    SitesScreen { layout: vertical; }
    #output { border-top: solid $primary; }
    #output.ascii { border-top: ascii $primary; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,escape", "leave", "leave"),
        Binding("enter,d", "details", "stack"),
        Binding("b", "blocks", "blocks of frameworks"),
        Binding("tab", "switch", "to the stack", show=False),
    ]

    def __init__(
        self,
        source: SitesSource,
        title: str,
        *,
        ascii_only: bool = False,
        output: Callable[[], Sequence[str]] | None = None,
        every_s: float = EVERY_S,
    ) -> None:
        """*output* returns the last lines that the command printed, where they are to be shown."""
        super().__init__()
        self._source = source
        self._heading = title
        self._ascii = ascii_only
        self._output = output
        self._every_s = every_s
        self._began = time.monotonic()
        self._history = History(every_s)
        self._frameworks = False
        self._reading = False
        self._rows: list[Site] = []
        self.now: LiveTrace | None = None
        self.state = ""
        self.trouble = ""

    def compose(self) -> ComposeResult:
        yield TextPanel(id="facts")
        yield TextPanel(id="gpus")
        yield TextPanel(id="heading")
        yield ProcessTable()
        yield DetailsPanel(classes="ascii" if self._ascii else "")
        if self._output is not None:
            panel = TextPanel(id="output")
            panel.set_class(self._ascii, "ascii")
            yield panel
        yield KeyBar(KEYS, id="keys")

    def on_mount(self) -> None:
        self.query_one("#heading", TextPanel).set_lines([Text(_HEADING, style="dim")])
        self.query_one(ProcessTable).focus()
        self.set_interval(self._every_s, self._tick)
        self._tick()

    def on_unmount(self) -> None:
        self._source.close()

    @property
    def options(self) -> RenderOptions:
        return RenderOptions(width=max(40, self.size.width), ascii=self._ascii)

    # ---- reading ----

    def _tick(self) -> None:
        if not self._reading:
            self._reading = True
            self.run_worker(self._read(), exit_on_error=True)

    async def _read(self) -> None:
        """In a thread: a long trace takes longer to catch up with than the terminal should wait."""
        try:
            self.now = await asyncio.to_thread(self._source.read)
            self.trouble = ""
        except VramError as error:
            self.trouble = str(error)
        finally:
            self._reading = False
        self.show_if_there()

    def show_if_there(self) -> None:
        """Draw, where there is a page: one that is being left loses its panels one after the other."""
        if self.is_mounted:
            with suppress(NoMatches):
                self.show()

    def show(self) -> None:
        """Draw what was read last."""
        options = self.options
        self.query_one("#facts", TextPanel).set_lines(self._facts(options))
        if self.now is not None:
            figures: dict[Hashable, int] = {each.gpu: each.end_nbytes for each in self.now.gpus}
            self._history.add(time.monotonic(), figures)
            self.query_one("#gpus", TextPanel).set_lines(self._gpu_lines(self.now, options))
            self._show_sites(self.now, options)
        if self._output is not None:
            lines = [Text(options.short(line, options.width), style="dim") for line in self._output()]
            self.query_one("#output", TextPanel).set_lines(lines[-_OUTPUT_LINES:])
        self._show_stack()

    def _facts(self, options: RenderOptions) -> list[Text]:
        parts = [self.state or duration(time.monotonic() - self._began)]
        if self.now is not None:
            parts += [counted(len(self.now.processes), "process"), f"{self.now.events:,} events"]
        figures = options.clean(" · ".join((*parts, "")))
        title = options.short(self._heading, max(10, options.width - len(figures)))
        line = Text.assemble((figures, "bold"), (title, ""))
        if self.trouble:
            return [line, Text(options.short(self.trouble, options.width), style="bold red")]
        if self.now is not None and not self.now.processes:
            return [line, Text("nothing is recorded yet: it has not used CUDA", style="dim")]
        return [line]

    def _gpu_lines(self, now: LiveTrace, options: RenderOptions) -> list[Text]:
        found = []
        for gpu in now.gpus:
            name = "GPU ?" if gpu.gpu is None else f"GPU {gpu.gpu}"
            points = self._history.points(gpu.gpu)
            trend = sparkline(points, _TREND, max(1, gpu.peak_nbytes), ascii_only=options.ascii)
            figures = f"{name}  {size(gpu.end_nbytes):>10} now  {size(gpu.peak_nbytes):>10} at the peak  "
            found.append(Text.assemble((figures, ""), (trend, "dim")))
        return found

    # ---- places ----

    def _show_sites(self, now: LiveTrace, options: RenderOptions) -> None:
        wanted = [site for site in now.sites if (site.kind in BLOCKS) == self._frameworks and site.nbytes > 0]
        self._rows = sorted(wanted, key=lambda site: -site.nbytes)[:_MAX_LINES]
        whole = sum(site.nbytes for site in wanted if site.kind not in ON_HOST) or 1
        stacks = [stack_of(now, site.stack) for site in self._rows]
        places = [place(stack) for stack in stacks]
        times = Counter(places)
        texts = [
            self._site_line(site, stack, whole, options, wraps=times[at] > 1)
            for site, stack, at in zip(self._rows, stacks, places, strict=True)
        ]
        keys: list[Hashable] = [(site.process, site.kind, site.gpu, site.stack) for site in self._rows]
        self.query_one(ProcessTable).set_lines(keys, texts, [""] * len(texts))

    def _site_line(
        self, site: Site, stack: CallStack, whole: int, options: RenderOptions, *, wraps: bool
    ) -> Text:
        """A place that *wraps* stands in several lines: there the caller says more."""
        share = "" if site.kind in ON_HOST else f"{100 * site.nbytes / whole:.0f} %"
        figures = f"{size(site.nbytes):>10} {share:>6} {site.count:>9,}  {site.kind:<14} "
        room = max(10, options.width - len(figures))
        return Text(figures).append(PlaceLabel.of_stack(stack, wraps=wraps).text(room, options))

    def _show_stack(self) -> None:
        panel = self.query_one(DetailsPanel)
        if not panel.is_open or self.now is None:
            return
        options = self.options._replace(width=max(40, self.size.width - 4))
        key = self.query_one(ProcessTable).selected
        stack = next(
            (row.stack for row in self._rows if (row.process, row.kind, row.gpu, row.stack) == key), -1
        )
        frames = stack_of(self.now, stack).frames
        lines = [place_text(frame, options.width, options) for frame in frames or (None,)]
        panel.show(lines, options.width, from_top=False)

    # ---- keys ----

    def action_details(self) -> None:
        self.query_one(DetailsPanel).toggle(self.query_one(ProcessTable))
        self.call_after_refresh(self.show)

    def action_switch(self) -> None:
        self.query_one(DetailsPanel).switch_focus(self.query_one(ProcessTable))

    def action_blocks(self) -> None:
        """Memory of the driver, or the blocks of frameworks in it."""
        self._frameworks = not self._frameworks
        self.show()

    def action_leave(self) -> None:
        self.dismiss()

    def on_process_table_moved(self) -> None:
        with suppress(NoMatches):  # messages come until the last panel has gone
            self._show_stack()

    def on_process_table_opened(self) -> None:
        self.action_details()

    def on_key_bar_chosen(self, message: KeyBar.Chosen) -> None:
        self.app.simulate_key(message.key)
