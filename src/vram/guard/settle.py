"""The verdict at the end of a scope: what is still in use that was not at its beginning.

Only what is suspicious is looked at closely: a scope that gained nothing costs one reading.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

from vram.guard.broken import seen_broken
from vram.guard.footprint import OUTSIDE, Footprint, take
from vram.model.leak import Gain, Leak
from vram.units import MIB, size

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
        trim.release_all(_found(), notes, forget=False)


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
