"""Which claims there are, by topic, in the order in which they are tested."""

from __future__ import annotations

from vram.errors import UsageError
from vram.lab.claim import DEFINED, DefinedClaim
from vram.lab.topics import (
    contexts,
    errors,
    figures,
    forks,
    frameworks,
    freeing,
    managed,
    old_data,
    pools,
    process_end,
    pycuda,
    sharing,
    threads,
)

_MODULES = (
    *(process_end, forks, sharing, freeing, pools, contexts),
    *(errors, threads, old_data, managed, figures, frameworks, pycuda),
)

TOPICS: dict[str, tuple[DefinedClaim, ...]] = {
    module.TOPIC: tuple(each for each in DEFINED.values() if each.topic == module.TOPIC)
    for module in _MODULES
}

CLAIMS = {each.name: each for claims in TOPICS.values() for each in claims}


def chosen(names: list[str]) -> tuple[DefinedClaim, ...]:
    """The named claims in the catalogue's order, each once; all of them without names.

    Raises UsageError, with a suggestion, where there is no such claim.
    """
    wanted = {_as_defined(name) for name in names}
    return tuple(each for name, each in CLAIMS.items() if not wanted or name in wanted)


def to_run(names: list[str], *, faults: bool) -> tuple[tuple[DefinedClaim, ...], tuple[DefinedClaim, ...]]:
    """The claims to test, and those left out: what makes a kernel fail is run by name, or with *faults*."""
    claims = chosen(names)
    if names or faults:
        return claims, ()
    kept = tuple(each for each in claims if not each.fails_kernels)
    return kept, tuple(each for each in claims if each.fails_kernels)


def _as_defined(name: str) -> str:
    found = name.strip().lower().replace("_", "-")
    if found not in CLAIMS:
        raise UsageError(f"no such experiment: {name!r}", hint=_suggestion(found))
    return found


def _suggestion(name: str) -> str:
    from difflib import get_close_matches

    close = get_close_matches(name, CLAIMS, n=1)
    return f"did you mean {close[0]}?" if close else "`vram lab list` lists them all"
