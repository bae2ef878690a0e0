"""Programs on the pages run as printed, on the virtual GPU, and print what the page says.

``blocks`` has the comments that say what is done with a block. One more, anywhere on the page:

    <!-- needs MODULE -->   the page is skipped where the module is not installed

Hidden lines above a block make what it looks at: programs that run beside it (``programs/``), or parts of a
machine, `<!-- before: . setup ghost service -->` (``setups/setup.py``).

What differs from run to run (pids, users, ages, times, digests of plans) and the width of columns are not
compared.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from pwd import getpwuid
from queue import Empty, Queue
from threading import Thread
from typing import IO

import pytest

from tests.docs.blocks import Block, blocks
from tests.docs.pages import DOCS, READ, ROOT
from tests.needs import require
from tests.patience import PATIENCE_S
from vram.virtualgpu import VirtualGpu
from vram.virtualgpu.demos import PROGRAMS as DRIVER

NEEDS = re.compile(r"^<!-- needs (\S+) -->$", re.M)
SETUPS = Path(__file__).with_name("setups")
PROGRAMS = Path(__file__).with_name("programs")
PAGES = [
    page
    for page in (ROOT / "README.md", *sorted(DOCS.rglob("*.md")))
    if re.search("<!-- (run|file .*) -->", page.read_text())
]


def test_pages_have_programs() -> None:
    """Or the test below would hold for any page."""
    assert len(PAGES) >= 5


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_programs_of_a_page_print_what_it_says(page: Path, virtual_gpu: VirtualGpu, tmp_path: Path) -> None:
    text = page.read_text()
    require(*NEEDS.findall(text))
    shutil.copytree(PROGRAMS, tmp_path, dirs_exist_ok=True)
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
            # Their commands have tests of their own: test_questions.py and test_readme.py.
            (page.parent.name == "questions" or page.parent == ROOT) and block.language == "sh"
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
        pids = _prepare(shell, block, lines)
        typed = list(commands(block.text)) if block.has_prompts else [(block.text, [])]
        for number, (command, expected) in enumerate(typed, 1):
            command = renamed(command, pids)
            with suppress(BrokenPipeError):  # a command before it failed: the comparison shows it
                shell.stdin.write(command.replace("4711", "${pid-4711}") + "\n")
                shell.stdin.flush()
            if number == len(typed):
                _close(shell.stdin)
            for wanted in expected:
                printed = _next(lines)
                agreed = agree(renamed(wanted, pids), printed)
                assert agreed, f"{command}\nthe page: {wanted}\nprinted:  {printed}"
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


def _prepare(shell: subprocess.Popen[str], block: Block, lines: Queue[str | None]) -> dict[str, str]:
    """Run what the page does not show, and read past what it prints.

    Return the pids of the page, with those that they stand for.
    """
    pids: dict[str, str] = {}
    for note, words in block.notes:
        if note == "before:":
            _silently(shell, [renamed(words, pids)], lines)
        elif note == "process":
            numbers, _, command = words.partition(": ")
            path, said = shlex.quote(f"{DRIVER}:{ROOT}"), f"said-by-{len(pids)}"
            typed = [
                f"rm -f {said}; PYTHONPATH={path} {command} < /dev/null > {said} 2>&1 &",
                f"until read -r line < {said}; do sleep 0.02; done 2> /dev/null; echo $line",
            ]
            *_, first = _silently(shell, typed, lines)
            assert re.fullmatch(r"[\d ]+", first), f"{command}: {first}"
            pids |= zip(numbers.split(), first.split(), strict=True)
    return pids


def _silently(shell: subprocess.Popen[str], typed: list[str], lines: Queue[str | None]) -> list[str]:
    """Run commands, and return what they print."""
    for command in [*typed, "echo ready to begin"]:
        shell.stdin.write(command + "\n")
    shell.stdin.flush()
    printed: list[str] = []
    while (line := _next(lines)) != "ready to begin":
        assert line is not None, f"before the block: {printed}"
        printed.append(line)
    return printed


def renamed(text: str, pids: dict[str, str]) -> str:
    """With the pids of this run instead of the page's."""
    return re.sub(r"\b\d+\b", lambda number: pids.get(number[0], number[0]), text)


def _close(stream: IO[str]) -> None:
    # What was written and never read is written again here, and fails again.
    with suppress(BrokenPipeError):
        stream.close()


def commands(text: str) -> Iterator[tuple[str, list[str]]]:
    for part in re.split(r"^\$ ", text, flags=re.M)[1:]:
        command, *printed = part.splitlines()
        yield command, [line for line in printed if line.strip()]


def environment(folder: Path) -> dict[str, str]:
    """The vram of this interpreter comes first, and what it writes for its user lies below *folder*."""
    path = f"{Path(sys.executable).parent}:{SETUPS}:{os.environ['PATH']}"
    own = {f"XDG_{name}_HOME": str(folder / name.lower()) for name in ("STATE", "CONFIG", "CACHE", "DATA")}
    run = folder / "run"
    run.mkdir(mode=0o700, exist_ok=True)
    return {**os.environ, **own, "XDG_RUNTIME_DIR": str(run), "PATH": path, "PYTHONUNBUFFERED": "1"}


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
    """Without what differs from run to run: pids, users, ports, times, digests, and the width of columns."""
    line = re.sub(r"\s+", " ", line).strip()
    line = re.sub(rf"\b(anna|{re.escape(_own_name())})\b", "USER", line)
    line = re.sub(r"(iB) \d+(\+\d+)? \S+ \d+[smhd] ", r"\1 PID\2 USER AGE ", line)  # a row of processes
    line = re.sub(r"\bplan [0-9a-f]{12}\b", "plan DIGEST", line)
    line = re.sub(r"\b127\.0\.0\.1:\d+", "ADDRESS", line)
    line = re.sub(r"(\b(\d+ min )?\d+(\.\d+)?|…) m?s\b", "TIME", line)
    line = re.sub(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?( UTC|Z)", "MOMENT", line)
    return re.sub(r"\bpid \d+", "pid PID", line)


def _own_name() -> str:
    """As vram names the user who runs it: by the number where it has no name."""
    try:
        return getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
