"""Finds the server that a process belongs to, by the sockets that it and its relatives listen on.

The process itself, then its ancestors of the same user and session, then its descendants of the same user:
vLLM's front end launches its engine, ollama its runners. Each socket is asked what it is, by GETs that are
reads in the documents of the servers that we know; a server says what it is, or it is left alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress

from msgspec import Struct

from vram.errors import NoSuchProcess, NotReachable, TargetDied, VramError
from vram.host.ports import Host
from vram.model.plan import Target
from vram.model.process import ProcessFacts
from vram.reach.http import NoAnswer, ServerAnswer, ServerRequest, ask
from vram.reach.sockets import Listener, NotConnected, connect, listeners
from vram.reclaim.identity import identify, open_verified
from vram.reclaim.servers import servers
from vram.reclaim.servers.server import Server

ASKING_S = 5.0
"""So long may a server take to say what it is."""
MAX_LISTENERS = 32
SEARCH_S = 20.0
"""After this long no further socket is asked."""
ENDING_S = 1.0


class Relatives(Struct, frozen=True):
    """*pid*, its ancestors, nearest first, and its descendants, as far as they can be parts of one server."""

    pid: int
    ancestors: tuple[int, ...]
    descendants: tuple[int, ...]

    @property
    def pids(self) -> tuple[int, ...]:
        return (self.pid, *self.ancestors, *self.descendants)


def relatives(host: Host, pid: int) -> Relatives:
    """Never a process that runs vram: asking it would be asking ourselves."""
    seen = host.proc.facts(pid)
    if seen is None:
        raise NoSuchProcess(f"there is no process {pid}")
    about, ours = seen[1], host.signals.self_and_ancestors()
    ancestors: list[int] = []
    parent = about.parent
    while parent is not None and parent > 1 and parent not in ours:
        found = host.proc.facts(parent)
        if found is None or not _is_alike(found[1], about) or found[1].session != about.session:
            break
        ancestors.append(parent)
        parent = found[1].parent
    children = []
    for child in host.proc.descendants(pid):
        found = host.proc.facts(child)
        if found is not None and _is_alike(found[1], about) and child not in ours:
            children.append(child)
    return Relatives(pid, tuple(ancestors), tuple(children))


def _is_alike(facts: ProcessFacts, other: ProcessFacts) -> bool:
    return facts.uid == other.uid and not facts.is_dead


def looks_like_a_server(host: Host, family: Relatives) -> bool:
    """Whether a command line, a program or a working folder of the family names a server that we know."""
    words = tuple(word for each in servers() for word in each.words)
    for pid in family.pids:
        seen = host.proc.facts(pid)
        if seen is None:
            continue
        folder = ""
        with suppress(OSError):
            folder = os.readlink(f"/proc/{pid}/cwd")
        text = " ".join((*seen[1].argv, seen[1].command, seen[1].executable or "", folder)).lower()
        if any(word in text for word in words):
            return True
    return False


class ServerClient:
    """Speaks to one server through one socket, one request at a time; what it is told is read once.

    Called, it returns the answer to a request that changes nothing. The process is compared through its pidfd
    right before and right after each request.
    """

    def __init__(self, host: Host, target: Target, listener: Listener, pids: Collection[int]) -> None:
        self._host, self.target, self.listener, self._pids = host, target, listener, pids
        self._read: dict[str, ServerAnswer] = {}
        self.statuses: list[int] = []

    def __call__(self, request: ServerRequest) -> ServerAnswer:
        if request.words not in self._read:
            until = self._host.clock.monotonic() + ASKING_S
            self._read[request.words] = self.send(request, until)
            self.statuses.append(self._read[request.words].status)
        return self._read[request.words]

    def send(
        self, request: ServerRequest, until: float, on_sent: Callable[[], None] | None = None
    ) -> ServerAnswer:
        """Send *request*, calling *on_sent* right before the first byte.

        Raises NotConnected and the refusals of identity.py where nothing was sent, NoAnswer where no answer
        came, TargetDied where the server has ended.
        """
        unix = self.listener.family == "unix"
        with open_verified(self._host, self.target) as process:
            with connect(self.listener, until, self._pids) as connection:
                process.recheck()
                if on_sent is not None:
                    on_sent()
                try:
                    answer = ask(connection, "localhost" if unix else self.listener.name, request, until)
                except NoAnswer as error:
                    if error.fault == "closed" and process.ended(ENDING_S):
                        raise self._died() from error
                    raise
            try:
                process.recheck()
            except NoSuchProcess as error:
                raise self._died() from error
            return answer

    def _died(self) -> TargetDied:
        return TargetDied(f"the server, pid {self.target.process.pid}, ended while it was asked")


class FoundServer(Struct, frozen=True):
    """A server that said what it is."""

    server: Server
    version: str
    client: ServerClient


class Search:
    """The sockets of a family, asked one after the other; ``reasons`` say why the others are no servers."""

    def __init__(self, host: Host, family: Relatives) -> None:
        self._host, self._family = host, family
        self.reasons: list[str] = []

    def found(self) -> Iterator[FoundServer]:
        asked: set[int] = set()
        until = self._host.clock.monotonic() + SEARCH_S
        for pid in self._family.pids:
            seen = self._host.proc.facts(pid)
            if seen is not None and seen[1].launch is not None:
                continue  # an engine or a rank: what it listens on is for its peers
            for listener in self._listeners(pid):
                # Forked workers have the same socket.
                if listener.inode in asked:
                    continue
                if len(asked) >= MAX_LISTENERS or self._host.clock.monotonic() > until:
                    self.reasons.append(f"it listens on more than the {len(asked)} sockets that were asked")
                    return
                asked.add(listener.inode)
                found = self._recognise(listener)
                if found is not None:
                    yield found

    def _listeners(self, pid: int) -> Sequence[Listener]:
        try:
            return listeners(pid)
        except OSError as error:
            self.reasons.append(f"the sockets of pid {pid} cannot be read: {error.strerror}")
            return ()

    def _recognise(self, listener: Listener) -> FoundServer | None:
        name = listener.name
        try:
            target = identify(self._host, listener.pid)
            if (state := self._state(listener.pid)) in ("T", "t"):
                self.reasons.append(f"pid {listener.pid} is stopped (state {state})")
                return None
            client = ServerClient(self._host, target, listener, self._family.pids)
            for each in servers():
                version = each.recognise(client)
                if version is not None:
                    return FoundServer(each, version[:100], client)
        except NoAnswer as error:
            self.reasons.append(f"{name}: {error}")
        except (NotConnected, TargetDied) as error:
            self.reasons.append(str(error))
        except VramError as error:
            self.reasons.append(f"{name}: {error}")
        else:
            locked = any(status in (401, 403) for status in client.statuses)
            why = "asks for a key, which vram does not have" if locked else "is no server that vram knows"
            self.reasons.append(f"{name} {why}")
        return None

    def _state(self, pid: int) -> str:
        seen = self._host.proc.facts(pid)
        return seen[1].state if seen else "X"

    def refusal(self) -> NotReachable:
        """Why no server was found."""
        from vram.reclaim.servers import SERVERS

        pid = self._family.pid
        hint = f"vram release asks {', '.join(SERVERS)}"
        if not self.reasons:
            return NotReachable(
                f"pid {pid} listens on no socket, and neither do the processes that it belongs to", hint=hint
            )
        return NotReachable(f"pid {pid} cannot be asked: {'; '.join(dict.fromkeys(self.reasons))}", hint=hint)
