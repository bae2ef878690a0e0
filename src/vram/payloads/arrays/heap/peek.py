"""Look into any object without running a line of its code.

People's classes override ``__getattr__``, ``__len__``, ``__iter__`` or ``__dict__``, lazily or
badly. Everything here goes through the slots of the built-in types and through descriptors
that C defined.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from types import GetSetDescriptorType, MappingProxyType, MemberDescriptorType

DEFINED_IN_C = (GetSetDescriptorType, MemberDescriptorType)
_mro = type.__dict__["__mro__"].__get__
_namespace = type.__dict__["__dict__"].__get__
_type_name = type.__dict__["__qualname__"].__get__


def lineage(kind: type) -> tuple[type, ...]:
    """A class and its bases, whatever its metaclass says."""
    found: tuple[type, ...] = _mro(kind)
    return found


def type_name(obj: object) -> str:
    name = _type_name(type(obj))
    return name if type(name) is str else "object"


def is_a(obj: object, *kinds: type) -> bool:
    """``isinstance`` by the real type alone: ``__class__`` can be a property that lies."""
    real = lineage(type(obj))
    return any(kind in real for kind in kinds)


def attributes(obj: object) -> dict[str, object] | None:
    """The instance's own ``__dict__``; None where it has none, or only one of its own making."""
    for kind in lineage(type(obj)):
        getter = _namespace(kind).get("__dict__")
        if getter is not None:
            found = getter.__get__(obj) if type(getter) in DEFINED_IN_C else None
            return found if type(found) is dict else None
    return None


def defines(kind: type, *names: str) -> bool:
    """Whether a class or one of its bases has any of *names*, so that asking an instance may run code."""
    return any(name in _namespace(each) for each in lineage(kind) for name in names)


def read_in_c(obj: object, name: str) -> object:
    """An attribute that C computes, such as a NumPy array's shape; None where Python code would."""
    for kind in lineage(type(obj)):
        getter = _namespace(kind).get(name)
        if getter is not None:
            return getter.__get__(obj) if type(getter) in DEFINED_IN_C else None
    return None


def members(kind: type) -> Iterator[tuple[str, MemberDescriptorType]]:
    """The slots that C or ``__slots__`` defined for objects of *kind*, by name."""
    for each in lineage(kind):
        for name, member in _namespace(each).items():
            if type(member) is MemberDescriptorType:
                yield name, member


def slots(obj: object) -> Iterator[tuple[str, object]]:
    """What lies in an object's slots, by name."""
    for name, member in members(type(obj)):
        try:
            yield name, member.__get__(obj)
        except AttributeError:
            continue  # never set


def items(obj: object) -> Iterator[tuple[object, object]]:
    """Keys, or positions, and what lies there, of the built-in containers and what derives from them."""
    if type(obj) is dict or is_a(obj, dict):
        yield from dict.items(obj)  # type: ignore[arg-type]
    elif type(obj) is list:
        yield from enumerate(obj)
    elif is_a(obj, MappingProxyType):
        yield from MappingProxyType.items(obj)  # type: ignore[arg-type]
    else:
        for kind in (list, tuple, deque):
            if is_a(obj, kind):
                yield from enumerate(kind.__iter__(obj))  # type: ignore[arg-type]


def spelled_key(key: object, depth: int = 1) -> str:
    """A key as one writes it; of anything that is not plain data, only what type it has."""
    if type(key) in (str, bytes):
        shown = repr(key)
        return shown if len(shown) <= 42 else f"{shown[:38]}…{shown[-1]}"
    if type(key) is int:
        return repr(key) if key.bit_length() < 200 else "<a large int>"
    if type(key) in (float, bool, complex, type(None)):
        return repr(key)
    if type(key) is tuple and depth and len(key) <= 4:
        return f"({', '.join(spelled_key(each, depth - 1) for each in key)})"
    return f"<{inert(type_name(key))}>"


def inert(text: str) -> str:
    """*text* with everything that does not print as an escape: names come from programs."""
    return text if text.isprintable() else repr(text)[1:-1]
