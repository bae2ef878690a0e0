"""A trace as HTML: one page that fetches nothing, and a few lines for a notebook without any script."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from hashlib import sha256
from html import escape
from pathlib import Path

from vram.model.trace import ON_GPU, Frame, Gap, GpuUse, Site, TraceView, stack_of
from vram.report.escape import inert
from vram.trace.places import NO_STACK, function_name, shown_frames
from vram.trace_report.page_data import Level, content, lanes
from vram.trace_report.windows import answers, page_sentences
from vram.trace_report.words import gpu_name, page_moment, sentences, shortened
from vram.units import size

FOLDER = Path(__file__).with_name("page")
KIT = Path(__file__).parents[1] / "report" / "web"
"""What this page shares with that of ``vram serve``."""
STYLES = (KIT / "kit.css", FOLDER / "page.css")
SCRIPTS = (
    KIT / "kit.js",
    *(FOLDER / f"{name}.js" for name in ("data", "state", "timeline", "flame", "places", "sections", "page")),
)

# In JSON these can stand only inside strings, where the spelled form means the same. HTML then finds
# neither the end of the script nor the beginning of a comment in them.
_SPELLED = str.maketrans({char: f"\\u{ord(char):04x}" for char in "<>&"})


def page(view: TraceView, *, title: str) -> str:
    """Return an HTML document of *view* that works without a network.

    Names, files and commands of the trace may be hostile: they are inert text in it, and its policy
    allows no script and no style but its own, and no request at all.
    """
    style = "".join(path.read_text("utf-8") for path in STYLES)
    scripts = "".join(path.read_text("utf-8") for path in SCRIPTS)
    # All in one scope: there is nothing to export to.
    scripts = re.sub(r"^export ", "", scripts, flags=re.MULTILINE)
    script = f"(() => {{\n{scripts}}})();\n"
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    parts = {
        "title": escape(inert(title)),
        "policy": policy,
        "style": style,
        "script": script,
        "data": data(view, title),
    }
    template = (FOLDER / "page.html").read_text("utf-8")
    # In one pass: what is put in is not searched again.
    return re.sub(r"\{\{(\w+)\}\}", lambda slot: parts[slot[1]], template)


def data(view: TraceView, title: str) -> str:
    """The figures as ASCII JSON that is inert inside HTML."""
    whole = {"title": inert(title), **content(view)}
    return json.dumps(whole, ensure_ascii=True, allow_nan=False, separators=(",", ":")).translate(_SPELLED)


def _digest(text: str) -> str:
    return "sha256-" + b64encode(sha256(text.encode()).digest()).decode()


# ---- a few lines for a notebook ----

WIDTH, HEIGHT, LEFT = 640, 90, 74
PLACES = 5
# Readable on white and on black: a notebook's theme is not known here.
COLORS = ("#4c8df0", "#1fa37f", "#d98324", "#a06bd6")
MUTED = "opacity:.7;font-size:90%"


def fragment(view: TraceView) -> str:
    """Return a ``<div>`` that shows *view* in a few lines, in the colours of the page around it."""
    said = sentences(view, page_sentences(view))[1:]
    lines = [_line(sentence.text) for sentence in said if sentence.tone != "good"]
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
    what = escape(f"Memory of {gpu_name(use.gpu)} over {page_moment(end)}, peak {size(use.peak_nbytes)}")
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
    if not at_peak:
        at_peak = [each.site for window in answers(view) for each in window.places if each.site.count]
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
    """The program's own line, who called it where it is a wrapper, and the innermost line of Python."""
    frames = stack_of(view, stack).frames
    own, calling = shown_frames(view, stack_of(view, stack))
    if own is None:
        return NO_STACK
    lines = [_frame(own)]
    if calling is not None:
        lines.append(f"called by {_frame(calling)}")
    inner = next((frame for frame in frames if frame.language == "python"), None)
    if inner is not None and inner != own:
        lines.append(f"in {_frame(inner)}")
    return f'<br><span style="{MUTED}">'.join(lines) + "</span>" * (len(lines) - 1)


def _frame(frame: Frame) -> str:
    file = "/".join(frame.file.split("/")[-2:])
    where = f"{file}:{frame.line}" if frame.has_line else file
    name = shortened(function_name(frame))
    return f"<code><bdi>{escape(name)}</bdi></code> <bdi>{escape(shortened(where))}</bdi>"
