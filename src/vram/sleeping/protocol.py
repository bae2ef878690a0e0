"""What `vram sleep` and the waker say to each other: a line of JSON each, over a Unix socket."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from vram.errors import VramError
from vram.model.sleeping import Sleeper, SleepOptions

PROTOCOL = 1
MAX_LINE = 4 << 20

Verb = Literal["sleep", "watch", "wake", "forget", "list"]


class WakerRequest(Struct, frozen=True, kw_only=True):
    """One order to the waker. ``targets``: pid and start time.

    ``sleep``: put one program, of these processes, to sleep now; ``watch``: when it has been idle for long
    enough. ``wake`` them, or ``forget`` them: then they are awake, and stay so.
    """

    protocol: int = PROTOCOL
    do: Verb
    targets: tuple[tuple[int, int], ...] = ()
    options: SleepOptions = SleepOptions()
    anyway: bool = False


class WakerError(Struct, frozen=True, kw_only=True):
    """Why something was not done, as the error in the waker had it."""

    message: str
    name: str = ""
    hint: str = ""
    exit_code: int = 3


class WakerAnswer(Struct, frozen=True, kw_only=True):
    """What became of it: the programs that were meant, or for a list all of them."""

    protocol: int = PROTOCOL
    sleepers: tuple[Sleeper, ...] = ()
    error: WakerError | None = None


class WakerRefusal(VramError):
    """The waker's own error, with its exit code."""

    def __init__(self, error: WakerError) -> None:
        super().__init__(error.message, hint=error.hint)
        self.name = error.name
        self.exit_code = error.exit_code  # type: ignore[assignment]


def error_of(error: VramError) -> WakerError:
    name = type(error).__name__
    return WakerError(message=str(error), name=name, hint=error.hint, exit_code=int(error.exit_code))
