"""Programs on the pages run as printed, on the virtual GPU, and print what the page says.

``blocks`` has the comments that say what is done with a block. One more, anywhere on the page:

    <!-- needs MODULE -->   the page is skipped where the module is not installed

In a command 4711 stands for the shell's variable pid, where a comment `before: ...` sets it. Programs for
such comments are in $SCENES. What differs from run to run (pids, users, ages, times, digests of plans) and
the width of columns are not compared.
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

from tests.docs.blocks import Block, blocks
from tests.docs.pages import ROOT
from tests.needs import require
from tests.patience import PATIENCE_S
from vram.virtualgpu import VirtualGpu

NEEDS = re.compile(r"^<!-- needs (\S+) -->$", re.M)
DOCS = ROOT / "docs"
SCENES = Path(__file__).with_name("scenes")
PAGES = sorted(page for page in DOCS.rglob("*.md") if re.search("<!-- (run|file .*) -->", page.read_text()))
READ = [
    ROOT / "README.md",
    *sorted(page for room in ("questions", "guides", "concepts") for page in (DOCS / room).glob("*.md")),
]
"""What users read, from the first page to the last guide."""


def test_pages_have_programs() -> None:
    """Or the test below would hold for any page."""
    assert len(PAGES) >= 5


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_programs_of_a_page_print_what_it_says(page: Path, virtual_gpu: VirtualGpu, tmp_path: Path) -> None:
    text = page.read_text()
    require(*NEEDS.findall(text))
    for block in blocks(text):
        name = block.note("file")
        if name:
            (tmp_path / name).write_text(block.text)
        if block.note("run") is not None:
            play(virtual_gpu, block, tmp_path)


@pytest.mark.parametrize("page", READ, ids=lambda page: page.stem)
def test_every_block_is_run_or_says_why_not(page: Path) -> None:
    for block in blocks(page.read_text()):
        assert any(block.note(name) is not None for name in ("file", "run", "not run:")) or (
            # Their commands have a test of their own.
            page.parent.name == "questions" and block.language == "sh"
        ), f"line {block.line} of {page.name}: nothing says whether it is run"
        assert block.note("not run:") != "", f"line {block.line} of {page.name}: no reason"


def test_a_page_that_says_otherwise_is_found(virtual_gpu: VirtualGpu, tmp_path: Path) -> None:
    play(virtual_gpu, shown("$ echo one; echo two\none\nt…\n"), tmp_path)
    for wrong in (
        "$ echo one\ntwo\n",
        "$ echo one; echo two\none\n",
        "$ echo one\none\ntwo\n",
        "$ false\n$ true\n",
    ):
        with pytest.raises(AssertionError):
            play(virtual_gpu, shown(wrong), tmp_path)


def test_commands_without_a_prompt_must_succeed(virtual_gpu: VirtualGpu, tmp_path: Path) -> None:
    play(virtual_gpu, shown("echo one \\\n  two\ntrue  # says nothing\n"), tmp_path)
    with pytest.raises(AssertionError, match="no such file"):
        play(virtual_gpu, shown("echo one\ncat missing 2>&1 | tr N n; cat missing\n"), tmp_path)


def test_what_runs_before_a_block_is_not_compared(virtual_gpu: VirtualGpu, tmp_path: Path) -> None:
    (page,) = blocks("<!-- run -->\n<!-- before: echo hidden; of=them -->\n```sh\n$ echo $of\nthem\n```\n")
    play(virtual_gpu, page, tmp_path)


@pytest.mark.parametrize("page", READ, ids=lambda page: page.stem)
def test_a_page_ends_with_where_to_go_next(page: Path) -> None:
    last = page.read_text().rstrip().rpartition("\n\n")[2]
    assert "](" in last, "a last paragraph with links, as `Next: [...](...)`"


def test_what_users_read_stays_short() -> None:
    """An evening's reading; a page that grows takes its words from another."""
    words = {page: len(page.read_text().split()) for page in READ}
    assert sum(words.values()) < 30_000, sorted(words.items(), key=lambda item: -item[1])[:10]
    assert sum(page.parent.name == "guides" and page.stem != "index" for page in READ) <= 40


def shown(text: str) -> Block:
    return Block("sh", text, 1, (("run", ""),))


# ---- running ----


def play(gpu: VirtualGpu, block: Block, folder: Path) -> None:
    """Type each command when the one before it has printed what is expected of it."""
    shell = gpu.popen(
        ["bash", "-e"],
        cwd=folder,
        env=environment(folder),
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
        _prepare(shell, block.before, lines)
        typed = list(commands(block.text)) if block.has_prompts else [(block.text, [])]
        for number, (command, expected) in enumerate(typed, 1):
            with suppress(BrokenPipeError):  # a command before it failed: the comparison shows it
                shell.stdin.write(command.replace("4711", "${pid-4711}") + "\n")
                shell.stdin.flush()
            if number == len(typed):
                _close(shell.stdin)
            for wanted in expected:
                printed = _next(lines)
                assert agree(wanted, printed), f"{command}\nthe page: {wanted}\nprinted:  {printed}"
        left = list(iter(lambda: _next(lines), None))
        assert not left or not block.has_prompts, f"printed, and not on the page: {left}"
        ended = os.waitid(os.P_PID, shell.pid, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        assert ended.si_status == 0, f"a command failed: {left}"
    finally:
        _close(shell.stdin)
        # What it has left in the background, too. It is not reaped before: the number is still its own.
        os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()
        reader.join()
        shell.stdout.close()


def _prepare(shell: subprocess.Popen[str], before: list[str], lines: Queue[str | None]) -> None:
    """Run what the page does not show, and read past what it prints."""
    if not before:
        return
    for command in [*before, "echo ready to begin"]:
        shell.stdin.write(command + "\n")
    shell.stdin.flush()
    printed: list[str] = []
    while (line := _next(lines)) != "ready to begin":
        assert line is not None, f"before the block: {printed}"
        printed.append(line)


def _close(stream: IO[str]) -> None:
    # What was written and never read is written again here, and fails again.
    with suppress(BrokenPipeError):
        stream.close()


def commands(text: str) -> Iterator[tuple[str, list[str]]]:
    for part in re.split(r"^\$ ", text, flags=re.M)[1:]:
        command, *printed = part.splitlines()
        yield command, [line for line in printed if line.strip()]


def environment(folder: Path) -> dict[str, str]:
    """The vram of this interpreter comes first, a terminal of 80 columns, and records of its own."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    own = folder / ".own"
    own.mkdir(mode=0o700, exist_ok=True)
    homes = dict.fromkeys(("XDG_STATE_HOME", "XDG_RUNTIME_DIR"), str(own))
    return {**os.environ, **homes, "PATH": path, "PYTHONUNBUFFERED": "1", "SCENES": str(SCENES)}


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
    """Without what differs from run to run (pids, users, ages, times, digests) and the width of columns."""
    line = re.sub(r"\s+", " ", line).strip()
    line = re.sub(r"(iB) \d+ \S+ \d+[smhd] ", r"\1 PID USER AGE ", line)  # a row of the table of processes
    line = re.sub(r"\bplan [0-9a-f]{12}\b", "plan DIGEST", line)
    line = re.sub(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?( UTC|Z)", "TIME", line)
    line = re.sub(r"\bpid \d+( ·)? [\w-]+(?= ·|, now| \()", r"pid PID\1 USER", line)
    line = re.sub(r"\bvram ([a-z]+) \d+\b", r"vram \1 PID", line)
    return re.sub(r"\b(child|pid) \d+", r"\1 PID", line)
