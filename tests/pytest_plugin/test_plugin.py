"""The pytest plugin, in suites of its own that run on a virtual GPU."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tests.guard.scoping import ROOT, environment
from tests.needs import needs
from tests.patience import PATIENCE_S
from vram.virtualgpu import VirtualGpu

PREAMBLE = """\
import pytest
from tests.virtualgpu import libcuda as raw
from vram.units import MIB

@pytest.fixture(scope="session", autouse=True)
def context():
    raw.start()
"""

# Other people's plugins take three quarters of the start of pytest; ours is named as it is installed.
ALONE = ("-p", "vram")
IN_PARALLEL = ("-p", "xdist", "-n")

Suite = Callable[..., Any]


@pytest.fixture
def suite(virtual_gpu: VirtualGpu, tmp_path: Path) -> Suite:
    """Run a file of tests; its output, and how many passed and failed."""

    def run(text: str, *options: str, preamble: str = PREAMBLE) -> Any:
        (tmp_path / "test_it.py").write_text(preamble + dedent(text))
        argv = [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            "--rootdir",
            str(tmp_path),
            *ALONE,
            *options,
        ]
        return virtual_gpu.run(
            [*argv, str(tmp_path)],
            cwd=ROOT,
            env={**environment(virtual_gpu), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )

    return run


def outcome(done: Any) -> dict[str, int]:
    """The figures of pytest's last line."""
    last = done.stdout.splitlines()[-1]
    words = r"(\d+) (passed|failed|error|skipped|xfailed)"
    return {word: int(number) for number, word in re.findall(words, last)}


LEAKY = """
    def test_clean():
        raw.call("cuMemFree_v2", raw.alloc(8 * MIB))

    def test_leaky():
        raw.alloc(64 * MIB)
"""


def test_a_whole_suite_is_watched_by_an_option(suite: Suite) -> None:
    done = suite(LEAKY, "--vram")
    assert outcome(done) == {"passed": 1, "failed": 1}
    assert "test_it.py::test_leaky' kept 64.0 MiB of device memory" in done.stdout
    assert "outside every framework: 64.0 MiB" in done.stdout
    assert "vram: 2 tests checked, 1 kept device memory" in done.stdout


def test_unasked_it_watches_nothing_and_says_nothing(suite: Suite) -> None:
    done = suite(LEAKY)
    assert outcome(done) == {"passed": 2}
    assert "vram:" not in done.stdout


def test_a_marker_allows_so_much_and_no_more(suite: Suite) -> None:
    done = suite("""
        @pytest.mark.vram(leaks="64MiB")
        def test_allowed(): raw.alloc(64 * MIB)

        @pytest.mark.vram(leaks="32MiB")
        def test_too_much(): raw.alloc(64 * MIB)

        @pytest.mark.vram(leaks=0, limit="16MiB")
        def test_over_the_limit(): raw.alloc(64 * MIB)

        @pytest.mark.vram
        def test_plain(): raw.alloc(2 * MIB)
    """)
    assert outcome(done) == {"passed": 1, "failed": 3}
    assert "gained 64.0 MiB of device memory; its limit is 16.0 MiB" in done.stdout


@needs("numba")
def test_what_leaked_is_named(suite: Suite) -> None:
    done = suite(
        """
        import numpy
        from numba import cuda
        HISTORY = []

        def test_hoards():
            HISTORY.append(cuda.device_array(32 * MIB, numpy.uint8))
        """,
        "--vram",
    )
    assert outcome(done) == {"failed": 1}
    assert "HISTORY[0]" in done.stdout


@needs("numba")
def test_a_test_that_makes_the_context_is_said_to_be_unjudged(suite: Suite) -> None:
    """Numba does not count its arrays, so they cannot be told from the context that came with them."""
    text = """
        from numba import cuda
        KEPT = []

        def test_makes_the_context():
            KEPT.append(cuda.device_array(64 * MIB, "uint8"))

        def test_clean(): pass
    """
    for options in ((), (*IN_PARALLEL, "1")):
        done = suite(text, "--vram", *options, preamble=PREAMBLE.partition("@pytest")[0])
        assert outcome(done) == {"passed": 2}
        assert (
            "vram: 2 tests checked, none was found to keep device memory, 1 could not be checked"
            in done.stdout
        )
        assert "test_makes_the_context: the context was created inside the scope" in done.stdout
        assert "vram.Buffer(1).close() in a session fixture" in done.stdout


def test_the_context_made_in_a_session_fixture_lets_every_test_be_judged(suite: Suite) -> None:
    preamble = PREAMBLE.replace("raw.start()", "vram.Buffer(1).close()") + "import vram\nKEPT = []\n"
    done = suite("def test_leaky(): KEPT.append(vram.Buffer(64 * MIB))", "--vram", preamble=preamble)
    assert outcome(done) == {"failed": 1}
    assert "vram: 1 test checked, 1 kept device memory" in done.stdout
    assert "judged" not in done.stdout


def test_what_a_unittest_makes_in_its_setup_is_a_fixtures(suite: Suite) -> None:
    """Nor does it excuse a leak of the test itself, though it is freed in between."""
    done = suite(
        """
        import unittest, vram
        KEPT = []

        class WithoutTearDown(unittest.TestCase):
            def setUp(self): self.buffer = vram.Buffer(8 * MIB)
            def test_uses_it(self): self.assertEqual(self.buffer.nbytes, 8 * MIB)

        class WithTearDown(WithoutTearDown):
            def tearDown(self): self.buffer.close()
            def test_leaks(self): KEPT.append(vram.Buffer(8 * MIB))

        class Marked(unittest.TestCase):
            @unittest.skip("its own reason")
            def test_skipped(self): raw.alloc(8 * MIB)

            @unittest.expectedFailure
            def test_expected(self): self.fail()
        """,
        "--vram",
    )
    assert outcome(done) == {"passed": 2, "skipped": 1, "xfailed": 1, "failed": 1}
    assert "WithTearDown::test_leaks' kept 8.0 MiB of device memory" in done.stdout
    assert "KEPT[0]" in done.stdout


def test_an_asynchronous_unittest_is_watched_with_its_setup(suite: Suite) -> None:
    done = suite(
        """
        import unittest, vram

        class Asynchronous(unittest.IsolatedAsyncioTestCase):
            async def test_clean(self): vram.Buffer(8 * MIB).close()
            async def test_leaks(self): raw.alloc(8 * MIB)
        """,
        "--vram",
    )
    assert outcome(done) == {"passed": 1, "failed": 1}


def test_fixtures_may_hold_memory(suite: Suite) -> None:
    done = suite(
        """
        @pytest.fixture(scope="module")
        def model(): return raw.alloc(64 * MIB)

        def test_uses_it(model): pass
        def test_uses_it_again(model): pass
        """,
        "--vram",
    )
    assert outcome(done) == {"passed": 2}


def test_a_fixture_gives_the_test_its_own_scope(suite: Suite) -> None:
    done = suite("""
        def test_asks(vram):
            pointer = raw.alloc(8 * MIB)
            assert vram.gained() == 8 * MIB
            raw.call("cuMemFree_v2", pointer)
            assert vram.gained() == 0

        def test_leaks(vram):
            raw.alloc(8 * MIB)
    """)
    assert outcome(done) == {"passed": 1, "failed": 1}


@pytest.mark.parametrize("asked", ["gained()", "keep(1)"])
def test_a_fixture_that_asks_before_the_test_began_is_told(suite: Suite, asked: str) -> None:
    done = suite(f"""
        @pytest.fixture
        def early(vram): return vram.{asked}

        def test_it(early): pass
    """)
    assert outcome(done) == {"error": 1}
    assert f"UsageError: vram.{asked.partition('(')[0]} was used before the test started" in done.stdout


def test_a_test_that_fails_by_itself_fails_for_its_own_reason(suite: Suite) -> None:
    done = suite(
        """
        def test_both():
            raw.alloc(64 * MIB)
            assert 1 == 2, "its own reason"
        """,
        "--vram",
    )
    assert "AssertionError: its own reason" in done.stdout
    assert outcome(done) == {"failed": 1}
    assert "vram: 1 test checked, 1 kept device memory" in done.stdout


def test_what_a_test_that_fails_by_its_own_word_kept_is_a_note_on_that(suite: Suite) -> None:
    done = suite(
        """
        import vram
        KEPT = []
        def test_keeps():
            KEPT.append(vram.Buffer(8 * MIB))
            pytest.fail("its own word")
        def test_keeps_as_expected():
            KEPT.append(vram.Buffer(8 * MIB))
            pytest.xfail("known")
        def test_frees():
            local = vram.Buffer(8 * MIB)
            pytest.fail("its own word")
        """,
        "--vram",
    )
    assert outcome(done) == {"failed": 2, "xfailed": 1}
    assert done.stdout.count("E       Failed: its own word") == 2
    assert "KEPT[0]" in done.stdout
    assert "vram: 3 tests checked, 2 kept device memory" in done.stdout


def test_a_skipped_test_that_keeps_memory_fails(suite: Suite) -> None:
    done = suite(
        """
        import unittest, vram
        KEPT = []
        def test_keeps():
            KEPT.append(vram.Buffer(8 * MIB))
            pytest.skip("too small")
        def test_frees():
            local = vram.Buffer(8 * MIB)
            pytest.skip("too small")
        class Test(unittest.TestCase):
            def test_keeps(self):
                KEPT.append(vram.Buffer(8 * MIB))
                self.skipTest("too small")
        """,
        "--vram",
    )
    assert outcome(done) == {"failed": 2, "skipped": 1}
    assert "KEPT[0]" in done.stdout
    assert "KEPT[1]" in done.stdout
    assert "During handling" not in done.stdout
    assert "vram: 3 tests checked, 2 kept device memory" in done.stdout


@pytest.mark.parametrize("words", ['leaks="some"', "limit=-1", "leek=0", "0"])
def test_a_marker_that_means_nothing_fails_the_test_with_a_word(suite: Suite, words: str) -> None:
    done = suite(f"@pytest.mark.vram({words})\ndef test_it(): pass\n")
    assert outcome(done) == {"failed": 1}
    assert "@pytest.mark.vram" in done.stdout
    assert "During handling" not in done.stdout


def test_a_limit_that_was_passed_is_said_once(suite: Suite) -> None:
    done = suite("""
        @pytest.mark.vram(limit="16MiB")
        def test_over_the_limit(): raw.alloc(64 * MIB)
    """)
    assert outcome(done) == {"failed": 1}
    assert "During handling" not in done.stdout


def test_a_suite_without_a_gpu_says_so_once(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_a(): pass\ndef test_b(): pass\n")
    argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), "--vram"]
    done = subprocess.run([*argv, str(tmp_path)], capture_output=True, text=True, timeout=PATIENCE_S)
    assert outcome(done) == {"passed": 2}
    if not Path("/dev/nvidiactl").exists():
        assert done.stdout.count("no GPU here: the device memory of 2 tests was not measured") == 1


def test_async_and_parallel_suites_work(suite: Suite) -> None:
    done = suite(LEAKY, "--vram", *IN_PARALLEL, "2")
    assert outcome(done) == {"passed": 1, "failed": 1}
    assert "vram: 2 tests checked, 1 kept device memory" in done.stdout


def test_the_plugin_imports_nothing_of_the_guard_until_it_is_asked() -> None:
    program = "import sys, vram.pytest_plugin; print([m for m in sys.modules if m.startswith('vram.')])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.stdout.strip() == "['vram.pytest_plugin']"
