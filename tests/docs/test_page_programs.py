"""Programs on the pages run as printed, on the virtual GPU, and print what the page says.

A comment in the line before a block says what is done with it:

    <!-- file NAME -->      it is put into a file of that name
    <!-- run -->            it is played in a shell: a command behind each `$ `, and below it what it prints,
                            where `…` stands for any text
    <!-- needs MODULE -->   anywhere on the page: the page is skipped where the module is not installed

What differs from run to run (pids, users, ages) and the width of columns are not compared.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import IO

import pytest

from tests.docs.pages import ROOT
from tests.needs import require
from tests.patience import PATIENCE_S
from vram.virtualgpu import VirtualGpu

BLOCK = re.compile(r"^<!-- (run|file (?P<name>\S+)) -->\n```\w+\n(?P<text>.*?)^```", re.M | re.S)
NEEDS = re.compile(r"^<!-- needs (\S+) -->$", re.M)
PAGES = sorted(page for page in (ROOT / "docs").rglob("*.md") if BLOCK.search(page.read_text()))


def test_pages_have_programs() -> None:
    """Or the test below would hold for any page."""
    assert len(PAGES) >= 5


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_programs_of_a_page_print_what_it_says(page: Path, virtual_gpu: VirtualGpu, tmp_path: Path) -> None:
    text = page.read_text()
    require(*NEEDS.findall(text))
    for block in BLOCK.finditer(text):
        if block["name"]:
            (tmp_path / block["name"]).write_text(block["text"])
        else:
            play(virtual_gpu, block["text"], tmp_path)


def test_a_page_that_says_otherwise_is_found(virtual_gpu: VirtualGpu, tmp_path: Path) -> None:
    play(virtual_gpu, "$ echo one; echo two\none\nt…\n", tmp_path)
    for wrong in (
        "$ echo one\ntwo\n",
        "$ echo one; echo two\none\n",
        "$ echo one\none\ntwo\n",
        "$ false\n$ true\n",
    ):
        with pytest.raises(AssertionError):
            play(virtual_gpu, wrong, tmp_path)


# ---- running ----


def play(gpu: VirtualGpu, text: str, folder: Path) -> None:
    """Type each command when the one before it has printed what is expected of it."""
    shell = gpu.popen(
        ["bash", "-e"],
        cwd=folder,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    lines: Queue[str | None] = Queue()
    reader = Thread(target=_read, args=(shell.stdout, lines))
    reader.start()
    try:
        typed = list(commands(text))
        for number, (command, expected) in enumerate(typed, 1):
            with suppress(BrokenPipeError):  # a command before it failed: the comparison shows it
                shell.stdin.write(command + "\n")
                shell.stdin.flush()
            if number == len(typed):
                _close(shell.stdin)
            for wanted in expected:
                printed = _next(lines)
                assert agree(wanted, printed), f"{command}\nthe page: {wanted}\nprinted:  {printed}"
        left = list(iter(lambda: _next(lines), None))
        assert not left, f"printed, and not on the page: {left}"
        ended = os.waitid(os.P_PID, shell.pid, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        assert ended.si_status == 0, "a command failed"
    finally:
        _close(shell.stdin)
        # What it has left in the background, too. It is not reaped before: the number is still its own.
        os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()
        reader.join()
        shell.stdout.close()


def _close(stream: IO[str]) -> None:
    # What was written and never read is written again here, and fails again.
    with suppress(BrokenPipeError):
        stream.close()


def commands(text: str) -> Iterator[tuple[str, list[str]]]:
    for part in re.split(r"^\$ ", text, flags=re.M)[1:]:
        command, *printed = part.splitlines()
        yield command, [line for line in printed if line.strip()]


def environment() -> dict[str, str]:
    """The vram of this interpreter comes first, and a terminal of 80 columns."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONUNBUFFERED": "1"}


def _read(stream: Iterator[str], lines: Queue[str | None]) -> None:
    for line in stream:
        if line.strip():
            lines.put(line.rstrip("\n"))
    lines.put(None)


def _next(lines: Queue[str | None]) -> str | None:
    try:
        line = lines.get(timeout=PATIENCE_S)
    except Empty:
        raise AssertionError(f"nothing printed for {PATIENCE_S:.0f} s") from None
    return _next(lines) if line is not None and COLLECTED.search(line) else line


# ---- comparing ----

# How much garbage there still is depends on when Python collected last: pages do not show it.
COLLECTED = re.compile(r"^ *\d+ unreachable objects? collected$")


def agree(wanted: str, printed: str | None) -> bool:
    if printed is None:
        return False
    pattern = ".*".join(map(re.escape, plain(wanted).split("…")))
    return re.fullmatch(pattern, plain(printed)) is not None


def plain(line: str) -> str:
    """Without what differs from run to run: pids, users and ages, and the width of columns."""
    line = re.sub(r"\s+", " ", line).strip()
    line = re.sub(r"(iB) \d+ \S+ \d+[smhd] ", r"\1 PID USER AGE ", line)  # a row of the table of processes
    return re.sub(r"\bpid \d+", "pid PID", line)
