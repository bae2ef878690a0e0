"""This machine, read once: a survey of it becomes a ledger here, for every command, action and job's end."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vram.host.ports import Host
    from vram.model.ledger import Ledger
    from vram.model.observation import Survey
    from vram.model.process import ParkedProcess

Parked = Callable[["Host"], "tuple[ParkedProcess, ...]"]
"""Who is parked on a host by this user."""


def read_survey(host: Host, deadline_s: float, parked: Parked | None = None) -> Survey:
    """Everything that is to be seen on *host* within about *deadline_s*, and whom *parked* names."""
    from vram.probes.survey import survey

    found = survey(host, deadline_s=deadline_s)
    away = parked(host) if parked is not None else ()
    if not away:
        return found
    from msgspec.structs import replace

    return replace(found, parked=away)


def read_ledger(host: Host, deadline_s: float, parked: Parked | None = None) -> Ledger:
    """The ledger of what read_survey() finds."""
    from vram.ledger.build import build_ledger

    return build_ledger(read_survey(host, deadline_s, parked))
