"""What is answered at ``/`` and below ``/page/``: the page's files, and what it shows of the last reading.

A page asks for ``now.json`` at every interval: some hundred bytes, which say how old the last reading is and
which one it is. Only where that is another one than it shows, it asks for ``reading.json``. Both are made
while somebody looks, and the reading once for each ledger.
"""

from __future__ import annotations

from asyncio import TimerHandle, get_running_loop
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple
from weakref import WeakKeyDictionary

from msgspec import Struct

import vram
from vram.diagnosis.leftover import GHOST_CODES
from vram.model.ledger import Ledger
from vram.report.json import encode
from vram.serve.clock import Moment
from vram.serve.page.view import MAX_FINDINGS, page_reading, without_times, words
from vram.serve.web.http import JSON_TYPE, HttpRequest, HttpResponse, json_response, refusal

if TYPE_CHECKING:
    from vram.serve.service import Service

FOLDER = Path(__file__).parent
FORGET_S = 120.0
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


class PageNow(Struct, frozen=True, kw_only=True):
    """Whether what a page shows is still true. ``reading`` names the newest one; null: nothing was read yet.

    ``now`` is the service's clock in unix seconds: that of the page's reader may be wrong.
    ``good_age_s`` is the age of the last reading without an error. Ages of processes in the reading were true
    ``ages_behind_s`` ago.
    """

    schema: Literal[1] = 1
    version: str
    now: float
    interval_s: float
    reading: str | None
    good_age_s: float | None
    ages_behind_s: float
    error: str | None
    history: bool
    """Whether it is recorded and can be asked."""
    policies: str | None
    """Names the policies and their decisions as they are now: another name, and there is something new."""


class _Kept(NamedTuple):
    """A reading as pages get it: what it was made of, its name and body, and how far its ages were behind."""

    ledger: Ledger
    shown_to_others: str
    digest: bytes
    name: str
    body: bytes
    behind_s: float
    made: Moment


_kept: WeakKeyDictionary[Service, _Kept] = WeakKeyDictionary()
_forgetting: WeakKeyDictionary[Service, TimerHandle] = WeakKeyDictionary()
_numbers = count(1)


def answer(service: Service, request: HttpRequest) -> HttpResponse:
    """Answer a request for ``/`` or for what lies below ``/page/``."""
    name = request.path.removeprefix("/page/") if request.path != "/" else "index.html"
    handlers = {"now.json": _now, "reading.json": _reading, "words.json": _words}
    if handler := handlers.get(name):
        return handler(service, request)
    return _file(name, request)


# ---- files ----


def _file(name: str, request: HttpRequest) -> HttpResponse:
    files = {path.name: path for path in FOLDER.iterdir() if path.suffix in TYPES}
    if name not in files or (name == "index.html" and request.path != "/"):
        return refusal(404, f"there is nothing at {request.path}", "the page is at /")
    return _tagged(files[name].read_bytes(), request, content_type=TYPES[files[name].suffix])


def _words(service: Service, request: HttpRequest) -> HttpResponse:
    return _tagged(encode(words(vram.__version__), compact=True), request)


def _tagged(body: bytes, request: HttpRequest, *, content_type: str = JSON_TYPE) -> HttpResponse:
    """*body*, or 304 where the browser has it already. It asks each time: vram may have been updated."""
    tag = f'"{sha256(body).hexdigest()[:32]}"'
    is_known = request.headers.get("if-none-match") == tag
    return HttpResponse(
        status=304 if is_known else 200,
        body=b"" if is_known else body,
        content_type=content_type,
        headers=(("ETag", tag), ("Cache-Control", "no-cache")),
    )


# ---- the reading ----


def _now(service: Service, request: HttpRequest) -> HttpResponse:
    state, now, kept = service.state, service.clock.now(), _newest(service)
    return json_response(
        PageNow(
            version=vram.__version__,
            now=now.wall,
            interval_s=service.config.interval_s,
            reading=kept.name if kept else None,
            good_age_s=service.age_of(state.good),
            ages_behind_s=kept.behind_s + now.since(kept.made) if kept else 0.0,
            error=state.last.error if state.last else None,
            history=service.config.history.enabled,
            policies=_policies_name(service),
        )
    )


def _policies_name(service: Service) -> str | None:
    from vram.serve.policies.policy_part import PolicyPart

    part = service.part(PolicyPart.name)
    if not isinstance(part, PolicyPart):
        return None
    decided = [(each.number, each.verdict, each.status) for each in part.decisions]
    return sha256(repr((part.engine.policies, decided)).encode()).hexdigest()[:16]


def _newest(service: Service) -> _Kept | None:
    """The newest reading. It keeps its name while nothing but ages differs from the one before."""
    from vram.serve.web.routes import tcp_viewer

    last, kept = service.state.last, _kept.get(service)
    if last is None or last.ledger is None:
        return None
    shown = tcp_viewer(service).others
    if kept is None or kept.ledger is not last.ledger or kept.shown_to_others != shown:
        kept = _kept[service] = _made(service, last.ledger, shown, kept)
    _forget_later(service)
    return kept


def _forget_later(service: Service) -> None:
    """Nobody who looks any more: a ledger of thousands of processes is not kept for that."""
    if before := _forgetting.pop(service, None):
        before.cancel()
    _forgetting[service] = get_running_loop().call_later(FORGET_S, _kept.pop, service, None)


def _made(service: Service, ledger: Ledger, shown: str, before: _Kept | None) -> _Kept:
    from vram.serve.web.routes import ghost_report, visible

    view = visible(service)
    ghosts = [each for each in view.findings if each.code in GHOST_CODES][:MAX_FINDINGS]
    since = {each: ghost_report(service, each).since for each in ghosts}
    reading = page_reading(view.ledger, view.findings, since)
    digest = sha256(encode(without_times(reading), compact=True)).digest()
    if before is not None and before.digest == digest:
        return before._replace(ledger=ledger, shown_to_others=shown)
    good = service.state.good
    return _Kept(
        ledger=ledger,
        shown_to_others=shown,
        digest=digest,
        # A service that was started again counts anew: its start is a part of the name.
        name=f"{service.state.started.wall:.3f}-{next(_numbers)}",
        body=encode(reading, compact=True),
        behind_s=(good.ages_behind_s + (service.age_of(good) or 0.0)) if good else 0.0,
        made=service.clock.now(),
    )


def _reading(service: Service, request: HttpRequest) -> HttpResponse:
    kept = _newest(service)
    if kept is None:
        return refusal(503, "nothing was read yet", "/healthz says how long the reading has taken")
    return HttpResponse(body=kept.body, headers=(("Vram-Reading", kept.name),))
