"""Messages into cases: the parts of one failure are joined, and repeated failures are counted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from msgspec.structs import replace

from vram.model.oom import Case, OomMessage
from vram.oom.judge import judge
from vram.oom.reader import FoundMessage

# A program that retries for days writes thousands of them. What is beyond is counted, not kept.
MAX_CASES = 200
# How far apart the lines of one failure may lie. A pool's dump lists every chunk.
ONE_FAILURE = 40
ONE_DUMP = 200_000
# TensorFlow's exception lists every place that it came from, and TensorFlow 1 writes it twice.
ONE_TRACEBACK = 300
_POOLED = ("tensorflow", "xla", "bfc")
# Who names CUDA's failure in its own words, and how well each dialect names its framework, the best last.
_SAY_MORE = frozenset(("nccl", "rmm", "tensorrt", "onnxruntime", "tensorflow", "xla", "llama.cpp", "numba"))
_RANKS = ("cuda", "bfc", "nccl", "tensorflow", "rmm", "tensorrt", "onnxruntime", "llama.cpp", "numba", "xla")
_FIGURES = ("asked", "total", "free", "live", "idle", "limit", "largest_free", "gpu")


class LogCases(NamedTuple):
    """The cases of a log. ``unkept`` counts messages beyond the most cases that are kept."""

    cases: tuple[Case, ...]
    unkept: int


def cases(messages: Iterable[FoundMessage]) -> LogCases:
    """Judge every distinct one of *messages*, and count how often each occurs."""
    kept: dict[OomMessage, Case] = {}
    unkept = 0
    for reading, line in join_parts(messages):
        key = replace(reading, excerpt="")  # everything that was said, whatever the words around it
        known = kept.get(key)
        if known:
            kept[key] = replace(known, count=known.count + 1, last_line=line)
        elif len(kept) < MAX_CASES:
            kept[key] = Case(reading=reading, judgement=judge(reading), first_line=line, last_line=line)
        else:
            unkept += 1
    return LogCases(tuple(kept.values()), unkept)


def join_parts(messages: Iterable[FoundMessage]) -> Iterator[FoundMessage]:
    """Join what belongs to one failure: a pool's dump and the error after it, a cause and its echo."""
    held: FoundMessage | None = None
    for found in messages:
        if held is not None:
            one = _join(held, found)
            if one is not None:
                held = one
                continue
            yield held
        held = found
    if held is not None:
        yield held


def _join(first: FoundMessage, second: FoundMessage) -> FoundMessage | None:
    one, two = first.reading, second.reading
    apart = second.line - first.line
    if one.where != two.where or apart > ONE_DUMP:
        return None
    if one.dialect in _POOLED and two.dialect in _POOLED and (_agree(one, two) or _is_smaller_try(one, two)):
        return FoundMessage(_merge(one, two), first.line)
    if apart <= ONE_TRACEBACK and _is_said_again(one, two):
        return FoundMessage(_merge(one, two), first.line)
    if apart <= ONE_FAILURE and _is_echo(one, two):
        return FoundMessage(_merge(one, two), first.line)
    return None


def _agree(one: OomMessage, two: OomMessage) -> bool:
    """Not two failures in a row: nothing that both say differs, beyond rounding."""
    if one.wording == two.wording and one.dialect == two.dialect != "bfc":
        return False
    for name in ("asked", "live", "limit"):
        a, b = getattr(one, name), getattr(two, name)
        if a and b and abs(a.nbytes - b.nbytes) > max(a.slack + b.slack, a.nbytes // 50):
            return False
    return True


def _is_said_again(one: OomMessage, two: OomMessage) -> bool:
    """TensorFlow's exception says once more what the kernel that failed has logged, for each of its roots."""
    if (
        one.dialect != "tensorflow"
        or two.dialect != "tensorflow"
        or two.wording not in ("tensor", "operation")
    ):
        return False
    return one.wording == two.wording and (one.asked, one.gpu) == (two.asked, two.gpu)


def _is_smaller_try(one: OomMessage, two: OomMessage) -> bool:
    """A pool that cannot grow by as much as it likes asks the driver for less and less."""
    asked = one.asked is not None and two.asked is not None and two.asked.nbytes < one.asked.nbytes
    return asked and one.wording == two.wording == "driver"


def _is_echo(one: OomMessage, two: OomMessage) -> bool:
    """The same failure once more, or CUDA's bare words beside a message that says more of it."""
    if two.dialect == "tgi" and one.dialect == "pytorch":
        return True
    wordings = (one.wording, two.wording)
    if one.dialect == two.dialect:
        echoes = {
            # CUDA's words, perhaps more than once, and then how much it was
            "tensorrt": one.asked is None and two.wording == "buffer",
            "nccl": two.wording == "last error",  # its own warning, then what its caller raised
            # the step's own message, then the launcher's
            "host": wordings in (("slurm", "srun"), ("bad_alloc", "bad_alloc")),
            # the server's, the router's and the launcher's
            "tgi": one.tokens_wanted == two.tokens_wanted,
            "xid": True,  # one fault is reported by each part of the GPU that meets it
            "llama.cpp": one.where == "host" and one.asked == two.asked,  # logged, then returned
            "catboost": one.asked == two.asked,  # thrown, then printed as uncaught
        }
        return echoes.get(one.dialect, False)
    bare, other = (one, two) if one.dialect == "cuda" else (two, one)
    return bare.dialect == "cuda" and not bare.asked and other.dialect in _SAY_MORE


def _merge(one: OomMessage, two: OomMessage) -> OomMessage:
    """The one that names its framework best, with every figure that either of them has."""
    main, side = sorted(
        (one, two), key=lambda each: -_RANKS.index(each.dialect) if each.dialect in _RANKS else 0
    )
    filled = {name: _choose(getattr(main, name), getattr(side, name)) for name in _FIGURES}
    for name in ("signs", "pids", "settings"):
        filled[name] = tuple(dict.fromkeys((*getattr(main, name), *getattr(side, name))))
    if _is_smaller_try(one, two):
        filled["asked"] = one.asked
    return replace(main, **filled, tokens_wanted=main.tokens_wanted or side.tokens_wanted)


def _choose(main: object, side: object) -> object:
    """An exact figure before a rounded one, any figure before none."""
    if main is None:
        return side
    exact = getattr(side, "slack", None) == 0 and getattr(main, "slack", 0) > 0
    return side if exact else main
