"""HTTP as a part of the service: which address, which route, and what an error of ours answers."""

from __future__ import annotations

from collections.abc import Iterable
from inspect import isawaitable
from typing import TYPE_CHECKING

from vram.errors import CannotListen, UsageError, VramError
from vram.serve.part import PartHealth, ServicePart
from vram.serve.web.http import HttpRequest, HttpResponse, HttpServer, refusal
from vram.serve.web.routes import find

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from vram.serve.config import ServeConfig
    from vram.serve.service import Service


NAMELESS_PATHS = frozenset(("/metrics", "/healthz", "/readyz"))


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
        # Prometheus elsewhere knows this host by names that we do not; what it asks for names nobody.
        self._server.open_paths = NAMELESS_PATHS if config.http.allow_remote else frozenset()

    async def close(self) -> None:
        await self._server.close()

    def health(self) -> PartHealth:
        return PartHealth("degraded", self._error) if self._error else PartHealth()

    def metrics(self) -> Iterable[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        answered = CounterMetricFamily(
            "vram_http_requests", "requests answered, by status", labels=["status"]
        )
        for status, count in sorted(self._server.answered.items()):
            answered.add_metric([str(status)], count)
        yield answered
        yield CounterMetricFamily(
            "vram_http_refused_connections", "closed to make room", value=self._server.evicted
        )
        yield GaugeMetricFamily("vram_http_connections", "open connections", value=self._server.connections)

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
