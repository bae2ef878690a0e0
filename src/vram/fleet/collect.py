"""All nodes asked at once, each within its deadline; what becomes of one never keeps the others waiting."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from vram.errors import UsageError, VramError
from vram.fleet.judge import MAX_SNAPSHOT_BYTES, JudgeRequest
from vram.fleet.judges import Judges
from vram.fleet.transport import CommandResult, NodeAddress, NodeFailed, Transport
from vram.fleet.transports.recorded import RecordedNodes
from vram.fleet.transports.ssh import SshNodes
from vram.model.fleet import FleetNode, Grouping

Answer = TypeVar("Answer")

_DESCRIPTORS = 16_384
SNAPSHOT = ("snapshot", "-o", "-")


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
            if not isinstance(source, RecordedNodes):
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
            found = self._judged(node, began)
        except NodeFailed as error:
            found = FleetNode(name=node.name, state="unread", code=error.code, message=error.message[:500])
        except OSError as error:
            words = f"it cannot be asked from here: {error.strerror or error}"
            found = FleetNode(name=node.name, state="unread", code="unreachable", message=words)
        return replace(found, took_s=round(time.monotonic() - began, 6))

    def _judged(self, node: NodeAddress, began: float) -> FleetNode:
        if isinstance(self._source, RecordedNodes):
            with self._source.opened(node) as path:
                return self._judges.judge(JudgeRequest(name=node.name, path=path, by=self._options.by))
        until = min(began + self._options.node_s, self._fleet_until)
        if began >= self._fleet_until:
            raise NodeFailed("not-asked", "the deadline of the whole fleet passed before its turn")
        node = self._located(node, until)
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

    def _located(self, node: NodeAddress, until: float) -> NodeAddress:
        if isinstance(self._source, SshNodes) and not self._options.any_name:
            return self._source.located(node, until)
        return node


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
