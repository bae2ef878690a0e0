"""Every array on a GPU that this process can reach, of every framework that it has loaded."""

from __future__ import annotations

import gc
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, compress, islice, repeat
from operator import is_, not_
from typing import Any

from ..pace import Pause, no_rest
from .frameworks import PROVIDERS
from .heap.introspection import lineage
from .heap.referents import is_hidden_from_collector, unreadable_objects
from .heap.walk import PORTION
from .provider import ArrayProvider, Description, HiddenArray, key_of
from .record import Struct

DESCRIBED_AT_ONCE = 1000
SLICE = 20_000
MAX_NOTE_LENGTH = 300


class FoundArray(Struct, frozen=True, gc=False):
    """Holds the array itself, so release it soon. ``is_shared``: an array before it has the same memory."""

    provider: ArrayProvider
    array: object
    description: Description
    is_shared: bool

    @property
    def key(self) -> int:
        """Its ``id``, for code that must not hold the array."""
        return key_of(self.array)


def find(
    heap: Sequence[object],
    device: int | None = None,
    types: Iterable[type] | None = None,
    pause: Pause = no_rest,
    notes: list[str] | None = None,
) -> list[FoundArray]:
    """Arrays first, then memory blocks without an array. *types* are those in the heap, if known.

    A framework that fails raises; if *notes* are given, the failure becomes a note instead.
    """
    providers, wanted = _loaded_providers(notes)
    if not wanted:
        return []
    by_kind = _by_kind(heap, types_of(heap, pause) if types is None else types, wanted, pause)
    # Addresses are never shared by two GPUs of one process.
    addresses: set[int] = set()
    found: list[FoundArray] = []
    covered: set[int] = set()
    for provider, arrays, _ in providers:
        with _failure_as_note(provider, notes):
            objects = _objects_of(by_kind, arrays)
            described = provider.describe(objects, covered) if objects else ()
            found += _found_arrays(provider, objects, described, addresses, device, pause)
            hidden = hidden_gradients(provider, objects)
            described = (each.description for each in hidden)
            found += _found_arrays(provider, hidden, described, addresses, device, pause)
    for provider, _, blocks in providers:
        with _failure_as_note(provider, notes):
            objects = _objects_of(by_kind, blocks)
            objects = list(compress(objects, map(not_, map(covered.__contains__, map(id, objects)))))
            described = provider.describe_blocks(objects, addresses) if objects else ()
            found += (
                each
                for each in _found_arrays(provider, objects, described, addresses, device, pause)
                if not each.is_shared
            )
    return found


def _loaded_providers(
    notes: list[str] | None,
) -> tuple[list[tuple[ArrayProvider, tuple[type, ...], tuple[type, ...]]], list[type]]:
    """Each provider with its classes of arrays and of blocks; and all these classes."""
    providers = []
    for provider in PROVIDERS:
        with _failure_as_note(provider, notes):
            providers.append((provider, provider.arrays(), provider.blocks()))
    return providers, [kind for _, arrays, blocks in providers for kind in (*arrays, *blocks)]


@contextmanager
def _failure_as_note(provider: ArrayProvider, notes: list[str] | None) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if notes is None:
            raise
        notes.append(f"{provider.NAME}: {type(error).__name__}: {error}"[:MAX_NOTE_LENGTH])


def hidden_gradients(provider: ArrayProvider, arrays: Sequence[object]) -> list[HiddenArray]:
    """The gradients of *arrays* that are not among them: most have no Python object."""
    found = [gradient for _, gradient in provider.gradients(arrays)] if arrays else []
    there = set(map(id, arrays)) if found else ()
    return [each for each in found if each.key not in there]


def _found_arrays(
    provider: ArrayProvider,
    objects: Sequence[object],
    descriptions: Iterable[Description | None],
    addresses: set[int],
    device: int | None,
    pause: Pause,
) -> list[FoundArray]:
    described: list[Description | None] = []
    waiting = iter(descriptions)
    while some := list(islice(waiting, DESCRIBED_AT_ONCE)):
        described += some
        pause()
    are_wanted = [each is not None and (device is None or each.device == device) for each in described]
    arrays = list(compress(objects, are_wanted))
    wanted: list[Any] = list(compress(described, are_wanted))
    pointers = [each.pointer for each in wanted]
    there = set(pointers)
    if len(there) == len(pointers) and there.isdisjoint(addresses):  # the usual case: nothing is shared
        addresses |= there
        return [FoundArray(provider, array, each, False) for array, each in zip(arrays, wanted)]
    found: list[FoundArray] = []
    for array, each in zip(arrays, wanted):
        found.append(FoundArray(provider, array, each, each.pointer in addresses))
        addresses.add(each.pointer)
    return found


def _objects_of(by_kind: dict[type, list[object]], kinds: tuple[type, ...]) -> list[object]:
    return [each for kind in kinds for each in by_kind[kind]]


def _by_kind(
    heap: Sequence[object], types: Iterable[type], wanted: Sequence[type], pause: Pause
) -> dict[type, list[object]]:
    """The objects of each wanted class, by their real type alone."""
    found: dict[type, list[object]] = {kind: [] for kind in wanted}
    none_of = frozenset(wanted).isdisjoint
    exact = {real: kind for real in types if not none_of(lineage(real)) and (kind := _wanted(real, wanted))}
    objects = list(chain.from_iterable(of_types(part, exact) for part in parts(heap, pause)))
    theirs = list(map(exact.__getitem__, map(type, objects)))
    for kind in set(theirs):
        found[kind] += compress(objects, map(is_, theirs, repeat(kind)))
    hidden = [kind for kind in wanted if is_hidden_from_collector(kind)]
    for each in _untracked_arrays(heap, hidden, pause) if hidden else ():
        kind = _wanted(type(each), hidden)
        if kind is not None:
            found[kind].append(each)
    return found


def types_of(heap: Sequence[object], pause: Pause = no_rest) -> set[type]:
    found: set[type] = set()
    for part in parts(heap, pause):
        found.update(map(type, part))
    return found


def parts(heap: Sequence[object], pause: Pause) -> Iterator[Sequence[object]]:
    """The heap in parts that take a millisecond each; as a whole where no other thread waits."""
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


def _untracked_arrays(heap: Sequence[object], kinds: Sequence[type], pause: Pause = no_rest) -> Iterable[Any]:
    """Objects that the collector does not track, found by what refers to them."""
    met: dict[int, object] = {}
    unreadable = set(map(id, unreadable_objects()))
    for start in range(0, len(heap), PORTION):
        portion = heap[start : start + PORTION]
        referents = gc.get_referents(*(each for each in portion if id(each) not in unreadable))
        passed: set[int] = set()
        while referents:
            met.update((id(each), each) for each in referents if _wanted(type(each), kinds))
            # Tuples are never in the heap, nor are dicts that hold nothing that the collector tracks.
            inside = {id(each): each for each in referents if type(each) is tuple or _is_untracked_dict(each)}
            referents = gc.get_referents(*(each for key, each in inside.items() if key not in passed))
            passed.update(inside)
        pause()
    return met.values()


def _is_untracked_dict(each: object) -> bool:
    return type(each) is dict and not gc.is_tracked(each)


# ---- arrays that are described as they are met, and not held ----

# The ``id`` of the array that holds another one, and the attribute.
ArrayHolders = dict[int, list[tuple[int, str]]]


class ArrayRecord(Struct, frozen=True, gc=False):
    """An array that existed, by its ``id``; the array itself is not held."""

    provider: Any
    key: int
    kind: type
    description: Description
    is_shared: bool

    def is_hidden_form_of(self, other: ArrayRecord) -> bool:
        """The same array, which was known without its object until now."""
        is_hidden = self.kind is HiddenArray and other.kind is not HiddenArray
        return is_hidden and self.description.pointer == other.description.pointer


class ArrayInventory:
    """The arrays and memory blocks that were met. ``holders``: arrays that hold others outside Python."""

    def __init__(self, notes: list[str]) -> None:
        self.holders: ArrayHolders = {}
        self._notes = notes
        self._providers, self.kinds = _loaded_providers(notes)
        self._arrays: list[dict[int, ArrayRecord]] = [{} for _ in self._providers]
        self._blocks: list[dict[int, ArrayRecord]] = [{} for _ in self._providers]

    def add(self, met: list[object]) -> None:
        """Describe what was met; it is not held afterwards."""
        left = met
        for at, (provider, arrays, blocks) in enumerate(self._providers):
            with _failure_as_note(provider, self._notes):
                theirs, left = _instances(left, arrays)
                covered = self._add_arrays(at, provider, theirs) if theirs else set()
            with _failure_as_note(provider, self._notes):
                theirs, left = _instances(left, blocks)
                theirs = [each for each in theirs if id(each) not in covered]
                if theirs:
                    described = provider.describe_blocks(theirs, set())
                    self._blocks[at].update(_records(provider, theirs, described))

    def _add_arrays(self, at: int, provider: ArrayProvider, met: list[object]) -> set[int]:
        covered: set[int] = set()
        found = _records(provider, met, provider.describe(met, covered))
        hidden = hidden_gradients(provider, met)
        known = self._arrays[at]
        for key, record in (*found.items(), *_records_of_hidden(provider, hidden)):
            if known.setdefault(key, record).is_hidden_form_of(record):
                known[key] = record
        add_native_holders(provider, [each for each in met if id(each) in found], self.holders)
        return covered

    def records(self) -> list[ArrayRecord]:
        """All arrays, then blocks without an array. Of those that share memory the first has it: no view."""
        # Addresses are never shared by two GPUs of one process.
        addresses: set[int] = set()
        found: list[ArrayRecord] = []
        for are_blocks, by_provider in ((False, self._arrays), (True, self._blocks)):
            for records in by_provider:
                for each in sorted(records.values(), key=lambda record: record.description.is_view):
                    is_shared = each.description.pointer in addresses
                    addresses.add(each.description.pointer)
                    if not is_shared:
                        found.append(each)
                    elif not are_blocks:
                        found.append(ArrayRecord(each.provider, each.key, each.kind, each.description, True))
        return found


def add_native_holders(provider: ArrayProvider, arrays: Sequence[object], holders: ArrayHolders) -> None:
    """Add to *holders* which of *arrays* holds another one outside Python, and as which attribute."""
    for attribute, pairs in ((".grad", provider.gradients(arrays)), ("._base", provider.bases(arrays))):
        for holder, held in pairs:
            holders.setdefault(key_of(held), []).append((id(holder), attribute))


def _instances(objects: list[object], kinds: tuple[type, ...]) -> tuple[list[object], list[object]]:
    """Those of *objects* whose real type derives from one of *kinds*, and the others."""
    if not objects or not kinds:
        return [], objects
    wanted = {real for real in set(map(type, objects)) if not frozenset(kinds).isdisjoint(lineage(real))}
    if not wanted:
        return [], objects
    return [each for each in objects if type(each) in wanted], [
        each for each in objects if type(each) not in wanted
    ]


def _records_of_hidden(
    provider: ArrayProvider, hidden: list[HiddenArray]
) -> Iterable[tuple[int, ArrayRecord]]:
    return _records(provider, hidden, (each.description for each in hidden)).items()


def _records(
    provider: ArrayProvider, objects: Sequence[object], descriptions: Iterable[Description | None]
) -> dict[int, ArrayRecord]:
    return {
        key_of(each): ArrayRecord(provider, key_of(each), type(each), description, False)
        for each, description in zip(objects, descriptions)
        if description is not None
    }
