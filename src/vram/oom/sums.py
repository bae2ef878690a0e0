"""The arithmetic behind every judgement: who held the bytes, from the figures that were printed.

A figure that was not printed is calculated where the others allow it, and never taken as zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from vram.model.oom import Amount, Balance, NamedProcess, OomMessage, Term, Working
from vram.units import GIB, MIB, size

# A CUDA context with its loaded code: 518 to 527 MiB measured on an H200; smaller GPUs take less.
CONTEXT = 640 * MIB
# What the driver keeps for itself shows as used on some GPUs (615 MiB on an H200).
DRIVER = 640 * MIB
# Less than this share of a pool is rounding of blocks, not fragmentation.
WASTE = 0.05
# So many times what was asked for would hold it, were it in one piece, however small a share it is.
MANY_TIMES = 4
# No GPU has this much: a program that asks for it computed a shape wrong.
ANY_GPU = 512 * GIB
_SELF_MARGIN = 3 * GIB
# A smaller share than these explains nothing.
MIN_BYTES = 64 * MIB
_MIN_OF_TOTAL = 0.03


class Sums(NamedTuple):
    """``outside`` is our own memory that our allocator does not know; ``named`` what listed processes
    held, ``unnamed`` what is left when all that was printed is taken away. None means: not known."""

    short: int | None
    reserved: int | None
    outside: int | None
    named: int | None
    unnamed: int | None
    slack: int
    fits_alone: bool | None
    listed: tuple[NamedProcess, ...]


def work_out(reading: OomMessage) -> Sums:
    """Work out every sum that the figures of *reading* allow."""
    asked, total, free, live = reading.asked, reading.total, reading.free, reading.live
    process, listed = _separate_ourselves(reading)
    reserved = _sum(live, reading.idle, reading.pooled) if live else None
    outside = max(0, process.nbytes - reserved) if process and reserved is not None else None
    named = (
        sum(share.nbytes.nbytes for share in listed if share.nbytes) if reading.others is not None else None
    )
    unnamed = None
    if total and free and reserved is not None:
        ours = max(process.nbytes if process else 0, reserved)
        unnamed = total.nbytes - free.nbytes - ours - (named or 0)
        if process is None:  # our context is somewhere in it
            unnamed -= min(CONTEXT, max(0, unnamed))
        unnamed = max(0, unnamed)
    return Sums(
        short=max(0, asked.nbytes - free.nbytes) if asked and free else None,
        reserved=reserved,
        outside=outside,
        named=named,
        unnamed=unnamed,
        slack=slack(reading),
        fits_alone=_fits_alone(reading, outside),
        listed=listed,
    )


def slack(reading: OomMessage) -> int:
    """How far a sum over all printed figures may be off."""
    printed = (reading.asked, reading.total, reading.free, reading.live, reading.idle, reading.process)
    return sum(each.slack for each in printed if each)


def balance(reading: OomMessage, sums: Sums) -> Balance | None:
    """Terms that sum to the GPU's total; None where the message does not say enough for one."""
    total, free, live = reading.total, reading.free, reading.live
    if total is None or free is None:
        return None
    terms = [] if live is None else [Term("in use by this program", live.nbytes)]
    for name, part in (
        ("kept unused by its allocator", reading.idle),
        ("pools of its CUDA graphs", reading.pooled),
    ):
        terms += [Term(name, part.nbytes)] if part else []
    if sums.outside is not None:
        terms.append(Term("of this process, outside its allocator", sums.outside))
    for share in sums.listed:
        if share.nbytes:
            terms.append(Term(f"process {share.pid}", share.nbytes.nbytes))
    terms.append(Term("free", free.nbytes))
    rest = total.nbytes - sum(term.nbytes for term in terms)
    return _close(terms, rest, total, sums, known=live is not None)


def _close(terms: list[Term], rest: int, total: Amount, sums: Sums, *, known: bool) -> Balance | None:
    if rest < -max(sums.slack, total.nbytes // 200):
        return None  # more than there is: the figures contradict each other
    if rest > sums.slack:
        name = "everything else (not in this message)"
        if not known:
            name = "in use; the message does not say by whom"
        terms.insert(-1, Term(name, rest, sure=False))
    return Balance(tuple(terms), total.nbytes, max(sums.slack, abs(min(0, rest))))


Figures = Mapping[str, Amount | int | None]


def calculate(name: str, plus: Figures, less: Figures) -> Working:
    """What *plus* less *less* come to; figures that are unknown (None) are left out."""
    signed = [(each, figure, 1) for each, figure in plus.items()]
    signed += [(each, figure, -1) for each, figure in less.items()]
    terms = tuple(
        Term(each, sign * (figure if isinstance(figure, int) else figure.nbytes))
        for each, figure, sign in signed
        if figure is not None
    )
    return Working(terms, name, sum(term.nbytes for term in terms))


def shortfall(reading: OomMessage) -> tuple[Working, ...]:
    """asked - free = missing."""
    if reading.asked is None or reading.free is None:
        return ()
    found = calculate("missing", {"asked": reading.asked}, {"free": reading.free})
    return (found if found.nbytes > 0 else Working(found.terms, "left over", -found.nbytes),)


def needed_context(reading: OomMessage, outside: int | None) -> int:
    """Of what lies *outside* the allocator, what a program cannot be without; where None, the usual."""
    total = reading.total.nbytes if reading.total else 8 * CONTEXT
    return min(usual_context(reading) if outside is None else outside, CONTEXT, total // 8)


def usual_context(reading: OomMessage) -> int:
    """What a context is assumed to need where it was not printed: measured on NVIDIA, unknown elsewhere."""
    return 0 if {"hip", "xpu"} & set(reading.signs) else CONTEXT


def blamed(reading: OomMessage, worked: Sums) -> Literal["ghost", "other-process", "context"] | None:
    """The largest share that is not this program's own work; None where nothing stands out."""
    free_enough = (
        reading.asked is not None
        and reading.free is not None
        and reading.free.nbytes >= reading.asked.nbytes + worked.slack
    )
    if worked.fits_alone is False or worked.short is None or free_enough:
        return None
    listed = reading.others is not None
    unnamed = max(0, (worked.unnamed or 0) - DRIVER)
    shares = {
        "other-process": (worked.named or 0) if listed else unnamed,
        "ghost": unnamed if listed else 0,
        "context": max(0, (worked.outside or 0) - CONTEXT),
    }
    name, nbytes = max(shares.items(), key=lambda item: item[1])
    least = max(MIN_BYTES, worked.slack, _MIN_OF_TOTAL * (reading.total.nbytes if reading.total else 0))
    return name if nbytes >= least else None  # type: ignore[return-value]


def say(amount: Amount | int | None) -> str:
    """A size in a sentence; "an unknown size" where there is none. Beyond an exabyte no figure is given."""
    if amount is None:
        return "an unknown size"
    nbytes = amount if isinstance(amount, int) else amount.nbytes
    return "more than an exabyte" if nbytes >= 1 << 60 else size(nbytes)


def _separate_ourselves(reading: OomMessage) -> tuple[Amount | None, tuple[NamedProcess, ...]]:
    """What the driver charges this program for, and the other processes that it lists.

    Inside a container a process is listed under a pid that it does not know, as another process: the one
    that holds what its allocator holds, and a context, is itself.
    """
    listed = reading.others or ()
    ours = _sum(reading.live, reading.idle, reading.pooled)
    if reading.process is not None or not listed or reading.live is None:
        return reading.process, listed
    alike = [
        share
        for share in listed
        if share.nbytes
        and ours <= share.nbytes.nbytes + share.nbytes.slack
        and share.nbytes.nbytes < ours + _SELF_MARGIN
        and ours > CONTEXT
    ]
    if not alike:
        # Our own context is on the list under some pid: where there is one alone, it is ours.
        alone = listed[0].nbytes if len(listed) == 1 else None
        return (alone, ()) if alone and alone.nbytes + alone.slack >= ours else (None, listed)
    me = min(alike, key=lambda share: share.nbytes.nbytes if share.nbytes else 0)
    return me.nbytes, tuple(share for share in listed if share is not me)


def _fits_alone(reading: OomMessage, outside: int | None) -> bool | None:
    """Would it fit if the GPU were empty but for what this program really uses?"""
    if reading.asked is None or reading.total is None:
        return None
    if reading.asked.nbytes > reading.total.nbytes:
        return False
    if reading.live is None:
        return None
    needed = reading.live.nbytes + reading.asked.nbytes + needed_context(reading, outside)
    return needed <= reading.total.nbytes + slack(reading)


def _sum(*parts: Amount | None) -> int:
    return sum(part.nbytes for part in parts if part)
