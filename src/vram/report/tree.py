"""``vram who`` for people: the tree of holders, what each holds, in as many lines as it needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.text import Text

from vram.report.layout import RenderOptions, label
from vram.report.phrases import command, identity, parked_process, windows_process
from vram.report.process_tree import HeldBytes, ProcessGroup, ProcessNode, WhoReport
from vram.units import size

_SIZE_COLUMNS = 12
_MAX_FAMILY_LENGTH = 24


def who(report: WhoReport, options: RenderOptions) -> RenderableType:
    """Return a block for every group, the named ones first."""
    lines: list[Text] = []
    for group in report.groups:
        lines += [*_group(group, report.by, options), Text()]
    windows = [held for held in report.unnamed if held.windows]
    lines += _unnamed("Windows programs", windows, options)
    together = [held for held in report.unnamed if held.sharing == "together"]
    lines += _unnamed("together, of the processes above whose size is unknown", together, options)
    unclaimed = [held for held in report.unnamed if not held.windows and held not in together]
    lines += _unnamed("charged to no process", unclaimed, options)
    lines += _parked(report, options)
    if report.free_command:
        lines += [Text(options.clean(f"To free what dead owners left: {report.free_command}")), Text()]
    if not lines:
        return Text("No process holds GPU memory or has a GPU's files open.")
    return Group(*lines[:-1])


def family(report: WhoReport, pid: int, options: RenderOptions, *, brief: bool = False) -> list[Text]:
    """Return the tree that *pid* belongs to; nothing where it is alone. *brief*: a line for each process."""
    trees = ((group, root) for group in report.groups for root in group.processes)
    found = next(((group, root) for group, root in trees if root.children and pid in _pids(root)), None)
    if found is None:
        return []
    group, root = found
    lines = [_line("", "", Text(options.short(group.name, options.width)))] if group.name else []
    lines += _node(root, "", True, options, brief)
    more = len(lines) - _MAX_FAMILY_LENGTH
    if more > 1:
        lines[_MAX_FAMILY_LENGTH:] = [_line("", "", Text(f"{more} lines more: vram who", style="dim"))]
    return lines


def _pids(node: ProcessNode) -> Iterator[int]:
    yield node.holder.pid
    for child in node.children:
        yield from _pids(child)


def _parked(report: WhoReport, options: RenderOptions) -> Iterator[Text]:
    if report.parked:
        yield _line("", "", Text("parked: paused, in host memory", style="bold"))
        for process in report.parked:
            words = options.short(parked_process(process), options.width - _SIZE_COLUMNS - 3)
            yield _line("", "   ", Text(words))
        yield Text()


def _unnamed(heading: str, holds: Sequence[HeldBytes], options: RenderOptions) -> Iterator[Text]:
    if holds:
        yield _line(size(sum(held.nbytes or 0 for held in holds)), "", Text(heading, style="bold"))
        for held in holds:
            words = options.short(_held_text(held), options.width - _SIZE_COLUMNS - 3)
            yield _line("", "   ", Text(words, style="dim"))
        yield Text()


def _group(group: ProcessGroup, by: str | None, options: RenderOptions) -> Iterator[Text]:
    name = group.name or (f"no {by} known" if by else "outside of containers and jobs")
    heading = Text(options.short(name, options.width - _SIZE_COLUMNS), style="bold")
    yield _line(_amount(group), "", heading)
    for at, node in enumerate(group.processes, 1):
        yield from _node(node, "", at == len(group.processes), options)


def _amount(group: ProcessGroup) -> str:
    if not group.at_least:
        return size(group.nbytes)
    return f"{size(group.nbytes)}+" if group.nbytes else "unknown"


def _node(
    node: ProcessNode, prefix: str, is_last: bool, options: RenderOptions, brief: bool = False
) -> Iterator[Text]:
    below = prefix + ("   " if is_last else options.clean("│  "))
    fork = options.clean("└─ " if is_last else "├─ ")
    own = sum(held.nbytes or 0 for held in node.holds if held.shared_with is None and held.kind != "system")
    room = options.width - _SIZE_COLUMNS - len(below)
    yield _line(size(own) if own else "", prefix + fork, _who(node, room, options))
    stem = below + options.clean("│  " if node.children else "   ")
    for fact in () if brief else _facts(node):
        for part in wrap(options.clean(fact), max(12, room - 3)):
            yield _line("", stem, Text(part, style="dim"))
    for at, child in enumerate(node.children, 1):
        yield from _node(child, below, at == len(node.children), options, brief)


def _who(node: ProcessNode, room: int, options: RenderOptions) -> Text:
    dot = options.clean(" · ")
    words = options.clean(" · ".join(identity(node.holder, origin=False)))
    who = Text(
        options.short(words, room), style="red" if node.holder.visible and not node.holder.alive else ""
    )
    line = command(node.holder)
    rest = room - cell_len(words) - len(dot)
    if line and (rest >= 8 or not options.cut):
        who.append(dot).append(options.short(line, rest), style="bold")
    return who


def _facts(node: ProcessNode) -> Iterator[str]:
    if not node.holder.visible:
        yield "not visible from here; it may still be running"
    elif not node.holder.alive:
        below = ": the processes below hold its files" if node.children else "; its holder is not known"
        yield f"dead, but the driver still charges it{below}"
    elif orphaned := [held for held in node.holds if held.kind == "orphaned"]:
        yield _inherited(node, orphaned)
    elif node.inherited_from is not None:
        yield f"inherited the files of pid {node.inherited_from}: ending that one alone frees nothing"
    elif any(child.mps_server == node.holder.pid for child in node.children):
        yield "MPS server of the processes below: they all fail if it ends"
    elif node.mps_server is not None:
        yield f"client of MPS server pid {node.mps_server}"
    elif not node.holds and node.exported_bytes is None:
        yield "has GPU files open, holds no memory"
    if node.exported_bytes is not None:
        yield f"has a handle on {size(node.exported_bytes)} that is charged to the process that allocated it"
    for held in node.holds:
        yield _held_text(held)


def _inherited(node: ProcessNode, orphaned: list[HeldBytes]) -> str:
    if node.inherited_from is None:
        return "may hold files inherited by fork from a dead process"
    likely = "" if all(held.certain for held in orphaned) else "most likely "
    return f"{likely}holds the files of pid {node.inherited_from}, inherited by fork"


def _held_text(held: HeldBytes) -> str:
    if held.medium == "shared" and held.shared_with is not None and held.nbytes is not None:
        return f"GPU {held.gpu}: shares part of the {size(held.nbytes)} of pid {held.shared_with}"
    shared = f", the same bytes as pid {held.shared_with}" if held.shared_with is not None else ""
    if held.sharing == "one":
        shared = f", this one or pid {held.shared_with}" if shared else ", this one or another"
    if held.nbytes is None:
        return f"GPU {held.gpu}: unknown size{shared}"
    if held.windows:
        return f"GPU {held.gpu}: {size(held.nbytes)} {' · '.join(windows_process(held.windows))}"
    kind = "of the machine's memory" if held.kind == "system" else label(held.kind)
    if held.medium == "shared":
        kind += ", shared with other clients"
    place = f"GPU {held.gpu}" if held.mig is None else f"MIG {held.mig}"
    return f"{place}: {size(held.nbytes)} {kind}{shared}"


def _line(nbytes: str, stem: str, body: Text) -> Text:
    line = Text(f"{nbytes:>10}  ", no_wrap=True, overflow="ignore")
    return line.append(stem, style="dim").append_text(body)
