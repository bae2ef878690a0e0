"""A stream as any framework names it: its handle, and the object that must live as long."""

from __future__ import annotations

from typing import Any, NamedTuple

from vram.errors import UsageError

# attribute that holds the handle: PyTorch, CuPy, Numba and PyCUDA
_ATTRIBUTES = ("cuda_stream", "ptr", "handle")


class Stream(NamedTuple):
    """Handles 0, 1 and 2 are the driver's own default streams and never end."""

    handle: int
    owner: object

    @property
    def is_a_default(self) -> bool:
        return self.handle <= 2

    @property
    def is_kept_alive(self) -> bool:
        return self.owner is not None or self.is_a_default


def stream_of(named: Any) -> Stream:
    """Read *named*: a number, or a stream of PyTorch, CuPy, Numba, PyCUDA or cuda.core."""
    if isinstance(named, int) and not isinstance(named, bool) and named >= 0:
        return Stream(named, None)
    protocol = getattr(named, "__cuda_stream__", None)
    # Version 0 of the protocol is (version, handle); early cuda.core had it as a property.
    answer = protocol() if callable(protocol) else protocol
    if isinstance(answer, tuple) and len(answer) == 2:
        return Stream(int(answer[1]), named)
    for attribute in _ATTRIBUTES:
        handle = _number(getattr(named, attribute, None))
        if handle is not None:
            return Stream(handle, named)
    raise UsageError(
        f"{named!r} is not a CUDA stream", hint="give a framework's stream, or its handle as a number"
    )


def _number(handle: Any) -> int | None:
    value = getattr(handle, "value", handle)
    try:
        return int(value or 0) if handle is not None else None
    except (TypeError, ValueError):
        return None
