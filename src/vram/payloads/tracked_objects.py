"""All objects that the collector tracks, but for tuples: another thread may be filling one just then.

``tuple(generator)``, and much code in C, fills a new tuple step by step. The collector tracks it from the
start, so a list of all objects refers to it; and where anything else refers to a tuple that is being filled,
Python raises SystemError in the thread that fills it. A tuple that an object refers to is complete: those
that are needed are found that way.
"""

from __future__ import annotations

import gc
from itertools import chain, compress, repeat, starmap
from operator import is_not
from typing import Any


def tracked_objects(generation: int | None = None) -> list[object]:
    """Every object that is no tuple, or those of one generation.

    All objects are listed, chosen from and released again by one instruction, in C. No other thread runs
    meanwhile, and no more is allocated than the list that is returned: nothing starts a collection, whose
    finalizers would let a thread run. That list is made after all others were listed: it is not in itself.
    """
    everything: list[object] = []
    no_tuples = compress(everything, map(is_not, map(type, everything), repeat(tuple)))
    steps: chain[Any] = chain(
        map(everything.extend, map(gc.get_objects, (generation,))),
        map(list, (no_tuples,)),
        starmap(everything.clear, ((),)),
    )
    _, chosen, _ = steps
    return chosen  # type: ignore[no-any-return]
