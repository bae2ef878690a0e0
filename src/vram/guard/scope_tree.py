"""The open scopes of this process as a tree, which of them overlap, and the arrays that each began with.

Device memory is charged to the process, not to a thread: scopes with the same parent that overlap are checked
together when the last of them ends, against what was in use before the first began.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

from vram.guard.memory import NOTHING, Footprint, cuda, read_footprint
from vram.payloads.arrays.provider import HiddenArray

if TYPE_CHECKING:
    from vram.payloads.arrays.provider import ArrayProvider, Description

# ---- arrays; no array itself is held here ----


_Address = tuple[int | None, int]  # device and pointer


class Baseline:
    """The arrays that existed at one moment."""

    def __init__(self, arrays: Iterable[object] = ()) -> None:
        self._references: dict[int, weakref.ref[Any] | None] = {}
        # A gradient gets an object when the program first asks for it: the memory stays the same.
        self._hidden: set[_Address] = set()
        for each in arrays:
            if isinstance(each, HiddenArray):
                self._hidden.add((each.description.device, each.description.pointer))
            else:
                self._references[id(each)] = _weak_reference(each)

    def has(self, array: object, description: Description) -> bool:
        """False for one created later, also if Python gave it the memory, and so the ``id``, of one that
        existed."""
        if (description.device, description.pointer) in self._hidden:
            return True
        if id(array) not in self._references:
            return False
        reference = self._references[id(array)]
        return reference is None or reference() is array


def _weak_reference(array: object) -> weakref.ref[Any] | None:
    """None for objects that do not support weak references."""
    try:
        return weakref.ref(array)
    except TypeError:
        return None


class _KeptArray(NamedTuple):
    """An array's memory. A later array may get the same address, but not the same ``allocation``."""

    nbytes: int
    allocation: int
    provider: ArrayProvider
    array: weakref.ref[Any] | None


class KeptArrays:
    """Arrays that the program marked with ``keep``: each memory counts once, and only while it lives."""

    def __init__(self) -> None:
        # Addresses are reused, so a group that never ends has no more entries than addresses it used.
        self._arrays: dict[_Address, _KeptArray] = {}

    def add(self, value: object, but: Baseline | None) -> None:
        """Add the arrays inside *value*, except those in the baseline *but*."""
        from vram.guard.leak_check import arrays_in

        for provider, array, description in arrays_in(value):
            if but is None or not but.has(array, description):
                number = _allocation(description.pointer)
                kept = _KeptArray(description.nbytes, number, provider, _weak_reference(array))
                self._arrays[description.device, description.pointer] = kept

    def nbytes(self) -> int:
        """The bytes of those that live now."""
        arrays = dict(self._arrays)
        living = {address for address, kept in arrays.items() if _still_has_memory(address, kept)}
        if len(living) < len(arrays):
            from vram.payloads.arrays.inventory import find
            from vram.payloads.tracked_objects import tracked_objects

            # Another array may share the memory of one that is gone.
            every = (each.description for each in find(tracked_objects()))
            living |= {(each.device, each.pointer) for each in every}
        return sum(
            kept.nbytes
            for address, kept in arrays.items()
            if address in living and _allocation(address[1]) == kept.allocation
        )


def _still_has_memory(address: _Address, kept: _KeptArray) -> bool:
    array = kept.array() if kept.array is not None else None
    now = next(kept.provider.describe([array], set())) if array is not None else None
    return now is not None and (now.device, now.pointer) == address


def _allocation(pointer: int) -> int:
    """A number that the driver gives to one allocation and never again; 0 where it gives none."""
    from vram.guard.driver import allocation_number

    library = cuda()
    return 0 if library is None else allocation_number(library.cuPointerGetAttribute, pointer)


# ---- scopes ----

_current: ContextVar[ScopeNode | None] = ContextVar("vram_scope", default=None)
# Reentrant: a finalizer of the program may run in this thread while it is held, and open a scope itself.
_lock = threading.RLock()
_open: list[ScopeNode] = []
# Scopes that were dropped without an exit. A finalizer may run where the lock is held, so it only
# appends here.
_abandoned: deque[ScopeNode] = deque()

# The baseline of a process that has no context yet.
NO_ARRAYS = Baseline()
# A server whose requests always overlap has one group for its whole life.
MAX_NAMES = 100


class OverlapGroup:
    """Scopes with the same parent, from the first that opened to the last of those that overlap.

    ``baseline``: the arrays that existed before the first, where they were read. ``is_mixed``: scopes
    with another parent ran at the same time, so no figure tells what this group gained.
    """

    before: Footprint = NOTHING
    baseline: Baseline | None = None
    open = 0
    is_mixed = False

    def __init__(self) -> None:
        self.names: dict[str, None] = {}
        self.kept = KeptArrays()

    def add(self, name: str) -> None:
        self.open += 1
        if len(self.names) < MAX_NAMES:
            self.names[name] = None


class ScopeParent:
    """What a scope can be inside of: another scope, or none (the root of the tree)."""

    child_group: OverlapGroup | None = None


_root = ScopeParent()


class ScopeNode(ScopeParent):
    """One open scope. Creating it measures what is in use; *read_baseline*, the arrays that exist now, is
    called for the first scope of a group, if the process has a context."""

    def __init__(self, name: str, read_baseline: Callable[[], Baseline | None]) -> None:
        self.name = name
        self.parent = _nearest_open(_current.get())
        self.is_over = False
        # Under the lock: no scope that joins may allocate before the first one has measured.
        with _lock:
            is_first = self._join()
            try:
                self.before = read_footprint()
                if is_first:
                    self.group.before = self.before
                    self.group.baseline = NO_ARRAYS if self.before is NOTHING else read_baseline()
            except BaseException:  # the interrupt of a limit's watcher among them
                self._quit()
                raise
        _current.set(self)

    def _join(self) -> bool:
        """Join the group of the parent's scopes; True if a new group begins with this scope."""
        _remove_abandoned()
        parent = self.parent or _root
        group = parent.child_group
        is_first = group is None or not group.open
        if group is None or is_first:
            group = parent.child_group = OverlapGroup()
        self.group = group
        self.group.add(self.name)
        if _open:
            self._mark_mixed()
        _open.append(self)
        return is_first

    def _mark_mixed(self) -> None:
        """Mark each group that only one of two overlapping scopes is in: it cannot be checked."""
        mine = self._ancestry()
        my_groups = {node.group for node in mine}
        for other in (node for node in _open if node not in mine):
            for group in my_groups ^ {node.group for node in other._ancestry()}:
                group.is_mixed = True

    def leave(self) -> OverlapGroup | None:
        """End the scope. Return the group to check now; None if a later scope does it, or none can."""
        # A generator may end its scope while one that was opened after it is still open.
        if _current.get() is self:
            _current.set(_nearest_open(self.parent))
        with _lock:
            self._quit()
            _remove_abandoned()
            is_last = not self.group.open
        return self.group if is_last and not self.group.is_mixed else None

    def abandon(self) -> None:
        """End the scope from a finalizer, which may run in any thread; nothing is checked."""
        self.is_over = True
        _abandoned.append(self)

    def _quit(self) -> None:
        self.is_over = True
        _open.remove(self)
        self.group.open -= 1

    def _ancestry(self) -> list[ScopeNode]:
        """This scope and all that it is inside of."""
        line: list[ScopeNode] = []
        node: ScopeNode | None = self
        while node is not None:
            line.append(node)
            node = node.parent
        return line


def current() -> ScopeNode | None:
    """The scope that this thread or task is in."""
    return _current.get()


@contextmanager
def inside(node: ScopeNode | None) -> Iterator[None]:
    """Open scopes inside *node*, a scope of the thread that submitted this work."""
    before = _current.set(node)
    try:
        yield
    finally:
        _current.reset(before)


def _nearest_open(node: ScopeNode | None) -> ScopeNode | None:
    """*node*, or its nearest ancestor that has not ended."""
    while node is not None and node.is_over:
        node = node.parent
    return node


def _remove_abandoned() -> None:
    """Called with the lock held."""
    while _abandoned:
        _abandoned.popleft()._quit()


def _renew_lock() -> None:
    """In a forked child the thread that held the lock does not exist, so it would never be released."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)
