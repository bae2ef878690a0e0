"""``vram demo`` shows computed answers, frees the memory by its own commands, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.patience import until_ended
from vram.virtualgpu.demos import DEMOS

pytestmark = pytest.mark.usefixtures("native_libraries")


def start(*words: str, **changes: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "COLUMNS": "80", **changes}
    command = [sys.executable, "-m", "vram", "demo", *words]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True, encoding="utf-8"
    )


def demo(*words: str, **changes: str) -> tuple[int, str, str]:
    """Run the demo to its end; return its exit code and what it wrote."""
    process = start(*words, **changes)
    out, err = process.communicate()
    return process.returncode, out, err


def test_each_demo_shows_an_answer_and_frees_memory() -> None:
    """Its question, what `vram why` answers, the remedy, and bytes measured again after it."""
    code, out, err = demo()
    assert (code, err) == (0, "")
    shown = [out[out.index(each.question) :] for each in DEMOS]
    assert shown == sorted(shown, key=len, reverse=True)
    assert len(re.findall(r"; freed: [\d.]+ [MG]iB$", out, re.MULTILINE)) == len(DEMOS)
    assert len(re.findall(r"^\$ vram why\n(?:│.*\n)*│ GPU 0\b", out, re.MULTILINE)) == len(DEMOS)
    assert max(map(len, out.splitlines())) <= 80
    assert "VR103" in out
    names_the_processes_of_the_fork(out)


def names_the_processes_of_the_fork(out: str) -> None:
    """A dead parent's memory is explained by its child: the very processes that the demo made."""
    parent = re.search(r"^Process (\d+) allocated 4 GiB, forked", out, re.MULTILINE)
    assert parent
    answer, remedy = re.findall(r"^\$ vram .*\n((?:│.*\n)+)", out[parent.start() :], re.MULTILINE)[:2]
    child = re.search(r"\bpid (\d+)", remedy)
    assert child
    assert "VR101" in answer
    assert re.search(rf"\b{child[1]}\b", answer)
    assert re.search(rf"\b{parent[1]}\b", answer)


@pytest.mark.parametrize(
    ("name", "remedy"), [("fork", r"vram free --yes"), ("export", r"vram kill \d+ --yes")]
)
def test_memory_of_a_dead_process_is_freed_by_vram(name: str, remedy: str, tmp_path: Path) -> None:
    """And the user's own log does not hear of it: nothing of theirs was touched."""
    code, out, err = demo(name, XDG_STATE_HOME=str(tmp_path))
    assert (code, err) == (0, "")
    assert re.search(rf"^\$ {remedy}$", out, re.MULTILINE)
    assert "; freed: 4." in out
    assert not list(tmp_path.rglob("audit.jsonl"))


def test_a_remedy_that_is_refused_leaves_it_to_the_program(tmp_path: Path) -> None:
    """Here the driver cannot park: the refusal is shown, and the processes end instead."""
    shell = tmp_path / "shell"
    shell.write_text("#!/bin/sh\nvram virtual fault 'cuCheckpointProcessLock* error=801'\n")
    shell.chmod(0o700)
    code, out, _ = demo("context", "--keep", SHELL=str(shell))
    assert code == 0
    refused = out[out.index("$ vram park ") :]
    assert refused.index("│ vram:") < refused.index("The four idle processes end.")
    assert "; freed: 2." in refused


def test_colour_and_unicode_only_where_they_are_wanted() -> None:
    _, plain, _ = demo("context", "--ascii")
    assert plain.isascii()
    assert "\x1b" not in plain
    _, colored, _ = demo("context", FORCE_COLOR="1")
    assert "\x1b[" in colored
    _, refused, _ = demo("context", "--no-color", FORCE_COLOR="1")
    assert "\x1b" not in refused


def test_the_whole_account_is_shown_when_asked_for() -> None:
    """The screen has what matters; --full has every byte, to the total."""
    _, full, _ = demo("export", "--full")
    assert "\n$ vram why -v\n" in full
    assert "25,769,803,776" in full
    assert "VR103" in full


def test_the_demos_can_be_listed() -> None:
    code, out, _ = demo("--list")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == [demo.name for demo in DEMOS]


def test_an_unknown_demo_is_a_usage_error() -> None:
    code, out, err = demo("forks")
    assert (code, out) == (2, "")
    assert "'forks'" in err
    assert "fork" in err.splitlines()[1]


def test_a_picture_shows_three_causes_at_once(tmp_path: Path) -> None:
    code, out, err = demo("--svg", str(tmp_path / "why.svg"))
    assert (code, out, err) == (0, "", "")
    picture = (tmp_path / "why.svg").read_text()
    assert picture.startswith("<svg")
    for name in ("VR101", "VR103", "pools.py"):
        assert name in picture


def test_keep_opens_a_shell_on_the_demos_gpu_and_cleans_up_after_it(tmp_path: Path) -> None:
    """The shell runs on the demo's GPU; once it has ended the demo goes on and its folder goes."""
    shell = tmp_path / "shell"
    shell.write_text('#!/bin/sh\necho "$VRAM_VIRTUAL_GPU" >"$NOTES/folder"\nvram check >"$NOTES/check"\n')
    shell.chmod(0o700)
    code, out, _ = demo("pool", "--keep", SHELL=str(shell), NOTES=str(tmp_path))
    assert code == 0
    assert "; freed: " in out
    assert "6.5 GiB" in (tmp_path / "check").read_text()
    assert not Path((tmp_path / "folder").read_text().strip()).exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_demo_leaves_nothing_behind(number: signal.Signals, tmp_path: Path) -> None:
    """Neither a process of the demo, orphans included, nor the virtual GPU's folder."""
    process = start("fork", MARK=str(tmp_path))
    assert process.stdout is not None
    line = next(line for line in process.stdout if line.startswith("Process "))
    assert "was killed" in line
    # What the demo has just forked still has the demo's own environment, until it execs.
    demo = {pid: found["VRAM_VIRTUAL_GPU"] for pid, found in marked(tmp_path) if "VRAM_VIRTUAL_GPU" in found}
    pidfds = [os.pidfd_open(pid) for pid in demo]
    folders = set(map(Path, demo.values()))
    assert len(folders) == 1
    process.send_signal(number)
    process.communicate()
    assert process.returncode == 128 + number
    assert not any(folder.exists() for folder in folders)
    for pidfd in pidfds:
        # What an interrupted `vram why` had started ends of itself, a moment after it.
        until_ended(pidfd)
        os.close(pidfd)


def marked(mark: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Find every process whose environment carries *mark*: an orphan cannot be found by its parent."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            lines = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
            environment = dict(line.partition("=")[::2] for line in lines)
            if environment.get("MARK") == str(mark):
                yield int(folder.name), environment
