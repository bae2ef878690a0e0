"""Tests that may not leak GPU memory: a marker, an option for a whole suite, and a fixture.

    @pytest.mark.vram(leaks=0, limit="2GiB")
    def test_inference(): ...

    @pytest.mark.vram(peak="8GiB")
    def test_training(): ...

    pytest --vram            every test

What the test function gained and still holds when it returns counts, also outside every framework. What
fixtures hold does not count, unless the test put it there. With peak= the test is recorded: the most memory
that its own allocations took at once counts, and a failure shows their stacks. pytest loads this file in
every environment that has vram: it imports nothing until a test is to be checked.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

if TYPE_CHECKING:
    from vram.guard.scope import Scope
    from vram.model.trace import Site, TraceView
    from vram.trace.here import RecordingHere

OPENED = pytest.StashKey["Scope"]()
ASKED = pytest.StashKey[bool]()

MARKER = (
    "vram(leaks=0, limit=None, peak=None): fail the test if it keeps more device memory than leaks=, gains"
    " more than limit=, or allocates more than peak= at once"
)
WORDS = ("leaks", "limit", "peak")
MAX_PLACES, MAX_FRAMES = 5, 12
# Those that run kernels keep memory of their own: what a test made of it, only they know.
CACHING = ("torch", "cupy", "jax", "tensorflow")
MAKE_IT_BEFORE = "create the context before the first test: vram.Buffer(1).close() in a session fixture"
OF_THE_SCOPE = ("gained", "keep", "limit", "notes")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("vram", "GPU memory")
    group.addoption("--vram", action="store_true", help="fail every test that keeps GPU memory")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)


# ---- one test ----


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Open a scope around the test function alone, and fail the test for what it keeps."""
    wanted = _read_limits(item)
    if wanted is None:
        return (yield)
    watched = _watch(item, wanted)
    if isinstance(item, pytest.Function) and _runs_its_own_set_up(item):
        item.obj = watched(item.obj)
        return (yield)
    with watched:
        return (yield)


@contextmanager
def _watch(item: pytest.Item, wanted: Wanted) -> Iterator[None]:
    opened = item.stash[OPENED] = _open(item, wanted)
    recording = None if wanted.peak is None else _recording()
    from vram.errors import LimitExceeded
    from vram.guard.cuda_errors import clear_frames_with_arrays
    from vram.guard.scope import describe

    ended: BaseException | None = None
    messages: list[str] = []
    try:
        with opened:
            try:
                yield
            except (pytest.fail.Exception, *_skips()) as outcome:
                # A scope would treat these as an interrupt, after which it checks nothing.
                ended = outcome
                clear_frames_with_arrays(outcome)
        messages = [describe(opened.leak)] if opened.leak is not None else []
    except LimitExceeded as error:
        messages = [f"{error}\n{error.hint}"]
    except BaseException as error:
        from vram.python_310 import add_note

        for text in _recorded_problems(item, recording, wanted, opened):
            add_note(error, f"vram: {text}")
        raise
    finally:
        if recording is not None:
            recording.stop()
    messages += _recorded_problems(item, recording, wanted, opened)
    try:
        if messages:
            raise _ending(ended, "\n".join(messages))
        if ended is not None:
            raise ended
    finally:
        del ended  # its traceback refers to this frame


def _ending(ended: BaseException | None, message: str) -> BaseException:
    """A test that failed by pytest.fail keeps that failure, with *message* as a note."""
    if not isinstance(ended, pytest.fail.Exception):
        return _failure(message)
    from vram.python_310 import add_note

    add_note(ended, f"vram: {message}")
    return ended


def _skips() -> tuple[type[BaseException], ...]:
    unittest = sys.modules.get("unittest")
    return (pytest.skip.Exception,) if unittest is None else (pytest.skip.Exception, unittest.SkipTest)


def _runs_its_own_set_up(item: pytest.Function) -> bool:
    """Whether setUp and tearDown, which are fixtures, run inside pytest's call of the test."""
    unittest = sys.modules.get("unittest")
    # pytest leaves coroutines to unittest, which runs them itself.
    return (
        unittest is not None
        and isinstance(item.instance, unittest.TestCase)
        and not inspect.iscoroutinefunction(item.obj)
    )


class Wanted(NamedTuple):
    """What a test may do, in bytes."""

    leaks: int = 0
    limit: Any = None
    peak: int | None = None


def _read_limits(item: pytest.Item) -> Wanted | None:
    """The limits for *item*; None if it is not to be checked."""
    marker = item.get_closest_marker("vram")
    if marker is None:
        return Wanted() if item.config.getoption("--vram") or item.stash.get(ASKED, False) else None
    unknown = [word for word in marker.kwargs if word not in WORDS]
    if marker.args or unknown:
        said = marker.args or unknown
        raise _failure(f"@pytest.mark.vram takes only leaks=, limit= and peak=, not {said}")
    from vram.errors import UsageError
    from vram.units import read_size

    try:
        leaks, peak = marker.kwargs.get("leaks", 0), marker.kwargs.get("peak")
        allowed = None if peak is None else read_size(peak, "peak")
        return Wanted(read_size(leaks, "leaks"), marker.kwargs.get("limit"), allowed)
    except UsageError as error:
        raise _failure(f"@pytest.mark.vram: {error}; {error.hint}") from None


def _open(item: pytest.Item, wanted: Wanted) -> Scope:
    from vram.errors import UsageError
    from vram.guard.scope import scope

    try:
        # 0 is the scope's own default: code that loads at first use is tolerated once.
        tolerance = f"{wanted.leaks}B" if wanted.leaks else None
        return scope(item.nodeid, leak="report", tolerance=tolerance, limit=wanted.limit, track=True)
    except UsageError as error:
        raise _failure(f"@pytest.mark.vram: {error}; {error.hint}") from None


def _failure(message: str) -> BaseException:
    """Shown without a context, also if a test that was skipped ends with it."""
    failure = pytest.fail.Exception(message, pytrace=False)
    failure.__suppress_context__ = True
    return failure


# ---- a recorded test ----


def _recording() -> RecordingHere | None:
    """A recording of this process that has begun, with empty caches; None where there is no GPU to record.

    A check that cannot be made fails: it would otherwise seem to hold.
    """
    import gc

    from vram.errors import VramError
    from vram.guard.leak_check import release_caches
    from vram.guard.memory import has_driver
    from vram.trace.here import RecordingHere

    if not has_driver():
        return None
    gc.collect()
    release_caches()  # what a cache has from earlier tests would not be asked of the driver again
    recording = RecordingHere()
    try:
        recording.start()
    except VramError as error:
        hint = f"; {error.hint}" if error.hint else ""
        raise _failure(f"@pytest.mark.vram(peak=...) could not be checked: {error}{hint}") from None
    return recording


def _recorded_problems(
    item: pytest.Item, recording: RecordingHere | None, wanted: Wanted, opened: Scope
) -> list[str]:
    """What the recording says against the test, with the places that allocated."""
    import gc

    if recording is None or wanted.peak is None:
        return []
    gc.collect()
    recording.stop()
    view = recording.view()
    if view is None:
        return []
    return [*_over_peak(item, view, wanted.peak), *_never_freed(item, view, wanted.leaks, opened)]


def _over_peak(item: pytest.Item, view: TraceView, allowed: int) -> Iterator[str]:
    from vram.units import size

    for gpu in view.gpus:
        if gpu.peak_nbytes > allowed:
            said = (
                f"allocated {size(gpu.peak_nbytes)} at once on GPU {gpu.gpu}; its peak may be {size(allowed)}"
            )
            tensors = [
                site
                for use in view.frameworks
                if use.at == "peak" and use.gpu == gpu.gpu
                for site in use.sites
            ]
            sites = tensors or [site for site in view.peak if site.gpu == gpu.gpu]
            yield "\n".join([f"test {item.nodeid!r} {said}", *_places(item, view, sites)])


def _never_freed(item: pytest.Item, view: TraceView, allowed: int, opened: Scope) -> Iterator[str]:
    """Where the scope's leak was allocated; without a caching framework also what is too small for it."""
    from vram.trace.analysis import LEAKABLE
    from vram.units import size

    rows = [row.site for row in view.leaks if row.site.kind in LEAKABLE and row.site.kind != "pinned host"]
    if opened.leak is not None:
        if rows:
            yield "\n".join(["what the test allocated and did not free:", *_places(item, view, rows)])
        return
    kept = sum(site.nbytes for site in rows)
    if kept > allowed and not opened.keeps and not any(name in sys.modules for name in CACHING):
        said = f"test {item.nodeid!r} did not free {size(kept)} of device memory that it allocated"
        yield "\n".join([said, *_places(item, view, rows)])


def _places(item: pytest.Item, view: TraceView, sites: Iterable[Site]) -> Iterator[str]:
    """The largest, each with its stack up to the test function."""
    from vram.report.escape import inert
    from vram.trace.places import function_name
    from vram.units import counted, size

    chosen = sorted(sites, key=lambda site: -site.nbytes)
    for site in chosen[:MAX_PLACES]:
        yield f"  {size(site.nbytes)} in {counted(site.count, 'allocation')} ({site.kind})"
        frames = view.stacks[site.stack].frames
        last = max((at for at, frame in enumerate(frames) if frame.file == str(item.path)), default=0)
        for frame in frames[: min(last + 1, MAX_FRAMES)]:
            yield inert(f"      {function_name(frame)}  {frame.file}:{frame.line}")
    if len(chosen) > MAX_PLACES:
        rest = sum(site.nbytes for site in chosen[MAX_PLACES:])
        yield f"  {size(rest)} in {counted(len(chosen) - MAX_PLACES, 'more place')}"


@pytest.fixture
def vram(request: pytest.FixtureRequest) -> Handle:
    """The test's own scope: ``vram.gained()``, ``vram.keep(x)``, ``vram.flush()``; leaks fail the test."""
    request.node.stash[ASKED] = True
    return Handle(request.node)


class Handle:
    """What a test can ask of its scope while it runs."""

    def __init__(self, item: pytest.Item) -> None:
        self._item = item

    def __getattr__(self, name: str) -> Any:
        import vram

        if name not in OF_THE_SCOPE:
            return getattr(vram, name)
        opened = self._item.stash.get(OPENED, None)
        if opened is None:
            from vram.errors import UsageError

            raise UsageError(
                f"vram.{name} was used before the test started",
                hint="use it in the test itself: memory held by its fixtures does not count",
            )
        return getattr(opened, name)


# ---- the whole suite ----


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Attach the result of the scope: under xdist only the report leaves a worker."""
    report = yield
    opened = item.stash.get(OPENED, None)
    if call.when == "call" and opened is not None:
        from vram.model.leak import ScopeNote

        # Code and text of each note that says why the gain could not be checked.
        unchecked = [(note.code, str(note)) for note in opened.notes if isinstance(note, ScopeNote)]
        result = {"leaked": opened.leak is not None, "unchecked": unchecked}
        report.vram = result  # type: ignore[attr-defined]
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    reports = [each for group in terminalreporter.stats.values() for each in group]
    watched = {each.nodeid: each.vram for each in reports if hasattr(each, "vram")}
    if not watched:
        return
    from vram.guard.memory import has_driver
    from vram.units import counted

    tests = counted(len(watched), "test")
    if has_driver():
        for line in _verdict(tests, watched):
            terminalreporter.write_line(line)
    else:
        terminalreporter.write_line(
            f"vram: no GPU here: the device memory of {tests} was not measured", yellow=True
        )


def _verdict(tests: str, watched: dict[str, dict[str, Any]]) -> Iterator[str]:
    leaked = sum(result["leaked"] for result in watched.values())
    unchecked = {nodeid: result["unchecked"] for nodeid, result in watched.items() if result["unchecked"]}
    kept = f"{leaked} kept" if leaked else "none was found to keep" if unchecked else "none kept any"
    rest = f", {len(unchecked)} could not be checked" if unchecked else ""
    yield f"vram: {tests} checked, {kept} device memory{rest}"
    for nodeid, notes in unchecked.items():
        yield f"  {nodeid}: {'; '.join(text for _, text in notes)}"
    if any(code == "context-inside" for notes in unchecked.values() for code, _ in notes):
        yield f"  {MAKE_IT_BEFORE}"
