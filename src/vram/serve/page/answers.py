"""What is answered at ``/`` and below ``/page/``: the page's files, and what it shows of the last reading.

A page asks for ``now.json`` at every interval: some hundred bytes, which say how old the last reading is and
which one it is. Only where that is another one than it shows, it asks for ``reading.json``, which is put
together once for each reading, and only when somebody looks.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple
from weakref import WeakKeyDictionary

from msgspec import Struct

import vram
from vram.model.finding import Finding
from vram.model.ledger import Ledger
from vram.report.json import encode
from vram.serve.http import JSON_TYPE, HttpRequest, HttpResponse, json_response, refusal
from vram.serve.page.view import page_reading, words

if TYPE_CHECKING:
    from vram.serve.service import Service

FOLDER = Path(__file__).parent
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
    reading_for_s: float
    error: str | None


class _Kept(NamedTuple):
    """A reading as it was sent: what it was made of, its name, and its body once somebody asked for it."""

    ledger: Ledger
    shown_to_others: str
    name: str
    body: bytes | None = None


_kept: WeakKeyDictionary[Service, _Kept] = WeakKeyDictionary()


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
    state = service.state
    kept, good = _newest(service), state.good
    good_age_s = service.age_of(good)
    behind_s = (good.ages_behind_s + (good_age_s or 0.0)) if good else 0.0
    return json_response(
        PageNow(
            version=vram.__version__,
            now=service.clock.now().wall,
            interval_s=service.config.interval_s,
            reading=kept.name if kept else None,
            good_age_s=good_age_s,
            ages_behind_s=behind_s,
            reading_for_s=service.source.waiting_s,
            error=state.last.error if state.last else None,
        )
    )


def _newest(service: Service) -> _Kept | None:
    """The newest reading. It has another name when the ledger is another one, or its reader may see more."""
    from vram.serve.routes import tcp_viewer

    last = service.state.last
    if last is None or last.ledger is None:
        return None
    shown, kept = tcp_viewer(service).others, _kept.get(service)
    if kept is None or kept.ledger is not last.ledger or kept.shown_to_others != shown:
        count = int(kept.name.rpartition("-")[2]) + 1 if kept else 1
        # A service that was started again counts anew: its start is a part of the name.
        kept = _Kept(last.ledger, shown, f"{service.state.started.wall:.3f}-{count}")
        _kept[service] = kept
    return kept


def _reading(service: Service, request: HttpRequest) -> HttpResponse:
    from vram.serve.routes import ghost_report, visible

    kept = _newest(service)
    if kept is None:
        return refusal(503, "nothing was read yet", "/healthz says how long the reading has taken")
    if kept.body is None:
        view = visible(service)
        since: Mapping[Finding, str | None] = {
            each: ghost_report(service, each).since for each in view.findings
        }
        body = encode(page_reading(view.ledger, view.findings, since), compact=True)
        kept = kept._replace(body=body)
        _kept[service] = kept
    return HttpResponse(body=kept.body or b"", headers=(("Vram-Reading", kept.name),))
