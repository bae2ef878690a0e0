"""All objects that the collector tracks, but for those that must not be referred to from here.

Tuples are left out always: another thread may be filling one just then.

``tuple(generator)``, and much code in C, fills a new tuple step by step. The collector tracks it from the
start, so a list of all objects refers to it; and where anything else refers to a tuple that is being filled,
Python raises SystemError in the thread that fills it. A tuple that an object refers to is complete: those
that are needed are found that way.

Before 2.10, PyTorch keeps the Python object of a tensor that only its own code refers to, a backward pass for
instance, and the collector lists it. Its memory may be freed at any moment. Where anything else refers to the
object then, PyTorch warns in the program, and where warnings are errors, the backward pass fails. Inside
another program such tensors are left out, too, and those that Python refers to are found through that.
"""

from __future__ import annotations

import gc
import sys
from itertools import chain, compress, repeat, starmap
from operator import is_not, not_
from typing import Any

FIRST_TO_OWN = (2, 10)
"""The first PyTorch whose tensors belong to their Python objects."""


def tracked_objects(generation: int | None = None, but: frozenset[type] = frozenset()) -> list[object]:
    """Every object that is no tuple and of no type in *but*, or those of one generation.

    All objects are listed, chosen from and released again by one instruction, in C. No other thread runs
    meanwhile, and no more is allocated than the list that is returned: nothing starts a collection, whose
    finalizers would let a thread run. That list is made after all others were listed: it is not in itself.
    """
    everything: list[object] = []
    types = map(type, everything)
    are_wanted = map(is_not, types, repeat(tuple))
    if but:
        are_wanted = map(not_, map((but | {tuple}).__contains__, types))
    steps: chain[Any] = chain(
        map(everything.extend, map(gc.get_objects, (generation,))),
        map(list, (compress(everything, are_wanted),)),
        starmap(everything.clear, ((),)),
    )
    _, chosen, _ = steps
    return chosen  # type: ignore[no-any-return]


def types_owned_elsewhere() -> frozenset[type]:
    """The types whose objects may be PyTorch's own: of tensors and storages, before 2.10."""
    torch: Any = sys.modules.get("torch")
    native = getattr(torch, "_C", None)
    try:
        first, second = str(torch.__version__).split(".")[:2]
        if native is None or (int(first), int(second)) >= FIRST_TO_OWN:
            return frozenset()
    except (AttributeError, ValueError):
        return frozenset()  # no PyTorch, or one that is being imported
    found: set[type] = set()
    waiting = [getattr(native, name, None) for name in ("TensorBase", "_TensorBase", "StorageBase")]
    while waiting:
        kind = waiting.pop()
        if isinstance(kind, type) and kind not in found:
            found.add(kind)
            waiting += type.__subclasses__(kind)
    return frozenset(found)
