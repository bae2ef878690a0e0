"""``%load_ext vram``: GPU memory of this process, and what a cell gained and kept, in the notebook.

%vram            this process's GPU memory, and the largest arrays with who holds them
%vram flush      release caches and kept tracebacks, and report what was freed
%vram why        the whole machine, as `vram why` shows it
%%vram           run the cell, then report what it gained, what it kept, and why
%%vram timeline  record the cell: its memory over time, and the five largest places that allocated
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from typing import TYPE_CHECKING, Any

from vram.guard.cuda_errors import clear_frames_with_arrays
from vram.guard.scope import scope, where_gained
from vram.units import size

if TYPE_CHECKING:
    from vram.guard.live import Live, LiveArray
    from vram.guard.memory import Footprint
    from vram.model.leak import Leak
    from vram.model.trace import TraceView

MAX_ARRAYS = 15
WORDS = ("flush", "why")
TIMELINE = "timeline"
PLACES, WIDTH = 5, 100
AWAITS = "%%vram cannot measure a cell with await: use `async with vram.scope(...)` in it"


class Table:
    """Text in a terminal, HTML in a notebook. Every cell is escaped."""

    def __init__(
        self,
        title: str,
        rows: Sequence[tuple[str, ...]],
        notes: Sequence[str] = (),
        below: Table | None = None,
    ) -> None:
        from vram.report.escape import inert

        self.title, self.notes, self.below = title, [inert(note) for note in notes], below
        self.rows = [tuple(map(inert, row)) for row in rows]

    def __repr__(self) -> str:
        from vram.guard.live import format_rows, terminal_width, wrap

        width = terminal_width()
        lines = [line for row in format_rows(self.rows, width) for line in row] if self.rows else []
        for note in self.notes:
            lines += wrap(f"  note: {note}", width)
        if self.below is not None:
            lines.append(repr(self.below))
        return "\n".join([*wrap(self.title, width), *lines])

    def _repr_html_(self) -> str:
        rows = "".join(map(_html_row, self.rows))
        table = f"<table>{rows}</table>" if rows else ""
        notes = "".join(f"<p><em>{escape(note)}</em></p>" for note in self.notes)
        below = "" if self.below is None else self.below._repr_html_()
        return f"<div><strong>{escape(self.title)}</strong>{table}{notes}{below}</div>"


def _html_row(row: tuple[str, ...]) -> str:
    """Sizes are aligned right, so that they can be compared."""
    sides = ("right", *("left" for _ in row[1:]))
    cells = (
        f'<td style="text-align:{side}">{escape(cell)}</td>' for side, cell in zip(sides, row, strict=True)
    )
    return f"<tr>{''.join(cells)}</tr>"


def here() -> Table:
    """What this process holds now."""
    from vram.guard.live import live
    from vram.guard.memory import read_footprint

    now = read_footprint(thorough=True)
    if not now.charged:
        return Table("this process holds no GPU memory", [])
    arrays = live()
    return Table(
        f"this process holds {size(now.total)} of GPU memory",
        _split(now, arrays),
        below=Table("the largest arrays", _largest(arrays)) if len(arrays) else None,
    )


def _split(now: Footprint, arrays: Live) -> list[tuple[str, str, str]]:
    """Where all of it is, each byte once. Parts of zero bytes are left out."""
    from vram.guard.live import uncounted

    in_use = {**now.in_use, **uncounted(arrays)}
    outside = max(0, now.outside - sum(uncounted(arrays).values()))
    rows = [(nbytes, "in use", name) for name, nbytes in in_use.items()]
    rows.append((now.cached, "cached", "unused, freed by %vram flush"))
    rows.append((now.fragmented, "fragmented", "unused, but between live arrays"))
    rows.append((outside, "outside", "context, loaded code, raw allocations"))
    return [(size(nbytes), state, what) for nbytes, state, what in rows if nbytes]


def _largest(arrays: Live) -> list[tuple[str, str, str]]:
    """Each memory once, with who holds it."""
    from vram.guard.live import dtype_and_shape

    def text(array: LiveArray) -> str:
        where = "" if array.device is None else f" on GPU {array.device}"
        note = f" ({array.note})" if array.note else ""
        return f"{array.framework} {dtype_and_shape(array)}".rstrip() + where + note

    chosen = [each for each in arrays if not each.is_shared][:MAX_ARRAYS]
    return [(size(each.nbytes), text(each), str(each.holder)) for each in chosen]


def about(gained: int, leak: Leak | None, notes: list[str]) -> Table:
    """What a cell did to the GPU's memory."""
    if leak is None:
        change = f" (device memory changed by {size(gained)}, caches included)" if gained else ""
        return Table(f"the cell kept nothing{change}", [], notes)
    gains = [(size(gain.nbytes), "more in use", where_gained(gain, leak)) for gain in leak.gains]
    rows = gains + [(size(each.nbytes), each.what, each.holder) for each in leak.arrays]
    return Table(f"the cell kept {size(leak.nbytes)} of device memory", rows, [*notes, *leak.notes])


def line_magic(line: str) -> Any:
    """``%vram [flush|why]``."""
    word = line.strip()
    if not word:
        return here()
    if word == "flush":
        from vram.guard.flush import flush

        return flush()
    if word == "why":
        return _why()
    raise _usage_error(f"%vram: unknown option {word!r}; it takes nothing, or one of {', '.join(WORDS)}")


def _why() -> None:
    """Print what `vram why` prints; the driver is read by a process of its own."""
    from rich.console import Console

    from vram.accounting import why
    from vram.report.layout import RenderOptions
    from vram.report.screen import screen

    answer, console = why(), Console()
    console.print(screen(answer.ledger, answer.findings, RenderOptions(console.width)))


class Timeline:
    """What a cell asked of the driver, over time: a picture in a notebook, text in a terminal."""

    def __init__(self, view: TraceView) -> None:
        self.view = view

    def __repr__(self) -> str:
        import io

        from rich.console import Console

        from vram.guard.live import terminal_width
        from vram.report.layout import RenderOptions
        from vram.trace_report.charts import timeline
        from vram.trace_report.lines import ReportOptions
        from vram.trace_report.views import peak

        screen = RenderOptions(terminal_width() or WIDTH)
        options = ReportOptions(screen=screen, limit=PLACES)
        console = Console(file=io.StringIO(), width=screen.width, color_system=None)
        console.print(timeline(self.view, options))
        if self.view.peak:
            console.print(peak(self.view, options))
        return str(console.file.getvalue()).rstrip()  # type: ignore[attr-defined]

    def _repr_html_(self) -> str:
        from vram.trace_report.pages import fragment

        return fragment(self.view)


def _record(shell: Any, cell: str, around: Any) -> None:
    """Run *cell* while this process is recorded, and show its timeline."""
    from vram.errors import VramError
    from vram.trace.here import RecordingHere

    recording = RecordingHere()
    try:
        recording.start()
    except VramError as error:
        hint = f"; {error.hint}" if error.hint else ""
        raise _usage_error(f"%%vram timeline: {error}{hint}") from None
    try:
        raised = _run(shell, cell, around)
    finally:
        recording.stop()
    view = recording.view()
    if view is not None:
        _display(Timeline(view))
    if raised is not None:
        _fail(around, raised)


def load_ipython_extension(shell: Any) -> None:
    """Called by ``%load_ext vram``."""

    def cell_magic(line: str, cell: str) -> None:
        """Run *cell* in a scope; its error, if it has one, ends the cell as usual."""
        if _must_wait(shell, cell):
            raise _usage_error(AWAITS)
        around = shell.displayhook.exec_result
        if line.strip() == TIMELINE:
            _record(shell, cell, around)
            return
        with scope(line.strip() or "cell", leak="report", track=True) as opened:
            error = _run(shell, cell, around)
            gained = opened.gained()
        _display(about(gained, opened.leak, opened.notes))
        if error is not None:
            _fail(around, error)

    shell.register_magic_function(line_magic, "line", "vram")
    shell.register_magic_function(cell_magic, "cell", "vram")


def _must_wait(shell: Any, cell: str) -> bool:
    """Whether *cell* awaits, and the event loop that it needs is running this code (in a kernel it is)."""
    import asyncio

    try:
        asyncio.get_running_loop()
        transformed = shell.transform_cell(cell)
    except (RuntimeError, SyntaxError):  # errors in the cell are reported when it runs
        return False
    return bool(shell.should_run_async(cell, transformed_cell=transformed))


def _fail(around: Any, error: BaseException) -> None:
    """End the cell *around* the magic with *error*. It was shown already: raised, it would be shown again."""
    if around is None:
        raise error
    around.error_in_exec = error


def _usage_error(message: str) -> Exception:
    """IPython shows its own without a traceback."""
    from IPython.core.error import UsageError

    return UsageError(message)


def _run(shell: Any, cell: str, around: Any) -> BaseException | None:
    """Run the cell's text; return what it raised, with arrays cleared from its frames as in every scope."""
    with _numbered_as(around, shell):
        result = shell.run_cell(cell, store_history=False)
    error: BaseException | None = result.error_in_exec or result.error_before_exec
    if error is not None:
        clear_frames_with_arrays(error)
    return error


@contextmanager
def _numbered_as(around: Any, shell: Any) -> Iterator[None]:
    """Give code that runs inside the number of the cell *around*, which tracebacks show.

    IPython 9 increments the count before a cell runs; the cell's output has the number from before.
    """
    count = shell.execution_count

    def restore_count(*_: object) -> None:
        shell.execution_count = count

    shell.events.register("pre_run_cell", restore_count)
    shell.execution_count = getattr(around, "execution_count", None) or count
    try:
        yield
    finally:
        shell.events.unregister("pre_run_cell", restore_count)
        restore_count()


def _display(shown: Table | Timeline) -> None:
    from IPython.display import display

    display(shown)  # type: ignore[no-untyped-call]


def unload_ipython_extension(shell: Any) -> None:
    """Called by ``%unload_ext vram``."""
    for kind in ("line", "cell"):
        shell.magics_manager.magics[kind].pop("vram", None)
