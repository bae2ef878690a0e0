"""HTTP as a part of the service: what is answered where. A new path is a line in ROUTES."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from inspect import isawaitable
from typing import TYPE_CHECKING, Literal

from msgspec import Struct
from msgspec.structs import replace

import vram
from vram.diagnosis.leftover import GHOST_CODES, way_back
from vram.errors import CannotListen, UsageError, VramError
from vram.ledger.holds import find_holds
from vram.model.finding import Finding
from vram.model.hold import Hold
from vram.model.ledger import Ledger
from vram.model.moment import rfc3339
from vram.report import json, process_rows
from vram.serve.forecast_part import ForecastPart
from vram.serve.history_part import HISTORY_ROUTES
from vram.serve.part import Health, PartHealth, ServicePart, counter, gauge
from vram.serve.state import NumberedChange, Reading
from vram.serve.viewer import Viewer, aged, viewer
from vram.serve.web.http import HttpRequest, HttpResponse, HttpServer, json_response, refusal
from vram.serve.web.metrics import exposition

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from vram.serve.config import ServeConfig
    from vram.serve.service import Service

NAMELESS_PATHS = frozenset(("/metrics", "/healthz", "/readyz"))
Handler = Callable[["Service", HttpRequest], "HttpResponse | Awaitable[HttpResponse]"]


# ---- how the service is ----


class PartReport(Struct, frozen=True):
    """One part of the service."""

    name: str
    status: Health
    message: str


class ServiceHealth(Struct, frozen=True, kw_only=True):
    """How the service is. ``good_age_s`` is the age of the last reading without an error; null: none yet."""

    schema: Literal[1] = 1
    status: Health
    version: str
    started_at: str
    uptime_s: float
    interval_s: float
    last_at: str | None
    last_age_s: float | None
    last_took_s: float | None
    last_error: str | None
    good_at: str | None
    good_age_s: float | None
    reading_for_s: float
    """How long the reading that is under way has taken; zero where none is."""
    reader_restarts: int
    parts: tuple[PartReport, ...]


def service_health(service: Service) -> ServiceHealth:
    state, now = service.state, service.clock.now()
    status, parts = service.health()
    return ServiceHealth(
        status=status,
        version=vram.__version__,
        started_at=rfc3339(now.wall_of(state.started)),
        uptime_s=now.since(state.started),
        interval_s=service.config.interval_s,
        last_at=_when(service, state.last),
        last_age_s=service.age_of(state.last),
        last_took_s=state.last.took_s if state.last else None,
        last_error=state.last.error if state.last else None,
        good_at=_when(service, state.good),
        good_age_s=service.age_of(state.good),
        reading_for_s=service.source.waiting_s,
        reader_restarts=state.reader_restarts,
        parts=tuple(PartReport(name, each.status, each.message) for name, each in parts),
    )


def _when(service: Service, reading: Reading | None) -> str | None:
    return rfc3339(service.clock.now().wall_of(reading.moment)) if reading else None


def _health(service: Service, request: HttpRequest) -> HttpResponse:
    return json_response(service_health(service))


def _healthz(service: Service, request: HttpRequest) -> HttpResponse:
    """200 while readings come; a GPU or a part that fails is no reason to start the service again."""
    health = service_health(service)
    reading = next(each for each in health.parts if each.name == "reading")
    return json_response(health, 503 if reading.status == "failed" else 200)


def _readyz(service: Service, request: HttpRequest) -> HttpResponse:
    return json_response(service_health(service), 200 if service.is_ready else 503)


def _metrics(service: Service, request: HttpRequest) -> HttpResponse:
    body, content_type = exposition(service, request.headers.get("accept", ""))
    return HttpResponse(body=body, content_type=content_type)


# ---- what was read ----


class ChangesReport(Struct, frozen=True, kw_only=True):
    """The changes after a number. ``missed``: there were more than are kept, and some of them are gone."""

    schema: Literal[1] = 1
    last: int
    missed: bool
    changes: tuple[NumberedChange, ...]


class GhostReport(Struct, frozen=True, kw_only=True):
    """Memory of dead owners, known ``since`` then. ``command`` frees it; null: none does."""

    code: str
    title: str
    nbytes: int | None
    gpus: tuple[int, ...]
    pids: tuple[int, ...]
    since: str | None
    age_s: float | None
    cause: str
    evidence: tuple[str, ...]
    command: str | None


class CurrentGhostsReport(Struct, frozen=True, kw_only=True):
    """All ghosts. ``command`` is the one that frees what is certain among them."""

    schema: Literal[1] = 1
    taken_at: str
    command: str | None
    ghosts: tuple[GhostReport, ...]


class VisibleReading(Struct, frozen=True):
    """The last reading, as a reader over TCP may see it."""

    reading: Reading
    ledger: Ledger
    findings: tuple[Finding, ...]


def tcp_viewer(service: Service) -> Viewer:
    """The reader over TCP, of whom nothing is known."""
    return viewer(None, service.config.show, service.reader_options.proc_root)


def visible(service: Service) -> VisibleReading:
    reading = service.state.last
    if reading is None or reading.ledger is None:
        raise VramError("nothing was read yet", hint="/healthz says how long the reading has taken")
    who, good = tcp_viewer(service), service.state.good
    shown = who.ledger(reading.ledger)
    if good is not None:  # a ledger stays the same object while nothing changes
        shown = replace(shown, taken_at=rfc3339(service.clock.now().wall_of(good.moment)))
    return VisibleReading(reading, shown, who.findings(reading.ledger, reading.findings))


def _of_reading(service: Service, name: str, made: Callable[[], bytes]) -> HttpResponse:
    """An answer that is the same until the next reading: made once, however often it is asked for.

    Its header says how old it is, by the last reading without an error.
    """
    made_of, body = service.answers.get(name, (None, b""))
    if made_of is None or made_of is not service.state.last:
        body = made()
        service.answers[name] = (service.state.last, body)
    age_s = service.age_of(service.state.good)
    return HttpResponse(body=body, headers=() if age_s is None else (("Age", str(int(age_s))),))


def _why(service: Service, request: HttpRequest) -> HttpResponse:
    def made() -> bytes:
        view = visible(service)
        return json.why(aged(view.ledger, view.reading.ages_behind_s), view.findings, compact=True)

    return _of_reading(service, "why", made)


def _ps(service: Service, request: HttpRequest) -> HttpResponse:
    every = flag(request, "all")

    def made() -> bytes:
        view = visible(service)
        ledger = aged(view.ledger, view.reading.ages_behind_s)
        rows = process_rows.rows(ledger, every_process=every)
        return json.encode(process_rows.report(ledger, rows), compact=True)

    return _of_reading(service, "ps --all" if every else "ps", made)


def _changes(service: Service, request: HttpRequest) -> HttpResponse:
    after = number(request, "after", 0)
    who, kept = tcp_viewer(service), service.state.changes
    changes = tuple(
        NumberedChange(each.number, who.change(each.change)) for each in service.state.changes_after(after)
    )
    missed = bool(kept) and kept[0].number > after + 1
    last = kept[-1].number if kept else 0
    return json_response(ChangesReport(last=last, missed=missed, changes=changes))


def _ghosts(service: Service, request: HttpRequest) -> HttpResponse:
    view = visible(service)
    ghosts = tuple(ghost_reports(service, view.findings))
    command = way_back(view.reading.ledger) if ghosts and view.reading.ledger else None
    return json_response(CurrentGhostsReport(taken_at=view.ledger.taken_at, command=command, ghosts=ghosts))


def ghost_reports(service: Service, findings: Iterable[Finding]) -> Iterator[GhostReport]:
    """Those of *findings* that are about ghosts, with since when each is known."""
    reading = service.state.last
    if reading is None or reading.ledger is None:
        return
    known: dict[tuple[object, ...], list[Hold]] = {}
    for hold in find_holds(reading.ledger):
        known.setdefault(hold.key, []).append(hold)
    for finding in findings:
        if finding.code in GHOST_CODES:
            holds = [hold for each in finding.holds for hold in known.get(each.key, ()) if each.is_of(hold)]
            yield _ghost_report(service, finding, holds)


def _ghost_report(service: Service, finding: Finding, holds: Sequence[Hold]) -> GhostReport:
    now = service.clock.now()
    known = [since for hold in holds if (since := service.state.since(hold)) is not None]
    oldest = max((now.since(each) for each in known), default=None)
    return GhostReport(
        code=finding.code,
        title=finding.title,
        nbytes=finding.nbytes,
        gpus=finding.gpus,
        pids=finding.pids,
        since=None if oldest is None else rfc3339(now.wall - oldest),
        age_s=oldest,
        cause=finding.cause,
        evidence=finding.evidence,
        command=next((each.command for each in finding.remedies if each.command), None),
    )


def _forecasts(service: Service, request: HttpRequest) -> HttpResponse:
    part = service.part(ForecastPart.name)
    assert isinstance(part, ForecastPart)
    return _of_reading(
        service, "forecasts", lambda: json.encode(part.report(tcp_viewer(service)), compact=True)
    )


def _policies(service: Service, request: HttpRequest) -> HttpResponse:
    from vram.serve.policies.policy_part import PolicyPart
    from vram.serve.policies.reports import policies_report

    part = service.part(PolicyPart.name)
    assert isinstance(part, PolicyPart)
    return json_response(policies_report(part, tcp_viewer(service)))


# ---- words of a query ----


def number(request: HttpRequest, name: str, usual: int) -> int:
    """The whole number *name* of the query."""
    text = request.query.get(name, str(usual))
    if not (text.isascii() and text.isdecimal() and len(text) < 16):
        raise UsageError(f"{name} is not a whole number", hint=f"write it like ?{name}=12")
    return int(text)


def flag(request: HttpRequest, name: str) -> bool:
    """Whether *name* is switched on in the query."""
    text = request.query.get(name, "0")
    if text not in ("", "0", "1", "true", "false"):
        raise UsageError(f"{name} is neither 0 nor 1", hint=f"write it like ?{name}=1")
    return text in ("", "1", "true")


# ---- where ----


def _page(service: Service, request: HttpRequest) -> HttpResponse:
    from vram.serve.page.answers import answer  # most services never show it

    return answer(service, request)


# A path that ends in / also stands for all that lies below it.
ROUTES: dict[str, Handler] = {
    "/": _page,
    "/page/": _page,
    "/metrics": _metrics,
    "/healthz": _healthz,
    "/readyz": _readyz,
    "/api/v1/health": _health,
    "/api/v1/why": _why,
    "/api/v1/ps": _ps,
    "/api/v1/changes": _changes,
    "/api/v1/ghosts": _ghosts,
    "/api/v1/forecasts": _forecasts,
    "/api/v1/policies": _policies,
    **HISTORY_ROUTES,
}


def find(path: str) -> Handler | None:
    """The handler of *path*, or of the folder that it lies in."""
    if handler := ROUTES.get(path):
        return handler
    folder = path.rpartition("/")[0] + "/"
    return ROUTES.get(folder) if folder != "/" else None


class HttpPart(ServicePart):
    """Answers requests from the last reading."""

    name = "http"

    def __init__(self, service: Service) -> None:
        self._service = service
        self._server = HttpServer(self._answer)
        self._server.quick_paths = NAMELESS_PATHS
        self._set_hosts(service.config)
        self._wanted = service.config.http.addresses
        self._error = ""

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(f"http://{address}" for address in self._server.addresses)

    async def start(self) -> None:
        await self._server.listen(self._wanted)
        for url in self.urls:
            self._service.log.info(f"listening on {url}/ (metrics: {url}/metrics)")

    async def reload(self, config: ServeConfig) -> None:
        self._set_hosts(config)
        self._error = ""
        if config.http.addresses == self._wanted:
            return
        try:
            await self._server.listen(config.http.addresses)
        except CannotListen as error:
            self._error = str(error)
            raise
        self._wanted = config.http.addresses
        for url in self.urls:
            self._service.log.info(f"listening on {url}/")

    def _set_hosts(self, config: ServeConfig) -> None:
        self._server.hosts = frozenset(each.lower() for each in config.http.hosts)
        # Prometheus elsewhere knows this host by names that we do not; what it asks for names no user.
        self._server.open_paths = NAMELESS_PATHS if config.http.allow_remote else frozenset()

    async def close(self) -> None:
        await self._server.close()

    def health(self) -> PartHealth:
        return PartHealth("degraded", self._error) if self._error else PartHealth()

    def metrics(self) -> Iterable[Metric]:
        answered = [(str(status), count) for status, count in sorted(self._server.answered.items())]
        yield counter("vram_http_requests", "requests answered, by status", answered, "status")
        yield counter("vram_http_refused_connections", "closed to make room", self._server.evicted)
        yield gauge("vram_http_connections", "open connections", self._server.connections)

    async def _answer(self, request: HttpRequest) -> HttpResponse:
        try:
            handler = find(request.path)
            if handler is None:
                hint = "/metrics, /healthz and /api/v1/why are there; docs/guides/serve.md lists all"
                return refusal(404, f"there is nothing at {request.path}", hint)
            answer = handler(self._service, request)
            return await answer if isawaitable(answer) else answer
        except UsageError as error:
            return refusal(400, str(error), error.hint)
        except VramError as error:
            return refusal(503, str(error), error.hint)
        except Exception as error:
            self._service.log.error(f"http: {request.path}: {type(error).__name__}: {error}")
            return refusal(500, "this is a bug in vram", "its log has a line about it; please report it")
