"""DOC"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from types import BuiltinFunctionType, FrameType, FunctionType, ModuleType
from typing import Any, NamedTuple

from msgspec.structs import replace

from vram.guard.baseline import Known
from vram.guard.cuda_errors import seen_broken
from vram.guard.footprint import OUTSIDE, Footprint, take
from vram.guard.tables import what
from vram.model.leak import Gain, Kept, Leak
from vram.payloads.arrays.frameworks import PROVIDERS, secondary_holders
from vram.payloads.arrays.heap.search import shortest
from vram.payloads.arrays.inventory import Found, find, of_types, with_gradients
from vram.payloads.arrays.native_references import name_keepers, relatives
from vram.payloads.arrays.provider import ArrayProvider, Description
from vram.units import MIB, size

# ---- how much leaked ----


# Frameworks that run kernels: code and library handles are loaded into the context at first
# use and stay there. A first training step on an H200 took 130 MiB that way.
_LOAD_CODE = ("torch", "cupy", "jax", "tensorflow")
FIRST_USE_SLACK = 256 * MIB
# The driver hands memory to a context in pages of this size.
PAGE = 2 * MIB

# Words of the notes on a scope about which no verdict was possible.
UNJUDGED = "could not be judged"
CONTEXT_INSIDE = "the context was made inside the scope"

# Their pools cannot shrink, and JAX would compile everything again.
_NOTHING_TO_WIN = ("JAX", "TensorFlow")

_passed_before: set[str] = set()


def leak_of(
    names: tuple[str, ...], before: Footprint, *, tolerance: int | None, kept_on_purpose: Callable[[], int]
) -> tuple[Leak | None, list[str]]:
    """What was gained since *before* and stays when garbage and caches are gone; and remarks on it.

    *kept_on_purpose* is asked when they are gone.
    """
    now = take()
    if seen_broken() or not _gains(before, now, 0):
        return None, []  # in a broken context nothing can be freed, and so nothing be judged
    objections = _objections()
    if objections:
        return None, [f"{each}; what was gained {UNJUDGED}" for each in objections]
    gc.collect()
    now = take(thorough=True)
    if not _gains(before, now, 0):
        return None, []
    # Some caches count as in use until they are emptied: PyTorch's cuBLAS workspaces, CuPy's plans,
    # and pools that nobody tells us about.
    let_caches_go()
    now = take(thorough=True)
    return _judged(names, before, now, tolerance, kept_on_purpose())


def _judged(
    names: tuple[str, ...], before: Footprint, now: Footprint, tolerance: int | None, on_purpose: int
) -> tuple[Leak | None, list[str]]:
    slack = _slack(names) if tolerance is None else 0
    notes: list[str] = []
    new_contexts = [device for device in now.charged if device not in before.charged]
    gains = _gains(before, now, PAGE if tolerance is None else 0)
    if new_contexts:
        outside = next((gain.nbytes for gain in gains if gain.where == OUTSIDE), 0)
        gains = [gain for gain in gains if gain.where != OUTSIDE]
        notes.append(
            f"{CONTEXT_INSIDE}, so {size(outside)} outside every framework, the context "
            f"among them, {UNJUDGED}"
        )
    gains = _without(gains, on_purpose, slack, notes)
    if now.device_wide:
        notes.append("the driver does not tell this process's share: other processes' memory counts too")
    leak = Leak(names=names, gains=tuple(gains), notes=tuple(notes))
    return (leak if leak.nbytes > (tolerance or 0) else None), notes


def _gains(before: Footprint, now: Footprint, page: int) -> list[Gain]:
    """Every growth for itself: what one framework gave back does not excuse another."""
    grown = [
        Gain(name, nbytes - before.in_use.get(name, 0))
        for name, nbytes in now.in_use.items()
        if nbytes > before.in_use.get(name, 0)
    ]
    outside = now.outside - before.outside
    # Frameworks round what they hold up to pages of the driver's: less than one is no sign.
    return [*grown, Gain(OUTSIDE, outside)] if outside > 0 and outside >= page else grown


def _without(gains: list[Gain], on_purpose: int, slack: int, notes: list[str]) -> list[Gain]:
    """Take off what was kept on purpose, from the largest gain first, and what is tolerated."""
    left = []
    for gain in sorted(gains, key=lambda gain: -gain.nbytes):
        excused = min(on_purpose, gain.nbytes)
        on_purpose -= excused
        rest = gain.nbytes - excused
        if gain.where == OUTSIDE and 0 < rest <= slack:
            notes.append(
                f"{size(rest)} outside every framework were taken for code and libraries that load at first"
                " use"
            )
            rest = 0
        if rest > 0:
            left.append(Gain(gain.where, rest))
    return left


def _slack(names: tuple[str, ...]) -> int:
    """What may grow outside frameworks: much the first time code runs under a name, then nothing."""
    first_time = not _passed_before.issuperset(names)
    _passed_before.update(names)
    loads_code = any(name in sys.modules for name in _LOAD_CODE)
    return FIRST_USE_SLACK if loads_code and first_time else 0


def let_caches_go() -> None:
    """Empty every cache, so that what remains is what somebody really uses; not during a graph's capture."""
    from vram.payloads import trim
    from vram.payloads.trim.driver import driver

    notes: list[str] = []
    with driver.harmless_to_captures():
        trim.let_go(_found(), notes, forget=False)


def _objections() -> list[str]:
    """Why nothing may be collected or let go of just now."""
    from vram.payloads import trim
    from vram.payloads.trim.driver import driver

    told: list[str] = []
    with driver.harmless_to_captures():
        return [
            *(word for each in _found() for word in trim.guarded(told, each.name, each.objections)),
            *told,
        ]


def _found() -> list[Any]:
    from vram.payloads import trim
    from vram.payloads.trim.frameworks import FRAMEWORKS

    kinds = [kind for kind in FRAMEWORKS if kind.name not in _NOTHING_TO_WIN]
    return [each for kind in kinds for each in trim.guarded([], kind.name, kind.find)]


# ---- which arrays, and who holds them ----


SHARE = 0.01
MOST_NAMES = 1000
NAMED = 10
# A model of a thousand layers has some ten thousand objects; beyond that lies the whole program.
FARTHEST = 100_000
_NOT_INSIDE = (type, ModuleType, FunctionType, BuiltinFunctionType, FrameType)


class _Spent(NamedTuple):
    look_s: float
    body_s: float


_spent: dict[str, _Spent] = {}


class Baseline:
    """Which arrays lived when a scope began."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._began = time.perf_counter()
        self.known: Known | None = None
        self._look_s = _spent[name].look_s if name in _spent else 0.0

    @classmethod
    def take(cls, name: str, *, wanted: bool | None) -> Baseline:
        """Look where *wanted*; None leaves it to what the last time of that name cost."""
        taken = cls(name)
        last = _spent.get(name)
        if wanted or (wanted is None and (last is None or last.look_s <= SHARE * last.body_s)):
            taken.known = _known_arrays()
            taken._look_s = time.perf_counter() - taken._began
        return taken

    def close(self) -> None:
        """Remember what it cost, for the next scope of that name."""
        if len(_spent) >= MOST_NAMES:
            _spent.clear()
        _spent[self._name] = _Spent(self._look_s, time.perf_counter() - self._began)


def named(leak: Leak, known: Known | None) -> Leak:
    """*leak* with the arrays that are behind it and their keepers; *known* were there before."""
    notes = list(leak.notes)
    places = {gain.where for gain in leak.gains}

    def is_suspect(found: Found) -> bool:
        if known is not None:
            return found.array not in known
        return found.provider.NAME in places or OUTSIDE in places

    kept = _told(is_suspect, NAMED)
    if known is None and kept:
        notes.append("which of these are new was not looked at: track=True does")
    if not kept:
        notes.append("no array of a framework explains it: look for allocations that are nobody's to free")
    return replace(leak, kept=tuple(kept), notes=tuple(notes))


def largest(count: int) -> list[Kept]:
    """The largest live arrays of all frameworks and who keeps them."""
    return _told(lambda _: True, count)


def arrays_in(value: object) -> Iterator[tuple[ArrayProvider, object, Description]]:
    """The arrays on a GPU inside *value*, views of the same memory each for itself."""
    inside = list(_inside([value]))
    for provider in PROVIDERS:
        kinds = provider.arrays()
        mine = with_gradients(provider, [each for each in inside if kinds and issubclass(type(each), kinds)])
        for array, told in zip(mine, provider.describe(mine, set()) if mine else (), strict=True):
            if told is not None:
                yield provider, array, told


def has_array(values: Iterable[object]) -> bool:
    """Whether an array of any loaded framework is among *values* or inside one of them."""
    kinds = tuple(kind for provider in PROVIDERS for kind in provider.arrays())
    return bool(kinds) and any(issubclass(type(each), kinds) for each in _inside(values))


def _inside(values: Iterable[object]) -> Iterator[object]:
    """*values* and what they consist of; not what they merely use, such as classes and modules."""
    waiting = [each for each in values if not issubclass(type(each), _NOT_INSIDE)]
    seen = set(map(id, waiting))
    for _ in range(FARTHEST):
        if not waiting:
            return
        each = waiting.pop()
        yield each
        for child in gc.get_referents(each) if gc.is_tracked(each) else ():
            if id(child) not in seen and not issubclass(type(child), _NOT_INSIDE):
                seen.add(id(child))
                waiting.append(child)


def _known_arrays() -> Known:
    """Every array that the collector knows, told by types alone, and their gradients."""
    of_providers = [(provider, kinds) for provider in PROVIDERS if (kinds := provider.arrays())]
    if not of_providers:
        return Known()
    heap = gc.get_objects()
    types = set(map(type, heap))
    known: list[object] = []
    for provider, kinds in of_providers:
        wanted = {kind for kind in types if issubclass(kind, kinds)}
        known += with_gradients(provider, list(of_types(heap, wanted)))
    return Known(known)


def _told(is_wanted: Callable[[Found], bool], count: int) -> list[Kept]:
    """The largest of the arrays that are wanted, each memory once, with the shortest way to it."""
    heap = gc.get_objects()
    everything = find(heap)
    found = [each for each in everything if not each.is_shared and is_wanted(each)]
    chosen = sorted(found, key=lambda each: -each.description.nbytes)[:count]
    del found
    involved = [*chosen, *relatives(chosen, everything)]
    del everything
    trails = shortest([each.array for each in involved], heap, bystanders=secondary_holders())
    name_keepers(involved, trails)
    return [
        Kept(what=_words(each), nbytes=each.description.nbytes, keeper=trails.holder(id(each.array)).text)
        for each in chosen
    ]


def _words(found: Found) -> str:
    told = found.description
    where = "" if told.device is None else f" on GPU {told.device}"
    note = f" ({told.note})" if told.note else ""
    return f"{found.provider.NAME} {what(told)}".rstrip() + where + note
