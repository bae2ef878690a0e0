"""Giving memory back under WSL2: what works is measured on the whole GPU, what does not is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_trim import HOLDER as NATIVE_HOLDER
from tests.needs import require
from tests.patience import PATIENCE_S
from tests.reach.conftest import CACHED, SOURCES, SUBJECT, Subject
from tests.wsl.conftest import Hold, Wsl
from tests.wsl.windows import speaking
from vram.errors import ExitCode
from vram.units import GIB
from vram.virtualgpu.demos import PROGRAMS


@pytest.fixture
def caching(wsl: Wsl) -> Iterator[Subject]:
    """A program with 2 GiB in a pool that it does not use, and an agent that lets us in."""
    subject = Subject(
        subprocess.Popen(
            [sys.executable, str(SUBJECT), str(CACHED), "reading", "agent"],
            env=wsl.environment() | {"PYTHONPATH": f"{SOURCES}:{PROGRAMS}"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
    )
    yield subject
    subject.close()


@pytest.mark.parametrize("windows", [True, False], ids=["windows tells", "windows is silent"])
def test_trim_works_and_is_measured_on_the_whole_gpu(wsl: Wsl, caching: Subject, windows: bool) -> None:
    if windows:
        wsl.says(speaking("en", guest=2 * GIB))  # a recorded answer: it does not change with the trim
    (receipt,) = json.loads(wsl.vram("trim", str(caching.pid), "--json").stdout)["trimmed"]
    assert receipt["whole_gpu"] is True
    assert receipt["charged_before"] - receipt["charged_after"] == CACHED
    assert caching.ask()["alive"] == 1


def test_trim_says_in_words_what_was_measured(wsl: Wsl, caching: Subject) -> None:
    shown = wsl.vram("trim", str(caching.pid)).stdout
    assert "2.0 GiB freed" in shown
    assert "total memory in use on the GPU was" in shown


def test_free_trims_what_can_be_trimmed(wsl: Wsl, caching: Subject) -> None:
    receipt = json.loads(wsl.vram("free", "--more", "1GiB", "--caches", "--yes", "--json").stdout)
    assert receipt["receipt"]["returned_bytes"] == CACHED
    assert caching.ask()["alive"] == 1


def test_a_linux_process_is_ended_and_the_bytes_are_read_again(wsl: Wsl, hold: Hold) -> None:
    """Two of them, so that nobody knows beforehand how much the one holds."""
    process, other = hold(4 * GIB), hold(GIB)
    before = wsl.why()["gpus"][0]["memory"]["used"]
    done = json.loads(wsl.vram("kill", str(process.pid), "--yes", "--json").stdout)
    assert process.wait() == -signal.SIGTERM
    after = wsl.why()["gpus"][0]["memory"]["used"]
    assert done["plan"]["steps"][0]["predicted_bytes"] is None
    assert done["receipt"]["returned_bytes"] == before - after > 4 * GIB
    assert other.poll() is None


@pytest.mark.parametrize("words", [("park",), ("free", "--pid"), ("borrow", "23GiB", "--pid")])
def test_nothing_is_parked(wsl: Wsl, hold: Hold, words: tuple[str, ...]) -> None:
    process = hold(4 * GIB)
    rest = {"park": (), "free": ("--up-to", "park", "--yes"), "borrow": ("--", "true")}[words[0]]
    done = wsl.vram(*words, str(process.pid), *rest, code=ExitCode.CANNOT_PARK)
    assert "cannot be parked under WSL2" in done.stderr
    assert "vram trim" in done.stderr
    assert process.poll() is None


def test_a_loan_that_needs_nobody_parked_is_granted(wsl: Wsl, hold: Hold) -> None:
    hold(4 * GIB)
    assert wsl.vram("borrow", "2GiB", "--", "echo", "hello").stdout.endswith("hello\n")


@pytest.mark.parametrize("words", [(), ("--yes",)])
def test_no_gpu_is_reset(wsl: Wsl, words: tuple[str, ...]) -> None:
    done = wsl.vram("reset", "0", *words, code=ExitCode.NOT_PERMITTED)
    assert "cannot be reset from inside WSL2" in done.stderr
    assert "Win+Ctrl+Shift+B" in done.stderr


def test_a_windows_process_is_never_ended(wsl: Wsl) -> None:
    """Its pid is no pid of ours, even where somebody here has the same one."""
    wsl.gpu.set(windows_bytes=GIB)
    other = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    try:
        said = speaking("en", guest=0, other=GIB)
        said["memory"][0]["Name"] = said["memory"][0]["Name"].replace("1844", str(other.pid))
        wsl.says(said)
        wsl.vram("kill", str(other.pid), "--yes", code=ExitCode.NOT_ON_GPU)
        wsl.vram("free", "--more", "512MiB", "--yes", code=ExitCode.GOAL_IMPOSSIBLE)
        assert other.poll() is None
    finally:
        other.communicate()


def test_free_names_the_ways_that_are_left(wsl: Wsl, hold: Hold) -> None:
    process = hold(4 * GIB)
    wsl.says(speaking("en", guest=4 * GIB))
    done = wsl.vram("free", "--more", "8GiB", code=ExitCode.GOAL_IMPOSSIBLE)
    assert "close Windows programs in Windows" in done.stderr
    caches = wsl.vram("free", "--more", "2GiB", "--caches", "--json", code=ExitCode.HELD)
    plan = json.loads(caches.stdout)["plan"]
    assert [(step["kind"], step["target"]["process"]["pid"]) for step in plan["steps"]] == [
        ("trim", process.pid)
    ]


def test_free_names_who_is_listed_where_there_are_no_figures_for_each(wsl: Wsl, hold: Hold) -> None:
    """It said that no visible process holds it, and called it a leftover, beside a process that is listed."""

    def left() -> dict[str, Any]:
        done = wsl.vram("free", "--dry-run", "--json")  # 0: nothing is known to be left over
        (piece,) = json.loads(done.stdout)["skipped"]
        assert (piece["pid"], piece["leftover"], piece["command"]) == (None, False, "vram why")
        found: dict[str, Any] = piece
        return found

    wsl.gpu.set(windows_bytes=GIB)
    assert left()["why"].startswith("held by processes of other distributions or Windows programs;")
    process = hold(4 * GIB)
    assert left()["why"].startswith(f"held by pid {process.pid} or Windows programs;")
    both = ", ".join(map(str, sorted((process.pid, hold(GIB).pid))))
    assert left()["why"].startswith(f"held by pids {both} or Windows programs;")
    used = wsl.why()["gpus"][0]["memory"]["used"]
    wsl.says(speaking("en", guest=used, other=0))
    assert left()["why"].startswith(f"held by pids {both};")


def test_an_amount_that_no_figure_tells_is_unknown_and_not_zero(wsl: Wsl, caching: Subject) -> None:
    (found,) = json.loads(wsl.vram("trim", "--json").stdout)["trimmable"]
    assert (found["pid"], found["nbytes"]) == (caching.pid, None)
    shown = wsl.vram("trim").stdout
    assert "unknown" in shown
    assert " 0 B " not in shown


def test_a_program_that_caches_nothing_is_not_told_to_trim(wsl: Wsl, tmp_path: Path) -> None:
    """It was asked: what it holds, it allocated by itself."""
    require("cc")
    (tmp_path / "holder.c").write_text(NATIVE_HOLDER)
    subprocess.run(["cc", "-o", tmp_path / "holder", tmp_path / "holder.c", "-ldl"], check=True)
    holder = subprocess.Popen([tmp_path / "holder"], env=wsl.environment(), stdin=-1, stdout=-1)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"ready\n"
        findings = json.loads(wsl.vram("why", str(holder.pid), "--json").stdout)["findings"]
        steps = [way["step"] for each in findings for way in each["remedies"]]
        assert "end" in steps
        assert "trim" not in steps
    finally:
        holder.communicate(b"\n", timeout=PATIENCE_S)


def test_nobody_is_told_to_park(wsl: Wsl, hold: Hold) -> None:
    hold(4 * GIB)
    wsl.says(speaking("en", guest=4 * GIB))
    commands = [r["command"] for f in wsl.why()["findings"] for r in f["remedies"]]
    assert not any("park" in command for command in commands)
    assert any(command.startswith("vram kill") for command in commands)


def test_checkpoints_are_refused_by_the_virtual_driver_too(wsl: Wsl, hold: Hold) -> None:
    """So that a path around our own refusal would show."""
    pid = hold(GIB).pid
    code = (
        "import ctypes; cuda = ctypes.CDLL('libcuda.so.1'); cuda.cuInit(0);"
        f"print(cuda.cuCheckpointProcessLock({pid}, None))"
    )
    done = subprocess.run([sys.executable, "-c", code], env=wsl.environment(), capture_output=True, text=True)
    assert done.stdout == "801\n"
    assert os.kill(pid, 0) is None
