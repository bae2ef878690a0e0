"""A server that is asked to release its memory: what will be sent to it, what it answered, what was freed."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from vram.model.plan import Target

ReleaseEnd = Literal["answered", "refused", "unanswered", "ended"]
"""Every answer says that it is done; one says that it is not; one did not come; the server has ended."""


class ReleaseOrder(Struct, frozen=True, kw_only=True):
    """A server that may be asked. ``target`` is the process that listens, ``pid`` the one that was named.

    ``gpus`` and ``charged`` are about ``pids``, the server and its processes. ``predicted_bytes`` is the
    server's own count, where it has one. ``whole_gpu``: only the GPUs' totals tell what was freed (WSL2; GPUs
    without memory of their own).
    """

    pid: int
    target: Target
    server: str
    version: str
    where: str
    undo: bool
    requests: tuple[str, ...]
    loses: str
    undone: str
    has_undo: bool
    predicted_bytes: int | None
    pids: tuple[int, ...]
    gpus: tuple[int, ...]
    charged: int
    whole_gpu: bool = False


class AskedRequest(Struct, frozen=True, kw_only=True):
    """One request that was sent. ``status`` None: no answer came. ``problem`` is empty where it was done."""

    request: str
    status: int | None
    problem: str = ""
    model: str | None = None


class ReleaseReceipt(Struct, frozen=True, kw_only=True):
    """What was asked, what came back, and what the driver charged the server's processes with."""

    order: ReleaseOrder
    end: ReleaseEnd
    asked: tuple[AskedRequest, ...]
    charged_before: int
    charged_after: int | None
    took_s: float

    @property
    def returned_bytes(self) -> int | None:
        """Measured by the driver; None where it could not be read again."""
        return None if self.charged_after is None else self.charged_before - self.charged_after
