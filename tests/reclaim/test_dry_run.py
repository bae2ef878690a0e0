"""A dry run makes no mutating call: every system call of it is looked at."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from tests.ghosts.conftest import held_by
from tests.needs import require, skip_without
from tests.reclaim.conftest import Bench
from vram.units import GIB

CHANGES_FILES = (
    *("unlink", "unlinkat", "rename", "renameat", "renameat2", "mkdir", "mkdirat", "rmdir", "link", "linkat"),
    *("symlink", "symlinkat", "chmod", "fchmod", "fchmodat", "chown", "fchown", "fchownat", "lchown"),
    *("truncate", "ftruncate", "fallocate", "mknod", "mknodat", "setxattr", "utimensat", "creat"),
)
CHANGES_PROCESSES = (
    *("ptrace", "process_vm_writev", "process_madvise", "setpriority", "sched_setaffinity", "prlimit64"),
    *("setns", "mount", "umount2", "kexec_load", "reboot"),
)
SIGNALS = ("kill", "tkill", "tgkill", "pidfd_send_signal", "rt_sigqueueinfo", "rt_tgsigqueueinfo")
STARTED = re.compile(
    r"^(\d+) .*(?:clone3?|fork|vfork)\(.*= (\d+)$|^(\d+) .*(?:clone3?|fork|vfork) resumed.*= (\d+)$"
)


def traced(machine: Bench, log: Path, *words: str) -> list[str]:
    """Run vram under strace; return its system calls that may change something."""
    calls = ",".join(
        (*CHANGES_FILES, *CHANGES_PROCESSES, *SIGNALS, "open", "openat", "openat2", "clone", "clone3")
    )
    argv = [
        "strace",
        "-f",
        "-qq",
        "-s",
        "256",
        "--decode-fds=all",
        f"--trace={calls},fork,vfork",
        "-o",
        str(log),
    ]
    done = machine.run([*argv, sys.executable, "-B", "-m", "vram", *words])
    if "ptrace" in done.stderr or not log.exists():
        skip_without("ptrace", f"strace may not trace here: {done.stderr.strip()}")
    # A plan that was only shown has given nothing back.
    assert done.returncode == (1 if "--dry-run" in words else 0), done.stderr
    return log.read_text().splitlines()


def own_pids(lines: list[str]) -> set[str]:
    found = {lines[0].split()[0]}
    for line in lines:
        if match := STARTED.match(line):
            found.add(match[2] or match[4])
    return found


def called(line: str) -> str:
    return line.split(maxsplit=1)[1].partition("(")[0]


def opened_for_writing(line: str, devices: str) -> bool:
    if not called(line).startswith("open") or not re.search(r"O_WRONLY|O_RDWR|O_CREAT|O_TRUNC", line):
        return False
    # A driver is opened to be asked, by nvidia-smi too; asking changes nothing.
    return not re.search(rf'"({re.escape(devices)}[^"]*|/dev/null|/dev/nvidia[^"]*)"', line)


def changes_something(line: str, devices: str) -> bool:
    if called(line) == "prlimit64" and "NULL, {" in line:
        return False  # it only asks
    # What the virtual driver does in its folder is what a kernel does inside itself.
    return called(line) in (*CHANGES_FILES, *CHANGES_PROCESSES) and devices not in line


def signals_a_stranger(line: str, ours: set[str]) -> bool:
    if called(line) not in SIGNALS:
        return False
    numbers = set(re.findall(r"<pid:(\d+)>|\((\d+),", line)[0])
    return not numbers & ours


@pytest.fixture
def strace(machine: Bench) -> Bench:
    require("strace")
    return machine


WORDS = [
    ("free", "--more", "1GiB", "--dry-run"),
    ("free", "--finding", "VR101", "--dry-run"),
    ("free", "--up-to", "kill", "--dry-run", "--json"),
]


@pytest.mark.fault(17)
@pytest.mark.parametrize("words", WORDS, ids=[" ".join(words) for words in WORDS])
def test_a_dry_run_makes_no_mutating_call(strace: Bench, tmp_path: Path, words: tuple[str, ...]):
    machine = strace
    orphan = machine.demo("forks.orphan", 2 * GIB)
    orphan.kill("parent")
    lines = traced(machine, tmp_path / "calls", *words)
    ours = own_pids(lines)
    folder = machine.environment().get("VRAM_VIRTUAL_GPU", "/dev/nvidia")
    assert [line for line in lines if changes_something(line, folder)] == []
    assert [line for line in lines if opened_for_writing(line, folder)] == []
    assert [line for line in lines if signals_a_stranger(line, ours)] == []
    assert not machine.state.exists()
    assert held_by(machine.why(), orphan.pids["child"]) > 2 * GIB


@pytest.mark.fault(17)
def test_the_same_watch_sees_a_run_act(strace: Bench, tmp_path: Path):
    """The control: what the test above looks for is there when something is done."""
    machine = strace
    orphan = machine.demo("forks.orphan", 1 * GIB)
    orphan.kill("parent")
    lines = traced(machine, tmp_path / "calls", "free", "--finding", "VR101", "--yes")
    ours = own_pids(lines)
    assert [line for line in lines if signals_a_stranger(line, ours)]
    assert [line for line in lines if opened_for_writing(line, machine.environment()["VRAM_VIRTUAL_GPU"])]
    assert machine.state.exists()


@pytest.mark.fault(17)
def test_a_dry_run_has_the_digest_of_the_run(machine: Bench):
    orphan = machine.demo("forks.orphan", 1 * GIB)
    orphan.kill("parent")
    dry = machine.ask("free", "--finding", "VR101", "--dry-run")
    assert dry["receipt"] is None
    run = machine.ask("free", "--finding", "VR101", "--yes")
    assert run["receipt"]["digest"] == run["plan"]["digest"] == dry["plan"]["digest"]
    assert not os.path.exists(f"/proc/{orphan.pids['child']}/fd/0")
