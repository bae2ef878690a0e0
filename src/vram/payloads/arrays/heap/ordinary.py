"""Links out of ordinary objects: containers, and instances with attributes and slots."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

from .peek import attributes, defines, inert, is_a, items, slots, spelled_key
from .role import ATTRIBUTES, TRACEBACK
from .roots import Roots

if TYPE_CHECKING:
    from .role import Found

MOST_NAMES = 50


def mapping(parent: Any, _: object, wanted: set[int], roots: Roots) -> Found:
    for key, value in items(parent):
        if id(value) in wanted:
            yield value, f"[{spelled_key(key)}]", None
        if id(key) in wanted:
            yield key, " as a key", None


def sequence(parent: Any, _: object, wanted: set[int], roots: Roots) -> Found:
    for position, value in items(parent):
        if id(value) in wanted:
            yield value, position, None  # type: ignore[misc]


def members(parent: Any, _: object, wanted: set[int], roots: Roots) -> Found:
    for value in type(parent).__iter__(parent):
        if id(value) in wanted:
            yield value, " (a member of the set)", None


def attribute_dict(parent: Any, _: object, wanted: set[int], roots: Roots) -> Found:
    for name, value in items(parent):
        if id(value) in wanted:
            yield value, f".{inert(name)}" if type(name) is str else f".{spelled_key(name)}", None


def instance(parent: object, _: object, wanted: set[int], roots: Roots) -> Found:
    yield from _known_attributes(parent, wanted, roots)
    own = attributes(parent)
    if own is not None:
        yield from attribute_dict(own, None, wanted, roots)
        yield own, "", ATTRIBUTES
    if is_a(parent, BaseException):
        yield from _exception(parent)
    if is_a(parent, type):
        yield from _class(parent)
    if is_a(parent, dict):
        yield from mapping(parent, None, wanted, roots)
    elif is_a(parent, list, tuple):
        yield from sequence(parent, None, wanted, roots)
    for name, value in slots(parent):
        yield value, f".{inert(name)}", None
    if not is_a(parent, dict, list, tuple):
        yield from sequence(parent, None, wanted, roots)


def _known_attributes(parent: object, wanted: set[int], roots: Roots) -> Found:
    """By the names that a sibling has: an instance's dict, once asked for, is made and stays."""
    kind = type(parent)
    for name in roots.attribute_names.get(kind, ()):
        try:
            value = object.__getattribute__(parent, name)
        except AttributeError:
            continue
        if id(value) in wanted:
            yield value, f".{inert(name)}", None
    if kind not in roots.attribute_names:
        own = attributes(parent) or {}
        names = [name for name in own if type(name) is str and not defines(kind, name)]
        roots.attribute_names[kind] = names[:MOST_NAMES]


def _exception(parent: object) -> Found:
    own = BaseException.__dict__
    yield own["__traceback__"].__get__(parent), "", TRACEBACK
    for name in ("__cause__", "__context__", "args"):
        yield own[name].__get__(parent), f".{name}", None


def _class(parent: object) -> Found:
    for child in gc.get_referents(parent):
        if type(child) is dict:
            yield child, "", ATTRIBUTES
