"""``@pytest.mark.vram(peak=...)``: tests that are recorded, in suites of their own on a virtual GPU."""

from __future__ import annotations

import pytest

from tests.interpreters import recorded_name
from tests.pytest_plugin.test_plugin import Suite, outcome, suite

__all__ = ["suite"]

PEAK = """
    def twice():
        first = raw.alloc(24 * MIB)
        second = raw.alloc(8 * MIB)
        raw.call("cuMemFree_v2", first)
        raw.call("cuMemFree_v2", second)

    @pytest.mark.vram(peak="16MiB")
    def test_over():
        twice()

    @pytest.mark.vram(peak="32MiB")
    def test_within():
        twice()
"""


def test_a_peak_fails_the_test_and_names_the_places(suite: Suite) -> None:
    done = suite(PEAK)
    assert outcome(done) == {"passed": 1, "failed": 1}
    assert (
        "test_it.py::test_over' allocated 32.0 MiB at once on GPU 0; its peak may be 16.0 MiB" in done.stdout
    )
    stack = done.stdout.partition("24.0 MiB in 1 allocation (device)")[2].splitlines()
    functions = [line.split()[0] for line in stack if line.startswith("      ")]
    assert functions[functions.index("twice") + 1] == "test_over", stack


def test_what_was_held_before_is_not_the_tests(suite: Suite) -> None:
    done = suite(
        """
        @pytest.fixture
        def model():
            yield raw.alloc(64 * MIB)

        @pytest.mark.vram(peak="1MiB")
        def test_it(model):
            raw.call("cuMemFree_v2", raw.alloc(MIB))
        """
    )
    assert outcome(done) == {"passed": 1}


def test_a_leak_shows_its_stack(suite: Suite) -> None:
    done = suite(
        """
        class Model:
            def forget(self):
                raw.alloc(64 * MIB)

        @pytest.mark.vram(peak="1GiB")
        def test_it():
            def inner():
                Model().forget()

            inner()
        """
    )
    assert outcome(done) == {"failed": 1}
    assert "kept 64.0 MiB of device memory" in done.stdout
    assert "what the test allocated and did not free:" in done.stdout
    assert f"      {recorded_name('Model.forget')}  " in done.stdout
    assert f"      {recorded_name('test_it.inner')}  " in done.stdout


@pytest.mark.parametrize(("leaks", "expected"), [("0", "failed"), ("'4KiB'", "passed")])
def test_a_leak_of_some_bytes_is_seen_where_no_framework_caches(
    suite: Suite, leaks: str, expected: str
) -> None:
    """The driver gives memory in pages of 2 MiB: without a recording this one stays unseen."""
    done = suite(
        f"""
        @pytest.fixture(autouse=True)
        def page():
            raw.alloc(512)

        @pytest.mark.vram(peak="1GiB", leaks={leaks})
        def test_it():
            raw.alloc(512)
        """
    )
    assert outcome(done) == {expected: 1}
    assert ("did not free 512 B of device memory that it allocated" in done.stdout) == (expected == "failed")


def test_a_test_that_fails_keeps_its_own_error(suite: Suite) -> None:
    done = suite(
        """
        @pytest.mark.vram(peak="1MiB")
        def test_it():
            raw.call("cuMemFree_v2", raw.alloc(8 * MIB))
            assert 1 == 2
        """
    )
    assert outcome(done) == {"failed": 1}
    assert "assert 1 == 2" in done.stdout
    assert "allocated 8.0 MiB at once" in done.stdout


def test_tests_are_recorded_one_after_the_other(suite: Suite) -> None:
    done = suite(
        """
        @pytest.mark.parametrize("number", range(5))
        @pytest.mark.vram(peak="4MiB")
        def test_it(number):
            raw.call("cuMemFree_v2", raw.alloc((1 + number) * MIB))
        """
    )
    assert outcome(done) == {"passed": 4, "failed": 1}


def test_a_check_that_cannot_be_made_fails_with_the_reason(
    suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VRAM_VIRTUAL_CUPTI_ERROR", "39")
    done = suite(PEAK)
    assert outcome(done) == {"failed": 2}
    assert "could not be checked: this process cannot be recorded" in done.stdout


@pytest.mark.parametrize("value", ["'lots'", "-1", "True"])
def test_a_peak_that_is_no_size_fails_the_test(suite: Suite, value: str) -> None:
    done = suite(
        f"""
        @pytest.mark.vram(peak={value})
        def test_it(): ...
        """
    )
    assert outcome(done) == {"failed": 1}
    assert "is not a size" in done.stdout


def test_a_test_that_asks_the_driver_for_nothing_passes(suite: Suite) -> None:
    done = suite(
        """
        @pytest.mark.vram(peak="1B")
        def test_it():
            assert True
        """,
        preamble="import pytest\n",
    )
    assert outcome(done) == {"passed": 1}
