"""Holders as a tree: container or job, process, forked children, and what each holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from vram.diagnosis.leftover import way_back
from vram.ledger.holds import by_gpu, find_holds, overhead
from vram.ledger.instances import mig_device
from vram.model.ledger import Entry, GpuLedger, Holder, Ledger, Sharing
from vram.model.observation import HostFacts
from vram.model.process import ParkedProcess
from vram.model.windows import WindowsProcess
from vram.report.phrases import container, job, pod, workload

# A snapshot may claim any ancestry; a real one is this deep only by accident.
_DEEPEST = 16


class HeldBytes(Struct, frozen=True, kw_only=True):
    """Bytes that a process holds. ``shared_with`` names who is counted for the same bytes.

    Of memory whose ``medium`` is "shared", that is as much as the other one shares with anybody.
    The kind "system" is memory of the machine beside the GPU's own; it is in no sum.
    ``mig`` names the MIG device where the GPU is divided: "0:1".
    ``nbytes`` None: how many they are is unknown. ``windows`` is the Windows process that
    holds them. ``certain`` False: it is likely, and no fact, that it holds them. ``sharing`` is the
    ledger's: "one" means that it holds them, or one of those that share them.
    """

    gpu: int
    kind: str
    nbytes: int | None
    shared_with: int | None = None
    medium: str | None = None
    mig: str | None = None
    windows: WindowsProcess | None = None
    certain: bool = True
    sharing: Sharing | None = None


class ProcessNode(Struct, frozen=True, kw_only=True):
    """A process, what it holds, whose files it inherited, and its children that hold something.

    ``exported_bytes`` is what it has a handle on while the maker is charged for it. An MPS
    server has its clients as children; ``mps_server`` is the server of a client.
    """

    holder: Holder
    holds: tuple[HeldBytes, ...]
    inherited_from: int | None
    exported_bytes: int | None
    children: tuple[ProcessNode, ...]
    mps_server: int | None = None


class ProcessGroup(Struct, frozen=True, kw_only=True):
    """One container, job or unit; name None gathers the processes that belong to none.

    ``at_least``: a process in it holds an unknown amount, so ``nbytes`` is the least that it can be.
    """

    name: str | None
    nbytes: int
    processes: tuple[ProcessNode, ...]
    at_least: bool = False


class WhoReport(Struct, frozen=True, kw_only=True):
    """``vram who --json``. ``unnamed`` are bytes whose holder could not be named."""

    schema: Literal[2]
    taken_at: str
    host: HostFacts
    groups: tuple[ProcessGroup, ...]
    unnamed: tuple[HeldBytes, ...]
    by: str | None = None
    parked: tuple[ParkedProcess, ...] = ()
    free_command: str | None = None
    """The one command that frees the memory of dead owners, where there is any."""


class _NodeDraft:
    """A tree node while it is being put together."""

    def __init__(self, holder: Holder) -> None:
        self.holder = holder
        self.holds: list[HeldBytes] = []
        self.inherited_from: int | None = None
        self.exported_bytes: int | None = None
        self.mps_server: int | None = None
        self.parent: _NodeDraft | None = None
        self.children: list[_NodeDraft] = []
        self.height = 1

    def ancestors(self) -> Iterator[_NodeDraft]:
        node: _NodeDraft | None = self
        while node is not None:
            yield node
            node = node.parent

    @property
    def own_bytes(self) -> int:
        return sum(
            held.nbytes or 0 for held in self.holds if held.shared_with is None and held.kind != "system"
        )

    @property
    def nbytes(self) -> int:
        return self.own_bytes + sum(child.nbytes for child in self.children)

    def finished(self) -> ProcessNode:
        children = sorted(self.children, key=lambda child: (-child.nbytes, child.holder.pid))
        return ProcessNode(
            holder=self.holder,
            holds=tuple(self.holds),
            inherited_from=self.inherited_from,
            exported_bytes=self.exported_bytes,
            children=tuple(child.finished() for child in children),
            mps_server=self.mps_server,
        )


def who(ledger: Ledger, by: str | None = None) -> WhoReport:
    """Return every process that holds bytes or has a GPU's files open, by what started them.

    *by* chooses one kind of group: every process is then counted in its own group, and stands
    below its parent or server only where both belong there.
    """
    builder = _TreeBuilder(by)
    parts = by_gpu(find_holds(ledger), also=overhead(ledger))
    for at, gpu in enumerate(ledger.gpus):
        for part in parts.get(at, ()):
            builder.count(gpu, part.entry)
        for entry in gpu.system.entries if gpu.system and gpu.total_bytes != 0 else ():
            if entry.holder is not None and entry.kind_facts.used and entry.nbytes != 0:
                builder.count(gpu, entry, "system")
    for gpu in ledger.gpus:
        for each in gpu.open_only:
            node = builder.node(each.holder)
            node.inherited_from = each.inherited_from or node.inherited_from
            if each.exported_bytes is not None:
                node.exported_bytes = (node.exported_bytes or 0) + each.exported_bytes
    builder.join_trees()
    return WhoReport(
        schema=2,
        taken_at=ledger.taken_at,
        host=ledger.host,
        by=by,
        groups=builder.groups(),
        unnamed=tuple(builder.unnamed),
        parked=ledger.parked,
        free_command=way_back(ledger),
    )


class _TreeBuilder:
    def __init__(self, by: str | None = None) -> None:
        self._by = by
        self.nodes: dict[tuple[int, int | None], _NodeDraft] = {}
        self._first_with: dict[int, _NodeDraft] = {}
        self.unnamed: list[HeldBytes] = []

    def node(self, holder: Holder) -> _NodeDraft:
        identity = (holder.pid, holder.started_at)
        if identity not in self.nodes:
            self.nodes[identity] = _NodeDraft(holder)
            self._first_with.setdefault(holder.pid, self.nodes[identity])
        return self.nodes[identity]

    def count(self, gpu: GpuLedger, entry: Entry, kind: str | None = None) -> None:
        held = HeldBytes(
            gpu=gpu.index,
            kind=kind or entry.kind,
            nbytes=entry.nbytes,
            medium=entry.medium,
            mig=mig_device(gpu, entry),
            windows=entry.windows if entry.kind == "windows" else None,
            certain=entry.confidence == "fact",
            sharing=entry.sharing,
        )
        if entry.holder is None:
            self.unnamed.append(held)
            return
        holder_node = self.node(entry.holder)
        holder_node.holds.append(held)
        holder_node.mps_server = entry.mps_server or holder_node.mps_server
        for co_holder in entry.co_holders:
            self.node(co_holder).holds.append(replace(held, shared_with=entry.holder.pid))
        if entry.kind == "orphaned" and entry.charged_pid is not None and entry.sharing != "one":
            self._add_dead_parent(entry, entry.charged_pid)

    def _add_dead_parent(self, entry: Entry, charged_pid: int) -> None:
        """The dead parent is the root of its tree: it is the pid that people see in other tools."""
        parent = self._first_with.get(charged_pid)
        if parent is None:
            gone = Holder(pid=charged_pid, started_at=None, user=None, command=None, alive=False)
            parent = self.node(gone)
        for holder in entry.holders:
            if holder.pid != charged_pid:
                child = self.node(holder)
                child.inherited_from = charged_pid
                _adopt(parent, child)

    def join_trees(self) -> None:
        by_pid = {node.holder.pid: node for node in self.nodes.values()}
        for node in list(self.nodes.values()):
            parent_pid = node.inherited_from or node.mps_server or node.holder.parent
            parent = by_pid.get(parent_pid) if parent_pid is not None else None
            if node.parent is None and parent is not None and self._belong_together(parent, node):
                _adopt(parent, node)

    def _belong_together(self, parent: _NodeDraft, child: _NodeDraft) -> bool:
        return self._by is None or _group_of(parent, self._by) == _group_of(child, self._by)

    def groups(self) -> tuple[ProcessGroup, ...]:
        groups: dict[str, list[_NodeDraft]] = {}
        for node in self.nodes.values():
            if node.parent is None:
                groups.setdefault(_group_of(node, self._by), []).append(node)
        built = [_group(name, nodes) for name, nodes in groups.items()]
        return tuple(sorted(built, key=lambda group: (group.name is None, -group.nbytes)))


def _adopt(parent: _NodeDraft, child: _NodeDraft) -> None:
    line = list(parent.ancestors())
    if child.parent is not None or child in line or len(line) + child.height > _DEEPEST:
        return
    child.parent = parent
    parent.children.append(child)
    for above, ancestor in enumerate(line, 1):
        ancestor.height = max(ancestor.height, child.height + above)


def _group_of(node: _NodeDraft, by: str | None) -> str:
    """What started a process; of the dead nothing is known: their first child decides."""
    own = _group_name(node.holder, by)
    if own or node.holder.alive or not node.children:
        return own
    return _group_name(node.children[0].holder, by)


def _group_name(holder: Holder, by: str | None) -> str:
    origin = holder.workload
    match by:
        case "job":
            return job(origin)
        case "pod":
            return pod(origin, full=True)
        case "container":
            return container(origin, full=True)
        case "notebook":
            return f"notebook {origin.notebook}" if origin.notebook else ""
        case "unit":
            return origin.unit or ""
        case "user":
            return holder.user or ""
    return workload(origin, full=True)


def _group(name: str, nodes: list[_NodeDraft]) -> ProcessGroup:
    nodes.sort(key=lambda node: (-node.nbytes, node.holder.pid))
    nbytes = sum(node.nbytes for node in nodes)
    processes = tuple(node.finished() for node in nodes)
    at_least = any(map(_has_unknown_size, processes))
    return ProcessGroup(name=name or None, nbytes=nbytes, processes=processes, at_least=at_least)


def _has_unknown_size(node: ProcessNode) -> bool:
    return any(held.nbytes is None for held in node.holds) or any(map(_has_unknown_size, node.children))
