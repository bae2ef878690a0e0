"""How one object refers to another, in the words of the program: ``.weight``, ``[3]``, a local variable.

A link is told from what the parent *is*: ``children(parent, words, wanted)`` gives the words for
those children that are wanted. Some objects are only machinery between two names (the dict of
an instance, the tuple of a closure, a traceback); they pass the words of their owner on, with
a note of what they are.
"""

from __future__ import annotations

import gc
import re
import threading
from collections.abc import Callable, Iterator
from types import (
    AsyncGeneratorType,
    CellType,
    CoroutineType,
    FrameType,
    FunctionType,
    GeneratorType,
    MethodType,
    TracebackType,
)
from typing import Any

from msgspec import Struct

from vram.guard.heap.peek import attributes, defines, inert, is_a, items, slots, spelled_key, type_name
from vram.guard.heap.roots import Root, Roots
from vram.guard.heap.variables import KEEPS_A_COPY

LONGEST = 140
MOST_NAMES = 50
_SUSPENDED = {
    GeneratorType: ("gi_frame", "generator"),
    CoroutineType: ("cr_frame", "coroutine"),
    AsyncGeneratorType: ("ag_frame", "async generator"),
}
_HOOK = re.compile(r"(?P<on>.+)\._\w*hooks\w*\[[^\]]*\]$")
_REGISTERED = re.compile(r"\._(?:modules|parameters|buffers)\['(\w+)'\]")


class Words(Struct, frozen=True, gc=False):
    """The way to an object so far. ``role`` says what machinery the object is, if any."""

    kind: str
    expression: str
    before: str = ""
    after: str = ""
    kept_by: str = ""
    role: str = ""
    detail: Any = None

    def text(self) -> str:
        kept_by = f" ({self.kept_by})" if self.kept_by else ""
        return f"{self.before}{_registered(self.expression)}{self.after}{kept_by}"

    def then(self, more: str) -> Words:
        longer = self.expression + more
        if len(longer) > LONGEST:
            longer = f"{longer[: LONGEST // 2]}…{longer[-LONGEST // 3 :]}"
        return Words(self.kind, longer, self.before, self.after, self.kept_by)

    def passed_on(self, role: str, detail: object = None) -> Words:
        return Words(self.kind, self.expression, self.before, self.after, self.kept_by, role, detail)


Found = Iterator[tuple[object, Words]]


def children(parent: object, words: Words, wanted: set[int], roots: Roots) -> dict[int, Words]:
    """The words for each wanted child of *parent*, whose own are *words*."""
    named: dict[int, Words] = {}
    for child, its_words in _links(parent, words, wanted, roots):
        key = id(child)
        if key in wanted and key not in named:
            named[key] = its_words
            if len(named) == len(wanted):
                return named
    for key in wanted.difference(named):
        named[key] = words.then(f" (inside a {inert(type_name(parent))})")
    return named


def _links(parent: object, words: Words, wanted: set[int], roots: Roots) -> Found:
    root = roots.by_id.get(id(parent))
    if root is not None:
        return _namespace(root, wanted, roots)
    if words.role:
        return _ROLES[words.role](parent, words, wanted, roots)
    return _BY_TYPE.get(type(parent), _instance)(parent, words, wanted, roots)


# ---- namespaces: where a chain begins ----


def _namespace(root: Root, wanted: set[int], roots: Roots) -> Found:
    named = [(name, value) for name, value in list(root.names.items()) if id(value) in wanted]
    for name, value in sorted(named, key=_private_last):
        yield value, _first_words(root, str(name), roots)


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


# ---- machinery, by the role it plays ----


def _attribute_dict(parent: Any, words: Words, wanted: set[int], roots: Roots) -> Found:
    plain = words.passed_on("")
    for name, value in items(parent):
        if id(value) in wanted:
            yield value, plain.then(f".{inert(name)}" if type(name) is str else f".{spelled_key(name)}")


def _closure(parent: Any, words: Words, wanted: set[int], roots: Roots) -> Found:
    function: FunctionType = words.detail
    hook = _HOOK.match(words.expression)
    if hook:
        before, kept_by = f"closure of hook on {_registered(hook['on'])}{words.after}: ", ""
    else:
        before, kept_by = f"closure of {inert(function.__qualname__)}: ", words.passed_on("").text()
    for name, cell in zip(function.__code__.co_freevars, parent, strict=False):
        yield cell, Words("closure", inert(name), before, "", kept_by, "cell")


def _cell(parent: Any, words: Words, wanted: set[int], roots: Roots) -> Found:
    for child in gc.get_referents(parent):
        yield child, words.passed_on("")


def _traceback(parent: TracebackType, words: Words, wanted: set[int], roots: Roots) -> Found:
    yield parent.tb_frame, words.passed_on("frame", parent.tb_lineno)
    yield parent.tb_next, words.passed_on("traceback")


def _frame(parent: FrameType, words: Words, wanted: set[int], roots: Roots) -> Found:
    line = words.detail if words.detail is not None else parent.f_lineno
    before = f"{roots.place(parent.f_code, line)} local "
    named = Words("exception", "", before, " in frame of kept exception", words.passed_on("").text())
    yield from _locals(roots.variables.of(parent), named, wanted, roots)
    if KEEPS_A_COPY:
        yield parent.f_locals, named.passed_on("locals")
    yield parent.f_back, words.passed_on("frame")


def _locals(parent: Any, words: Words, wanted: set[int], roots: Roots) -> Found:
    for name, value in items(parent):
        if id(value) in wanted:
            yield value, Words(words.kind, repr(name), words.before, words.after, words.kept_by)


# ---- ordinary objects, by type ----


def _dict(parent: Any, words: Words, wanted: set[int], roots: Roots) -> Found:
    for key, value in items(parent):
        if id(value) in wanted:
            yield value, words.then(f"[{spelled_key(key)}]")
        if id(key) in wanted:
            yield key, words.then(" as a key")


def _sequence(parent: Any, words: Words, wanted: set[int], roots: Roots) -> Found:
    for position, value in items(parent):
        if id(value) in wanted:
            yield value, words.then(f"[{position}]")


def _members(parent: Any, words: Words, wanted: set[int], roots: Roots) -> Found:
    for value in type(parent).__iter__(parent):
        if id(value) in wanted:
            yield value, words.then(" (a member of the set)")


def _function(parent: FunctionType, words: Words, wanted: set[int], roots: Roots) -> Found:
    yield parent.__closure__, words.passed_on("closure", parent)
    yield parent.__defaults__, words.then(".__defaults__")
    yield parent.__kwdefaults__, words.then(".__kwdefaults__")
    yield parent.__dict__, words.passed_on("attributes")


def _method(parent: MethodType, words: Words, wanted: set[int], roots: Roots) -> Found:
    yield parent.__self__, words.then(".__self__")
    yield parent.__func__, words


def _suspended(parent: Any, words: Words, wanted: set[int], roots: Roots) -> Found:
    attribute, noun = _SUSPENDED[type(parent)]
    frame = getattr(parent, attribute)
    if frame is None:
        return
    before = f"{roots.place(frame.f_code, frame.f_lineno)} local "
    after = f" in suspended {noun} {inert(frame.f_code.co_name)}()"
    named = Words("generator", "", before, after, words.text())
    yield from _locals(roots.variables.of(frame), named, wanted, roots)
    if KEEPS_A_COPY:
        yield frame.f_locals, named.passed_on("locals")


def _thread_local(parent: Any, words: Words, wanted: set[int], roots: Roots) -> Found:
    """Values lie in one dict per thread, behind a dict of their own that is keyed by weak references."""
    for per_thread in gc.get_referents(parent):
        if type(per_thread) is dict and per_thread is not attributes(parent):
            yield per_thread, words.passed_on("threads")
    yield from _instance(parent, words, wanted, roots)


def _per_thread(parent: Any, words: Words, wanted: set[int], roots: Roots) -> Found:
    for _, names in items(parent):
        yield (
            names,
            Words(words.kind, words.expression, words.before, " in one thread", words.kept_by, "attributes"),
        )


def _instance(parent: object, words: Words, wanted: set[int], roots: Roots) -> Found:
    yield from _known_attributes(parent, words, wanted, roots)
    own = attributes(parent)
    if own is not None:
        yield from _attribute_dict(own, words, wanted, roots)
        yield own, words.passed_on("attributes")
    if is_a(parent, BaseException):
        yield from _exception(parent, words)
    if is_a(parent, type):
        yield from _class(parent, words)
    if is_a(parent, dict):
        yield from _dict(parent, words, wanted, roots)
    elif is_a(parent, list, tuple):
        yield from _sequence(parent, words, wanted, roots)
    for name, value in slots(parent):
        yield value, words.then(f".{inert(name)}")
    if not is_a(parent, dict, list, tuple):
        yield from _sequence(parent, words, wanted, roots)


def _known_attributes(parent: object, words: Words, wanted: set[int], roots: Roots) -> Found:
    """By the names that a sibling has: an instance's dict, once asked for, is made and stays."""
    kind = type(parent)
    for name in roots.attribute_names.get(kind, ()):
        try:
            value = object.__getattribute__(parent, name)
        except AttributeError:
            continue
        if id(value) in wanted:
            yield value, words.then(f".{inert(name)}")
    if kind not in roots.attribute_names:
        own = attributes(parent) or {}
        names = [name for name in own if type(name) is str and not defines(kind, name)]
        roots.attribute_names[kind] = names[:MOST_NAMES]


def _exception(parent: object, words: Words) -> Found:
    own = BaseException.__dict__
    yield own["__traceback__"].__get__(parent), words.passed_on("traceback")
    for name in ("__cause__", "__context__", "args"):
        yield own[name].__get__(parent), words.then(f".{name}")


def _class(parent: object, words: Words) -> Found:
    for child in gc.get_referents(parent):
        if type(child) is dict:
            yield child, words.passed_on("attributes")


def _registered(expression: str) -> str:
    """Modules of PyTorch keep their parts in dicts of which nobody thinks: ``model.layers[4].weight``."""
    if "._" not in expression:
        return expression
    return _REGISTERED.sub(lambda part: f"[{part[1]}]" if part[1].isdigit() else f".{part[1]}", expression)


_ROLES: dict[str, Callable[[Any, Words, set[int], Roots], Found]] = {
    "attributes": _attribute_dict,
    "closure": _closure,
    "cell": _cell,
    "threads": _per_thread,
    "traceback": _traceback,
    "frame": _frame,
    "locals": _locals,
}
_BY_TYPE: dict[type, Callable[[Any, Words, set[int], Roots], Found]] = {
    dict: _dict,
    list: _sequence,
    tuple: _sequence,
    set: _members,
    frozenset: _members,
    FunctionType: _function,
    MethodType: _method,
    CellType: _cell,
    TracebackType: _traceback,
    FrameType: _frame,
    threading.local: _thread_local,
    **dict.fromkeys(_SUSPENDED, _suspended),
}
