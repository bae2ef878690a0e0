"""How one object refers to another, as text: ``.weight``, ``[3]``, a local variable.

The text of a reference depends on what the parent is. Some objects are only internal parts between two
names (the dict of an instance, the tuple of a closure, a traceback). The reference to such an object also
gives it a role, which decides what its own children are called.
"""

from __future__ import annotations

import gc
import re
import threading
from collections.abc import Iterator, Sequence
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
from typing import TYPE_CHECKING, Any

from ..record import Struct
from .introspection import (
    FRAMES_KEEP_A_COPY,
    attributes,
    defines,
    inert,
    is_a,
    items,
    key_text,
    slots,
    type_name,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from .roots import Root, Roots

# ---- paths as text ----

MAX_LENGTH = 140
_HOOK = re.compile(r"(?P<on>.+)\._\w*hooks\w*\[[^\]]*\]$")
_REGISTERED = re.compile(r"\._(?:modules|parameters|buffers)\['(\w+)'\]")


class PathText(Struct, frozen=True, gc=False):
    """The reference path to an object, as text. ``kind`` is what holds it in the end."""

    kind: str
    expression: str
    before: str = ""
    after: str = ""
    held_by: str = ""

    def text(self) -> str:
        held_by = f" ({self.held_by})" if self.held_by else ""
        return f"{self.before}{_registered(self.expression)}{self.after}{held_by}"

    def append(self, more: str) -> PathText:
        longer = self.expression + more
        if len(longer) > MAX_LENGTH:
            longer = f"{longer[: MAX_LENGTH // 2]}…{longer[-MAX_LENGTH // 3 :]}"
        return PathText(self.kind, longer, self.before, self.after, self.held_by)


class ClosureLink(Struct, frozen=True, gc=False):
    """From a function to a variable that it closes over."""

    function: str
    name: str

    def append_to(self, path: PathText) -> PathText:
        hook = _HOOK.match(path.expression)
        if hook:
            before = f"closure of hook on {_registered(hook['on'])}{path.after}: "
            return PathText("closure", self.name, before)
        return PathText("closure", self.name, f"closure of {self.function}: ", "", path.text())


class FrameLink(Struct, frozen=True, gc=False):
    """From what holds a frame to the frame's variables, or to the one named."""

    kind: str
    before: str
    after: str
    name: str = ""

    def append_to(self, path: PathText) -> PathText:
        return PathText(self.kind, self.name, self.before, self.after, path.text())


class ThreadLink(Struct, frozen=True, gc=False):
    """From thread-local storage to what one thread has in it."""

    def append_to(self, path: PathText) -> PathText:
        return PathText(path.kind, path.expression, path.before, " in one thread", path.held_by)


def append_link(path: PathText, link: Link) -> PathText:
    """*path* with one more link."""
    if isinstance(link, int):
        return path.append(f"[{link}]")
    if isinstance(link, str):
        return path.append(link) if link else path
    return link if isinstance(link, PathText) else link.append_to(path)


def _registered(expression: str) -> str:
    """PyTorch modules keep their parts in internal dicts; users write ``model.layers[4].weight``."""
    if "._" not in expression:
        return expression
    return _REGISTERED.sub(lambda part: f"[{part[1]}]" if part[1].isdigit() else f".{part[1]}", expression)


# ---- arrays in a list: ``xs[0]`` to ``xs[11]`` are ``xs[0…11]`` ----

_POSITION = re.compile(r"\[(\d{1,18})\]")


def split_positions(text: str) -> tuple[str, list[int]]:
    """*text* with empty brackets, and the positions that were in them."""
    return _POSITION.sub("[]", text), list(map(int, _POSITION.findall(text)))


def spanned(stem: str, positions: Sequence[Sequence[int]]) -> str:
    """*stem* with its positions: one if all are equal, first to last if none is missing between."""
    words = stem.split("[]")
    text = words[0]
    for slot, word in enumerate(words[1:]):
        there = {each[slot] for each in positions if slot < len(each)}
        text += f"[{_span(there)}]{word}"
    return text


def _span(there: set[int]) -> str:
    if not there:
        return "…"
    first, last = min(there), max(there)
    if first == last:
        return str(first)
    return f"{first}…{last}" if len(there) == last - first + 1 else "…"


# ---- roles ----


class Role(Struct, frozen=True):
    """What an object is to its parent: how its children are named, and what is needed for that."""

    reader: Any
    detail: Any = None


if TYPE_CHECKING:
    # Defined for type checkers only: typing keeps every union that it ever made, and with it our classes.
    # A position, text to append, the start of a path, or a link that changes the text before it.
    Link = int | str | PathText | ClosureLink | FrameLink | ThreadLink
    # A child, the link to it, and the role that it has, if any.
    References = Iterator[tuple[object, Link, Role | None]]
    Reader = Callable[[Any, Any, set[int], Roots], References]

# ---- object references ----


MAX_NAMES = 50


def _mapping(parent: Any, _: object, wanted: set[int], roots: Roots) -> References:
    for key, value in items(parent):
        if id(value) in wanted:
            yield value, f"[{key_text(key)}]", None
        if id(key) in wanted:
            yield key, " as a key", None


def _sequence(parent: Any, _: object, wanted: set[int], roots: Roots) -> References:
    for position, value in items(parent):
        if id(value) in wanted:
            yield value, position, None  # type: ignore[misc]


def _set_members(parent: Any, _: object, wanted: set[int], roots: Roots) -> References:
    for value in type(parent).__iter__(parent):
        if id(value) in wanted:
            yield value, " (a member of the set)", None


def _attribute_dict(parent: Any, _: object, wanted: set[int], roots: Roots) -> References:
    for name, value in items(parent):
        if id(value) in wanted:
            yield value, f".{inert(name)}" if type(name) is str else f".{key_text(name)}", None


def _instance(parent: object, _: object, wanted: set[int], roots: Roots) -> References:
    yield from _known_attributes(parent, wanted, roots)
    own = attributes(parent)
    if own is not None:
        yield from _attribute_dict(own, None, wanted, roots)
        yield own, "", ATTRIBUTES
    if is_a(parent, BaseException):
        yield from _exception(parent)
    if is_a(parent, type):
        yield from _class(parent)
    if is_a(parent, dict):
        yield from _mapping(parent, None, wanted, roots)
    elif is_a(parent, list, tuple):
        yield from _sequence(parent, None, wanted, roots)
    for name, value in slots(parent):
        yield value, f".{inert(name)}", None
    if not is_a(parent, dict, list, tuple):
        yield from _sequence(parent, None, wanted, roots)


def _known_attributes(parent: object, wanted: set[int], roots: Roots) -> References:
    """By the attribute names of a sibling: reading an instance's ``__dict__`` would create one that stays."""
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
        roots.attribute_names[kind] = names[:MAX_NAMES]


def _exception(parent: object) -> References:
    own = BaseException.__dict__
    yield own["__traceback__"].__get__(parent), "", TRACEBACK
    for name in ("__cause__", "__context__", "args"):
        yield own[name].__get__(parent), f".{name}", None


def _class(parent: object) -> References:
    for child in gc.get_referents(parent):
        if type(child) is dict:
            yield child, "", ATTRIBUTES


# ---- internal references ----

SUSPENDED: dict[type, tuple[str, str]] = {
    GeneratorType: ("gi_frame", "generator"),
    CoroutineType: ("cr_frame", "coroutine"),
    AsyncGeneratorType: ("ag_frame", "async generator"),
}


def _function(parent: FunctionType, _: object, wanted: set[int], roots: Roots) -> References:
    yield parent.__closure__, "", Role(_closure, parent)
    yield parent.__defaults__, ".__defaults__", None
    yield parent.__kwdefaults__, ".__kwdefaults__", None
    yield parent.__dict__, "", ATTRIBUTES


def _closure(parent: Any, function: FunctionType, wanted: set[int], roots: Roots) -> References:
    name = inert(function.__qualname__)
    for variable, kept in zip(function.__code__.co_freevars, parent):
        yield kept, ClosureLink(name, inert(variable)), CELL


def _cell(parent: Any, _: object, wanted: set[int], roots: Roots) -> References:
    for child in gc.get_referents(parent):
        yield child, "", None


def _method(parent: MethodType, _: object, wanted: set[int], roots: Roots) -> References:
    yield parent.__self__, ".__self__", None
    yield parent.__func__, "", None


def _traceback(parent: TracebackType, _: object, wanted: set[int], roots: Roots) -> References:
    yield parent.tb_frame, "", Role(_frame, parent.tb_lineno)
    yield parent.tb_next, "", TRACEBACK


def _frame(parent: FrameType, line: int | None, wanted: set[int], roots: Roots) -> References:
    before = f"{roots.location(parent.f_code, parent.f_lineno if line is None else line)} local "
    link = FrameLink("exception", before, " in frame of kept exception")
    yield from _named(roots.variables.of(parent), link, wanted)
    if FRAMES_KEEP_A_COPY:
        yield parent.f_locals, link, LOCALS
    yield parent.f_back, "", Role(_frame)


def _suspended(parent: Any, _: object, wanted: set[int], roots: Roots) -> References:
    attribute, noun = SUSPENDED[type(parent)]
    held: FrameType | None = getattr(parent, attribute)
    if held is None:
        return
    yield from _suspended_frame(held, noun, wanted, roots)
    # Up to Python 3.10 its frame is a separate object between it and its variables.
    yield held, "", Role(_suspended_frame, noun)


def _suspended_frame(held: FrameType, noun: str, wanted: set[int], roots: Roots) -> References:
    before = f"{roots.location(held.f_code, held.f_lineno)} local "
    after = f" in suspended {noun} {inert(held.f_code.co_name)}()"
    link = FrameLink("generator", before, after)
    yield from _named(roots.variables.of(held), link, wanted)
    if FRAMES_KEEP_A_COPY:
        yield held.f_locals, link, LOCALS


def _named(local: dict[str, object], link: FrameLink, wanted: set[int]) -> References:
    for name, value in local.items():
        if id(value) in wanted:
            yield value, FrameLink(link.kind, link.before, link.after, repr(name)), None


def _variables(parent: Any, _: object, wanted: set[int], roots: Roots) -> References:
    """The dict that a frame has made for readers of its ``f_locals``."""
    for name, value in items(parent):
        if id(value) in wanted:
            yield value, repr(name), None


def _thread_local(parent: Any, _: object, wanted: set[int], roots: Roots) -> References:
    """Values are in one dict per thread, in a dict that is keyed by weak references."""
    for per_thread in gc.get_referents(parent):
        if type(per_thread) is dict and per_thread is not attributes(parent):
            yield per_thread, "", THREADS
    yield from _instance(parent, None, wanted, roots)


def _per_thread(parent: Any, _: object, wanted: set[int], roots: Roots) -> References:
    for _key, names in items(parent):
        yield names, ThreadLink(), ATTRIBUTES


# ---- references of one object ----


def children(
    parent: object, role: Role | None, wanted: set[int], roots: Roots
) -> Iterator[tuple[int, Link, Role | None]]:
    """The link to each wanted child of *parent*, which has *role*, by the child's ``id``."""
    left = set(wanted)
    try:
        for child, link, its_role in _links(parent, role, wanted, roots):
            key = id(child)
            if key in left:
                yield key, link, its_role
                left.remove(key)
                if not left:
                    return
    except RuntimeError:
        pass  # another thread adds to it or removes from it meanwhile
    for key in left:
        yield key, f" (inside a {inert(type_name(parent))})", None


def is_plain(kind: type) -> bool:
    """Whether objects of *kind* are named by their attributes and slots first of all."""
    return kind not in _BY_TYPE


def _links(parent: object, role: Role | None, wanted: set[int], roots: Roots) -> References:
    root = roots.by_id.get(id(parent))
    if root is not None:
        return _namespace(root, wanted, roots)
    if role is not None:
        reader, detail = role.reader, role.detail
    else:
        reader, detail = _BY_TYPE.get(type(parent), _instance), None
    references: References = reader(parent, detail, wanted, roots)
    return references


def _namespace(root: Root, wanted: set[int], roots: Roots) -> References:
    named = [(name, value) for name, value in list(root.names.items()) if id(value) in wanted]
    for name, value in sorted(named, key=_private_last):
        yield value, _root_path(root, str(name), roots), None


def _private_last(pair: tuple[str, object]) -> bool:
    return type(pair[0]) is not str or pair[0].startswith("_")


def _root_path(root: Root, name: str, roots: Roots) -> PathText:
    shown = inert(name)
    if root.kind == "cell" and roots.cells is not None:
        output = roots.cells.output(name)
        if output is not None:
            return PathText("output", output)
        number = roots.cells.binding(name)
        return PathText("cell", shown, f"cell {number}: " if number is not None else "notebook: ")
    return PathText(root.kind, repr(shown) if root.kind == "frame" else shown, root.before, root.after)


ATTRIBUTES, CELL, LOCALS = Role(_attribute_dict), Role(_cell), Role(_variables)
THREADS, TRACEBACK = Role(_per_thread), Role(_traceback)
_BY_TYPE: dict[type, Reader] = {
    dict: _mapping,
    list: _sequence,
    tuple: _sequence,
    set: _set_members,
    frozenset: _set_members,
    FunctionType: _function,
    MethodType: _method,
    CellType: _cell,
    TracebackType: _traceback,
    FrameType: _frame,
    threading.local: _thread_local,
    **dict.fromkeys(SUSPENDED, _suspended),
}
