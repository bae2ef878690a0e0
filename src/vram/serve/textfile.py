"""The metrics as a file, for node_exporter's textfile collector: written whole, and renamed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vram.files import write_file
from vram.serve.part import ServicePart
from vram.serve.web.metrics import exposition

if TYPE_CHECKING:
    from vram.serve.config import ServeConfig
    from vram.serve.service import Service
    from vram.serve.state import Reading


class TextfilePart(ServicePart):
    """Writes the file after each reading, where one is configured."""

    name = "textfile"

    def __init__(self, service: Service) -> None:
        self._service = service
        self._path = service.config.textfile.path

    async def on_reading(self, reading: Reading) -> None:
        if self._path:
            # Nobody waits for the disk: it is written again in a moment, and read by another user.
            write_file(self._path, exposition(self._service)[0], mode=0o644, durable=False)

    async def reload(self, config: ServeConfig) -> None:
        self._path = config.textfile.path
