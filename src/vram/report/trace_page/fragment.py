"""A few lines of HTML for a notebook: memory over time, and the five largest places. No script in it."""

from __future__ import annotations

from html import escape

from vram.model.trace import ON_GPU, Frame, Gap, GpuUse, Site, TraceView, stack_of
from vram.report.trace_page.lanes import Level, lanes
from vram.report.trace_page.packages import NOTEBOOK, PROGRAM, executables, package
from vram.report.trace_page.phrases import moment, sentences, shortened
from vram.report.trace_places import NO_STACK, function_name
from vram.report.trace_words import gpu_name
from vram.units import size

WIDTH, HEIGHT, LEFT = 640, 90, 74
PLACES = 5
# Readable on white and on black: a notebook's theme is not known here.
COLORS = ("#4c8df0", "#1fa37f", "#d98324", "#a06bd6")
MUTED = "opacity:.7;font-size:90%"


def fragment(view: TraceView) -> str:
    """Return a ``<div>`` that shows *view* in a few lines, in the colours of the page around it."""
    lines = [_line(sentence.text) for sentence in sentences(view)[1:] if sentence.tone != "good"]
    levels = lanes(view)
    pictures = [
        _picture(view, use, levels[use.gpu], number)
        for number, use in enumerate(view.gpus)
        if use.gpu in levels
    ]
    return f'<div style="max-width:{WIDTH}px">{"".join(pictures)}{"".join(lines)}{_places(view)}</div>'


def _line(text: str) -> str:
    return f'<div style="{MUTED}">{escape(text)}</div>'


# ---- the timeline ----


def _picture(view: TraceView, use: GpuUse, points: list[Level], number: int) -> str:
    end = max(view.duration_ns, points[-1].time_ns, 1)
    most = max(1, *(point.highest for point in points))
    color = COLORS[number % len(COLORS)]
    what = escape(f"Memory of {gpu_name(use.gpu)} over {moment(end)}, peak {size(use.peak_nbytes)}")
    marks = "".join(
        f'<line x1="{_x(mark.time_ns, end)}" x2="{_x(mark.time_ns, end)}" y1="0" y2="{HEIGHT}" '
        f'stroke="currentColor" stroke-dasharray="3 3" opacity=".4"><title>{escape(shortened(mark.text))}'
        "</title></line>"
        for mark in view.marks[:100]
        if mark.time_ns <= end
    )
    gaps = "".join(_gap(gap, end) for gap in view.gaps if gap.start_ns < end)
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT + 4}" width="100%" role="img" aria-label="{what}" '
        f'style="font:12px system-ui,sans-serif"><title>{what}</title>'
        f'<path d="{_area(points, end, most)}" fill="{color}" opacity=".3"/>'
        f'<path d="{_band(points, end, most)}" fill="{color}" opacity=".7"/>'
        f'<line x1="{LEFT}" x2="{WIDTH}" y1="{HEIGHT}" y2="{HEIGHT}" stroke="currentColor" opacity=".4"/>'
        f"{gaps}{marks}"
        f'<text x="0" y="14" fill="currentColor">{escape(size(most))}</text>'
        f'<text x="0" y="{HEIGHT}" fill="currentColor">{escape(gpu_name(use.gpu))}</text></svg>'
    )


def _x(time_ns: int, end: int) -> str:
    return f"{LEFT + (WIDTH - LEFT) * time_ns / end:.1f}"


def _y(nbytes: int, most: int) -> str:
    return f"{4 + (HEIGHT - 4) * (1 - nbytes / most):.1f}"


def _steps(points: list[Level], name: str, end: int, most: int) -> list[str]:
    """Two corners for each point: it lasts until the next one."""
    ends = [point.time_ns for point in points[1:]] + [end]
    return [
        f"{_x(at, end)} {_y(getattr(point, name), most)}"
        for point, until in zip(points, ends, strict=True)
        for at in (point.time_ns, until)
    ]


def _area(points: list[Level], end: int, most: int) -> str:
    first = _x(points[0].time_ns, end)
    return f"M{first} {HEIGHT}L{'L'.join(_steps(points, 'highest', end, most))}V{HEIGHT}Z"


def _band(points: list[Level], end: int, most: int) -> str:
    lower = reversed(_steps(points, "lowest", end, most))
    return f"M{'L'.join(_steps(points, 'highest', end, most))}L{'L'.join(lower)}Z"


def _gap(gap: Gap, end: int) -> str:
    start = float(_x(max(0, gap.start_ns), end))
    until = float(_x(end if gap.end_ns is None else min(end, gap.end_ns), end))
    return (
        f'<rect x="{start}" width="{max(0.0, until - start):.1f}" y="0" height="{HEIGHT}" '
        'fill="currentColor" opacity=".15"><title>not recorded</title></rect>'
    )


# ---- the largest places ----


def _places(view: TraceView) -> str:
    """By what was live at the peak, or where nothing is known of that, by what was allocated."""
    at_peak = [site for site in view.peak if site.kind in ON_GPU]
    sites = at_peak or [site for site in view.allocations if site.kind in ON_GPU]
    largest = _by_stack(sites)[:PLACES]
    if not largest:
        return ""
    head = "The largest places at the peak" if at_peak else "The places that allocated most"
    rows = "".join(
        f'<tr><td style="text-align:right;white-space:nowrap">{escape(size(nbytes))}</td>'
        f'<td style="text-align:left">{_place(view, stack)}</td>'
        f'<td style="text-align:right;white-space:nowrap">{count:,} allocations</td></tr>'
        for stack, nbytes, count in largest
    )
    return f'<div style="font-weight:600">{head}</div><table>{rows}</table>'


def _by_stack(sites: list[Site]) -> list[tuple[int, int, int]]:
    """(stack, bytes, allocations), the largest first; all GPUs and processes together."""
    sums: dict[int, tuple[int, int]] = {}
    for site in sites:
        nbytes, count = sums.get(site.stack, (0, 0))
        sums[site.stack] = (nbytes + site.nbytes, count + site.count)
    return sorted(((stack, *both) for stack, both in sums.items()), key=lambda row: -row[1])


def _place(view: TraceView, stack: int) -> str:
    """The line of the program itself, and the innermost frame where that is another."""
    frames = stack_of(view, stack).frames
    if not frames:
        return NO_STACK
    programs = executables(view.processes)
    own = next((frame for frame in frames if package(frame, programs) in (PROGRAM, NOTEBOOK)), None)
    inner = next((frame for frame in frames if frame.language == "python"), frames[0])
    shown = [frame for frame in dict.fromkeys((own, inner)) if frame is not None]
    return f'<br><span style="{MUTED}">in '.join(map(_frame, shown)) + "</span>" * (len(shown) - 1)


def _frame(frame: Frame) -> str:
    file = "/".join(frame.file.split("/")[-2:])
    where = f"{file}:{frame.line}" if frame.language == "python" else file
    name = shortened(function_name(frame))
    return f"<code><bdi>{escape(name)}</bdi></code> <bdi>{escape(shortened(where))}</bdi>"
