"""Folders that vanish, names that somebody else chose, files that others planted, ends that come early."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S
from tests.recording.conftest import VRAM, Workplace
from tests.recording.test_output import OTHER_RUN, RUN, part
from tests.trace.writer import TraceFile
from vram.cli.tracing import trace_line
from vram.errors import UsageError
from vram.top.run_live import last_lines
from vram.trace import cupti, output
from vram.trace.launch import read_messages
from vram.trace.output import default_name, require_writable
from vram.trace.reader import Follower

USE = "context(); alloc(1 << 20)"
FOREVER = f"import time\n{USE}\nopen('ready', 'w').close()\ntime.sleep(600)"


def in_gone_folder(work: Workplace, *words: str) -> subprocess.CompletedProcess[str]:
    """vram, started in a folder that was removed."""
    script = 'mkdir gone && cd gone && rmdir ../gone && exec "$@"'
    return subprocess.run(
        ["sh", "-c", script, "sh", *VRAM, *words],
        env=work.environment,
        cwd=work.folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


class TestTheWorkingFolderIsGone:
    def test_a_trace_needs_its_whole_path(self, work: Workplace) -> None:
        done = in_gone_folder(work, "run", "--", "true")
        assert done.returncode == 2
        assert "the working folder does not exist any more" in done.stderr
        with_path = in_gone_folder(work, "run", "-o", str(work.folder / "t.vram"), "--", "sh", "-c", "exit 3")
        assert with_path.returncode == 3

    def test_the_command_removes_it_and_keeps_its_exit_code(self, work: Workplace) -> None:
        program = f"{USE}\nimport shutil\nshutil.rmtree(os.getcwd())\nsys.exit(3)"
        (work.folder / "inner").mkdir()
        script = (
            f'cd inner && exec "$@" -o {work.folder}/t.vram -- {sys.executable} -c {work.quoted(program)}'
        )
        done = subprocess.run(
            ["sh", "-c", script, "sh", *VRAM, "run"],
            env=work.environment,
            cwd=work.folder,
            stderr=-1,
            text=True,
        )
        assert done.returncode == 3
        assert f"{work.folder}/t.vram: 2 events" in done.stderr

    def test_the_folder_of_the_trace_is_gone(self, work: Workplace) -> None:
        (work.folder / "inner").mkdir()
        done = work.record("-o", "inner/t.vram", program=f"{USE}\nos.rename('inner', 'other')\nsys.exit(4)")
        assert done.returncode == 4
        assert "nothing is left of what was recorded" in done.stderr
        assert "CUDA" not in done.stderr


class TestEndsWithoutCuda:
    @pytest.mark.parametrize(
        ("script", "sentence"),
        [
            ("exit 3", "the command ended with exit code 3 before it used CUDA"),
            ("kill -SEGV $$", "the command was ended by SIGSEGV before it used CUDA"),
        ],
    )
    def test_its_end_is_said(self, work: Workplace, script: str, sentence: str) -> None:
        assert sentence in work.vram("run", "--", "sh", "-c", f"ulimit -c 0; {script}").stderr

    def test_a_command_without_a_name(self, work: Workplace) -> None:
        done = work.vram("run", "--", "")
        assert (done.returncode, done.stderr) == (127, "vram: '': command not found\n")


def test_a_check_names_the_process_that_still_runs(work: Workplace) -> None:
    start = f"{sys.executable} -c {work.quoted(FOREVER)} >/dev/null 2>&1 &"
    script = f"{start} until [ -e ready ]; do sleep 0.02; done; echo $!"
    done = work.vram("run", "--check", "leaks=0", "--", "sh", "-c", script)
    pid = int(done.stdout)
    try:
        assert done.returncode == 90
        assert f"it cannot be judged, pid {pid} of it still runs" in done.stderr
    finally:
        os.kill(pid, 9)  # a child of init by now, which nothing else ends


class TestNames:
    def test_no_room_for_what_is_added_while_it_is_written(self, tmp_path: Path) -> None:
        require_writable(str(tmp_path / ("a" * 236)), force=False)
        with pytest.raises(UsageError, match="too long a name"):
            require_writable(str(tmp_path / ("a" * 244)), force=False)
        assert not os.listdir(tmp_path)

    def test_standard_output_is_no_file(self) -> None:
        for function in (output.absolute, lambda path: require_writable(path, force=True)):
            with pytest.raises(UsageError, match="standard output"):
                function("-")

    def test_a_default_name_fits_whatever_the_letters(self) -> None:
        for letter in ("a", "ö", "語", "𝐀"):
            name = default_name(letter * 200, 4_000_000)
            assert len(name.encode()) < 200
            assert letter in name

    def test_a_name_that_json_cannot_carry_is_refused_before_the_process_is_touched(
        self, work: Workplace
    ) -> None:
        process = work.start([sys.executable, "-c", f"from program import *\n{USE}\nsay()\ninput()"])
        assert process.stdout is not None
        process.stdout.readline()
        done = work.vram("attach", process.pid, "-o", os.fsdecode(b"bad\xff.vram"))
        assert (done.returncode, work.files()) == (2, [])
        assert "is not UTF-8" in done.stderr


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    path = tmp_path / "pipe"
    os.mkfifo(path, 0o777)
    return path


def test_a_program_that_was_replaced_by_a_pipe_is_not_waited_for(pipe: Path) -> None:
    """Of a process that is attached to, the program's path is that process's choice."""
    assert cupti.candidates([str(pipe)], {"PATH": "/nonexistent"}, (), None) == ()


def test_a_search_path_of_thousands_is_not_followed_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "libcupti.so.13").write_bytes(b"")
    detours = [f"/nonexistent/{number}" for number in range(5000)]
    found = cupti.chosen({"LD_LIBRARY_PATH": ":".join([str(tmp_path), *detours, str(tmp_path)])})
    assert found == (str(tmp_path / "libcupti.so.13"),)
    assert not cupti.chosen({"LD_LIBRARY_PATH": ":".join([*detours, str(tmp_path)])})


class TestPlanted:
    """In a folder like /tmp others make files of the names that we will use."""

    def test_a_part_of_another_run_is_not_followed(self, tmp_path: Path) -> None:
        trace = TraceFile()
        trace.section(pid=7).writer().alloc(1, 0x7000, 1 << 30)
        planted = bytearray(trace.bytes())
        planted[64:80] = bytes.fromhex(OTHER_RUN)
        (tmp_path / "t.vram.1.part").write_bytes(planted)
        part(tmp_path, "t.vram.2.part")
        os.symlink("t.vram.2.part", tmp_path / "t.vram.3.part")
        follower = Follower(tmp_path / "t.vram", run=RUN)
        follower.advance(everything=True)
        assert [process.pid for process in follower.live().processes] == [
            part_pid(tmp_path / "t.vram.2.part")
        ]
        assert not follower.problems

    def test_a_log_is_not_written_into(self, work: Workplace) -> None:
        log = work.folder / "t.vram.log"
        log.write_text("theirs\n")
        with open(log) as held:
            screen = work.terminal()
            screen.type("TERM=xterm vram run --live --force -o t.vram -- echo secret\n")
            screen.read_page("q leaves")
            screen.type("q")
            screen.read_until("what the command printed")
            assert held.read() == "theirs\n"
        assert log.read_text() == "secret\n"


def part_pid(path: Path) -> int:
    (pid,) = struct.unpack_from("<I", path.read_bytes(), 20)
    return int(pid)


class TestStandardOutput:
    @pytest.fixture
    def trace(self, work: Workplace) -> str:
        written = TraceFile()
        written.section().writer().alloc(1, 0x7000, 1 << 20)
        (work.folder / "t.vram").write_bytes(written.bytes())
        return "t.vram"

    def test_a_dash_is_standard_output(self, work: Workplace, trace: str) -> None:
        assert work.vram("report", trace, "--html", "-").stdout.startswith("<!")
        assert work.vram("report", trace, "--export", "speedscope", "-o", "-").stdout.startswith("{")
        two_files = work.vram("report", trace, "--export", "parquet", "-o", "-")
        assert (two_files.returncode, work.files()) == (2, [trace])

    def test_a_full_disk_is_said_once_with_the_exit_code_of_an_error(
        self, work: Workplace, trace: str
    ) -> None:
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [*VRAM, "report", trace],
                env=work.environment,
                cwd=work.folder,
                stdout=full,
                stderr=-1,
                text=True,
            )
        assert done.returncode == 3
        assert done.stderr == "vram: cannot write to standard output: No space left on device\n"


def test_what_is_read_after_the_command_may_have_become_a_pipe(pipe: Path) -> None:
    assert read_messages(str(pipe)) == ()
    assert last_lines(str(pipe), 100) == []


def test_a_process_says_that_its_trace_has_an_impossible_name(pipe: Path) -> None:
    assert "null byte" in trace_line("/tmp/a\0b")
    assert "not a plain file" in trace_line(str(pipe))
