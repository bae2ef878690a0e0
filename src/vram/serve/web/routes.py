"""What is answered where over HTTP. A new path is a line in ROUTES."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Literal

from msgspec import Struct
from msgspec.structs import replace

import vram
from vram.diagnosis.leftover import GHOST_CODES, way_back
from vram.errors import UsageError, VramError
from vram.model.finding import Finding
from vram.model.ledger import Ledger
from vram.report import json, process_rows
from vram.serve.clock import rfc3339
from vram.serve.history_part import HISTORY_ROUTES
from vram.serve.part import Health
from vram.serve.state import Ghost, NumberedChange, Reading
from vram.serve.viewer import Viewer, aged, viewer
from vram.serve.web.http import HttpRequest, HttpResponse, json_response
from vram.serve.web.metrics import exposition

if TYPE_CHECKING:
    from vram.serve.service import Service

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
    """Whoever asks over TCP: nobody that is known."""
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
    ghosts = tuple(ghost_report(service, each) for each in view.findings if each.code in GHOST_CODES)
    command = way_back(view.reading.ledger) if ghosts and view.reading.ledger else None
    return json_response(CurrentGhostsReport(taken_at=view.ledger.taken_at, command=command, ghosts=ghosts))


def _names_holder(finding: Finding, ghost: Ghost) -> bool:
    """Whether *finding* is about the holders of *ghost*; where none is visible it names the dead owner."""
    named = {holder.pid for entry in ghost.entries for holder in entry.holders}
    return not named.union(entry.charged_pid for entry in ghost.entries).isdisjoint(finding.pids)


def ghost_report(service: Service, finding: Finding) -> GhostReport:
    now = service.clock.now()
    known = [
        each.since
        for each in service.state.ghosts
        if each.code == finding.code and each.gpu in finding.gpus and _names_holder(finding, each)
    ]
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


def _policies(service: Service, request: HttpRequest) -> HttpResponse:
    from vram.serve.policies.policies_report import policies_report
    from vram.serve.policies.policy_part import PolicyPart

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
    "/api/v1/policies": _policies,
    **HISTORY_ROUTES,
}


def find(path: str) -> Handler | None:
    """The handler of *path*, or of the folder that it lies in."""
    if handler := ROUTES.get(path):
        return handler
    folder = path.rpartition("/")[0] + "/"
    return ROUTES.get(folder) if folder != "/" else None
