"""The Unix socket as a part of the service: who may ask what, and where each answer comes from."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw, Struct

from vram.errors import UsageError, VramError
from vram.report import json
from vram.serve.part import PartHealth, ServicePart
from vram.serve.policies.policies_report import policies_report
from vram.serve.policies.policy_part import PolicyPart
from vram.serve.socket.listening import ListeningSocket
from vram.serve.socket.peers import Peer, require_may_act
from vram.serve.socket.protocol import SocketAnswer, SocketRequest
from vram.serve.socket.server import ActionRunner, Connection, SocketServer
from vram.serve.viewer import Viewer, viewer
from vram.serve.web.routes import service_health

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from vram.serve.config import ServeConfig
    from vram.serve.service import Service
    from vram.serve.state import Reading


class WaiterReport(Struct, frozen=True, kw_only=True):
    """Somebody who waits for room, or has got it."""

    uid: int
    nbytes: int
    gpus: tuple[int, ...]
    is_served: bool


class SocketPart(ServicePart):
    """Answers requests on the socket. Reading ones are answered here, actions by workers."""

    name = "socket"

    def __init__(self, service: Service) -> None:
        self._service = service
        self._listening: ListeningSocket | None = None
        self._server: SocketServer | None = None
        self._runner: ActionRunner | None = None
        self._error = ""

    async def start(self) -> None:
        if self._service.config.socket.enabled:
            self._listen()

    def _listen(self) -> None:
        service = self._service
        self._listening = ListeningSocket(service.places.socket)
        self._runner = runner = ActionRunner(service.places.state, service.read_soon)
        self._server = SocketServer(
            self._listening.socket,
            {
                "status": self._status,
                "why": self._why,
                "decisions": self._decisions,
                "plan": runner.plan,
                "run": runner.run,
                "wait": self._wait,
                "allow-park": self._allow_park,
            },
            service.log.error,
        )
        self._server.start()
        service.log.info(f"listening on {service.places.socket}")

    async def reload(self, config: ServeConfig) -> None:
        """Switch the socket on or off; where it lies changes with a restart only."""
        if config.socket.enabled and self._server is None:
            self._listen()
        elif not config.socket.enabled and self._server is not None:
            await self.close()

    async def close(self) -> None:
        # First the name: nobody comes any more.
        listening, self._listening = self._listening, None
        server, self._server = self._server, None
        if listening is not None:
            listening.close()
        if server is not None:
            await server.close()
        if self._runner is not None:
            self._runner.close()

    def health(self) -> PartHealth:
        return PartHealth()

    def metrics(self) -> Iterable[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        asked = CounterMetricFamily("vram_socket_requests", "requests on the socket, by what", labels=["do"])
        for do, count in sorted(self._server.requests.items()) if self._server else ():
            asked.add_metric([do], count)
        yield asked
        waiting = [each for each in self._policies.waiting.waiters if not each.is_served]
        yield GaugeMetricFamily("vram_waiters", "requests that wait for room", value=len(waiting))

    async def on_reading(self, reading: Reading) -> None:
        if reading.error is None and reading.ledger is not None:
            self._policies.waiting.serve(reading.ledger, reading.moment.boot)

    # ---- what is asked ----

    @property
    def _policies(self) -> PolicyPart:
        part = self._service.part(PolicyPart.name)
        assert isinstance(part, PolicyPart)
        return part

    def _viewer(self, peer: Peer) -> Viewer:
        return viewer(peer.uid, self._service.config.show, self._service.reader_options.proc_root)

    async def _status(self, client: Connection, request: SocketRequest) -> None:
        waiters = self._policies.waiting.waiters
        who = self._viewer(client.peer)
        mine = [each for each in waiters if who.others == "everything" or each.uid == client.peer.uid]
        await client.last(
            {
                "schema": 1,
                "you": {"uid": client.peer.uid},
                "health": service_health(self._service),
                "policies": policies_report(self._policies, who),
                "waiting": [
                    WaiterReport(uid=each.uid, nbytes=each.nbytes, gpus=each.gpus, is_served=each.is_served)
                    for each in mine
                ],
            }
        )

    async def _why(self, client: Connection, request: SocketRequest) -> None:
        reading = self._service.state.last
        if reading is None or reading.ledger is None:
            raise VramError("nothing was read yet", hint="try again in a moment")
        who = self._viewer(client.peer)
        found = who.findings(reading.ledger, reading.findings)
        body = json.why(who.ledger(reading.ledger), found, compact=True)
        await client.answer(SocketAnswer(is_last=True, data=Raw(body.strip())))

    async def _decisions(self, client: Connection, request: SocketRequest) -> None:
        await client.last(policies_report(self._policies, self._viewer(client.peer)))

    async def _allow_park(self, client: Connection, request: SocketRequest) -> None:
        require_may_act(client.peer)
        if not 0 < request.pid < 1 << 22:
            raise UsageError("there is no such pid", hint="`vram who` lists them")
        pid, started_at = self._policies.allow(request.pid, client.peer, revoke=request.revoke)
        await client.last({"schema": 1, "pid": pid, "started_at": started_at, "allowed": not request.revoke})

    async def _wait(self, client: Connection, request: SocketRequest) -> None:
        """Say when there is room; then stay, for as long as the client does: so long it is in use."""
        require_may_act(client.peer)
        if any(not 0 <= gpu < 4096 for gpu in request.gpus) or len(request.gpus) > 256:
            raise UsageError("there is no such GPU", hint="for example [0, 1]")
        self._require_possible(request)
        waiting = self._policies.waiting
        room: asyncio.Future[tuple[int, int]] = asyncio.get_running_loop().create_future()

        def found(gpu: int, free: int) -> None:
            if not room.done():
                room.set_result((gpu, free))

        waiter = waiting.add(client.peer.uid, request.nbytes, request.gpus, found)
        gone = asyncio.create_task(client.closed())
        try:
            self._service.read_soon()
            await client.answer(SocketAnswer(event="waiting", data=Raw(msgspec.json.encode({}))))
            await asyncio.wait((room, gone), return_when=asyncio.FIRST_COMPLETED)
            if room.done():
                gpu, free = room.result()
                data: dict[str, Any] = {"gpu": gpu, "free_bytes": free, "uuid": self._uuid(gpu)}
                await client.answer(SocketAnswer(event="room", data=Raw(msgspec.json.encode(data))))
                await gone
        finally:
            waiting.remove(waiter.number)
            gone.cancel()

    def _require_possible(self, request: SocketRequest) -> None:
        """Raise where no GPU here has that much memory at all."""
        good = self._service.state.good
        gpus = good.ledger.gpus if good and good.ledger else ()
        wanted = [gpu for gpu in gpus if not request.gpus or gpu.index in request.gpus]
        if gpus and not wanted:
            raise UsageError(
                "there is no such GPU", hint=f"these exist: {', '.join(str(g.index) for g in gpus)}"
            )
        known = [gpu.total_bytes for gpu in wanted]
        if known and None not in known and request.nbytes > max(each or 0 for each in known):
            raise UsageError("that is more than a GPU here has", hint="request less")

    def _uuid(self, gpu: int) -> str | None:
        good = self._service.state.good
        found = good.ledger.gpus if good and good.ledger else ()
        return next((each.uuid for each in found if each.index == gpu), None)
