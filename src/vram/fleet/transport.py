"""What a way to the nodes offers: their names, and how a command is run on one of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from vram.model.fleet import NodeCode


class NodeFailed(Exception):
    """A node gave no answer, or none that is believed. ``code`` tells programs why, the message people."""

    def __init__(self, code: NodeCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Cancelled(Exception):
    """The answers are not waited for any more."""


class NodeAddress(NamedTuple):
    """A node: what people call it, what the transport calls it, and the host names that it may have.

    ``host_names`` None: the transport cannot know them. ``gone`` says why it need not be asked.
    """

    name: str
    address: str
    host_names: tuple[str, ...] | None = None
    gone: str = ""


class CommandResult(NamedTuple):
    """How a command on a node ended: its exit status and what it wrote, the last of its errors only."""

    status: int
    output: bytes
    errors: bytes = b""

    @property
    def last_words(self) -> str:
        """The last line that it wrote to standard error."""
        lines = [line.strip() for line in self.errors.decode(errors="replace").splitlines() if line.strip()]
        return lines[-1][:300] if lines else ""


class Transport(Protocol):
    """One way to the nodes. ``run`` may be called by several threads at once."""

    source: str

    def nodes(self) -> tuple[NodeAddress, ...]:
        """Every node. Raises VramError where that cannot be known."""
        ...

    def run(
        self, node: NodeAddress, words: Sequence[str], *, until: float, nbytes: int = ...
    ) -> CommandResult:
        """Run `vram` with *words* on *node*; raises NodeFailed. *until* is a time of ``time.monotonic()``.

        *nbytes* is the most that it may write.
        """
        ...

    def cancel(self) -> None:
        """End whatever still runs; every ``run`` that waits raises Cancelled."""
        ...

    def close(self) -> None:
        """Release what it holds, when no ``run`` waits any more."""
        ...
