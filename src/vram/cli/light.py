"""msgspec and argparse, imported without what they bring along and a command that looks never uses.

Measured 26 of 121 ms: they import modules for one function, or for features that others use.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType


class _Later(ModuleType):
    """Stands in for a module, which is imported if anything else of it is asked for after all."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):  # `from X import Y` asks whether X is a package
            raise AttributeError(name)
        from importlib import import_module

        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(import_module(self.__name__), name)


def _stand_ins() -> dict[str, dict[str, object]]:
    """By module, what is asked of it while the two are imported."""
    offers: dict[str, dict[str, object]] = {
        "gettext": {"gettext": lambda text: text, "ngettext": lambda one, many, n: one if n == 1 else many},
        "platform": {"system": lambda: os.uname().sysname},
        "textwrap": {},
        # msgspec wants to know these types when it sees them, and none of our structs holds one.
        "decimal": {"Decimal": type("Decimal", (), {})},
        "uuid": {"UUID": type("UUID", (), {}), "SafeUUID": type("SafeUUID", (), {"unknown": None})},
        "msgspec.inspect": {},
        "msgspec.toml": {},
        "msgspec.yaml": {},
    }
    if sys.version_info < (3, 12):
        # There datetime defines in Python, and then forgets, all that this one has in C.
        import _datetime  # type: ignore[import-not-found]

        offers["datetime"] = vars(_datetime)
    return offers


def import_lightly() -> None:
    """Import both now; whoever imports the real modules afterwards gets them."""
    # From Python 3.11 on typing has all that msgspec asks this one for, at 16 ms.
    sys.modules.setdefault("typing_extensions", None)  # type: ignore[arg-type]
    placed = {}
    for name, offers in _stand_ins().items():
        if name not in sys.modules:
            placed[name] = sys.modules[name] = _Later(name)
            placed[name].__dict__.update(offers)
    import argparse  # noqa: F401

    import msgspec  # noqa: F401

    for name, module in placed.items():
        if sys.modules.get(name) is module:
            del sys.modules[name]
