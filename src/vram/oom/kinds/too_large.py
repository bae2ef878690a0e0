"""too-large: this program needs more than the GPU can give it

What it is
----------
What is in use, what was asked for and one context are together more than the GPU has, whoever else may be
on it. Neither emptying caches nor ending other processes would have been enough.

How it is told
--------------
in use + asked + context > total. It is certain where in use + asked alone are more, or where the message
tells what lies outside the allocator; likely where a context's usual size decides. Where the message has
no total: more than any GPU has, or more than the pool's own limit.

Remedies
--------
Ask for less; the message tells by how much. vram.retry_on_oom shrinks by itself.
"""

from __future__ import annotations

from vram.model.finding import Remedy
from vram.model.oom import Certainty, Judgement, OomKind, Reading, Term, Working
from vram.oom.blame import blamed
from vram.oom.remedies import bigger, change, retry, room_alone, smaller
from vram.oom.sums import ANY_GPU, Sums, context, said, shortfall

ID: OomKind = "too-large"
TITLE = "simply too large"

# Of a GPU, used by the program itself.
NEARLY_ALL = 0.75


def judge(reading: Reading, worked: Sums) -> Judgement | None:
    if reading.asked is None and reading.dialect != "vllm":
        return None
    if reading.asked and reading.asked.nbytes > ANY_GPU:
        return _absurd(reading)
    if worked.fits_alone is False:
        return _whole(reading, worked)
    if reading.dialect in ("tensorflow", "xla", "bfc"):
        return _pool(reading)
    if reading.dialect == "vllm" and reading.wording == "no cache blocks":
        return _vllm(reading, worked)
    if reading.dialect == "llama.cpp":
        return _since_start(reading, worked)
    if worked.fits_alone and worked.short and blamed(reading, worked) is None:
        return _full(reading, worked)
    return None


def _absurd(reading: Reading) -> Judgement:
    cause = (
        f"It asked for {said(reading.asked)} at once: no GPU has that. A size or a shape was computed wrong."
    )
    way = change(
        "Look at the shapes where it was raised: a negative or huge dimension, or an unmasked index."
    )
    return _judgement(reading, "fact", cause, (), (way,))


def _whole(reading: Reading, worked: Sums) -> Judgement:
    assert reading.total is not None
    terms = [Term("in use by this program", reading.live.nbytes)] if reading.live else []
    terms += [Term("asked", reading.asked.nbytes)] if reading.asked else []
    needed = sum(term.nbytes for term in terms)
    sure = worked.outside is not None or needed > reading.total.nbytes + worked.slack
    beside = context(reading, worked.outside)
    if reading.live and beside:
        terms.append(Term("one context", beside, sure=worked.outside is not None))
    terms.append(Term("total", -reading.total.nbytes))
    over = sum(term.nbytes for term in terms)
    fit = "not fit" if sure else "leave no room for a context of the usual size"
    cause = f"Even on a GPU that nobody else uses, what this program holds and asks for would {fit}."
    if reading.live and reading.live.nbytes > reading.total.nbytes:
        cause += (
            " It already holds more than the GPU has: the driver moved part of it into host"
            " memory, as it does on"
            " Windows and WSL2."
        )
    ways = (smaller(reading, room_alone(reading, worked)), retry(), bigger())
    working = Working(tuple(terms), "too much", over)
    return _judgement(reading, "fact" if sure else "likely", cause, (working,), ways)


def _full(reading: Reading, worked: Sums) -> Judgement | None:
    """It fits on paper, by less than the driver and the rounding of blocks take."""
    if (
        reading.live is None
        or reading.total is None
        or reading.live.nbytes < NEARLY_ALL * reading.total.nbytes
    ):
        return None
    cause = (
        f"This program itself uses {said(reading.live)} of the GPU's {said(reading.total)}. What is"
        " beside that, a"
        " context, the driver and odd pieces, is no more than usual."
    )
    room = reading.live.nbytes + (reading.free.nbytes if reading.free else 0)
    ways = (smaller(reading, room), retry(), bigger())
    return _judgement(reading, "likely", cause, shortfall(reading), ways)


def _pool(reading: Reading) -> Judgement | None:
    asked, limit, live = reading.asked, reading.limit, reading.live
    if not (asked and limit) or asked.nbytes + (live.nbytes if live else 0) <= limit.nbytes:
        return None
    terms = (
        *((Term("in use", live.nbytes),) if live else ()),
        Term("asked", asked.nbytes),
        Term("limit of the pool", -limit.nbytes),
    )
    cause = f"The pool may have {said(limit)}, by default nearly the whole GPU, and that is not enough."
    working = Working(terms, "too much", sum(term.nbytes for term in terms))
    return _judgement(reading, "fact", cause, (working,), (smaller(reading, limit.nbytes), retry(), bigger()))


def _vllm(reading: Reading, worked: Sums) -> Judgement | None:
    if reading.limit is None or reading.limit.nbytes >= 0:
        return None
    cause = (
        f"Weights and activations overrun vLLM's share by {said(-reading.limit.nbytes)}: more"
        " than is left beside it."
    )
    less = change(
        "Need less: a quantized model, --max-num-batched-tokens, --tensor-parallel-size over more GPUs."
    )
    return _judgement(reading, "likely", cause, (), (less, bigger()))


def _since_start(reading: Reading, worked: Sums) -> Judgement | None:
    """llama.cpp tells what was free when it began; all that was taken since is its own."""
    asked, free = reading.asked, reading.free
    if (
        not (asked and free)
        or asked.nbytes <= free.nbytes
        or (worked.unnamed or 0) > asked.nbytes - free.nbytes
    ):
        return None
    terms = (Term("asked", asked.nbytes), Term("left of what was free at the start", -free.nbytes))
    cause = "What was free when it started is not enough for the model, its cache and this buffer."
    ways = (
        change("Keep fewer layers on the GPU (-ngl), a shorter context (-c), a smaller batch (-ub)."),
        change(
            "Store the cache in less: --cache-type-k q8_0 --cache-type-v q8_0 with -fa on; or a"
            " smaller quantization."
        ),
        bigger(),
    )
    return _judgement(
        reading, "likely", cause, (Working(terms, "missing", asked.nbytes - free.nbytes),), ways
    )


def _judgement(
    reading: Reading,
    certainty: Certainty,
    cause: str,
    workings: tuple[Working, ...],
    ways: tuple[Remedy, ...],
) -> Judgement:
    return Judgement(kind=ID, certainty=certainty, title=TITLE, cause=cause, workings=workings, remedies=ways)
