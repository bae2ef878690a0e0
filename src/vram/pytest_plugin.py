"""Tests that may not leak GPU memory: a marker, an option for a whole suite, and a fixture.

    @pytest.mark.vram(leaks=0, limit="2GiB")
    def test_inference(): ...

    pytest --vram            every test

What the test function gained and still holds when it returns counts, also outside every
framework. What fixtures hold does not, unless the test put it there. pytest loads this file in
every environment that has vram: it imports nothing until a test is to be watched.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from vram.guard.scope import Scope

OPENED = pytest.StashKey["Scope"]()
ASKED = pytest.StashKey[bool]()
LEAKED = pytest.StashKey[list[str]]()
CHECKED = pytest.StashKey[list[str]]()

MARKER = "vram(leaks=0, limit=None): fail the test where it keeps more device memory than that, or gains more"
WORDS = ("leaks", "limit")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("vram", "GPU memory")
    group.addoption("--vram", action="store_true", help="fail every test that keeps GPU memory it gained")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)
    config.stash[LEAKED], config.stash[CHECKED] = [], []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Open a scope around the test function alone, and fail the test for what it keeps."""
    wanted = _wanted(item)
    if wanted is None:
        return (yield)
    item.config.stash[CHECKED].append(item.nodeid)
    leaks, limit = wanted
    opened = item.stash[OPENED] = _open(item, leaks, limit)
    from vram.errors import LimitExceeded

    try:
        with opened:
            result = yield
    except LimitExceeded as error:
        pytest.fail(f"{error}\n{error.hint}", pytrace=False)
    if opened.leak is not None:
        from vram.guard.scope import describe

        item.config.stash[LEAKED].append(item.nodeid)
        pytest.fail(describe(opened.leak), pytrace=False)
    return result


def _wanted(item: pytest.Item) -> tuple[Any, Any] | None:
    """The sizes that hold for *item*; None where nobody asked for it to be watched."""
    marker = item.get_closest_marker("vram")
    if marker is None:
        return (0, None) if item.config.getoption("--vram") or item.stash.get(ASKED, False) else None
    unknown = [word for word in marker.kwargs if word not in WORDS]
    if marker.args or unknown:
        said = marker.args or unknown
        pytest.fail(f"@pytest.mark.vram takes leaks= and limit= alone, not {said}", pytrace=False)
    return marker.kwargs.get("leaks", 0), marker.kwargs.get("limit")


def _open(item: pytest.Item, leaks: Any, limit: Any) -> Scope:
    from vram.errors import UsageError
    from vram.guard.scope import nbytes_of, scope

    try:
        # 0 is what a scope does by itself: it forgives code that loads at first use, once.
        tolerance = nbytes_of(leaks, "leaks") or None
        return scope(item.nodeid, leak="report", tolerance=tolerance, limit=limit, track=True)
    except UsageError as error:
        pytest.fail(f"@pytest.mark.vram: {error}; {error.hint}", pytrace=False)


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

        opened = self._item.stash.get(OPENED, None)
        if name in ("gained", "keep", "limit", "notes") and opened is not None:
            return getattr(opened, name)
        return getattr(vram, name)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    checked, leaked = config.stash[CHECKED], config.stash[LEAKED]
    # Under xdist the tests run in the workers, whose failures come back as any other's.
    if not checked:
        return
    from vram.guard.memory import has_driver

    if not has_driver():
        terminalreporter.write_line(
            f"vram: no GPU here: the device memory of {len(checked)} tests was not measured", yellow=True
        )
        return
    verdict = f"{len(leaked)} kept device memory" if leaked else "none kept any device memory"
    terminalreporter.write_line(f"vram: {len(checked)} tests watched, {verdict}")
