"""Every array on a GPU that this process can reach, of every framework that it has loaded."""

from __future__ import annotations

import gc
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, compress, islice, repeat
from operator import is_, not_
from typing import Any

from .frameworks import PROVIDERS
from .heap.introspection import lineage
from .heap.walk import PORTION, is_hidden_from_collector, never_asked
from .pace import Pause, no_rest
from .provider import ArrayProvider, Description
from .record import Struct

DESCRIBED_AT_ONCE = 1000
SLICE = 20_000
LONGEST_NOTE = 300


class Found(Struct, frozen=True, gc=False):
    """An array itself, so let go of it soon. ``is_shared``: its memory was told by one before it."""

    provider: ArrayProvider
    array: object
    description: Description
    is_shared: bool

    @property
    def key(self) -> int:
        """What it is known by where it must not be held."""
        return id(self.array)


def find(
    heap: Sequence[object],
    device: int | None = None,
    types: Iterable[type] | None = None,
    pause: Pause = no_rest,
    notes: list[str] | None = None,
) -> list[Found]:
    """Arrays first, then memory that no array has told. *types* are those in the heap, where known.

    A framework that fails raises; where there are *notes*, it becomes one.
    """
    providers = []
    for provider in PROVIDERS:
        with _noted(provider, notes):
            providers.append((provider, provider.arrays(), provider.blocks()))
    wanted = [kind for _, arrays, blocks in providers for kind in (*arrays, *blocks)]
    if not wanted:
        return []
    by_kind = _by_kind(heap, types_of(heap, pause) if types is None else types, wanted, pause)
    # Addresses are never shared by two GPUs of one process.
    seen: set[int] = set()
    found: list[Found] = []
    behind: set[int] = set()
    for provider, arrays, _ in providers:
        with _noted(provider, notes):
            objects = with_gradients(provider, _of(by_kind, arrays))
            told = provider.describe(objects, behind) if objects else ()
            found += _told(provider, objects, told, seen, device, pause)
    for provider, _, blocks in providers:
        with _noted(provider, notes):
            objects = _of(by_kind, blocks)
            objects = list(compress(objects, map(not_, map(behind.__contains__, map(id, objects)))))
            told = provider.describe_blocks(objects, seen) if objects else ()
            found += (
                each for each in _told(provider, objects, told, seen, device, pause) if not each.is_shared
            )
    return found


@contextmanager
def _noted(provider: ArrayProvider, notes: list[str] | None) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if notes is None:
            raise
        notes.append(f"{provider.NAME}: {type(error).__name__}: {error}"[:LONGEST_NOTE])


def with_gradients(provider: ArrayProvider, arrays: list[object]) -> list[object]:
    """*arrays* and those of their gradients that nobody has looked at yet: they have no Python object."""
    gradients: Any = getattr(provider, "gradients", None)
    found = [gradient for _, gradient in gradients(arrays)] if gradients is not None and arrays else []
    there = set(map(id, arrays)) if found else ()
    return [*arrays, *(each for each in found if id(each) not in there)]


def kept_unseen(provider: ArrayProvider, arrays: list[object]) -> Iterator[tuple[object, str, object]]:
    """Each of *arrays* that keeps another one where Python cannot see it, as what, and that other one."""
    for name, kept_by in ((".grad", "gradients"), ("._base", "bases")):
        pairs: Any = getattr(provider, kept_by, None)
        for owner, kept in pairs(arrays) if pairs is not None else ():
            yield owner, name, kept


def _told(
    provider: ArrayProvider,
    objects: list[object],
    descriptions: Iterable[Description | None],
    seen: set[int],
    device: int | None,
    pause: Pause,
) -> list[Found]:
    described: list[Description | None] = []
    waiting = iter(descriptions)
    while some := list(islice(waiting, DESCRIBED_AT_ONCE)):
        described += some
        pause()
    are_wanted = [each is not None and (device is None or each.device == device) for each in described]
    arrays = list(compress(objects, are_wanted))
    told: list[Any] = list(compress(described, are_wanted))
    pointers = [each.pointer for each in told]
    there = set(pointers)
    if len(there) == len(pointers) and there.isdisjoint(seen):  # as nearly always: nothing is shared
        seen |= there
        return [Found(provider, array, each, False) for array, each in zip(arrays, told)]
    found: list[Found] = []
    for array, each in zip(arrays, told):
        found.append(Found(provider, array, each, each.pointer in seen))
        seen.add(each.pointer)
    return found


def _of(by_kind: dict[type, list[object]], kinds: tuple[type, ...]) -> list[object]:
    return [each for kind in kinds for each in by_kind[kind]]


def _by_kind(
    heap: Sequence[object], types: Iterable[type], wanted: Sequence[type], pause: Pause
) -> dict[type, list[object]]:
    """The objects of each wanted class, told by their real type alone."""
    found: dict[type, list[object]] = {kind: [] for kind in wanted}
    none_of = frozenset(wanted).isdisjoint
    exact = {real: kind for real in types if not none_of(lineage(real)) and (kind := _wanted(real, wanted))}
    objects = list(chain.from_iterable(of_types(part, exact) for part in parts(heap, pause)))
    theirs = list(map(exact.__getitem__, map(type, objects)))
    for kind in set(theirs):
        found[kind] += compress(objects, map(is_, theirs, repeat(kind)))
    hidden = [kind for kind in wanted if is_hidden_from_collector(kind)]
    for each in _beside(heap, hidden, pause) if hidden else ():
        kind = _wanted(type(each), hidden)
        if kind is not None:
            found[kind].append(each)
    return found


def sifted(heap: list[object], pause: Pause = no_rest) -> tuple[list[object], set[type]]:
    """Those objects of *heap* that can be arrays, and all types in it; it comes back empty.

    Where a framework's arrays are hidden from the collector, everything can lead to one.
    """
    kinds: list[type] = []
    for provider in PROVIDERS:
        with suppress(Exception):  # told where its arrays are looked for
            kinds += (*provider.arrays(), *provider.blocks())
    everything = any(map(is_hidden_from_collector, kinds))
    none_of = frozenset(kinds).isdisjoint
    is_one: dict[type, bool] = {}
    found: list[object] = []
    while heap:
        part = heap[-SLICE:]
        del heap[-SLICE:]
        for kind in set(map(type, part)).difference(is_one):
            is_one[kind] = everything or not none_of(lineage(kind))
        found += compress(part, map(is_one.__getitem__, map(type, part)))
        pause()
    return found, set(is_one)


def types_of(heap: Sequence[object], pause: Pause = no_rest) -> set[type]:
    found: set[type] = set()
    for part in parts(heap, pause):
        found.update(map(type, part))
    return found


def parts(heap: Sequence[object], pause: Pause) -> Iterator[Sequence[object]]:
    """The heap in pieces that take a millisecond each; whole where nobody is kept waiting."""
    if pause is no_rest:
        yield heap
        return
    for start in range(0, len(heap), SLICE):
        yield heap[start : start + SLICE]
        pause()


def of_types(heap: Sequence[object], types: Container[type]) -> Iterable[object]:
    """The objects whose real type is among *types*."""
    return compress(heap, map(types.__contains__, map(type, heap))) if types else ()


def _wanted(real: type, wanted: Sequence[type]) -> type | None:
    line = lineage(real)
    return next((kind for kind in wanted if kind in line), None)


def _beside(heap: Sequence[object], kinds: Sequence[type], pause: Pause = no_rest) -> Iterable[Any]:
    """Objects that the collector does not know, found by who refers to them."""
    met: dict[int, object] = {}
    unasked = set(map(id, never_asked()))
    for start in range(0, len(heap), PORTION):
        portion = heap[start : start + PORTION]
        referents = gc.get_referents(*(each for each in portion if id(each) not in unasked))
        # The collector does not know tuples and dicts either while they hold nothing it knows.
        inside = [each for each in referents if type(each) in (dict, tuple) and not gc.is_tracked(each)]
        met.update(
            (id(each), each)
            for each in (*referents, *gc.get_referents(*inside))
            if _wanted(type(each), kinds)
        )
        pause()
    return met.values()
