"""What every framework offers here: how it is found, what it holds, how it releases that."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import compress, repeat
from operator import is_
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..tracked_objects import tracked_objects, types_owned_elsewhere

if TYPE_CHECKING:  # programs on Python 3.8 are trimmed too
    Line = dict[str, Any]

DEVICE, PINNED = "device", "pinned host"
SLICE = 20_000


class Framework:
    """One library that holds memory. Only ``find`` is called where it may not be loaded."""

    name = ""
    module = ""

    def __init__(self, library: Any = None) -> None:
        self._library = library

    @classmethod
    def find(cls) -> Iterator[Framework]:
        """Yield one where the library is loaded and already uses a GPU; it is never started for this."""
        library = loaded(cls.module)
        if library is not None:
            yield cls(library)

    def measure(self) -> Iterator[Line]:
        yield from ()

    def objections(self) -> Iterator[str]:
        """Yield why nothing may be released just now."""
        yield from ()

    def may_collect(self) -> bool:
        """Whether this thread may free the arrays that a garbage collection finds."""
        return True

    def release(self) -> Iterator[str]:
        """Release it; yield what could not be, as sentences."""
        yield from ()

    def line(
        self,
        memory: str,
        device: int | None,
        held: int | None,
        reclaimable: int | None,
        used: int | None = None,
    ) -> Line:
        """*used* where it is not simply the rest: some of what is unused cannot be released either."""
        if used is None and held is not None and reclaimable is not None:
            used = held - reclaimable
        return {
            "name": self.name,
            "memory": memory,
            "device": device,
            "held": held,
            "reclaimable": reclaimable,
            "used": used,
        }


def loaded(name: str) -> Any:
    """A module that this process has imported to its end; None otherwise."""
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    return None if getattr(spec, "_initializing", False) else module


def alive(kinds: tuple[type, ...]) -> list[Any]:
    """Live objects of *kinds*, found by their type alone: asking an object may run its code.

    The list of all objects is one call, during which no other thread runs: tens of milliseconds for a
    million of them. It is read in parts, between which Python lets others run.
    """
    heap: list[Any] = tracked_objects(but=types_owned_elsewhere()) if kinds else []
    is_one: dict[type, bool] = {}
    found: list[Any] = []
    while heap:
        part = heap[-SLICE:]
        del heap[-SLICE:]
        for kind in set(map(type, part)).difference(is_one):
            is_one[kind] = issubclass(kind, kinds)
        found += compress(part, map(is_one.__getitem__, map(type, part)))
    return found


def may_have_instances(module: ModuleType, name: str) -> bool:
    """False where the class *name* certainly has no instance, which is known without reading all objects.

    Each instance refers to its class. Where all references to the class are accounted for by names in
    modules and by what belongs to the class itself, there is none.
    """
    # How many references a class without names has here tells the second one: versions of Python differ. In a
    # list, since 3.14 counts some variables' references and others not.
    kinds: list[Any] = [getattr(module, name), type("nameless", (), {})]
    gil_enabled = getattr(sys, "_is_gil_enabled", lambda: True)
    if type.__subclasses__(kinds[0]) or not gil_enabled():  # without that lock, counts are not exact
        return True
    besides = sys.getrefcount(kinds[1]) - _references_of_its_own(kinds[1])
    modules = [each for each in list(sys.modules.values()) if type(each) is ModuleType]
    namespaces = {id(vars(each)): vars(each) for each in modules}  # some modules have several names
    names = sum(sum(map(is_, list(each.values()), repeat(kinds[0]))) for each in namespaces.values())
    return sys.getrefcount(kinds[0]) > besides + _references_of_its_own(kinds[0]) + names


def _references_of_its_own(kind: type) -> int:
    """The tuple of its bases' order, and the descriptors that know the class that they belong to."""
    return 1 + sum(1 for each in list(vars(kind).values()) if getattr(each, "__objclass__", None) is kind)
