"""The parts of the service, in the order in which they start and take readings. A new part is a line here."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from vram.serve.history_part import HistoryPart
from vram.serve.kubernetes.kubernetes_part import KubernetesPart
from vram.serve.part import ServicePart
from vram.serve.policies.policy_part import PolicyPart
from vram.serve.socket.socket_part import SocketPart
from vram.serve.textfile import TextfilePart
from vram.serve.web.http_part import HttpPart

if TYPE_CHECKING:
    from vram.serve.service import Service

# What others ask is started last: nobody meets half a service.
PARTS: tuple[Callable[[Service], ServicePart], ...] = (
    HistoryPart,
    TextfilePart,
    KubernetesPart,
    PolicyPart,
    SocketPart,
    HttpPart,
)
