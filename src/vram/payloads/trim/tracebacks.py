"""Exceptions that are kept after they were shown: their frames keep every local variable alive."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from .framework import alive, loaded


def drop() -> Iterator[str]:
    """Forget the last uncaught exception wherever Python and IPython keep it; yield where that was."""
    for name in ("last_exc", "last_value", "last_traceback", "last_type"):
        if getattr(sys, name, None) is not None:
            setattr(sys, name, None)
            yield f"sys.{name}"
    shell = getattr(loaded("IPython"), "get_ipython", lambda: None)()
    result = getattr(shell, "last_execution_result", None)
    yield from _forget("IPython's last result", result, ("error_in_exec", "error_before_exec"))
    yield from _forget(
        "IPython's traceback", getattr(shell, "InteractiveTB", None), ("tb", "etype", "evalue")
    )


def _forget(label: str, keeper: object, names: tuple[str, ...]) -> Iterator[str]:
    for name in names:
        if getattr(keeper, name, None) is not None:
            setattr(keeper, name, None)
            yield f"{label} ({name})"


def others() -> Iterator[int]:
    """How many exceptions, beyond those in flight, still keep the frames they passed through."""
    flying = set()
    for raised in getattr(sys, "_current_exceptions", dict)().values():
        flying.add(id(raised[1] if isinstance(raised, tuple) else raised))
    kept = (each for each in alive((BaseException,)) if id(each) not in flying)
    yield sum(1 for each in kept if each.__traceback__ is not None)
