"""Tests that may not leak GPU memory: a marker, an option for a whole suite, and a fixture.

    @pytest.mark.vram(leaks=0, limit="2GiB")
    def test_inference(): ...

    pytest --vram            every test

What the test function gained and still holds when it returns counts, also outside every framework. What
fixtures hold does not count, unless the test put it there. pytest loads this file in every environment
that has vram: it imports nothing until a test is to be checked.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from vram.guard.scope import Scope

OPENED = pytest.StashKey["Scope"]()
ASKED = pytest.StashKey[bool]()

MARKER = (
    "vram(leaks=0, limit=None): fail the test if it keeps more device memory than leaks=, or gains more"
    " than limit="
)
WORDS = ("leaks", "limit")
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
    wanted = _wanted(item)
    if wanted is None:
        return (yield)
    watched = _watched(item, *wanted)
    if isinstance(item, pytest.Function) and _runs_its_own_set_up(item):
        item.obj = watched(item.obj)
        return (yield)
    with watched:
        return (yield)


@contextmanager
def _watched(item: pytest.Item, leaks: Any, limit: Any) -> Iterator[None]:
    opened = item.stash[OPENED] = _open(item, leaks, limit)
    from vram.errors import LimitExceeded
    from vram.guard.cuda_errors import clear_frames_with_arrays
    from vram.guard.scope import describe

    ended: BaseException | None = None
    message = ""
    try:
        with opened:
            try:
                yield
            except (pytest.fail.Exception, *_skips()) as outcome:
                # A scope would treat these as an interrupt, after which it checks nothing.
                ended = outcome
                clear_frames_with_arrays(outcome)
        message = describe(opened.leak) if opened.leak is not None else ""
    except LimitExceeded as error:
        message = f"{error}\n{error.hint}"
    try:
        if message:
            raise _ending(ended, message)
        if ended is not None:
            raise ended
    finally:
        del ended  # its traceback refers to this frame


def _ending(ended: BaseException | None, message: str) -> BaseException:
    """A test that failed by pytest.fail keeps that failure, with *message* as a note."""
    if not isinstance(ended, pytest.fail.Exception):
        return _failure(message)
    ended.add_note(f"vram: {message}")
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


def _wanted(item: pytest.Item) -> tuple[Any, Any] | None:
    """The limits for *item*; None if it is not to be checked."""
    marker = item.get_closest_marker("vram")
    if marker is None:
        return (0, None) if item.config.getoption("--vram") or item.stash.get(ASKED, False) else None
    unknown = [word for word in marker.kwargs if word not in WORDS]
    if marker.args or unknown:
        said = marker.args or unknown
        raise _failure(f"@pytest.mark.vram takes only leaks= and limit=, not {said}")
    return marker.kwargs.get("leaks", 0), marker.kwargs.get("limit")


def _open(item: pytest.Item, leaks: Any, limit: Any) -> Scope:
    from vram.errors import UsageError
    from vram.guard.scope import nbytes_of, scope

    try:
        # 0 is the scope's own default: code that loads at first use is tolerated once.
        tolerance = nbytes_of(leaks, "leaks") or None
        return scope(item.nodeid, leak="report", tolerance=tolerance, limit=limit, track=True)
    except UsageError as error:
        raise _failure(f"@pytest.mark.vram: {error}; {error.hint}") from None


def _failure(message: str) -> BaseException:
    """Shown without a context, also if a test that was skipped ends with it."""
    failure = pytest.fail.Exception(message, pytrace=False)
    failure.__suppress_context__ = True
    return failure


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
        result = {"leaked": opened.leak is not None, "unchecked": _unchecked(opened)}
        report.vram = result  # type: ignore[attr-defined]
    return report


def _unchecked(opened: Scope) -> list[tuple[str, str]]:
    """Code and text of each note that says why the gain could not be checked."""
    from vram.model.leak import ScopeNote

    return [(note.code, str(note)) for note in opened.notes if isinstance(note, ScopeNote)]


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
