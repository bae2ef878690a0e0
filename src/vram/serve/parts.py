"""The parts of the service, in the order in which they start and take readings. A new part is a line here."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from vram.files import write_file
from vram.serve.forecast_part import ForecastPart
from vram.serve.history_part import HistoryPart
from vram.serve.kubernetes_part import KubernetesPart
from vram.serve.part import ServicePart
from vram.serve.policies.policy_part import PolicyPart
from vram.serve.socket.socket_part import SocketPart
from vram.serve.web.metrics import exposition
from vram.serve.web.routes import HttpPart

if TYPE_CHECKING:
    from vram.serve.config import ServeConfig
    from vram.serve.service import Service
    from vram.serve.state import Reading


class TextfilePart(ServicePart):
    """The metrics as a file, for node_exporter's textfile collector: written whole after each reading."""

    name = "textfile"

    def __init__(self, service: Service) -> None:
        self._service = service
        self._path = service.config.textfile.path

    async def on_reading(self, reading: Reading) -> None:
        if self._path:
            # Not flushed to the disk: it is written again in a moment. Its reader is another user.
            write_file(self._path, exposition(self._service)[0], mode=0o644, durable=False)

    async def reload(self, config: ServeConfig) -> None:
        self._path = config.textfile.path


# What answers clients is started last: they never meet half a service.
PARTS: tuple[Callable[[Service], ServicePart], ...] = (
    HistoryPart,
    ForecastPart,
    TextfilePart,
    KubernetesPart,
    PolicyPart,
    SocketPart,
    HttpPart,
)
