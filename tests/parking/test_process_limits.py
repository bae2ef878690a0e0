"""Host memory, control groups and NCCL peers, read from trees like /proc and /sys/fs/cgroup."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vram.host.local.process_limits import LocalProcessLimits
from vram.units import GIB, MIB

STAT = "7 (a b) c) S 1 7 7 0 -1 4194304 0 0 0 0 150 50 0 0 20 0 1 0 100 0 0\n"


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    root = tmp_path / "proc"
    (root / "7").mkdir(parents=True)
    (root / "meminfo").write_text("MemTotal:       33554432 kB\nMemAvailable:   16777216 kB\n")
    (root / "7" / "stat").write_text(STAT)
    (root / "7" / "cgroup").write_text("0::/user.slice/job.scope\n")
    (root / "7" / "maps").write_text("7f00-7f01 r-xp 00000000 00:00 0 /lib/libc.so.6\n")
    (root / "7" / "environ").write_bytes(b"WORLD_SIZE=8\0HOME=/home/ana\0")
    return root


def signs(proc: Path, groups: Path | None = None) -> LocalProcessLimits:
    return LocalProcessLimits(str(proc), str(groups or proc / "none"))


def group(root: Path, path: str, **files: object) -> None:
    folder = root / path
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("_", ".", 1)).write_text(f"{text}\n")


def test_without_a_limit_the_machine_decides(proc: Path) -> None:
    limits = signs(proc).read(7)
    assert (limits.memory_left, limits.memory_total, limits.memory_limited_by) == (16 * GIB, 32 * GIB, None)
    assert limits.cpu_s == 200 / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize(("states", "runnable"), [("S", False), ("SR", True), ("SD", False), ("", False)])
def test_one_thread_that_could_run_is_enough(proc: Path, states: str, runnable: bool) -> None:
    for thread, state in enumerate(states, 7):
        (proc / "7" / "task" / str(thread)).mkdir(parents=True)
        line = f"{thread} (a) R (b)) {state} 1 7 7 0" + " 0" * 44
        (proc / "7" / "task" / str(thread) / "stat").write_text(line)
    assert signs(proc).read(7).runnable is runnable


def test_the_tightest_level_of_the_group_decides(proc: Path, tmp_path: Path) -> None:
    groups = tmp_path / "cgroup"
    group(groups, "user.slice", memory_max=6 * GIB, memory_current=4 * GIB)
    group(groups, "user.slice/job.scope", memory_max="max", memory_current=1 * GIB)
    limits = signs(proc, groups).read(7)
    assert (limits.memory_left, limits.memory_limited_by) == (2 * GIB, "/user.slice")


def test_files_that_can_be_dropped_count_as_left(proc: Path, tmp_path: Path) -> None:
    groups = tmp_path / "cgroup"
    stat = f"anon 5\ninactive_file {512 * MIB}\nactive_file 7"
    group(groups, "user.slice/job.scope", memory_max=2 * GIB, memory_current=2 * GIB, memory_stat=stat)
    assert signs(proc, groups).read(7).memory_left == 512 * MIB


def test_version_1_of_the_groups_is_read_too(proc: Path, tmp_path: Path) -> None:
    groups = tmp_path / "cgroup"
    (proc / "7" / "cgroup").write_text("5:cpu,cpuacct:/elsewhere\n4:memory:/docker/abc\n")
    folder = groups / "memory" / "docker" / "abc"
    folder.mkdir(parents=True)
    (folder / "memory.limit_in_bytes").write_text(f"{3 * GIB}\n")
    (folder / "memory.usage_in_bytes").write_text(f"{1 * GIB}\n")
    limits = signs(proc, groups).read(7)
    assert (limits.memory_left, limits.memory_limited_by) == (2 * GIB, "/docker/abc")


def test_a_group_outside_of_our_namespace_is_not_searched_for(proc: Path, tmp_path: Path) -> None:
    (proc / "7" / "cgroup").write_text("0::/../../somebody\n")
    assert signs(proc, tmp_path).read(7).memory_left == 16 * GIB


@pytest.mark.parametrize(
    ("maps", "environ", "peers"),
    [
        ("/lib/libc.so.6", b"WORLD_SIZE=8\0", False),
        ("/lib/libnccl.so.2", b"HOME=/\0", False),
        ("/lib/libnccl.so.2", b"WORLD_SIZE=1\0", False),
        ("/lib/libnccl.so.2", b"WORLD_SIZE=x\0", False),
        ("/lib/libnccl.so.2", b"WORLD_SIZE=8\0", True),
        ("/lib/libnccl.so.2", b"OMPI_COMM_WORLD_SIZE=2\0", True),
        ("/lib/libnccl.so.2\n7f02-7f03 rw-s 0 00:00 0 /dev/shm/nccl-X1 (deleted)", b"", True),
    ],
)
def test_nccl_counts_only_with_peers(proc: Path, maps: str, environ: bytes, peers: bool) -> None:
    (proc / "7" / "maps").write_text(f"7f00-7f01 r-xp 00000000 00:00 0 {maps}\n")
    (proc / "7" / "environ").write_bytes(environ)
    assert bool(signs(proc).read(7).nccl_peers) is peers


def test_a_process_that_is_gone_has_no_limits_of_its_own(proc: Path) -> None:
    limits = signs(proc).read(8)
    assert (limits.memory_left, limits.cpu_s, limits.nccl_peers) == (16 * GIB, None, None)
