"""When: moments whose distance is an age. The service waits and measures by a port, which tests replace.

The wall clock jumps, in both directions, and does not tell how much time has passed. CLOCK_BOOTTIME never
goes back and counts the time of a suspend; it begins anew with a boot, which has an id of its own.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

from msgspec import Struct

_BOOT_ID = "/proc/sys/kernel/random/boot_id"


class Moment(Struct, frozen=True):
    """A point in time: ``wall``, seconds since 1970, for people; ``boot``, since the boot, for ages."""

    wall: float
    boot: float
    boot_id: str = ""

    def since(self, earlier: Moment) -> float:
        """Seconds from *earlier* to now; never negative. Across a boot only the wall clock can tell."""
        if self.boot_id == earlier.boot_id:
            return max(0.0, self.boot - earlier.boot)
        return max(0.0, self.wall - earlier.wall)

    def wall_of(self, earlier: Moment) -> float:
        """When *earlier* was, by the wall clock of now: a clock that was set since does not move it."""
        return self.wall - self.since(earlier)

    @property
    def text(self) -> str:
        """The wall clock as RFC 3339, to the second."""
        return rfc3339(self.wall)


def rfc3339(wall: float) -> str:
    """*wall* in UTC; a clock that is set beyond what a date can say is shown as the nearest one that can."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(min(max(0.0, wall), 253402300799.0)))


class ServiceClock(Protocol):
    """What the service knows of time."""

    def now(self) -> Moment: ...
    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """This machine's clocks."""

    def __init__(self) -> None:
        self._boot_id = _read_boot_id()

    def now(self) -> Moment:
        return Moment(time.time(), time.clock_gettime(time.CLOCK_BOOTTIME), self._boot_id)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def _read_boot_id() -> str:
    try:
        with open(_BOOT_ID, encoding="ascii") as file:
            return file.read(64).strip()
    except (OSError, ValueError):
        return ""
