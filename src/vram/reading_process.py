"""How the reading process begins: it forks the one that has the driver open, then imports the rest.

That one keeps what it was forked from for as long as the service runs: without msgspec and the model it is
2 MiB smaller.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vram.children import Child


def main() -> None:
    """Started as a program, by :class:`vram.live_reader.ReaderClient`."""
    driver_reader = _start_driver_reader()  # it reads while we import

    from vram.live_reader import serve

    serve(driver_reader)


def _start_driver_reader() -> Child | None:
    from vram.host.local import start_kept_reader

    try:
        return start_kept_reader()
    except OSError:  # met again, and reported, by the reading itself
        return None
