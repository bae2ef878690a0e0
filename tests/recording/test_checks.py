"""Checks of a trace, judged on views that are written by hand: what holds, what does not, and where."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from vram.cli.tracing import violation_lines
from vram.errors import UsageError
from vram.model.trace import (
    CallStack,
    FailedAllocation,
    Frame,
    Gap,
    GpuUse,
    LeakSite,
    Site,
    TracedProcess,
    TraceView,
)
from vram.trace.checks import TraceCheck, judge, parse_check, unjudged
from vram.units import GIB, MIB

LINE = Frame("python", "load", "/srv/train.py", 12)
OTHER = Frame("python", "step", "/srv/train.py", 40)
LIBRARY = Frame("native", "cublasCreate_v2", "/usr/lib/libcublas.so.13", 0x1234)
PROCESS = TracedProcess(
    index=0,
    pid=7,
    parent_pid=1,
    command=("python", "train.py"),
    executable="/usr/bin/python3",
    python="3.12.1",
    attached=False,
    forked=False,
    stacks="python",
    started_wall_ns=0,
    first_ns=0,
    last_ns=10,
    end="exit",
)


def site(stack: int, nbytes: int, count: int = 1) -> Site:
    return Site(stack=stack, kind="device", gpu=0, process=0, count=count, nbytes=nbytes)


def leak(stack: int, nbytes: int, count: int, verdict: Any = "growing") -> LeakSite:
    found = site(stack, nbytes, count)
    return LeakSite(site=found, verdict=verdict, first_ns=1, last_ns=9, freed=0, largest=nbytes)


def gpu(index: int | None, peak: int) -> GpuUse:
    figures = {"peak_ns": 5, "end_nbytes": 0, "allocated_nbytes": peak, "allocations": 2, "frees": 0}
    return GpuUse(gpu=index, peak_nbytes=peak, **figures)


def view(**changes: Any) -> TraceView:
    empty: dict[str, Any] = dict.fromkeys(
        ("peak", "leaks", "timeline", "churn", "holes", "failures", "gaps", "marks", "before"), ()
    )
    whole = {
        **empty,
        "paths": ("trace.vram",),
        "processes": (PROCESS,),
        "stacks": (CallStack(), CallStack((LINE,)), CallStack((LIBRARY, OTHER)), CallStack((LIBRARY,))),
        "duration_ns": 10,
        "events": 2,
        "gpus": (gpu(0, 3 * GIB),),
        "allocations": (),
        "failures_in_all": 0,
        "host_peak_nbytes": 0,
    }
    return TraceView(**{**whole, **changes})


@pytest.mark.parametrize(
    ("text", "check"),
    [
        ("leaks=0", TraceCheck("leaks", 0)),
        ("peak=8GiB", TraceCheck("peak", 8 * GIB)),
        ("peak=0", TraceCheck("peak", 0)),
        ("failures=3", TraceCheck("failures", 3)),
    ],
)
def test_checks_are_read(text: str, check: TraceCheck) -> None:
    assert parse_check(text) == check


@pytest.mark.parametrize(
    "text", ["leaks", "leaks=", "leaks=-1", "leaks=few", "peak=8", "peak=lots", "size=1", ""]
)
def test_wrong_words_are_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError):
        parse_check(text)


class TestLeaks:
    def test_what_is_in_use_at_exit_is_none(self) -> None:
        found = view(leaks=(leak(1, GIB, 5, "in use at exit"),))
        assert judge(found, [TraceCheck("leaks", 0)]) == ()

    def test_each_allocation_counts(self) -> None:
        found = view(leaks=(leak(1, MIB, 3), leak(2, GIB, 1, "leaked")))
        assert judge(found, [TraceCheck("leaks", 4)]) == ()
        (violation,) = judge(found, [TraceCheck("leaks", 3)])
        assert violation.found == 4
        assert [place.stack.frames for place in violation.places] == [(LIBRARY, OTHER), (LINE,)]
        assert [place.nbytes for place in violation.places] == [GIB, MIB]

    def test_the_places_are_printed_with_function_file_line_and_bytes(self) -> None:
        (violation,) = judge(view(leaks=(leak(1, 6 * MIB, 3),)), [TraceCheck("leaks", 0)])
        assert list(violation_lines(violation)) == [
            "check leaks=0 failed: 3 allocations never freed",
            "  6.0 MiB in 3 allocations, growing: load  /srv/train.py:12",
        ]

    def test_names_from_a_trace_cannot_write_to_the_terminal(self) -> None:
        hostile = CallStack((Frame("python", "f\x1b[2J", "a\r\nb.py", 1),))
        found = view(stacks=(hostile,), leaks=(leak(0, MIB, 1),))
        (violation,) = judge(found, [TraceCheck("leaks", 0)])
        text = "".join(violation_lines(violation))
        assert not set(text) & set("\x1b\r\n")


class TestPeak:
    def test_it_is_judged_on_each_gpu(self) -> None:
        found = view(
            gpus=(gpu(0, 3 * GIB), gpu(1, 9 * GIB)),
            peak=(site(1, GIB), replace(site(3, 8 * GIB), gpu=1)),
        )
        (violation,) = judge(found, [TraceCheck("peak", 8 * GIB)])
        assert (violation.gpu, violation.found) == (1, 9 * GIB)
        assert [place.stack.frames for place in violation.places] == [(LIBRARY,)]
        assert "9.0 GiB on GPU 1" in next(violation_lines(violation))

    def test_exactly_that_much_holds(self) -> None:
        assert judge(view(), [TraceCheck("peak", 3 * GIB)]) == ()


class TestFailures:
    def test_failed_allocations_are_counted(self) -> None:
        failed = FailedAllocation(0, 3, "device", 0, GIB, 2, 1)
        found = view(failures=(failed,), failures_in_all=2)
        assert judge(found, [TraceCheck("failures", 2)]) == ()
        (violation,) = judge(found, [TraceCheck("failures", 0)])
        assert violation.found == 2
        assert violation.places[0].stack.frames == (LINE,)


class TestWhatWasNotRecorded:
    """Whatever is missing, a check fails and says why. It never passes by silence."""

    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"processes": (replace(PROCESS, end="disk full"),)}, "the disk was full"),
            ({"processes": (replace(PROCESS, end="write error"),)}, "could not be written"),
            ({"processes": (replace(PROCESS, end="no cupti"),)}, "CUPTI"),
            ({"processes": (replace(PROCESS, missing_chunks=1),)}, "cannot be read"),
            ({"processes": ()}, "no process was recorded"),
            ({"gaps": (Gap(0, "cupti shut down", 3, None),)}, "interrupted"),
            ({"damage": ("page 3 is damaged",)}, "cannot be read"),
        ],
    )
    def test_a_shortened_trace_fails(self, changes: dict[str, Any], reason: str) -> None:
        (violation,) = judge(view(**changes), [TraceCheck("peak", 100 * GIB)])
        assert reason in violation.unjudged

    def test_a_process_that_was_killed_does_not(self) -> None:
        assert judge(view(processes=(replace(PROCESS, end="cut"),)), [TraceCheck("leaks", 0)]) == ()

    def test_what_is_known_to_fail_is_said_instead(self) -> None:
        found = view(processes=(replace(PROCESS, end="disk full"),))
        (violation,) = judge(found, [TraceCheck("peak", GIB)])
        assert (violation.found, violation.unjudged) == (3 * GIB, "")

    def test_the_launcher_may_know_of_more(self) -> None:
        (violation,) = judge(view(), [TraceCheck("leaks", 0)], missing="pid 9 was not recorded")
        assert violation.unjudged == "pid 9 was not recorded"

    def test_without_a_trace_all_fail(self) -> None:
        checks = [TraceCheck("leaks", 0), TraceCheck("peak", GIB)]
        lines = [next(violation_lines(each)) for each in unjudged(checks, "there is no trace")]
        assert lines == [
            "check leaks=0 failed: it cannot be judged, there is no trace",
            "check peak=1GiB failed: it cannot be judged, there is no trace",
        ]


def test_only_the_largest_places_are_shown() -> None:
    many = tuple(leak(1, number * MIB, 1) for number in range(1, 31))
    (violation,) = judge(view(leaks=many), [TraceCheck("leaks", 0)])
    assert len(violation.places) == 10
    assert violation.places[0].nbytes == 30 * MIB
    assert list(violation_lines(violation))[-1] == "  and 20 other places"
