"""The leak check at the end of a scope: how much is still in use, which arrays, and who holds them.

A scope that gained nothing costs one measurement. The baseline, a walk over the heap, is read only where that
takes less than a hundredth of the scope's own time, as far as that is known.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from types import BuiltinFunctionType, FrameType, FunctionType, ModuleType
from typing import NamedTuple

from msgspec.structs import replace

from vram.guard.cuda_errors import observed_broken_contexts
from vram.guard.live import dtype_and_shape, equal_arrays
from vram.guard.memory import OUTSIDE, Footprint, find_frameworks, objections, read_footprint
from vram.guard.scope_tree import Baseline
from vram.model.leak import EqualArrays, Gain, Leak, LeakedArray, ScopeNote
from vram.payloads.arrays.frameworks import PROVIDERS, secondary_holders
from vram.payloads.arrays.inventory import FoundArray, find, hidden_gradients, of_types
from vram.payloads.arrays.native_references import paths_to, possible_holders
from vram.payloads.arrays.provider import ArrayProvider, Description
from vram.payloads.tracked_objects import tracked_objects
from vram.units import MIB, size

# Frameworks that run kernels: code and library handles are loaded into the context at first
# use and stay there. A first training step on an H200 took 130 MiB that way.
_LOAD_CODE = ("torch", "cupy", "jax", "tensorflow")
FIRST_USE_SLACK = 256 * MIB
# The driver gives memory to a context in pages of this size.
PAGE = 2 * MIB

# Their pools cannot shrink, and JAX would compile everything again.
_KEEP_THEIR_CACHES = ("JAX", "TensorFlow")

_checked_before: set[str] = set()


# ---- how much leaked ----


def check_leak(
    names: tuple[str, ...], before: Footprint, *, tolerance: int | None, kept_nbytes: Callable[[], int]
) -> tuple[Leak | None, list[str]]:
    """The leak since *before*, None if there is none, and notes on how it was judged.

    What counts is what stays in use after garbage is collected and caches are released; then *kept_nbytes* is
    called.
    """
    now = read_footprint()
    if observed_broken_contexts() or not _gains(before, now, 0):
        return None, []  # in a broken context nothing can be freed, so nothing can be judged
    from vram.payloads.trim.driver import driver

    with driver.harmless_to_captures():
        refusals = objections(find_frameworks([], but=_KEEP_THEIR_CACHES))
    if refusals:
        text = "; memory gained could not be checked"
        return None, [ScopeNote.of("graph-capture", each + text) for each in refusals]
    gc.collect()
    now = read_footprint(thorough=True)
    if not _gains(before, now, 0):
        return None, []
    # Some caches count as in use until they are emptied: PyTorch's cuBLAS workspaces, CuPy's plans,
    # and pools that vram does not know.
    release_caches()
    now = read_footprint(thorough=True)
    return _judge(names, before, now, tolerance, kept_nbytes())


def _judge(
    names: tuple[str, ...], before: Footprint, now: Footprint, tolerance: int | None, kept: int
) -> tuple[Leak | None, list[str]]:
    slack = _slack(names) if tolerance is None else 0
    notes: list[str] = []
    new_contexts = [device for device in now.charged if device not in before.charged]
    gains = _gains(before, now, PAGE if tolerance is None else 0)
    if new_contexts:
        outside = next((gain.nbytes for gain in gains if gain.where == OUTSIDE), 0)
        gains = [gain for gain in gains if gain.where != OUTSIDE]
        text = (
            f"the context was created inside the scope, so {size(outside)} outside every framework,"
            " including the context, could not be checked"
        )
        notes.append(ScopeNote.of("context-inside", text))
    gains = _subtract(gains, kept, slack, notes)
    if now.device_wide:
        notes.append("the driver does not report this process's memory: other processes' memory is included")
    leak = Leak(names=names, gains=tuple(gains), notes=tuple(notes))
    return (leak if leak.nbytes > (tolerance or 0) else None), notes


def _gains(before: Footprint, now: Footprint, page: int) -> list[Gain]:
    """Every growth on its own: what one framework freed does not offset what another gained."""
    grown = [
        Gain(name, nbytes - before.in_use.get(name, 0))
        for name, nbytes in now.in_use.items()
        if nbytes > before.in_use.get(name, 0)
    ]
    outside = now.outside - before.outside
    # Frameworks round what they hold up to the driver's pages: less than one page means nothing.
    return [*grown, Gain(OUTSIDE, outside)] if outside > 0 and outside >= page else grown


def _subtract(gains: list[Gain], kept: int, slack: int, notes: list[str]) -> list[Gain]:
    """Subtract what the program keeps on purpose, from the largest gain first, and what is tolerated."""
    left = []
    for gain in sorted(gains, key=lambda gain: -gain.nbytes):
        excused = min(kept, gain.nbytes)
        kept -= excused
        rest = gain.nbytes - excused
        if gain.where == OUTSIDE and 0 < rest <= slack:
            notes.append(
                f"{size(rest)} outside every framework was counted as code and libraries that load at"
                " first use"
            )
            rest = 0
        if rest > 0:
            left.append(Gain(gain.where, rest))
    return left


def _slack(names: tuple[str, ...]) -> int:
    """What may grow outside frameworks: much the first time code runs under a name, then nothing."""
    first_time = not _checked_before.issuperset(names)
    _checked_before.update(names)
    loads_code = any(name in sys.modules for name in _LOAD_CODE)
    return FIRST_USE_SLACK if loads_code and first_time else 0


def release_caches() -> None:
    """Empty the caches of frameworks, so that what remains is in use; not while a graph is captured."""
    from vram.payloads import trim
    from vram.payloads.trim.driver import driver

    notes: list[str] = []
    with driver.harmless_to_captures():
        trim.release_all(find_frameworks([], but=_KEEP_THEIR_CACHES), notes, forget=False, collect=True)


# ---- which arrays are new ----

SHARE = 0.01
MAX_NAMES = 1000


# By the name of a scope: seconds that its last baseline took to read, and that its body took.
_costs: dict[str, tuple[float, float]] = {}


class TimedBaseline:
    """The baseline of one scope, and what it cost. With *wanted* None it is read if that was cheap enough
    for the last scope of that name."""

    def __init__(self, name: str, *, wanted: bool | None) -> None:
        self._name, self._began = name, time.perf_counter()
        self.arrays: Baseline | None = None
        self._read_s, body_s = _costs.get(name, (0.0, 0.0))
        if wanted or (wanted is None and self._read_s <= SHARE * body_s):
            self.arrays = _read_baseline()
            self._read_s = time.perf_counter() - self._began

    def close(self) -> None:
        """Remember what it cost."""
        if len(_costs) >= MAX_NAMES:
            _costs.clear()
        _costs[self._name] = self._read_s, time.perf_counter() - self._began


def _read_baseline() -> Baseline:
    """Every array that the collector tracks, found by type alone, and their gradients."""
    loaded = [(provider, kinds) for provider in PROVIDERS if (kinds := provider.arrays())]
    if not loaded:
        return Baseline()
    heap = tracked_objects()
    types = set(map(type, heap))
    arrays: list[object] = []
    for provider, kinds in loaded:
        theirs = list(of_types(heap, {kind for kind in types if issubclass(kind, kinds)}))
        arrays += [*theirs, *hidden_gradients(provider, theirs)]
    return Baseline(arrays)


# ---- arrays inside a value ----

# A model of a thousand layers has some ten thousand objects; beyond that lies the whole program.
FARTHEST = 100_000
_NOT_INSIDE = (type, ModuleType, FunctionType, BuiltinFunctionType, FrameType)


def arrays_in(value: object) -> Iterator[tuple[ArrayProvider, object, Description]]:
    """The arrays on a GPU inside *value*; two views of the same memory are two arrays."""
    inside = list(_inside([value]))
    for provider in PROVIDERS:
        kinds = provider.arrays()
        mine = [each for each in inside if kinds and issubclass(type(each), kinds)]
        described = provider.describe(mine, set()) if mine else ()
        for array, description in zip(mine, described, strict=True):
            if description is not None:
                yield provider, array, description
        for gradient in hidden_gradients(provider, mine):
            yield provider, gradient, gradient.description


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


# ---- who holds what leaked ----

MAX_ARRAYS = 10
# Of so many arrays, equal ones are put together.
MAX_GROUPED = 1000


def with_holders(leak: Leak, baseline: Baseline | None) -> Leak:
    """*leak* with the largest arrays behind it and their holders; those of *baseline* are not new."""
    notes = list(leak.notes)
    places = {gain.where for gain in leak.gains}

    def may_have_leaked(found: FoundArray) -> bool:
        if baseline is not None:
            return not baseline.has(found.array, found.description)
        return found.provider.NAME in places or OUTSIDE in places

    arrays, groups = largest_arrays(MAX_ARRAYS, may_have_leaked)
    if baseline is None and arrays:
        notes.append("which of these are new is unknown; use track=True")
    if not arrays:
        notes.append(_explain_pycuda() or RAW_ALLOCATIONS)
    return replace(leak, arrays=tuple(arrays), groups=tuple(groups), notes=tuple(notes))


RAW_ALLOCATIONS = "no array of a framework explains it: look for raw allocations that are never freed"
PYCUDA_WARNING = "device_allocation in out-of-thread context"
PYCUDA_REMEDY = "call its free() before context.pop(), or allocate in a function that returns before the pop"


def _explain_pycuda() -> str | None:
    """Where PyCUDA is loaded: that it skips frees, and whether it has warned of one in this process.

    It frees a DeviceAllocation only where the allocation's context is current or in the thread that made the
    context. Python remembers the warnings that it has shown, by module.
    """
    if "pycuda._driver" not in sys.modules:
        return None
    rule = (
        "PyCUDA does not free an allocation whose last reference is dropped where its context is not current"
    )
    if any(map(_has_warned, list(sys.modules.values()))):
        return f"{rule}, and has warned of one here: {PYCUDA_REMEDY}"
    return f"no array of a framework explains it. {rule}: {PYCUDA_REMEDY}"


def _has_warned(module: ModuleType | None) -> bool:
    shown = getattr(module, "__dict__", {}).get("__warningregistry__") or {}
    return any(isinstance(key, tuple) and str(key[0]).startswith(PYCUDA_WARNING) for key in list(shown))


class LargestArrays(NamedTuple):
    """The largest arrays, and the largest groups of equal ones."""

    arrays: list[LeakedArray]
    groups: list[EqualArrays]


def largest_arrays(count: int, is_wanted: Callable[[FoundArray], bool] = lambda _: True) -> LargestArrays:
    """The largest live arrays of all frameworks, each memory once, with the shortest path to each."""
    heap = tracked_objects()
    everything = find(heap)
    found = [each for each in everything if not each.is_shared and is_wanted(each)]
    chosen = sorted(found, key=lambda each: -each.description.nbytes)[:MAX_GROUPED]
    del found
    involved = [*chosen, *possible_holders(chosen, everything)]
    del everything
    paths = paths_to(involved, heap, secondary_holders())
    arrays = [
        LeakedArray(what=_text(each), nbytes=each.description.nbytes, holder=paths.holder(each.key).text)
        for each in chosen
    ]
    return LargestArrays(arrays[:count], equal_arrays(arrays)[:count])


def _text(found: FoundArray) -> str:
    array = found.description
    where = "" if array.device is None else f" on GPU {array.device}"
    note = f" ({array.note})" if array.note else ""
    return f"{found.provider.NAME} {dtype_and_shape(array)}".rstrip() + where + note
