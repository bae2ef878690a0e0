"""Which lines the view shows, sorted, filtered, as a table or a tree; and everything about one of them."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace
from rich.console import RenderableType
from rich.text import Text

from vram.ledger.processes import concerning, findings_about
from vram.model.finding import Finding
from vram.model.hold import STATES
from vram.model.ledger import Ledger
from vram.report import text, tree
from vram.report.layout import RenderOptions, paragraph
from vram.report.phrases import membership, parked_process
from vram.report.process_rows import JobRow, ProcessRow, in_order, row_of_files, rows
from vram.report.process_table import command_line, gpu_names, row_size
from vram.report.process_tree import ProcessNode, who
from vram.top.panels import trend
from vram.units import size

SORTS = ("trouble", "gpu", "size", "pid", "user", "age", "state", "command")
# Those without a pid are no node of the tree.
_Rows = dict[tuple[int | None, int | None], ProcessRow]
_NO_GROUP = "outside of containers and jobs"
_OTHERS = "memory without a visible process, and parked processes"


class ViewState(Struct, frozen=True, kw_only=True):
    """What the user chose to see."""

    sort: str = "trouble"
    reverse: bool = False
    tree: bool = False
    search: str = ""
    user: str | None = None
    gpu: str | None = None
    state: str | None = None

    @property
    def filters(self) -> str:
        """The filters in words; empty where everything is shown."""
        parts = [
            f"{name} {value}"
            for name, value in (("user", self.user), ("GPU", self.gpu), ("state", self.state))
            if value is not None
        ]
        return ", ".join(parts + ([f"search {self.search!r}"] if self.search else []))

    def matches(self, row: ProcessRow) -> bool:
        """Whether *row* passes every filter; each word of the search occurs somewhere in it."""
        if self.user is not None and row.user != self.user:
            return False
        if self.state is not None and row.state != self.state:
            return False
        if self.gpu is not None and self.gpu not in map(str, row.gpus):
            return False
        if not self.search:
            return True
        pids = " ".join(str(pid) for pid, _ in row.identities)
        words = (pids, row.user, row.command, row.note, row.group, row.state)
        text = " ".join(word for word in words if word).casefold()
        return all(word in text for word in self.search.casefold().split())


class ViewLine(NamedTuple):
    """One line: a process, or the heading of a group in the tree. ``key`` stays the same between readings."""

    key: Hashable
    row: ProcessRow | None
    heading: str = ""
    in_tree: bool = False
    """Whether the heading stands among the commands, as a branch of the tree."""


def key_of(row: ProcessRow) -> Hashable:
    """What tells this row's process, or job, from every other one, dead or alive."""
    if isinstance(row, JobRow) and row.job is not None:
        return ("job", row.job.key, row.state)
    if row.pid is None:
        return (row.state, row.places, row.note)
    return (row.pid, row.started_at)


def lines(ledger: Ledger, found: Sequence[ProcessRow], view: ViewState) -> list[ViewLine]:
    """Return the lines of *ledger*, whose rows are *found*, that *view* asks for."""
    if view.tree:
        return list(_tree(ledger, view))
    shown = (row for row in found if view.matches(row))
    return [ViewLine(key_of(row), row) for row in in_order(tuple(shown), view.sort, reverse=view.reverse)]


# ---- the tree: container or job, then family ----


def _tree(ledger: Ledger, view: ViewState) -> Iterator[ViewLine]:
    found = rows(ledger, every_process=True)
    by_process: _Rows = {(row.pid, row.started_at): row for row in found}
    placed: set[Hashable] = set()
    for group in who(ledger).groups:
        nodes = list(_nodes(group.processes, by_process, view, placed))
        if nodes:
            name = group.name or _NO_GROUP
            yield ViewLine(("group", name), None, f"{name}: {size(group.nbytes)}")
            yield from nodes
    others = [row for row in found if key_of(row) not in placed and view.matches(row)]
    if others:
        yield ViewLine(("group", None), None, _OTHERS)
        for at, row in enumerate(others, 1):
            yield ViewLine(key_of(row), _indent(row, "└─ " if at == len(others) else "├─ "))


def _nodes(
    nodes: Sequence[ProcessNode],
    by_process: _Rows,
    view: ViewState,
    placed: set[Hashable],
    stem: str = "",
) -> Iterator[ViewLine]:
    """The lines of *nodes* and what is below them; a branch without a match is left out."""
    kept: list[tuple[ProcessRow, ProcessNode]] = []
    for node in nodes:
        row = by_process.get((node.holder.pid, node.holder.started_at)) or _without_row(node)
        placed.add(key_of(row))
        if _has_match(node, row, by_process, view):
            kept.append((row, node))
        else:
            placed.update(_keys_below(node))
    for at, (row, node) in enumerate(kept, 1):
        last = at == len(kept)
        fork = stem + ("└─ " if last else "├─ ")
        if node.holder.alive:
            yield ViewLine(key_of(row), _indent(row, fork))
        else:
            yield ViewLine(key_of(row), None, f"{fork}pid {node.holder.pid}: {row.note}", in_tree=True)
        yield from _nodes(node.children, by_process, view, placed, stem + ("   " if last else "│  "))


def _has_match(
    node: ProcessNode,
    row: ProcessRow,
    by_process: _Rows,
    view: ViewState,
) -> bool:
    if view.matches(row):
        return True
    below = (
        (by_process.get((child.holder.pid, child.holder.started_at)) or _without_row(child), child)
        for child in node.children
    )
    return any(_has_match(child, child_row, by_process, view) for child_row, child in below)


def _keys_below(node: ProcessNode) -> Iterator[Hashable]:
    for child in node.children:
        yield (child.holder.pid, child.holder.started_at)
        yield from _keys_below(child)


def _without_row(node: ProcessNode) -> ProcessRow:
    """A process that the table counts in another row: a co-holder, or a dead parent."""
    holder = node.holder
    shared = next((held.shared_with for held in node.holds if held.shared_with is not None), None)
    if not holder.alive:
        below = "those below hold its memory" if node.children else "its holder is not known"
        note = f"dead; {below}" if holder.visible else "not visible from here"
    else:
        note = f"holds the same bytes as pid {shared}" if shared is not None else ""
    return replace(
        row_of_files(holder, "open" if holder.alive else "hidden", note),
        gpus=tuple(dict.fromkeys(held.gpu for held in node.holds)),
        places=tuple(dict.fromkeys(held.mig or str(held.gpu) for held in node.holds)),
        group=None,
    )


def _indent(row: ProcessRow, stem: str) -> ProcessRow:
    return replace(row, command=f"{stem}{command_line(row)}")


# ---- everything about one line: memory over time, evidence, cause, family, what can be done ----


_WIDEST_TREND = 60


def basis(ledger: Ledger, findings: tuple[Finding, ...], row: ProcessRow) -> Hashable:
    """What the details of *row* are made of: while it is equal, they need not be drawn again."""
    if row.pid is None:
        return (row, tuple(each for each in findings if _is_about(each, row)))
    # Of a GPU only what is the process's own: how much of it is in use changes all the time.
    own = tuple(
        (gpu.index, gpu.entries, gpu.open_only, gpu.system) for gpu in concerning(ledger, row.pid).gpus
    )
    parked = tuple(each for each in ledger.parked if each.pid == row.pid)
    job = (row.identities, row.nbytes) if isinstance(row, JobRow) else membership(ledger, row.pid)
    return (row.note, row.state, own, findings_about(findings, row.pid), parked, job)


def details(
    ledger: Ledger,
    findings: tuple[Finding, ...],
    row: ProcessRow,
    points: Sequence[int],
    options: RenderOptions,
) -> list[RenderableType]:
    """Return the same as `vram why PID`, below what the line itself says and its memory over time."""
    blocks: list[RenderableType] = [*_summary(row, points, options)]
    if row.pid is None:
        about = tuple(each for each in findings if _is_about(each, row))
        return [*blocks, *text.process_blocks(concerning(ledger, -1), about, options)]
    for process in ledger.parked:
        if process.pid == row.pid:
            blocks.append(paragraph("", parked_process(process), options))
    if isinstance(row, JobRow):
        blocks.append(Text(f"pid {row.pid}, the first of them:", style="bold"))
    elif job := membership(ledger, row.pid):
        blocks.append(paragraph("", job, options))
    theirs = concerning(ledger, row.pid)
    about = findings_about(findings, row.pid)
    family = tree.family(who(ledger), row.pid, options)
    return [*blocks, *text.process_blocks(theirs, about, options, family=family)]


def _summary(row: ProcessRow, points: Sequence[int], options: RenderOptions) -> Iterator[RenderableType]:
    facts = STATES[row.state]
    pids = ", ".join(str(pid) for pid, _ in row.identities)
    name = f"pid {pids}" if pids else facts.label
    yield Text.assemble(
        (name, "bold"),
        options.clean(f" · {row_size(row)} on GPU {gpu_names(row)} · {facts.label}: {facts.meaning}"),
    )
    if row.command:
        yield Text(options.short(command_line(row), options.measure * 2), style="bold", overflow="fold")
    if row.note:
        yield Text(options.clean(row.note))
    if len(points) > 1:
        line = trend(points, min(len(points), _WIDEST_TREND), ascii_only=options.ascii)
        least, most = size(min(points)), size(max(points))
        range_text = most if least == most else f"{least} to {most}"
        yield Text(f"{line}  {range_text} in the last ten minutes", style="dim")


def _is_about(finding: Finding, row: ProcessRow) -> bool:
    """Whether a finding is about the memory of a row without a process, or about its GPU as a whole."""
    if set(row.gpus).isdisjoint(finding.gpus):
        return False
    if not finding.holds:
        return not finding.pids
    return any(hold.what == row.state and hold.dead_pid in (None, *row.dead_pids) for hold in finding.holds)
