"""What is held on a machine at one moment, read in one way by every command and program."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vram.host.ports import Host
    from vram.model.observation import Survey


def take_survey(host: Host, deadline_s: float) -> Survey:
    """Everything that is to be seen on *host*, and whom this user parked there."""
    from vram.probes.survey import survey
    from vram.reclaim.state import parked

    found = survey(host, deadline_s=deadline_s)
    away = parked(host)
    if not away:
        return found
    from msgspec.structs import replace

    return replace(found, parked=away)
