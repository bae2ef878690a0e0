"""What a run says of skipped tests, and what a machine must have: small suites of their own."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.needs import NEEDS, ROOT
from tests.skipped import read_list

CONFTEST = """
from tests import skipped

def pytest_addoption(parser):
    skipped.add_option(parser)

def pytest_configure(config):
    config.pluginmanager.register(skipped.SkipReporter(config))
"""
SUITE = """
import pytest
from tests.needs import needs, skip_without

@pytest.mark.parametrize("number", range(3))
def test_mounts(number):
    skip_without("mounts", "no disk can be made")

@needs("root", there=False, detail="only root can give files away")
def test_root():
    raise AssertionError

@pytest.fixture
def gpu():
    skip_without("real-gpu", "needs --real-gpu")

def test_gpu(gpu):
    raise AssertionError

@pytest.mark.xfail
def test_that_fails_as_expected():
    raise AssertionError

def test_that_passes():
    pass
"""
SUMMARY = [
    f"skipped 3: nothing may be mounted ({NEEDS['mounts'].how})",
    f"skipped 1: not root ({NEEDS['root'].how})",
    f"skipped 1: no real GPU was asked for ({NEEDS['real-gpu'].how})",
]
IN_PARALLEL = ("-p", "xdist", "-n", "2")

Suite = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    def run(*options: str, text: str = SUITE) -> subprocess.CompletedProcess[str]:
        (tmp_path / "conftest.py").write_text(CONFTEST)
        (tmp_path / "test_it.py").write_text(text)
        argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
        # Other people's plugins take three quarters of the start of pytest.
        env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT)}
        argv += [*options, str(tmp_path)]
        return subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True)

    return run


def summary(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in done.stdout.splitlines() if line.startswith("skipped ")]


@pytest.mark.parametrize("options", [(), IN_PARALLEL], ids=["alone", "with xdist"])
def test_a_run_ends_with_a_line_per_need(suite: Suite, options: tuple[str, ...]) -> None:
    done = suite(*options)
    assert done.returncode == 0, done.stdout
    assert sorted(summary(done)) == sorted(SUMMARY)
    assert summary(done)[0] == SUMMARY[0], "the largest number first"
    assert "1 passed, 5 skipped, 1 xfailed" in done.stdout


def test_nothing_is_said_where_nothing_is_skipped(suite: Suite) -> None:
    done = suite(text="def test_that_passes(): pass")
    assert "skipped" not in done.stdout


def test_a_reason_without_a_need_is_shown_as_it_is(suite: Suite) -> None:
    done = suite(text="import pytest\ndef test_it(): pytest.skip('too: small')")
    assert summary(done) == ["skipped 1: too: small"]


@pytest.mark.parametrize("options", [(), IN_PARALLEL], ids=["alone", "with xdist"])
def test_what_must_be_there_is_no_reason_to_skip(
    suite: Suite, tmp_path: Path, options: tuple[str, ...]
) -> None:
    """Found while it runs, by a decorator, and in a fixture; what is not listed is skipped as before."""
    file = tmp_path / "must-have"
    file.write_text("# what this machine has\nmounts\nroot  # as in CI\n")
    done = suite("--must-have", str(file), *options)
    assert done.returncode == 1
    assert "1 passed, 1 skipped, 1 xfailed" in done.stdout.replace("3 failed, ", "")
    assert f"This machine must have it ({file})" in done.stdout
    assert "mounts is missing: no disk can be made." in done.stdout
    assert "root is missing: only root can give files away." in done.stdout
    assert f"How to get it: {NEEDS['root'].how}." in done.stdout
    assert summary(done) == [SUMMARY[2]]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [("root\nrooot\n", "no such need in tests/needs.py: rooot"), (None, "cannot read")],
    ids=["unknown", "missing"],
)
def test_a_list_that_is_wrong_is_refused(
    suite: Suite, tmp_path: Path, text: str | None, complaint: str
) -> None:
    file = tmp_path / "must-have"
    if text is not None:
        file.write_text(text)
    done = suite("--must-have", str(file))
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert complaint in done.stderr


def test_the_list_of_ci_can_be_read() -> None:
    assert {"root", "ptrace", "python-3.12", "browser"} <= read_list(ROOT / ".ci" / "must-have")


# ---- the table, and the tests that use it ----


def test_a_word_belongs_to_one_need() -> None:
    words = [word for name, need in NEEDS.items() for word in {name, *need.modules, *need.programs}]
    assert len(words) == len(set(words))


def syntax_trees() -> Iterator[tuple[str, ast.Module]]:
    for file in sorted((ROOT / "tests").rglob("*.py")):
        yield str(file.relative_to(ROOT)), ast.parse(file.read_bytes())


def test_only_tests_needs_skips() -> None:
    """Or a reason would have no name, and CI could not tell what is missing."""
    words = {"skip", "skipif", "importorskip", "SkipTest", "skipTest", "skipUnless", "skipIf"}
    found = []
    for file, tree in syntax_trees():
        for node in ast.walk(tree):
            imported = isinstance(node, ast.ImportFrom) and node.module in ("pytest", "unittest")
            if (isinstance(node, ast.Attribute) and node.attr in words) or (
                imported and words & {each.name for each in node.names}
            ):
                found.append(f"{file}:{node.lineno}")
    assert [place for place in found if not place.startswith("tests/needs.py:")] == []


def test_every_word_is_in_the_table() -> None:
    """Also those of tests that are never run here."""
    known = {word for name, need in NEEDS.items() for word in (name, *need.modules, *need.programs)}
    unknown = []
    for file, tree in syntax_trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                named = {"needs": node.args, "require": node.args, "skip_without": node.args[:1]}
                words = [each.value for each in named.get(node.func.id, ()) if isinstance(each, ast.Constant)]
                unknown += [f"{file}:{node.lineno}: {word}" for word in words if word not in known]
    assert unknown == []
