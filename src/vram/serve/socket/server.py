"""The Unix socket of the service: what users ask for, done as them. One request for each connection.

    → {"schema": 1, "do": "plan", "words": {"available_bytes": 21474836480}}
    ← {"is_last": true, "data": {...}}

A request is one line of JSON of at most 64 KiB, complete within ten seconds. Who asks is what the kernel says
of the connection. Actions run in a worker with that user's rights. See docs/guides/serve-socket.md.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Raw, UnsetType
from msgspec.structs import replace

from vram import untrusted
from vram.errors import AuditUnavailable, ExitCode, NotPermitted, UsageError, VramError
from vram.python_310 import timeout
from vram.reclaim import audit
from vram.report.escape import json_inert
from vram.serve.socket.peers import Peer, is_privileged, peer_of, require_may_act
from vram.serve.socket.protocol import (
    MAX_REQUEST,
    SCHEMA,
    PlanWords,
    RequestedThing,
    SocketAnswer,
    SocketRequest,
    WorkerError,
    require_sound,
)
from vram.serve.socket.worker import WorkerAnswer, WorkerRequest
from vram.serve.socket.worker_process import own_rights, start_worker

REQUEST_S = 10.0
SEND_S = 10.0
MAX_CONNECTIONS, MAX_OF_ONE_USER = 256, 16
REQUESTS_PER_MINUTE = 120
# Each is a line or two in the audit log, which no user must be able to fill.
RUNS_PER_MINUTE = 20
SUMMARY_S = 60.0
MAX_WORKERS = 8
PLAN_S, RUN_S = 60.0, 900.0
_MAX_ITEMS = 4096
_MAX_MESSAGE_LENGTH = 500


class RequestBudget:
    """How often each account asks: so many requests a minute, so many connections at once.

    The last connections are root's and the service's own user's.
    """

    def __init__(self, per_minute: int = REQUESTS_PER_MINUTE) -> None:
        self._per_minute = per_minute
        self._open: Counter[int] = Counter()
        self._asked: dict[int, deque[float]] = {}

    def enter(self, account: int, now: float) -> str:
        """Count a connection; why it is refused, or nothing. Each that was not refused must :meth:`leave`."""
        most = MAX_CONNECTIONS - (0 if is_privileged(account) else MAX_OF_ONE_USER)
        if self._open.total() >= most or self._open[account] >= MAX_OF_ONE_USER:
            return "too many connections at once"
        asked = self._asked.setdefault(account, deque())
        while asked and now - asked[0] >= 60.0:
            asked.popleft()
        if len(asked) >= self._per_minute:
            return f"more than {self._per_minute} requests in a minute"
        asked.append(now)
        self._open[account] += 1
        return ""

    def leave(self, account: int, now: float) -> None:
        self._open[account] -= 1
        if self._open[account] <= 0:
            del self._open[account]
        for each in [each for each, asked in self._asked.items() if not asked or now - asked[-1] >= 60.0]:
            del self._asked[each]


class Connection:
    """One client: who it is, what it asked, and a way to answer."""

    def __init__(self, peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.peer = peer
        self._reader = reader
        self._writer = writer

    async def request(self, limit_s: float) -> SocketRequest:
        """What it asks for. Raises Rejected where that is no request, or comes too slowly."""
        try:
            async with timeout(limit_s):
                line = await self._reader.readuntil(b"\n")
        except TimeoutError:
            raise untrusted.Rejected("late", f"no whole request within {limit_s:g} s") from None
        except asyncio.LimitOverrunError:
            message = f"a request has at most {MAX_REQUEST >> 10} KiB"
            raise untrusted.Rejected("too-large", message) from None
        except (asyncio.IncompleteReadError, OSError):
            raise untrusted.Rejected("cut-short", "the request is not complete") from None
        request = untrusted.decode(line, SocketRequest, most_items=_MAX_ITEMS)
        if request.schema != SCHEMA:
            raise untrusted.Rejected("wrong-shape", f"this service knows schema {SCHEMA}")
        return request

    async def answer(self, answer: SocketAnswer) -> None:
        """Send a line. Raises OSError where the client does not take it."""
        self._writer.write(json_inert(msgspec.json.encode(answer)) + b"\n")
        try:
            async with timeout(SEND_S):
                await self._writer.drain()
        except TimeoutError as error:
            raise ConnectionError("the client does not read") from error

    async def last(self, data: Any) -> None:
        await self.answer(SocketAnswer(is_last=True, data=Raw(msgspec.json.encode(data))))

    async def closed(self) -> None:
        """Come back when the client has gone, or sends what is not expected."""
        with suppress(OSError):
            await self._reader.read(1)

    async def close(self) -> None:
        self._writer.close()
        with suppress(OSError, TimeoutError):
            async with timeout(1.0):
                await self._writer.wait_closed()

    def abort(self) -> None:
        self._writer.transport.abort()


Handler = Callable[[Connection, SocketRequest], Awaitable[None]]


class SocketServer:
    """Accepts connections on a listening socket, and answers each by the handler of what it asks for."""

    def __init__(
        self,
        listening: socket.socket,
        handlers: dict[RequestedThing, Handler],
        on_error: Callable[[str], None],
        *,
        budget: RequestBudget | None = None,
        request_s: float = REQUEST_S,
    ) -> None:
        self._socket = listening
        self._handlers = handlers
        self._on_error = on_error
        self._budget = budget or RequestBudget()
        self._request_s = request_s
        self._tasks: set[asyncio.Task[None]] = set()
        self._accepting: asyncio.Task[None] | None = None
        self.requests: Counter[str] = Counter()

    def start(self) -> None:
        self._accepting = asyncio.create_task(self._accept())

    async def close(self) -> None:
        """Stop accepting, and cut off who is still connected."""
        tasks = [*self._tasks, *([self._accepting] if self._accepting else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(self._socket)
            except OSError as error:  # out of descriptors: those that are open will be closed
                self._on_error(f"cannot accept a connection: {error.strerror}")
                await asyncio.sleep(0.5)
                continue
            try:
                peer = peer_of(connection)
                refusal = self._budget.enter(peer.account, loop.time())
            except OSError:
                connection.close()
                continue
            if refusal:
                self.requests["refused"] += 1
                _turn_away(connection, refusal)
                continue
            task = asyncio.create_task(self._serve(connection, peer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self, raw: socket.socket, peer: Peer) -> None:
        try:
            reader, writer = await asyncio.open_unix_connection(sock=raw, limit=MAX_REQUEST)
        except OSError:
            raw.close()
            self._budget.leave(peer.account, asyncio.get_running_loop().time())
            return
        client = Connection(peer, reader, writer)
        try:
            await self._handle(client)
            await client.close()
        except OSError:
            pass  # it has gone
        except Exception as error:
            self._on_error(f"a request failed: {type(error).__name__}: {error}")
        finally:
            client.abort()
            self._budget.leave(peer.account, asyncio.get_running_loop().time())

    async def _handle(self, client: Connection) -> None:
        try:
            request = await client.request(self._request_s)
            self.requests[request.do] += 1
            handler = self._handlers.get(request.do)
            if handler is None:
                raise UsageError(f"this service does not answer {request.do!r}")
            await handler(client, request)
        except untrusted.Rejected as error:
            self.requests["rejected"] += 1
            await client.answer(_error(error, ExitCode.USAGE))
        except VramError as error:
            await client.answer(_error(error, error.exit_code))


def _error(error: VramError, code: int) -> SocketAnswer:
    told = WorkerError(name=type(error).__name__, message=str(error), hint=error.hint, exit_code=code)
    return SocketAnswer(is_last=True, error=told)


def _turn_away(connection: socket.socket, refusal: str) -> None:
    """Say why in one packet, which fits into the buffer of a new connection, and hang up."""
    error = NotPermitted(refusal, hint="wait a moment")
    with suppress(OSError):
        connection.setblocking(False)
        connection.send(msgspec.json.encode(_error(error, error.exit_code)) + b"\n")
    connection.close()


# ---- plans and runs: in a worker, as the user ----


class ActionRunner:
    """Runs what users ask for: each in a worker with that user's rights, one for each account at a time."""

    def __init__(self, state: str, on_acted: Callable[[], None]) -> None:
        self._state = state
        self._on_acted = on_acted
        self._busy: set[int] = set()
        self._runs = RequestBudget(RUNS_PER_MINUTE)
        self._refusals = RefusalLog()

    def close(self) -> None:
        self._refusals.flush()

    async def plan(self, client: Connection, request: SocketRequest) -> None:
        await self._do(client, request, PLAN_S)

    async def run(self, client: Connection, request: SocketRequest) -> None:
        if not request.digest:
            raise UsageError("a run needs the digest of its plan", hint="ask for the plan first")
        record = {"action": "socket", "peer_uid": client.peer.uid, "words": _short(request.words)}
        account, now = client.peer.account, asyncio.get_running_loop().time()
        if refusal := self._runs.enter(account, now):
            raise NotPermitted(refusal, hint="wait a moment")
        self._runs.leave(account, now)
        try:
            self._require_possible(client.peer, request)
        except NotPermitted as error:
            self._refusals.add(account, {**record, "message": str(error)})
            raise
        token = audit.log_intent({**record, "digest": request.digest[:64]})
        outcome = {"status": "failed", "message": "cut off"}
        try:
            outcome = await self._do(client, request, RUN_S)
        except VramError as error:
            outcome = {"status": "refused", "message": str(error)}
            raise
        finally:
            self._on_acted()
            with suppress(AuditUnavailable):  # the next request meets it before anything is done
                audit.log_outcome(token, outcome)

    def _require_possible(self, peer: Peer, request: SocketRequest) -> None:
        """Raise where no worker is started for this request: nothing is done, and not each is logged."""
        require_may_act(peer)
        require_sound(request.words)
        if not (0.1 <= request.grace_s <= 600.0 and 0.1 <= request.deadline_s <= 60.0):
            raise UsageError("grace or deadline is not possible", hint="from 0.1 to 600 or 60 seconds")
        if peer.account in self._busy:
            raise NotPermitted("another request of yours is being worked on", hint="wait until it is done")
        if len(self._busy) >= MAX_WORKERS and not is_privileged(peer.account):
            raise NotPermitted("requests of many others are being worked on", hint="try again in a moment")

    async def _do(self, client: Connection, request: SocketRequest, limit_s: float) -> dict[str, str]:
        self._require_possible(client.peer, request)
        self._busy.add(client.peer.account)
        try:
            last = await self._relay(client, request, limit_s)
            if last is None:
                return {"status": "failed", "message": "the client went away"}
            # Its worker has ended, and nothing is awaited between the last byte and the end of this request:
            # a client that has read the answer can ask the next thing at once.
            await client.answer(_as_socket_answer(last))
            return _outcome(last)
        finally:
            self._busy.discard(client.peer.account)

    async def _relay(self, client: Connection, request: SocketRequest, limit_s: float) -> WorkerAnswer | None:
        """Relay what the worker says but for its last answer, which is returned when it has ended."""
        order = WorkerRequest(
            job="plan" if request.do == "plan" else "run",
            state=self._state if client.peer.uid == own_rights().uid else None,
            deadline_s=request.deadline_s,
            words=request.words,
            digest=request.digest,
            grace_s=request.grace_s,
        )
        worker = start_worker(order, client.peer.run_as, limit_s)
        gone = asyncio.create_task(client.closed())
        gone.add_done_callback(lambda _: worker.end(late=False))
        last = None
        try:
            async for answer in worker.answers():
                if answer.is_last:
                    last = answer
                else:
                    await client.answer(_as_socket_answer(answer))
            return last
        finally:
            gone.cancel()
            worker.end(late=False)
            await worker.has_ended.wait()


def _short(words: PlanWords) -> PlanWords:
    """What of a request is logged: enough to know what was asked for."""
    findings = tuple(code[:16] for code in words.findings[:16])
    return replace(words, pids=words.pids[:16], gpus=words.gpus[:16], findings=findings)


def _outcome(answer: WorkerAnswer) -> dict[str, str]:
    if answer.error is not None:
        return {"status": "refused", "message": answer.error.message[:_MAX_MESSAGE_LENGTH]}
    freed = "" if answer.freed_bytes is None else f"{answer.freed_bytes} bytes freed"
    return {"status": "done", "message": freed}


def _as_socket_answer(answer: WorkerAnswer) -> SocketAnswer:
    if not isinstance(answer.outcome, UnsetType):
        return SocketAnswer(event="outcome", data=answer.outcome, is_last=answer.is_last)
    return SocketAnswer(is_last=answer.is_last, data=answer.report, error=answer.error)


class RefusalLog:
    """Refused requests in the audit log: the first of each account at once, the others as a number.

    At most a line for each account and a summary in SUMMARY_S: refusals cannot fill the log.
    """

    def __init__(self) -> None:
        self._timer: asyncio.TimerHandle | None = None
        self._counts: Counter[int] = Counter()

    def add(self, account: int, record: Mapping[str, Any]) -> None:
        """Log *record*, unless this account was refused since the last summary: then only count it."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SUMMARY_S, self.flush)
        if not self._counts[account]:
            audit.log_refusal(record)
        self._counts[account] += 1

    def flush(self) -> None:
        """Log how many were only counted."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        more = sum(count - 1 for count in self._counts.values())
        self._counts.clear()
        if more:
            message = f"{more} more requests were refused within {SUMMARY_S:g} s"
            audit.log_refusal({"action": "socket", "count": more, "message": message})
