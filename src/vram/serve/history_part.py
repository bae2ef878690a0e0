"""The history as a part of the service: every reading is recorded, and questions are answered over HTTP.

A disk that is full, another user's file or a damaged one degrades this part alone: the service goes on,
and so does the recording as soon as it can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from vram.errors import BadInput, HistoryUnavailable, NothingFound, UsageError
from vram.history.file import DAMAGE
from vram.history.questions import MAX_ROWS, Questions, within
from vram.history.store import HistoryStore
from vram.history.times import read_time
from vram.serve.part import PartHealth, ServicePart, gauge
from vram.serve.viewer import Viewer, viewer
from vram.serve.web.http import HttpRequest, HttpResponse, json_response, refusal

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from vram.model.history import HistoryReport
    from vram.serve.config import ServeConfig
    from vram.serve.service import Service
    from vram.serve.state import Reading

ANSWER_S = 0.5
"""What a question may take: meanwhile the service does nothing else."""
_POINTS, _LIMIT = 400, 100


class HistoryPart(ServicePart):
    """Records readings, and has the connection that questions are asked through."""

    name = "history"

    def __init__(self, service: Service) -> None:
        self._service = service
        self._trouble = ""
        self._notice = ""
        self.store = self._make_store(service.config)

    async def start(self) -> None:
        self._attempt(self._open)

    async def on_reading(self, reading: Reading) -> None:
        if self.store is None or reading.ledger is None or reading.error is not None:
            return
        store, ledger = self.store, reading.ledger

        def record() -> None:
            store.record(ledger, reading.moment)
            store.tend(reading.moment)

        self._attempt(record)

    async def reload(self, config: ServeConfig) -> None:
        made = self._make_store(config)
        if self.store is not None and made is not None and made.path == self.store.path:
            self.store.interval_s = config.interval_s
            self.store.limit(config.history.keep_s, config.history.most_bytes)
            return
        if self.store is not None:
            self.store.close()
        self.store, self._trouble, self._notice = made, "", ""
        self._attempt(self._open)

    async def close(self) -> None:
        if self.store is not None:
            self.store.close()

    def health(self) -> PartHealth:
        if self._trouble or self._notice:
            return PartHealth("degraded", self._trouble or self._notice)
        return PartHealth()

    def metrics(self) -> Iterable[Metric]:
        if self.store is not None:
            yield gauge("vram_history_size_bytes", "the history on the disk", self.store.nbytes)
            yield gauge("vram_history_recording", "whether readings are recorded", not self._trouble)

    def _make_store(self, config: ServeConfig) -> HistoryStore | None:
        if not config.history.enabled:
            return None
        return HistoryStore(
            config.history.path or self._service.places.history,
            keep_s=config.history.keep_s,
            most_bytes=config.history.most_bytes,
            interval_s=config.interval_s,
        )

    def _open(self) -> None:
        if self.store is not None:
            self.store.open()

    def _attempt(self, job: Callable[[], None]) -> None:
        """Do what writes; what goes wrong is reported once, and its end too."""
        try:
            job()
        except (HistoryUnavailable, BadInput) as error:
            if str(error) != self._trouble:
                self._service.log.error(f"history: {error}")
            self._trouble = str(error)
        else:
            if self._trouble and self.store is not None and self.store.is_open:
                self._service.log.info("history: recorded again")
                self._trouble = ""
        notice = self.store.notice if self.store is not None else ""
        if notice != self._notice:
            self._service.log.error(f"history: {notice}")
            self._notice = notice


# ---- questions over HTTP ----

Question = Callable[[Questions, HttpRequest, float, Viewer], "HistoryReport"]


def _holders(ask: Questions, request: HttpRequest, now: float, who: Viewer) -> HistoryReport:
    report = ask.holders_at(_gpu(request), _time(request, "at", now))
    return replace(report, holders=tuple(map(who.held, report.holders)))


def _ghosts(ask: Questions, request: HttpRequest, now: float, who: Viewer) -> HistoryReport:
    report = ask.ghosts(*_range(request, now), gpu=_gpu(request), limit=_number(request, "limit", _LIMIT))
    return replace(report, ghosts=tuple(map(who.held, report.ghosts)))


def _search(ask: Questions, request: HttpRequest, now: float, who: Viewer) -> HistoryReport:
    text, limit = request.query.get("q", ""), _number(request, "limit", _LIMIT)
    if not text:
        raise UsageError("q is missing", hint="write it like ?q=train.py")
    found = ask.search(text, *_range(request, now), gpu=_gpu(request), limit=limit, fields=who.searched)
    return replace(found, rows=tuple(map(who.held, found.rows)))


def _waste(ask: Questions, request: HttpRequest, now: float, who: Viewer) -> HistoryReport:
    report = ask.waste(*_range(request, now), limit=_number(request, "limit", _LIMIT))
    return replace(report, users=tuple(map(who.waste, report.users)))


def _series(ask: Questions, request: HttpRequest, now: float, who: Viewer) -> HistoryReport:
    gpu = _gpu(request) or ask.only_gpu()
    return ask.series(gpu, *_range(request, now), points=_number(request, "points", _POINTS))


def _answering(question: Question) -> Callable[[Service, HttpRequest], HttpResponse]:
    def answer(service: Service, request: HttpRequest) -> HttpResponse:
        part = service.part("history")
        assert isinstance(part, HistoryPart)
        if part.store is None:
            return refusal(404, "no history is recorded", "serve.toml: [history] enabled = true")
        connection = part.store.connection
        if connection is None:
            return refusal(503, part.health().message or "the history is not open yet", "ask again later")
        who = viewer(None, service.config.show, service.reader_options.proc_root)
        try:
            with within(connection, ANSWER_S):
                report = question(Questions(connection), request, service.clock.now().wall, who)
        except NothingFound as error:
            return refusal(404, str(error), error.hint)
        except DAMAGE as error:
            said = part.store.fail(error)
            return refusal(503, str(said), said.hint)
        return json_response(report)

    return answer


def _gpu(request: HttpRequest) -> str | None:
    return request.query.get("gpu", "")[:80] or None


def _time(request: HttpRequest, name: str, now: float) -> float | None:
    text = request.query.get(name, "")
    return read_time(text[:80], now).wall if text else None


def _range(request: HttpRequest, now: float) -> tuple[float | None, float | None]:
    return _time(request, "from", now), _time(request, "to", now)


def _number(request: HttpRequest, name: str, usual: int) -> int:
    text = request.query.get(name, str(usual))
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and 0 < int(text) <= MAX_ROWS):
        raise UsageError(
            f"{name} is not a number from 1 to {MAX_ROWS}", hint=f"write it like ?{name}={usual}"
        )
    return int(text)


HISTORY_ROUTES = {
    "/api/v1/history/holders": _answering(_holders),
    "/api/v1/history/ghosts": _answering(_ghosts),
    "/api/v1/history/search": _answering(_search),
    "/api/v1/history/waste": _answering(_waste),
    "/api/v1/history/series": _answering(_series),
}
