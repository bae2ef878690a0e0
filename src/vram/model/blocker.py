"""Who or what is in the way of resetting a GPU."""

from __future__ import annotations

from msgspec import Struct


class Blocker(Struct, frozen=True, kw_only=True):
    """One who must be gone first. ``command`` is empty where nobody can be named.

    ``nbytes`` is None where the GPU does not answer.
    """

    pid: int | None
    name: str | None
    user: str | None
    nbytes: int | None
    why: str
    command: str = ""
