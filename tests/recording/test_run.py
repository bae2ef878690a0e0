"""`vram run` end to end: programs on a virtual GPU, the recorder in them, and what vram says about it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.needs import skip_without
from tests.recording.conftest import VRAM, Workplace
from vram.units import MIB

PROGRAM = """
context()
def load():
    return [alloc(1 << 20) for _ in range(4)]
held = load()
free(held.pop())
"""


def test_one_line_says_what_was_recorded_and_how_to_read_it(work: Workplace) -> None:
    done = work.record("-o", "trace.vram", program=PROGRAM)
    assert done.returncode == 0
    assert re.fullmatch(
        r"vram: trace\.vram: \d+ events of 1 process, peak 4\.0 MiB on GPU 0; `vram report trace\.vram`\n",
        done.stderr,
    )
    assert work.files() == ["trace.vram"]


def test_the_trace_has_the_lines_that_allocated(work: Workplace) -> None:
    work.record("-o", "trace.vram", program=PROGRAM)
    view = work.view("trace.vram")
    (site,) = [each for each in view.allocations if each.kind == "device"]
    assert (site.count, site.nbytes) == (4, 4 * MIB)
    functions = [frame.function for frame in view.stacks[site.stack].frames]
    assert functions[0] == "alloc"
    assert "load" in functions


def test_without_a_name_it_is_named_after_the_command(work: Workplace) -> None:
    work.record(program=PROGRAM)
    (name,) = work.files()
    assert re.fullmatch(r"vram-trace-python[\d.]*-\d+\.vram", name)


def test_children_are_recorded_and_become_one_file(work: Workplace) -> None:
    child = f"{sys.executable} -c {work.quoted(PROGRAM)}"
    done = work.vram("run", "-o", "trace.vram", "--", "sh", "-c", f"{child} & {child} & wait")
    assert "of 2 processes" in done.stderr
    assert work.files() == ["trace.vram"]
    assert len({process.pid for process in work.view("trace.vram").processes}) == 2


def test_input_and_output_are_the_commands_alone(work: Workplace) -> None:
    argv = [sys.executable, "-m", "vram", "run", "--", "sh", "-c", "cat; echo error >&2"]
    done = subprocess.run(
        argv, input=b"\x00in\xff", env=work.environment, cwd=work.folder, capture_output=True, check=True
    )
    assert done.stdout == b"\x00in\xff"
    assert done.stderr.startswith(b"error\nvram: nothing was recorded")


@pytest.mark.parametrize("closing", [True, False])
def test_nobody_reads_what_vram_says_and_the_exit_code_is_the_same(work: Workplace, closing: bool) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    script = 'exec "$@" 2>&-' if closing else 'exec "$@"'
    argv = ["sh", "-c", script, "sh", *VRAM, "run", "--", "sh", "-c", "exit 3"]
    try:
        done = subprocess.run(argv, env=work.environment, cwd=work.folder, stderr=writing, check=False)
    finally:
        os.close(writing)
    assert done.returncode == 3


def test_a_command_that_uses_no_cuda_is_said_to(work: Workplace) -> None:
    done = work.vram("run", "--", "true")
    assert done.returncode == 0
    assert "the command used no CUDA" in done.stderr
    assert work.files() == []


@pytest.mark.parametrize(
    ("command", "code"), [(["sh", "-c", "exit 9"], 9), (["no-such-command"], 127), (["/"], 126)]
)
def test_the_exit_code_is_the_commands(work: Workplace, command: list[str], code: int) -> None:
    assert work.vram("run", "--", *command).returncode == code


class TestNothingIsLaunched:
    """What is wrong beforehand is a usage error."""

    @pytest.mark.parametrize(
        ("words", "reason"),
        [
            (["-o", "missing/trace.vram"], "there is no folder"),
            (["-o", "taken"], "exists already"),
            (["-o", "."], "is a folder"),
            (["--check", "leaks"], "is not a check"),
            (["--check", "peak=8"], "has no unit"),
            (["--fail-at", "0"], "from 1"),
            (["--fail-at", "soon"], "is not a size"),
            (["--pretend", "24"], "has no unit"),
            (["--native", "--no-stacks"], "not allowed with"),
            (["--live"], "needs a terminal"),
        ],
    )
    def test_wrong_words(self, work: Workplace, words: list[str], reason: str) -> None:
        (work.folder / "taken").touch()
        done = work.vram("run", *words, "--", "touch", "launched")
        assert done.returncode == 2
        assert reason in done.stderr
        assert work.files() == ["taken"]

    def test_a_folder_that_cannot_be_written(self, work: Workplace) -> None:
        done = work.vram("run", "-o", "/proc/trace.vram", "--", "touch", "launched")
        assert done.returncode == 2
        assert "cannot write to /proc" in done.stderr
        assert work.files() == []

    def test_a_command_without_dashes(self, work: Workplace) -> None:
        done = work.vram("run", "touch", "launched")
        assert done.returncode == 2
        assert "vram run -- touch launched" in done.stderr


def test_force_replaces_the_trace(work: Workplace) -> None:
    (work.folder / "trace.vram").write_text("old")
    assert work.record("-o", "trace.vram", "--force", program=PROGRAM).returncode == 0
    assert work.view("trace.vram").events > 0


class TestTheProgramAlwaysRuns:
    """Whatever keeps the recorder from working is one sentence, and a check that was asked for fails."""

    def run(self, work: Workplace, reason: str, **environment: str) -> None:
        program = "context(); free(alloc(1)); say('done')"
        done = work.record("--check", "leaks=0", program=program, **environment)
        assert done.stdout == "done\n"
        assert reason in done.stderr
        assert "check leaks=0 failed: it cannot be judged, there is no trace" in done.stderr
        assert done.returncode == 90
        assert work.files() == []

    def test_another_tool_has_its_place(self, work: Workplace) -> None:
        self.run(work, "CUDA_INJECTION64_PATH is set already", CUDA_INJECTION64_PATH="/opt/other/tool.so")

    def test_another_tools_place_is_left_to_it(self, work: Workplace) -> None:
        taken = {"CUDA_INJECTION64_PATH": "/opt/other/tool.so"}
        done = work.vram("run", "--", "env", **taken)
        assert "CUDA_INJECTION64_PATH=/opt/other/tool.so\n" in done.stdout
        assert "VRAM_TRACE" not in done.stdout

    def test_cupti_is_nowhere(self, work: Workplace) -> None:
        # Files that are no libraries: the loader ends its search there.
        for name in ("libcupti.so", "libcupti.so.12", "libcupti.so.13"):
            file = work.gpu.folder / "lib" / name
            file.unlink(missing_ok=True)
            file.write_text("none")
        self.run(work, "CUPTI was not found", CUDA_HOME="/nonexistent")

    def test_cupti_has_a_subscriber(self, work: Workplace) -> None:
        self.run(work, "another tool in it uses CUPTI", VRAM_VIRTUAL_CUPTI_ERROR="39")

    def test_cupti_does_not_work(self, work: Workplace) -> None:
        self.run(work, "CUPTI does not work", VRAM_VIRTUAL_CUPTI_ERROR="999")


def test_a_program_of_another_architecture_is_named(work: Workplace) -> None:
    """The loader refuses our library there, and the driver says nothing."""
    program = work.folder.with_name("other")
    program.write_bytes(exit_of_32_bits())
    program.chmod(0o700)
    try:
        subprocess.run([program], check=True)
    except OSError:
        skip_without("kernel", "this kernel runs no 32-bit programs")
    done = work.vram("run", "--", program)
    assert done.returncode == 0
    assert "a program for another processor" in done.stderr


def exit_of_32_bits() -> bytes:
    """An i386 program that ends at once: mov eax, 1; xor ebx, ebx; int 0x80."""
    code = bytes.fromhex("b80100000031dbcd80")
    base, at = 0x08048000, 52 + 32
    header = b"\x7fELF\x01\x01\x01".ljust(16, b"\0")
    header += b"".join(
        number.to_bytes(size, "little")
        for number, size in (
            *((2, 2), (3, 2), (1, 4), (base + at, 4), (52, 4), (0, 4), (0, 4)),
            *((52, 2), (32, 2), (1, 2), (40, 2), (0, 2), (0, 2)),
        )
    )
    length = at + len(code)
    segment = b"".join(n.to_bytes(4, "little") for n in (1, 0, base, base, length, length, 5, 0x1000))
    return header + segment + code


class TestChecks:
    LEAK = """
context()
def forget():
    alloc(3 << 20)
import time
for _ in range(40):
    forget()
    free(alloc(1))
    time.sleep(0.002)
"""

    def test_a_leak_fails_with_its_place(self, work: Workplace) -> None:
        done = work.record("-o", "t", "--check", "leaks=0", program=self.LEAK)
        assert done.returncode == 90
        assert "check leaks=0 failed: 40 allocations never freed" in done.stderr
        assert re.search(
            r"120\.0 MiB in 40 allocations, growing: alloc  \S+program\.py:\d+ ← forget", done.stderr
        )

    def test_what_holds_exits_with_zero(self, work: Workplace) -> None:
        checks = ("--check", "leaks=40", "--check", "peak=121MiB", "--check", "failures=0")
        assert work.record("-o", "t", *checks, program=self.LEAK).returncode == 0

    def test_a_peak_is_judged(self, work: Workplace) -> None:
        done = work.record("-o", "t", "--check", "peak=100MiB", program=self.LEAK)
        assert done.returncode == 90
        assert "check peak=100MiB failed: 120.0 MiB on GPU 0" in done.stderr

    def test_the_commands_own_code_wins(self, work: Workplace) -> None:
        done = work.record("-o", "t", "--check", "peak=1MiB", program=f"{self.LEAK}\nsys.exit(5)")
        assert done.returncode == 5
        assert "check peak=1MiB failed" in done.stderr

    def test_failures_are_counted(self, work: Workplace) -> None:
        tries = (
            "[cuda.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(1 << 50)) for _ in '123']"
        )
        program = f"context()\n{tries}"
        done = work.record("-o", "t", "--check", "failures=2", program=program)
        assert done.returncode == 90
        assert "check failures=2 failed: 3 allocations failed" in done.stderr


class TestFailAt:
    TRIES = """
context()
def tried(n):
    return cuda.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(n))
say(*(tried(n) for n in (1, 2, 3, 4 << 20, 5)))
"""

    def test_by_number(self, work: Workplace) -> None:
        assert work.record("--fail-at", "2", program=self.TRIES).stdout == "0 2 0 0 0\n"

    def test_by_size(self, work: Workplace) -> None:
        assert work.record("--fail-at", "1MiB", program=self.TRIES).stdout == "0 0 0 2 0\n"


def test_vram_inside_vram_records_for_the_inner_one(work: Workplace) -> None:
    inner = f"{sys.executable} -m vram run -o inner.vram -- {sys.executable} -c {work.quoted(PROGRAM)}"
    done = work.vram("run", "-o", "outer.vram", "--", "sh", "-c", inner)
    assert "inner.vram: " in done.stderr
    assert work.files() == ["inner.vram"]


def test_a_process_that_outlives_the_command_is_named(work: Workplace, tmp_path: Path) -> None:
    end = tmp_path / "end"
    os.mkfifo(end)
    program = f"{PROGRAM}\nsay('recorded'); open({str(end)!r}).read()"
    script = f"{sys.executable} -c {work.quoted(program)} & read line"
    process = work.start_vram("run", "-o", "t", "--", "sh", "-c", script)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == "recorded\n"
    process.stdin.write("\n")
    process.stdin.flush()
    said = process.stderr.readline()
    assert process.wait() == 0
    left = re.fullmatch(r"vram: pid (\d+) still runs and is recorded into (\S+)\n", said)
    assert left is not None
    assert work.files() == [f"t.{left[1]}.part"] == [left[2]]
    assert work.view(left[2]).events > 0
    end.write_text("")  # it has the pipe open, and ends now


def test_private_files_are_removed(work: Workplace, tmp_path: Path) -> None:
    work.record("-o", "trace.vram", program=PROGRAM)
    assert not list(tmp_path.glob("vram-run-*"))
    assert (work.folder / "trace.vram").stat().st_mode & 0o777 == 0o600
