"""A fleet on one screen: nodes in trouble by line, those that gave no answer by reason, the rest in sums."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from shlex import quote

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.text import Text

from vram.model.fleet import (
    FleetFree,
    FleetFreeReport,
    FleetGhost,
    FleetGpu,
    FleetNode,
    FleetReport,
    FleetShare,
    NodeState,
)
from vram.report.layout import RenderOptions, padded
from vram.report.process_table import age, ranges
from vram.units import counted, size

SCREEN_LINES = 24
"""As high as a terminal that says nothing about itself."""
_IN_TABLE = ("leftovers", "unexplained", "incomplete")
_HEADINGS = ("NODE", "GPU", "HELD", "LEFTOVER", "UNEXPL.", "FREE", "OLDEST", "STATE")
_WIDTHS = (0, 7, 9, 9, 9, 9, 6, 11)
_FRAME = 6  # blank lines, headings, the two lines of sums, and advice
_NARROWEST_NODE, _WIDEST_NODE = 11, 40
_STYLES: dict[NodeState, str] = {
    "leftovers": "bold red",
    "unexplained": "bold red",
    "incomplete": "yellow",
    "rejected": "bold red",
    "unread": "yellow",
    "ok": "",
}


def fleet(
    report: FleetReport,
    options: RenderOptions,
    *,
    height: int | None = SCREEN_LINES,
    every_node: bool = False,
) -> RenderableType:
    """Return the whole fleet in at most *height* lines (None: as many as it takes), or *every_node* of it."""
    lines = _heading(report, options)
    if report.by:
        return Group(*lines, Text(), *_share_lines(report, options, None if every_node else height))
    if every_node:
        return Group(*lines, Text(), *_everything(report.nodes, options))
    troubled = [node for node in report.nodes if node.state in _IN_TABLE]
    healthy = [node for node in report.nodes if node.state == "ok"]
    failed = list(_failures(report.nodes, options))
    room = None if height is None else max(4, height - len(lines) - _FRAME)
    failed, left = _fit_failures(failed, room, len(troubled))
    shown = troubled if left is None else troubled[: max(1, left)]
    table = [*shown, *healthy] if healthy else shown
    lines.append(Text())
    if troubled or healthy:
        width = _node_width([node.name for node in shown], options) if table else 0
        lines.append(_titles(width, options))
        lines += [_node_line(node, width, options) for node in shown]
        lines += _fold_nodes(troubled[len(shown) :], "more", width, options)
        lines += _fold_nodes(healthy, "ok", width, options)
    lines += failed
    return Group(*lines, *_advice(report, options))


# ---- above the table ----


def _heading(report: FleetReport, options: RenderOptions) -> list[Text]:
    all_of_it, states = report.sums, report.sums.states
    dot = options.clean(" · ")
    first = Text(no_wrap=True).append(
        f"{all_of_it.nodes:,} node{'s' * (all_of_it.nodes != 1)}{dot}{all_of_it.gpus:,} GPUs", style="bold"
    )
    first.append(
        f"{dot}{size(all_of_it.total_bytes)}: {size(all_of_it.held_bytes)} held,"
        f" {size(all_of_it.free_bytes)} free"
    )
    parts = []
    if states.get("leftovers"):
        left = size(all_of_it.leftover_bytes)
        parts.append(f"{left} left over on {counted(states['leftovers'], 'node')}")
    if all_of_it.unexplained_bytes:
        parts.append(f"{size(all_of_it.unexplained_bytes)} unexplained")
    unread = states.get("unread", 0) + states.get("rejected", 0)
    if unread:
        parts.append(f"{counted(unread, 'node')} not counted")
    words = options.short(dot.join(parts) or "no leftovers", options.width)
    second = Text(words, style="bold red" if parts else "green", no_wrap=True)
    return [first, second]


# ---- the table ----


def _node_width(names: Sequence[str], options: RenderOptions) -> int:
    room = options.width - sum(_WIDTHS) - len(_WIDTHS) + 1
    longest = max((cell_len(options.clean(name)) for name in names), default=4)
    return max(_NARROWEST_NODE, min(longest, room, _WIDEST_NODE))


def _titles(width: int, options: RenderOptions) -> Text:
    return Text(_row(_HEADINGS, width, options), style="dim", no_wrap=True)


def _row(cells: Sequence[str], width: int, options: RenderOptions) -> str:
    first, *rest = cells
    parts = [padded(options.short(first, width), width)]
    for cell, wide in zip(rest[:-1], _WIDTHS[1:-1], strict=True):
        parts.append(f"{options.short(cell, wide):>{wide}}")
    return " ".join([*parts, rest[-1]])


def _node_line(node: FleetNode, width: int, options: RenderOptions) -> Text:
    cells = (node.name, _places(node), *_figures(node.gpus), "")
    line = Text(_row(cells, width, options), no_wrap=True, overflow="ignore")
    line.append(node.state, style=_STYLES[node.state])
    if node.code is not None and node.state != "incomplete":
        line.append(", incomplete", style="yellow")
    return line


def _places(node: FleetNode) -> str:
    """The GPUs in question; where none is, how many there are."""
    troubled = [gpu.index for gpu in node.gpus if _is_troubled(gpu)]
    return ranges(troubled) if troubled else f"all {len(node.gpus)}"


def _is_troubled(gpu: FleetGpu) -> bool:
    return bool(gpu.leftover_bytes or gpu.unexplained_bytes or gpu.total_bytes is None)


def _figures(gpus: Sequence[FleetGpu]) -> tuple[str, ...]:
    ages = [gpu.oldest_ghost_s for gpu in gpus if gpu.oldest_ghost_s is not None]
    fields = ("held_bytes", "leftover_bytes", "unexplained_bytes", "free_bytes")
    return (*(_total(gpus, field) for field in fields), age(max(ages, default=None)))


def _total(gpus: Sequence[FleetGpu], field: str) -> str:
    known = [value for gpu in gpus if (value := getattr(gpu, field)) is not None]
    if not known:
        return "?"
    nbytes = sum(known)
    return size(nbytes) if nbytes or field in ("held_bytes", "free_bytes") else "-"


def _fold_nodes(nodes: Sequence[FleetNode], what: str, width: int, options: RenderOptions) -> list[Text]:
    """One line for many nodes."""
    if not nodes:
        return []
    gpus = [gpu for node in nodes for gpu in node.gpus]
    more = "+" if what.startswith("more") else ""
    cells = (f"{more}{len(nodes):,} {what}", f"{len(gpus):,}", *_figures(gpus), "")
    style = "dim" if more else "green"
    return [Text(_row(cells, max(width, _NARROWEST_NODE), options).rstrip(), style=style, no_wrap=True)]


# ---- nodes that are not counted, by reason ----


def _failures(nodes: Sequence[FleetNode], options: RenderOptions) -> Iterator[Text]:
    unread = sorted(
        (node for node in nodes if node.state in ("rejected", "unread")),
        key=lambda node: (node.state, node.code or ""),
    )
    for (state, code), group in groupby(unread, key=lambda node: (node.state, node.code)):
        members = list(group)
        line = Text(no_wrap=True, overflow="ignore")
        line.append(f"{code}: ", style=_STYLES[state])
        room = max(20, options.width - line.cell_len)
        yield line.append(options.short(_reason(members), room))


def _reason(members: Sequence[FleetNode]) -> str:
    if len(members) == 1:
        return f"{members[0].name}: {members[0].message or ''}"
    names = ", ".join(node.name[:60] for node in members[:6])
    more = f" and {len(members) - 6:,} more" if len(members) > 6 else ""
    return f"{len(members):,} nodes: {names}{more}"


def _fit_failures(failed: list[Text], room: int | None, rows: int) -> tuple[list[Text], int | None]:
    """Which lines about failures fit, and how many rows then do; None: all of them."""
    if room is None:
        return failed, None
    most = max(3, room // 2, room - rows)
    if len(failed) > most:
        hidden = Text(f"+{len(failed) - most + 1} more reasons: vram fleet -v", style="dim")
        failed = [*failed[: most - 1], hidden]
    return failed, room - len(failed)


def _advice(report: FleetReport, options: RenderOptions) -> list[Text]:
    left = [node for node in report.nodes if node.state == "leftovers"]
    if not left:
        return []
    name = options.clean(quote(left[0].name))
    # To the command that was typed: its options say where the nodes are, and how they are reached.
    words = Text("Look: add ", no_wrap=True, overflow="ignore").append(f"--node {name}", style="bold")
    if report.source != "recorded":  # those cannot be acted on
        words.append("   Get it back: add ").append("free", style="bold")
    return [Text(), words]


# ---- every node, and every GPU of it ----


def _everything(nodes: Sequence[FleetNode], options: RenderOptions) -> Iterator[Text]:
    width = _node_width([node.name for node in nodes], options)
    yield _titles(width, options)
    for node in nodes:
        if node.state in ("rejected", "unread"):
            head = Text(padded(options.short(node.name, width), width), no_wrap=True, overflow="ignore")
            head.append(f" {node.state}, {node.code}: ", style=_STYLES[node.state])
            yield head.append(options.clean(node.message or ""))
            continue
        yield _node_line(node, width, options)
        for gpu in node.gpus:
            yield _gpu_line(gpu, width, options)
        for ghost in node.ghosts:
            yield _ghost_line(ghost, options)
        if node.message:
            yield Text(f"  {options.clean(node.message)}", style="yellow", overflow="ignore")


def _gpu_line(gpu: FleetGpu, width: int, options: RenderOptions) -> Text:
    cells = ("", str(gpu.index), *_figures((gpu,)), "")
    line = Text(_row(cells, width, options), style="" if _is_troubled(gpu) else "dim", no_wrap=True)
    return line.append("" if gpu.status == "ok" else gpu.status, style="yellow")


def _ghost_line(ghost: FleetGhost, options: RenderOptions) -> Text:
    nbytes = "unknown" if ghost.nbytes is None else size(ghost.nbytes)
    owner = f" of dead pid {ghost.dead_pids[0]}" if ghost.dead_pids else ""
    held = "no visible process" if ghost.pid is None else f"pid {ghost.pid} {ghost.user or ''}".rstrip()
    likely = "" if ghost.certain else "likely "
    words = f"GPU {','.join(ghost.places)}: {nbytes}{owner}, {likely}held by {held}"
    line = Text("  ghost  ", style="bold red", no_wrap=True, overflow="ignore")
    line.append(options.short(words, max(20, options.width - 9)) + " ")
    return line.append(options.short(ghost.command or "", max(0, options.width - line.cell_len)), style="dim")


# ---- --by ----


def _share_lines(report: FleetReport, options: RenderOptions, height: int | None) -> Iterator[Text]:
    shares = report.shares
    most = len(shares) if height is None else max(4, height - 6)
    shown = shares if len(shares) <= most else shares[: most - 1]
    longest = max((cell_len(options.clean(_share_name(each, report))) for each in shown), default=4)
    width = max(8, min(longest, options.width - 48))
    heading = (padded(str(report.by).upper(), width), "HELD", "LEFTOVER", "GPUS", "NODES", "PROCESSES")
    yield Text(_share_row(heading), style="dim", no_wrap=True)
    for each in shown:
        name = padded(options.short(_share_name(each, report), width), width)
        left = size(each.leftover_bytes) if each.leftover_bytes else "-"
        cells = (size(each.held_bytes), left, f"{each.gpus:,}", f"{each.nodes:,}", f"{each.processes:,}")
        line = Text(_share_row((name, *cells)), no_wrap=True)
        if each.leftover_bytes:
            line.stylize("bold red", width + 12, width + 22)
        yield line
    hidden = shares[len(shown) :]
    if hidden:
        held = size(sum(each.held_bytes for each in hidden))
        yield Text(f"+{len(hidden):,} more, {held}: vram fleet --by {report.by} -v", style="dim")
    if not shares:
        yield Text("No process holds GPU memory.")


def _share_name(share: FleetShare, report: FleetReport) -> str:
    return share.name or ("user unknown" if report.by == "user" else f"in no {report.by}")


def _share_row(cells: Sequence[str]) -> str:
    first, *rest = cells
    return " ".join([first, *(f"{cell:>{wide}}" for cell, wide in zip(rest, (11, 10, 7, 7, 9), strict=True))])


# ---- `vram fleet free` ----

_MAX_UNREAD = 8
_FREE_STYLES = {"freed": "green", "planned": "bold", "nothing": "dim"}


def free(report: FleetFreeReport, options: RenderOptions) -> RenderableType:
    """Return each node's plan with its digest, or what came of it."""
    unread = [node for node in report.nodes if node.state == "unread"]
    acting = [node for node in report.nodes if node.state not in ("nothing", "unread")]
    acting, unread = [*acting, *unread[:_MAX_UNREAD]], unread[_MAX_UNREAD:]
    width = min(30, max((cell_len(options.clean(node.name)) for node in acting), default=4))
    lines = [line for node in acting for line in _free_lines(node, width, options)]
    if unread:
        lines.append(Text(f"+{len(unread):,} more nodes that gave no answer: vram fleet -v", style="yellow"))
    idle = len(report.nodes) - len(acting) - len(unread)
    if idle:
        lines.append(Text(f"{counted(idle, 'node')} with nothing to free", style="dim"))
    return Group(*lines, *([Text()] if lines else []), _free_sum(report, options))


def _free_lines(node: FleetFree, width: int, options: RenderOptions) -> Iterator[Text]:
    line = Text(padded(options.short(node.name, width), width), no_wrap=True, overflow="ignore")
    line.append(f" {node.state}", style=_FREE_STYLES.get(node.state, "bold red"))
    if node.state == "planned" and node.digest:
        promised = "unknown" if node.promised_bytes is None else size(node.promised_bytes)
        line.append(f"  {promised}  plan {options.clean(node.digest[:12])}")
    elif node.state in ("freed", "partly"):
        line.append("  not measured" if node.returned_bytes is None else f"  {size(node.returned_bytes)}")
    yield line
    for step in node.steps if node.state == "planned" else ():
        yield Text(f"  {options.short(step, options.width - 2)}", style="dim", no_wrap=True)
    for words in (node.message, node.hint and f"hint: {node.hint}"):
        if words:
            yield Text(f"  {options.clean(words)}", style="yellow", overflow="fold")


def _free_sum(report: FleetFreeReport, options: RenderOptions) -> Text:
    planned = [node for node in report.nodes if node.state == "planned"]
    failed = [node for node in report.nodes if node.state in ("refused", "unread", "partly")]
    trouble = options.clean(f" · {counted(len(failed), 'node')} not freed") if failed else ""
    if report.executed:
        return Text(f"freed {size(report.returned_bytes or 0)}{trouble}", style="bold")
    if not planned:
        return Text(f"Nothing to free.{trouble}", style="bold")
    promised = sum(node.promised_bytes or 0 for node in planned)
    steps = counted(sum(len(node.steps) for node in planned), "step")
    words = f"{steps} on {counted(len(planned), 'node')}, expected to free {size(promised)}{trouble}"
    return Text(words, style="bold")
