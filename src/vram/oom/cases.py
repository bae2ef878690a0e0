"""Messages into cases: the parts of one failure are joined, and repeated failures are counted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from msgspec.structs import asdict, replace

from vram.model.oom import Case, OomReading
from vram.oom.judge import judge
from vram.oom.reader import FoundMessage

# A program that retries for days writes thousands of them. What is beyond is counted, not kept.
MAX_CASES = 200
# How far apart the lines of one failure may lie. A pool's dump lists every chunk.
ONE_FAILURE = 40
ONE_DUMP = 200_000
_POOLED = ("tensorflow", "xla", "bfc")
_FIGURES = ("asked", "total", "free", "live", "idle", "limit", "largest_free", "gpu")


class LogCases(NamedTuple):
    """The cases of a log. ``unkept`` counts messages beyond the most cases that are kept."""

    cases: tuple[Case, ...]
    unkept: int


def cases(messages: Iterable[FoundMessage]) -> LogCases:
    """Judge every distinct one of *messages*, and count how often each occurs."""
    kept: dict[tuple[object, ...], Case] = {}
    unkept = 0
    for found in joined(messages):
        key = _key(found.reading)
        known = kept.get(key)
        if known:
            kept[key] = replace(known, count=known.count + 1, last_line=found.line)
        elif len(kept) < MAX_CASES:
            kept[key] = _case(found)
        else:
            unkept += 1
    return LogCases(tuple(kept.values()), unkept)


def joined(messages: Iterable[FoundMessage]) -> Iterator[FoundMessage]:
    """Join what belongs to one failure: a pool's dump and the error after it, a cause and its echo."""
    held: FoundMessage | None = None
    for found in messages:
        if held is not None:
            one = _as_one(held, found)
            if one is not None:
                held = one
                continue
            yield held
        held = found
    if held is not None:
        yield held


def _case(found: FoundMessage) -> Case:
    reading, line = found
    return Case(reading=reading, judgement=judge(reading), first_line=line, last_line=line)


def _key(reading: OomReading) -> tuple[object, ...]:
    """Everything that was said, whatever the words around it."""
    said = asdict(reading)
    said.pop("excerpt")
    return tuple(said.values())


def _as_one(first: FoundMessage, second: FoundMessage) -> FoundMessage | None:
    one, two = first.reading, second.reading
    apart = second.line - first.line
    if one.where != two.where or apart > ONE_DUMP:
        return None
    if one.dialect in _POOLED and two.dialect in _POOLED and (_agree(one, two) or _is_smaller_try(one, two)):
        return FoundMessage(_merged(one, two), first.line)
    if apart <= ONE_FAILURE and _is_echo(one, two):
        return FoundMessage(_merged(one, two), first.line)
    return None


def _agree(one: OomReading, two: OomReading) -> bool:
    """Not two failures in a row: nothing that both say differs, beyond rounding."""
    if one.wording == two.wording and one.dialect == two.dialect != "bfc":
        return False
    for name in ("asked", "live", "limit"):
        a, b = getattr(one, name), getattr(two, name)
        if a and b and abs(a.nbytes - b.nbytes) > max(a.slack + b.slack, a.nbytes // 50):
            return False
    return True


def _is_smaller_try(one: OomReading, two: OomReading) -> bool:
    """A pool that cannot grow by as much as it likes asks the driver for less and less."""
    asked = one.asked is not None and two.asked is not None and two.asked.nbytes < one.asked.nbytes
    return asked and one.wording == two.wording == "driver"


def _is_echo(one: OomReading, two: OomReading) -> bool:
    """CUDA's bare words beside a message that says more of the same failure."""
    if one.dialect == two.dialect == "tensorrt":
        return one.wording == "runtime" and two.wording == "buffer"
    if one.dialect == two.dialect == "nccl":  # its own warning, then what its caller raised
        return two.wording == "last error"
    if one.dialect == two.dialect == "host":  # the step's own message, then the launcher's
        return (one.wording, two.wording) in (("slurm", "srun"), ("bad_alloc", "bad_alloc"))
    if one.dialect == two.dialect == "tgi":  # the server's, the router's and the launcher's
        return one.tokens_wanted == two.tokens_wanted
    if two.dialect == "tgi" and one.dialect == "pytorch":
        return True
    if one.dialect == two.dialect == "xid":  # one fault is reported by each part of the GPU that meets it
        return True
    if one.dialect == two.dialect == "llama.cpp" and one.where == "host":  # logged, then returned
        return one.asked == two.asked
    bare = one if one.dialect == "cuda" else two
    other = two if bare is one else one
    if bare.dialect != "cuda" or bare.asked or other.dialect == "cuda":
        return False
    return other.dialect in (
        "nccl",
        "rmm",
        "tensorrt",
        "onnxruntime",
        "tensorflow",
        "xla",
        "llama.cpp",
        "numba",
    )


def _merged(one: OomReading, two: OomReading) -> OomReading:
    """The one that names its framework best, with every figure that either of them has."""
    ranks = (
        "cuda",
        "bfc",
        "nccl",
        "tensorflow",
        "rmm",
        "tensorrt",
        "onnxruntime",
        "llama.cpp",
        "numba",
        "xla",
    )
    main, side = sorted(
        (one, two), key=lambda each: -ranks.index(each.dialect) if each.dialect in ranks else 0
    )
    filled = {name: _better(getattr(main, name), getattr(side, name)) for name in _FIGURES}
    signs = tuple(dict.fromkeys((*main.signs, *side.signs)))
    if _is_smaller_try(one, two):
        filled["asked"] = one.asked
    return replace(main, **filled, tokens_wanted=main.tokens_wanted or side.tokens_wanted, signs=signs)


def _better(main: object, side: object) -> object:
    """An exact figure before a rounded one, any figure before none."""
    if main is None:
        return side
    exact = getattr(side, "slack", None) == 0 and getattr(main, "slack", 0) > 0
    return side if exact else main
