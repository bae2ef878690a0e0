"""The Unix socket as a part of the service: who may ask what, and where each answer comes from."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import stat
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw

from vram import folders
from vram.errors import AlreadyRunning, CannotListen, UsageError, VramError
from vram.policy.policy import Consent
from vram.report import json
from vram.serve.forecast_part import ForecastPart
from vram.serve.part import ServicePart, counter, gauge
from vram.serve.policies.policy_part import PolicyPart
from vram.serve.policies.reports import policies_report
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

BACKLOG = 128
_MODE_ANYBODY = 0o666


class SocketPart(ServicePart):
    """Answers requests on the socket. Reading ones are answered here, actions by workers."""

    name = "socket"

    def __init__(self, service: Service) -> None:
        self._service = service
        self._listening: ListeningSocket | None = None
        self._server: SocketServer | None = None
        self._runner: ActionRunner | None = None

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
                "allow-park": partial(self._allow, "park"),
                "allow-sleep": partial(self._allow, "sleep"),
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
        # First the name: no client comes any more.
        listening, self._listening = self._listening, None
        server, self._server = self._server, None
        if listening is not None:
            listening.close()
        if server is not None:
            await server.close()
        if self._runner is not None:
            self._runner.close()

    def metrics(self) -> Iterable[Metric]:
        asked = sorted(self._server.requests.items()) if self._server else ()
        yield counter("vram_socket_requests", "requests on the socket, by what", asked, "do")
        waiting = sum(not each.is_served for each in self._policies.waiting.waiters)
        yield gauge("vram_waiters", "requests that wait for room", waiting)

    async def on_reading(self, reading: Reading) -> None:
        if reading.error is None and reading.ledger is not None:
            self._policies.waiting.serve(reading.ledger, reading.moment.boot)

    # ---- what is asked ----

    @property
    def _policies(self) -> PolicyPart:
        part = self._service.part(PolicyPart.name)
        assert isinstance(part, PolicyPart)
        return part

    @property
    def _forecasts(self) -> ForecastPart:
        part = self._service.part(ForecastPart.name)
        assert isinstance(part, ForecastPart)
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
                "forecasts": self._forecasts.report(who).forecasts,
                "waiting": [
                    {
                        "uid": each.uid,
                        "nbytes": each.nbytes,
                        "gpus": each.gpus,
                        "is_served": each.is_served,
                    }
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

    async def _allow(self, what: Consent, client: Connection, request: SocketRequest) -> None:
        require_may_act(client.peer)
        if not 0 < request.pid < 1 << 22:
            raise UsageError("there is no such pid", hint="`vram who` lists them")
        pid, started_at = self._policies.allow(what, request.pid, client.peer, revoke=request.revoke)
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


class ListeningSocket:
    """Listens at *path* until it is closed. The folder decides who may connect, the kernel who may act.

    The socket is made beside its place, and moved there in one step.
    Raises CannotListen where another user could have put something there, and AlreadyRunning where a service
    answers at *path*. A socket that a dead service left is replaced.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._name = os.path.basename(path)
        try:
            self._folder = _open_folder(os.path.dirname(path) or "/")
        except OSError as error:
            raise _refusal(path, error.strerror or str(error)) from error
        try:
            self._require_free()
            self.socket = self._bind()
        except OSError as error:
            os.close(self._folder)
            raise _refusal(path, error.strerror or str(error)) from error
        except BaseException:
            os.close(self._folder)
            raise

    def close(self) -> None:
        """Stop listening, and remove the socket if it is still ours."""
        self.socket.close()
        with suppress(OSError):
            about = os.stat(self._name, dir_fd=self._folder, follow_symlinks=False)
            if (about.st_dev, about.st_ino) == self._inode:
                os.unlink(self._name, dir_fd=self._folder)
        os.close(self._folder)

    def _at(self, name: str) -> str:
        # By the folder's descriptor: a path may be too long for a socket, or mean another folder meanwhile.
        return f"/proc/self/fd/{self._folder}/{name}"

    def _require_free(self) -> None:
        try:
            about = os.stat(self._name, dir_fd=self._folder, follow_symlinks=False)
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(about.st_mode):
            raise _refusal(self.path, "there is a link or another file already")
        if about.st_uid != os.geteuid():
            raise _refusal(self.path, f"there is a socket of {folders.owner_name(about.st_uid)} already")
        with socket.socket(socket.AF_UNIX) as trial:
            trial.settimeout(1.0)
            try:
                trial.connect(self._at(self._name))
            except (ConnectionRefusedError, FileNotFoundError):
                return  # its service is dead
            except OSError:
                pass  # one that is too busy to answer lives
        raise AlreadyRunning(
            f"another service answers at {self.path}",
            hint="one service is enough; or choose another --socket",
        )

    def _bind(self) -> socket.socket:
        fresh = f".vram-{os.urandom(8).hex()}"
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        try:
            made.bind(self._at(fresh))
            os.chmod(fresh, _MODE_ANYBODY, dir_fd=self._folder)
            made.listen(BACKLOG)
            about = os.stat(fresh, dir_fd=self._folder, follow_symlinks=False)
            self._inode = (about.st_dev, about.st_ino)
            os.replace(fresh, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        except BaseException:
            made.close()
            with suppress(OSError):
                os.unlink(fresh, dir_fd=self._folder)
            raise
        return made


def _open_folder(path: str) -> int:
    """The folder, made where it is missing: ours, and no other user may write to it or replace it."""
    here, missing = folders.nearest(path)
    try:
        for name in list(missing):
            _require_ours(here, path, is_last=False)
            with suppress(FileExistsError):
                os.mkdir(name, 0o755 if os.geteuid() == 0 else 0o700, dir_fd=here)
            os.close(here)
            here, _ = folders.nearest(path)
        _require_ours(here, path, is_last=True)
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=here)
    finally:
        os.close(here)


def _require_ours(folder: int, path: str, *, is_last: bool) -> None:
    about = os.fstat(folder)
    if not stat.S_ISDIR(about.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, f"{path} is not a folder")
    if is_last and (about.st_uid != os.geteuid() or folders.others_may_write(folder, about)):
        owner = folders.owner_name(about.st_uid)
        mode = stat.S_IMODE(about.st_mode)
        raise PermissionError(
            errno.EPERM, f"others can change {path}: it belongs to {owner}, mode {mode:04o}"
        )


def _refusal(path: str, reason: str) -> CannotListen:
    hint = (
        "choose a folder that only you can write to, with --socket; there is no other place to fall back to"
    )
    return CannotListen(f"cannot listen at {path}: {reason}", hint=hint)
