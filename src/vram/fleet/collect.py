"""All nodes asked at once, each within its deadline, and made a fleet of those that can be believed."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import NamedTuple, TypeVar, get_args

from msgspec.structs import replace

from vram.errors import ExitCode, UsageError, VramError
from vram.fleet.judge import MAX_SNAPSHOT_BYTES, JudgeRequest, rejected
from vram.fleet.judges import Judges
from vram.fleet.transport import CommandResult, NodeAddress, NodeFailed, Transport
from vram.fleet.transports.recorded import RecordedNodes
from vram.fleet.transports.ssh import SshNodes
from vram.model.fleet import FleetNode, FleetReport, FleetShare, FleetSums, Grouping, NodeState

Answer = TypeVar("Answer")

_DESCRIPTORS = 16_384
SNAPSHOT = ("snapshot", "-o", "-")
_SUMMED = ("total_bytes", "held_bytes", "leftover_bytes", "unexplained_bytes", "free_bytes")
_ORDER = {state: at for at, state in enumerate(get_args(NodeState))}


class CollectOptions(NamedTuple):
    """How long each node and all of them may take, and how many are asked at once.

    ``names`` are the only nodes meant; empty: all. ``any_name`` accepts a snapshot whatever host name
    it has.
    """

    node_s: float = 20.0
    fleet_s: float = 120.0
    parallel: int = 32
    workers: int = 1
    by: Grouping | None = None
    names: tuple[str, ...] = ()
    any_name: bool = False


def chosen(nodes: Sequence[NodeAddress], names: Sequence[str]) -> tuple[NodeAddress, ...]:
    """The *nodes* that *names* mean; without names, all. Raises UsageError for one that is not there."""
    known = {node.name: node for node in nodes}
    for name in names:
        if name not in known:
            from difflib import get_close_matches

            close = get_close_matches(name, list(known)[:5000], n=3)
            some = ", ".join(close or list(known)[:3])
            raise UsageError(f"there is no node {name[:80]!r} in this fleet", hint=f"there are {some}")
    return tuple(node for node in nodes if not names or node.name in names)


def read_nodes(source: Transport | RecordedNodes, options: CollectOptions) -> tuple[FleetNode, ...]:
    """Return every node, judged by itself, in the order of *source*."""
    nodes = chosen(source.nodes(), options.names)
    recorded = isinstance(source, RecordedNodes)
    threads = options.workers if recorded else options.parallel
    with Judges(options.workers) as judges:
        reader = _NodeReader(source, judges, options)

        def cancel() -> None:
            judges.cancel()
            source.cancel()

        return tuple(in_threads(reader.read, nodes, threads, cancel))


def in_threads(
    work: Callable[[NodeAddress], Answer],
    nodes: Sequence[NodeAddress],
    threads: int,
    cancel: Callable[[], None],
) -> list[Answer]:
    """Do *work* for every node, *threads* at once; told to stop, we *cancel* what is under way."""
    _allow_descriptors()
    pool = ThreadPoolExecutor(max_workers=max(1, min(threads, len(nodes))))
    try:
        return list(pool.map(work, nodes))
    except RuntimeError as error:  # as Python says it where the system allows no more threads
        raise VramError(f"the nodes cannot be asked: {error}", hint="lower --parallel") from error
    except BaseException:
        cancel()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _allow_descriptors() -> None:
    """Each node that is asked takes half a dozen descriptors; we may have as many as the system lets us."""
    import resource

    usual, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if most == resource.RLIM_INFINITY else min(most, _DESCRIPTORS)
    if usual != resource.RLIM_INFINITY and usual < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


class _NodeReader:
    """Gets one node's snapshot, and has it judged."""

    def __init__(self, source: Transport | RecordedNodes, judges: Judges, options: CollectOptions) -> None:
        self._source, self._judges, self._options = source, judges, options
        self._fleet_until = time.monotonic() + options.fleet_s

    def read(self, node: NodeAddress) -> FleetNode:
        began = time.monotonic()
        try:
            if node.gone:
                raise NodeFailed("unreachable", node.gone)
            found = self._judge(node, began)
        except NodeFailed as error:
            found = FleetNode(name=node.name, state="unread", code=error.code, message=error.message[:500])
        except OSError as error:
            words = f"it cannot be asked from here: {error.strerror or error}"
            found = FleetNode(name=node.name, state="unread", code="unreachable", message=words)
        return replace(found, took_s=round(time.monotonic() - began, 6))

    def _judge(self, node: NodeAddress, began: float) -> FleetNode:
        if isinstance(self._source, RecordedNodes):
            with self._source.opened(node) as path:
                return self._judges.judge(JudgeRequest(name=node.name, path=path, by=self._options.by))
        until = min(began + self._options.node_s, self._fleet_until)
        if began >= self._fleet_until:
            raise NodeFailed("not-asked", "the deadline of the whole fleet passed before its turn")
        if isinstance(self._source, SshNodes) and not self._options.any_name:
            node = self._source.located(node, until)
        result = self._source.run(node, SNAPSHOT, until=until, nbytes=MAX_SNAPSHOT_BYTES)
        require_success(result)
        with _as_path(result.output) as path:
            asked = JudgeRequest(
                name=node.name,
                path=path,
                host_names=None if self._options.any_name else node.host_names,
                now=time.time(),
                by=self._options.by,
            )
            return self._judges.judge(asked)


def require_success(result: CommandResult) -> None:
    """Raise NodeFailed where a command on a node ended badly."""
    if result.status:
        words = f": {result.last_words}" if result.last_words else ""
        raise NodeFailed("failed", f"vram ended there with exit status {result.status}{words}")


@contextmanager
def _as_path(data: bytes) -> Iterator[str]:
    """A path under which a child of ours can read *data*, which lies in memory."""
    file = os.memfd_create("vram-snapshot", os.MFD_CLOEXEC)
    try:
        with open(os.dup(file), "wb") as stream:
            stream.write(data)
        yield f"/proc/{os.getpid()}/fd/{file}"
    finally:
        os.close(file)


# ---- a fleet: duplicates refused, trouble first, sums over all that can be believed ----


def fleet_report(
    nodes: Iterable[FleetNode], *, source: str, took_s: float, by: Grouping | None = None
) -> FleetReport:
    """Return the whole fleet: *nodes* in the order of the table, and their sums."""
    honest = without_contradictions(tuple(nodes))
    return FleetReport(
        schema=2,
        taken_at=datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        source=source,
        took_s=round(took_s, 3),
        sums=sums(honest),
        nodes=tuple(sorted(honest, key=rank)),
        by=by,
        shares=fleet_shares(honest) if by else (),
    )


def rank(node: FleetNode) -> tuple[object, ...]:
    """The order of the table: trouble first, then the most memory in question, then by name."""
    left = sum(gpu.leftover_bytes or 0 for gpu in node.gpus)
    unexplained = sum(gpu.unexplained_bytes or 0 for gpu in node.gpus)
    return (_ORDER[node.state], -left, -unexplained, node.code or "", natural(node.name))


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """A key that puts gpu-9 before gpu-10."""
    parts = re.findall(r"[0-9]{1,18}|[^0-9]+|[0-9]+", name)
    return tuple(
        (0, int(part), "") if part.isdecimal() and part.isascii() else (1, 0, part) for part in parts
    )


# ---- nodes that contradict each other ----


def without_contradictions(nodes: Sequence[FleetNode]) -> tuple[FleetNode, ...]:
    """*nodes*, where those that claim to be another node, or to have its GPUs, are rejected.

    The node that was asked under the name that several claim is believed; otherwise none of them is. Virtual
    GPUs have no UUIDs of their own: they are for trying things out, and no part of a real fleet.
    """
    nodes = _without_virtual(nodes)
    hosts: dict[str, list[FleetNode]] = {}
    gpus: dict[str, list[FleetNode]] = {}
    for node in nodes:
        if node.host is None or node.virtual:
            continue
        hosts.setdefault(node.host.lower(), []).append(node)
        for gpu in node.gpus:
            if gpu.uuid:
                gpus.setdefault(gpu.uuid, []).append(node)
    reasons: dict[str, str] = {}
    for host, claiming in hosts.items():
        reasons |= _reasons(claiming, f"says that it is {host[:60]!r}")
    for uuid, claiming in gpus.items():
        reasons |= {
            name: reason
            for name, reason in _reasons(claiming, f"says that it has {uuid[:60]}").items()
            if name not in reasons
        }
    return tuple(
        rejected(node.name, "duplicate", reasons[node.name]) if node.name in reasons else node
        for node in nodes
    )


def _reasons(claiming: Sequence[FleetNode], claim: str) -> dict[str, str]:
    """Why each of the nodes that make one claim is rejected, by name."""
    if len(claiming) < 2:
        return {}
    owner = [node for node in claiming if node.host and _is_named(node)]
    believed = owner[0].name if len(owner) == 1 else None
    reasons = {}
    for node in claiming:
        if node.name != believed:
            other = next(each.name for each in claiming if each is not node)
            reasons[node.name] = f"it {claim}, as {believed or other} does"
    return reasons


def _is_named(node: FleetNode) -> bool:
    """Whether it was asked under the name that it says it has."""
    return (node.host or "").lower().partition(".")[0] == node.name.lower().partition(".")[0]


def _without_virtual(nodes: Sequence[FleetNode]) -> tuple[FleetNode, ...]:
    if not any(node.host is not None and not node.virtual for node in nodes):
        return tuple(nodes)
    words = "its GPUs are virtual, and those of other nodes are not"
    return tuple(rejected(node.name, "impossible", words) if node.virtual else node for node in nodes)


# ---- sums ----


def sums(nodes: Sequence[FleetNode]) -> FleetSums:
    """Add up every GPU that answered."""
    gpus = [gpu for node in nodes for gpu in node.gpus]
    ages = [gpu.oldest_ghost_s for gpu in gpus if gpu.oldest_ghost_s is not None]
    return FleetSums(
        nodes=len(nodes),
        gpus=len(gpus),
        **{field: sum(getattr(gpu, field) or 0 for gpu in gpus) for field in _SUMMED},
        oldest_ghost_s=max(ages, default=None),
        states={state: sum(node.state == state for node in nodes) for state in _ORDER},
    )


def fleet_shares(nodes: Sequence[FleetNode]) -> tuple[FleetShare, ...]:
    """What each user, job or pod holds on all nodes together, the largest first."""
    found: dict[str | None, list[FleetShare]] = {}
    for node in nodes:
        for share in node.shares:
            found.setdefault(share.name, []).append(share)
    fields = ("held_bytes", "leftover_bytes", "processes", "gpus", "nodes")
    together = (
        FleetShare(
            name=name,
            **{field: sum(getattr(share, field) for share in shares) for field in fields},
        )
        for name, shares in found.items()
    )
    return tuple(sorted(together, key=lambda share: (-share.held_bytes, share.name or "")))


def completeness(report: FleetReport) -> ExitCode:
    """OK where every node gave a whole answer that can be believed."""
    return ExitCode.PARTIAL if any(node.code is not None for node in report.nodes) else ExitCode.OK
