"""When: a moment has the wall clock for people, and for ages a clock that never jumps.

The wall clock jumps, in both directions, and does not tell how much time has passed. CLOCK_BOOTTIME never
goes back and counts the time of a suspend; it begins anew with a boot, which has an id of its own.
"""

from __future__ import annotations

import time
from datetime import datetime

from msgspec import Struct

LATEST = 253402300799.0
"""The last second that a date can say: the end of the year 9999."""


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
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(min(max(0.0, wall), LATEST)))


def read_rfc3339(text: str) -> datetime:
    """What ``rfc3339`` wrote; Python 3.10 does not read its Z. Raises ValueError where *text* is no time."""
    return datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith("Z") else text)
