"""Rows 22, 23 and 25 of the fault table: the traced process is killed, its disk fills up, it forks."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.record import Tally
from tests.needs import skip_without
from tests.recording.conftest import Workplace

KILLS = int(os.environ.get("VRAM_TRACE_KILLS", "12"))
DISK_NBYTES = 320 * 1024

# Allocations get one byte larger each; what is complete is said on a pipe, after the call.
KILLED = """
import threading
made = context()
def work(first):
    check(cuda.cuCtxSetCurrent(made))
    for number in range(first, first + 100_000):
        free(alloc(number))
        os.write(1, number.to_bytes(4, "little"))
for index in range(1, 3):
    threading.Thread(target=work, args=(index * 1_000_000,)).start()
work(0x100000 * 8)
"""


@pytest.mark.fault(22)
def test_a_process_that_is_killed_leaves_a_readable_trace(work: Workplace, tally: Tally) -> None:
    """At most the record that each thread was writing is lost; VRAM_TRACE_KILLS=3000 tries longer."""
    chance = random.Random(22)
    code = f"from program import *\n{KILLED}"
    environment = work.recorder_environment("trace")
    for _ in range(KILLS):
        reading, writing = os.pipe()
        process = subprocess.Popen(
            [sys.executable, "-c", code], env=environment, stdout=writing, cwd=work.folder
        )
        os.close(writing)
        said = os.read(reading, 4)  # it has begun
        wanted = chance.randrange(4, 4000 * 4)
        while len(said) < wanted:
            said += os.read(reading, wanted - len(said))
        process.send_signal(signal.SIGKILL)
        process.wait()
        while part := os.read(reading, 1 << 16):
            said += part
        os.close(reading)
        (name,) = work.files()
        wrong = _lost(work, name, said)
        tally.count(wrong=bool(wrong))
        assert not wrong, wrong
        (work.folder / name).unlink()


def _lost(work: Workplace, name: str, said: bytes) -> list[str]:
    """What is missing of it. What a thread has said is complete; only what it did after that may be lost."""
    view = work.view(name)
    (process,) = view.processes
    if process.end != "cut" or process.unreadable_chunks or view.damage:
        return [
            f"it ends by {process.end!r}, {process.unreadable_chunks} chunks are unreadable: {view.damage}"
        ]
    done = {int.from_bytes(said[at : at + 4], "little") for at in range(0, len(said) // 4 * 4, 4)}
    allocated, freed = work.sizes(name)
    missing = [f"allocation {number} is lost" for number in sorted(done - allocated)]
    return missing + [f"free {number} is lost" for number in sorted(done - freed)]


class TestDiskFull:
    """Row 23: recording ends with a marker; the program goes on, and no signal reaches it."""

    PROGRAM = """
context()
for number in range(20_000):
    free(alloc(4096))
say("done")
"""

    @pytest.fixture
    def small_disk(self, work: Workplace) -> Iterator[Path]:
        """A file system with room for four chunks, where the kernel lets us mount one."""
        place = work.folder / "disk"
        place.mkdir()
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={DISK_NBYTES},mode=0700", "none", place],
            capture_output=True,
            check=False,
        )
        if mounted.returncode:
            skip_without("mounts", "nothing may be mounted here")
        yield place
        subprocess.run(["umount", "-l", place], check=True)

    def holds(self, work: Workplace, done: subprocess.CompletedProcess[str], name: str) -> None:
        assert done.stdout == "done\n"
        assert "recording ended early: no space is left for the trace; the program went on" in done.stderr
        assert "check leaks=0 failed: it cannot be judged" in done.stderr
        assert done.returncode == 90
        view = work.view(name)
        assert view.processes[0].end == "disk full"
        assert 1000 < view.events < 40_000

    @pytest.mark.fault(23)
    def test_the_file_system_is_full(self, work: Workplace, small_disk: Path) -> None:
        options = ("-o", "disk/trace.vram", "--check", "leaks=0")
        self.holds(work, work.record(*options, program=self.PROGRAM), "disk/trace.vram")

    @pytest.mark.fault(23)
    def test_a_limit_on_the_size_of_files(self, work: Workplace) -> None:
        """Where the kernel would send SIGXFSZ, which ends a program."""
        limit = (
            "import resource\ncontext(); alloc(1)\nresource.setrlimit(resource.RLIMIT_FSIZE, (200_000,) * 2)"
        )
        options = ("-o", "trace.vram", "--check", "leaks=0")
        self.holds(work, work.record(*options, program=f"{limit}\n{self.PROGRAM}"), "trace.vram")

    @pytest.mark.fault(23)
    def test_no_room_for_the_first_page(self, work: Workplace, small_disk: Path) -> None:
        (small_disk / "filler").write_bytes(bytes(DISK_NBYTES - 8192))
        done = work.record("-o", "disk/trace.vram", program="context(); free(alloc(1)); say('done')")
        assert done.stdout == "done\n"
        assert "was not recorded: the trace could not be written" in done.stderr
        assert sorted(os.listdir(small_disk)) == ["filler"]

    def test_no_room_for_joining_several_parts(self, work: Workplace, small_disk: Path) -> None:
        """Both stay as they are, and are named."""
        program = "context()\nfor _ in range(4000): free(alloc(4096))"
        child = f"{sys.executable} -c {work.quoted(program)}"
        done = work.vram("run", "-o", "disk/trace.vram", "--", "sh", "-c", f"{child}; {child}")
        assert done.returncode == 0
        assert "the parts were not joined: No space left on device" in done.stderr
        parts = sorted(os.listdir(small_disk))
        assert len(parts) == 2
        assert all(re.fullmatch(r"trace\.vram\.\d+\.part", name) for name in parts)
        assert all(work.view(f"disk/{name}").events > 1000 for name in parts)


class TestFork:
    """Row 25: a forked child has a file of its own, and writes nothing into its parent's."""

    @pytest.mark.fault(25)
    def test_before_cuda_is_used(self, work: Workplace) -> None:
        program = """
import time
children = []
for index in range(3):
    pid = os.fork()
    if not pid:
        context(); alloc(1000 + index)
        sys.exit()
    children.append(pid)
context(); alloc(999)
for pid in children: os.waitpid(pid, 0)
"""
        done = work.record("-o", "trace.vram", program=program)
        assert done.returncode == 0, done.stderr
        assert "of 4 processes" in done.stderr
        view = work.view("trace.vram")
        by_process = {
            site.process: site.nbytes
            for site in view.allocations
            if site.kind == "device" and site.count == 1
        }
        assert sorted(by_process.values()) == [999, 1000, 1001, 1002]

    @pytest.mark.fault(25)
    def test_while_it_is_recorded(self, work: Workplace) -> None:
        """CUDA does not work in such a child; what it says itself goes into a file of its own."""
        program = """
import threading
made = context()
def work():
    check(cuda.cuCtxSetCurrent(made))
    for number in range(3000): free(alloc(4096 + number))
threads = [threading.Thread(target=work) for _ in range(2)]
for each in threads: each.start()
library = ctypes.CDLL(os.environ["CUDA_INJECTION64_PATH"])
for index in range(20):
    pid = os.fork()
    if not pid:
        library.vram_tracer_mark(b"child %d" % index)
        os._exit(0)
    os.waitpid(pid, 0)
for each in threads: each.join()
"""
        done = work.record("-o", "trace.vram", program=program)
        assert done.returncode == 0, done.stderr
        view = work.view("trace.vram")
        assert len(view.processes) == 21
        first, *children = sorted(view.processes, key=lambda each: each.forked)
        assert not first.forked
        assert first.unreadable_chunks == 0
        assert all(child.forked and child.parent_pid == first.pid for child in children)
        assert sorted(mark.text for mark in view.marks) == sorted(f"child {index}" for index in range(20))
        (site,) = [each for each in view.allocations if each.kind == "device"]
        assert (site.process, site.count) == (first.index, 6000)
