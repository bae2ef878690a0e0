"""How one object refers to another, in the words of the program: ``.weight``, ``[3]``, a local variable.

A link is told from what the parent *is*. Some objects are only machinery between two names (the
dict of an instance, the tuple of a closure, a traceback): who leads to one also tells which role
it plays, since that decides what its own children are called.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import (
    CellType,
    FrameType,
    FunctionType,
    MethodType,
    TracebackType,
)
from typing import TYPE_CHECKING, Any

from . import machinery, ordinary
from .peek import inert, type_name
from .role import Role
from .roots import Root, Roots
from .words import Words

if TYPE_CHECKING:
    from collections.abc import Callable

    from .role import Found
    from .words import Link

    Teller = Callable[[Any, Any, set[int], Roots], Found]


def children(
    parent: object, role: Role | None, wanted: set[int], roots: Roots
) -> Iterator[tuple[int, Link, Role | None]]:
    """The link to each wanted child of *parent*, which plays *role*, by the child's ``id``."""
    left = set(wanted)
    for child, link, its_role in _links(parent, role, wanted, roots):
        key = id(child)
        if key in left:
            yield key, link, its_role
            left.remove(key)
            if not left:
                return
    for key in left:
        yield key, f" (inside a {inert(type_name(parent))})", None


def is_plain(kind: type) -> bool:
    """Whether objects of *kind* are named by their attributes and slots first of all."""
    return kind not in _BY_TYPE


def _links(parent: object, role: Role | None, wanted: set[int], roots: Roots) -> Found:
    root = roots.by_id.get(id(parent))
    if root is not None:
        return _namespace(root, wanted, roots)
    if role is not None:
        return _ROLES[role.name](parent, role.detail, wanted, roots)
    teller: Teller = _BY_TYPE.get(type(parent), ordinary.instance)
    return teller(parent, None, wanted, roots)


def _namespace(root: Root, wanted: set[int], roots: Roots) -> Found:
    named = [(name, value) for name, value in list(root.names.items()) if id(value) in wanted]
    for name, value in sorted(named, key=_private_last):
        yield value, _first_words(root, str(name), roots), None


def _private_last(pair: tuple[str, object]) -> bool:
    return type(pair[0]) is not str or pair[0].startswith("_")


def _first_words(root: Root, name: str, roots: Roots) -> Words:
    shown = inert(name)
    if root.kind == "cell" and roots.cells is not None:
        output = roots.cells.output(name)
        if output is not None:
            return Words("output", output)
        number = roots.cells.binding(name)
        return Words("cell", shown, f"cell {number}: " if number is not None else "notebook: ")
    return Words(root.kind, repr(shown) if root.kind == "frame" else shown, root.before, root.after)


_ROLES: dict[str, Teller] = {
    "attributes": ordinary.attribute_dict,
    "closure": machinery.closure,
    "cell": machinery.cell,
    "threads": machinery.per_thread,
    "traceback": machinery.traceback,
    "frame": machinery.frame,
    "locals": machinery.variables,
    "suspended": machinery.suspended_frame,
}
_BY_TYPE: dict[type, Teller] = {
    dict: ordinary.mapping,
    list: ordinary.sequence,
    tuple: ordinary.sequence,
    set: ordinary.members,
    frozenset: ordinary.members,
    FunctionType: machinery.function,
    MethodType: machinery.method,
    CellType: machinery.cell,
    TracebackType: machinery.traceback,
    FrameType: machinery.frame,
    threading.local: machinery.thread_local,
    **dict.fromkeys(machinery.SUSPENDED, machinery.suspended),
}
