"""Checks of a trace, for CI: `leaks=0`, `unfreed=0`, `peak=8GiB`; what was not recorded never passes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, get_args

from msgspec import Struct

from vram.errors import UsageError
from vram.model.trace import BLOCKS, CallStack, LeakSite, Site, TraceView, stack_of
from vram.units import parse_size

CheckName = Literal["leaks", "unfreed", "peak", "failures"]
_HINT = "write it like leaks=0, unfreed=0, peak=8GiB or failures=0"
# Sections that end so are shorter than what the process did.
_SHORTENED = {
    "disk full": "the disk was full, so recording ended early",
    "write error": "the trace could not be written to its end",
    "no cupti": "CUPTI could not be used to the end",
}
MAX_PLACES = 10


class TraceCheck(Struct, frozen=True):
    """At most so many allocations that leaked, were never freed or failed, or bytes on a GPU."""

    name: CheckName
    most: int


class CheckPlace(Struct, frozen=True):
    """Where memory was allocated, with what it amounts to."""

    stack: CallStack
    nbytes: int
    count: int
    process: int
    verdict: str = ""


class Violation(Struct, frozen=True):
    """A check that does not hold: the figure and the places behind it, largest first; or why it is
    ``unjudged``, without a figure."""

    check: TraceCheck
    found: int = 0
    gpu: int | None = None
    places: tuple[CheckPlace, ...] = ()
    left_out: int = 0
    unjudged: str = ""


def parse_check(text: str) -> TraceCheck:
    """Read ``NAME=MOST``; raises UsageError."""
    name, equals, most = text.partition("=")
    if name not in get_args(CheckName) or not equals:
        raise UsageError(f"{text!r} is not a check", hint=_HINT)
    if name == "peak":
        try:
            return TraceCheck("peak", parse_size(most))
        except UsageError as error:
            raise UsageError(f"{text!r}: {error}", hint=error.hint) from error
    if not (most.isascii() and most.isdecimal()):
        raise UsageError(f"{text!r} has no number", hint=_HINT)
    return TraceCheck(name, int(most))  # type: ignore[arg-type]


def unjudged(checks: Iterable[TraceCheck], reason: str) -> tuple[Violation, ...]:
    """All of *checks* fail, since there is nothing to judge."""
    return tuple(Violation(check, unjudged=reason) for check in checks)


def judge(view: TraceView, checks: Sequence[TraceCheck], missing: str = "") -> tuple[Violation, ...]:
    """The checks that do not hold. Where some of it was not recorded (*missing*), none passes."""
    reason = missing or _why_incomplete(view)
    judges = {"leaks": _leaks, "unfreed": _unfreed, "peak": _peaks, "failures": _failures}
    violations: list[Violation] = []
    for check in checks:
        found = list(judges[check.name](view, check))
        if not found and reason:
            found = [Violation(check, unjudged=reason)]
        violations += found
    return tuple(violations)


def _leaks(view: TraceView, check: TraceCheck) -> Iterator[Violation]:
    yield from _left(view, check, [each for each in view.leaks if each.verdict != "in use at exit"])


def _unfreed(view: TraceView, check: TraceCheck) -> Iterator[Violation]:
    """Whatever the program: the driver's allocations, in which the blocks of frameworks lie."""
    yield from _left(view, check, [each for each in view.leaks if each.site.kind not in BLOCKS])


def _left(view: TraceView, check: TraceCheck, found: Sequence[LeakSite]) -> Iterator[Violation]:
    count = sum(each.site.count for each in found)
    if count > check.most:
        places = [_place(view, each.site, each.verdict) for each in found]
        yield _violation(check, count, None, places)


def _peaks(view: TraceView, check: TraceCheck) -> Iterator[Violation]:
    for gpu in view.gpus:
        if gpu.peak_nbytes > check.most:
            places = [_place(view, site) for site in view.peak if site.gpu == gpu.gpu]
            yield _violation(check, gpu.peak_nbytes, gpu.gpu, places)


def _failures(view: TraceView, check: TraceCheck) -> Iterator[Violation]:
    if view.failures_in_all > check.most:
        places = [
            CheckPlace(stack_of(view, each.stack), each.nbytes, 1, each.process) for each in view.failures
        ]
        yield _violation(check, view.failures_in_all, None, places)


def _violation(check: TraceCheck, found: int, gpu: int | None, places: list[CheckPlace]) -> Violation:
    largest = sorted(places, key=lambda place: -place.nbytes)
    return Violation(check, found, gpu, tuple(largest[:MAX_PLACES]), max(0, len(places) - MAX_PLACES))


def _place(view: TraceView, site: Site, verdict: str = "") -> CheckPlace:
    return CheckPlace(stack_of(view, site.stack), site.nbytes, site.count, site.process, verdict)


def _why_incomplete(view: TraceView) -> str:
    """Why this is not all of it; empty where it is."""
    reasons = [_SHORTENED[each.end] for each in view.processes if each.end in _SHORTENED]
    if view.gaps:
        reasons.append("recording was interrupted for a while")
    if view.damage or any(each.unreadable_chunks or each.missing_chunks for each in view.processes):
        reasons.append("parts of the trace cannot be read")
    if not view.processes:
        reasons.append("no process was recorded")
    return "; ".join(dict.fromkeys(reasons))
