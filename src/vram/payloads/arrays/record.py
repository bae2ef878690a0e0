"""Frozen records: msgspec's inside vram, plain classes where this code runs in another program.

An agent's program may have vram's files without what vram needs.

There may be a hundred thousand of them. msgspec makes them in C, untracked by the collector; another
program may not have msgspec, and is not made to import it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from msgspec import Struct
else:
    try:
        if not __name__.startswith("vram."):
            raise ImportError
        from msgspec import Struct
    except ImportError:

        class Struct:
            """The part of ``msgspec.Struct`` that is used here."""

            def __init_subclass__(cls, **_options: bool) -> None:
                fields = cls._fields = tuple(getattr(cls, "__annotations__", ()))
                defaults = {name: cls.__dict__[name] for name in fields if name in cls.__dict__}
                taken = ", ".join(f"{name}=_{name}" if name in defaults else name for name in fields)
                body = "\n    ".join([f"self.{name} = {name}" for name in fields] or ["pass"])
                made: dict[str, Any] = {f"_{name}": value for name, value in defaults.items()}
                # Generated once for each class: a loop over the fields would take three times as long.
                exec(f"def __init__(self, {taken}):\n    {body}", made)
                cls.__init__ = made["__init__"]

            def __eq__(self, other: object) -> bool:
                return type(self) is type(other) and self._values() == other._values()

            def __hash__(self) -> int:
                return hash(self._values())

            def _values(self) -> tuple[Any, ...]:
                return tuple([getattr(self, name) for name in self._fields])


__all__ = ["Struct"]
