"""Where a trace goes, and how the parts of several processes become one file."""

from __future__ import annotations

import os
import struct
import sys
from pathlib import Path

import pytest

from vram.errors import UsageError
from vram.payloads.procfs import started_at
from vram.trace.output import collect, default_name, parts, read_part, require_writable, unused_name

RUN, OTHER_RUN = "ab" * 16, "cd" * 16
DEAD = 2**22 + 1  # above every pid


def part(folder: Path, name: str, *, pid: int = DEAD, at: int = 1, run: str = RUN, body: bytes = b"") -> Path:
    """A part as the recorder writes it: header page, then *body*."""
    begun = started_at(pid) or 0
    head = struct.pack(
        "<8s2H3I3Q4I16s", b"VRAMTRAC", 1, 0, 4096, 65536, pid, 5, at, begun, 1, 1, 1, 0, bytes.fromhex(run)
    )
    path = folder / name
    path.write_bytes(head.ljust(4096, b"\0") + body)
    path.chmod(0o600)
    return path


@pytest.fixture
def output(tmp_path: Path) -> str:
    return str(tmp_path / "trace.vram")


class TestBeforeAnythingIsLaunched:
    def test_a_new_file_in_a_folder_is_fine_and_nothing_is_left_there(
        self, output: str, tmp_path: Path
    ) -> None:
        assert require_writable(output, force=False) == output
        assert os.listdir(tmp_path) == []

    def test_it_is_made_absolute(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        assert require_writable("trace.vram", force=False) == str(tmp_path / "trace.vram")

    @pytest.mark.parametrize("name", ["missing/trace.vram", "", "folder/", "folder", "there"])
    def test_what_cannot_be_is_a_usage_error(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        (tmp_path / "folder").mkdir()
        (tmp_path / "there").write_text("mine")
        monkeypatch.chdir(tmp_path)
        with pytest.raises(UsageError):
            require_writable(name, force=False)
        assert (tmp_path / "there").read_text() == "mine"

    def test_a_file_is_replaced_only_by_force_and_only_a_plain_one(self, output: str, tmp_path: Path) -> None:
        Path(output).write_text("old")
        assert require_writable(output, force=True) == output
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(UsageError, match="not a regular file"):
            require_writable(str(tmp_path / "pipe"), force=True)

    def test_names_come_from_the_program_and_are_plain(self) -> None:
        assert default_name("/usr/bin/python3", 7) == "vram-trace-python3-7.vram"
        assert default_name("../we ird\n\x1b[2J", 7) == "vram-trace-we_ird___2J-7.vram"
        assert default_name("/", 7) == "vram-trace-command-7.vram"

    def test_a_name_that_is_taken_gets_a_number(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "vram-trace-a-7.vram").touch()
        (tmp_path / "vram-trace-a-7-2.vram").touch()
        assert unused_name("a", 7) == "vram-trace-a-7-3.vram"


class TestCollecting:
    def test_nothing_was_written(self, output: str) -> None:
        found = collect(output, RUN)
        assert (found.trace, found.growing, found.left) == (None, (), ())

    def test_one_part_gets_the_name(self, output: str, tmp_path: Path) -> None:
        whole = part(tmp_path, f"trace.vram.{DEAD}.part", body=b"chunk").read_bytes()
        assert collect(output, RUN).trace == output
        assert Path(output).read_bytes() == whole
        assert os.listdir(tmp_path) == ["trace.vram"]

    def test_several_are_joined_in_the_order_of_their_start_each_on_a_page(
        self, output: str, tmp_path: Path
    ) -> None:
        last = part(tmp_path, f"trace.vram.{DEAD}.part", at=30, body=b"z" * 70).read_bytes()
        first = part(
            tmp_path, f"trace.vram.{DEAD + 1}.part", pid=DEAD + 1, at=10, body=b"a" * 5000
        ).read_bytes()
        assert collect(output, RUN).trace == output
        whole = Path(output).read_bytes()
        assert whole == first.ljust(12288, b"\0") + last
        assert os.stat(output).st_mode & 0o777 == 0o600
        assert os.listdir(tmp_path) == ["trace.vram"]

    def test_what_others_put_there_is_left_alone(self, output: str, tmp_path: Path) -> None:
        part(tmp_path, f"trace.vram.{DEAD}.part")
        part(tmp_path, "trace.vram.12.part", pid=DEAD + 1, run=OTHER_RUN)
        (tmp_path / "trace.vram.13.part").write_text("not a trace")
        (tmp_path / "trace.vram.14.part").symlink_to("/etc/passwd")
        os.mkfifo(tmp_path / "trace.vram.15.part")
        (tmp_path / "trace.vram.16.part").mkdir()
        assert [each.pid for each in parts(output, RUN)] == [DEAD]
        assert collect(output, RUN).trace == output
        assert len(os.listdir(tmp_path)) == 6

    def test_one_that_still_grows_stays_as_it_is(self, output: str, tmp_path: Path) -> None:
        growing = part(tmp_path, f"trace.vram.{os.getpid()}.part", pid=os.getpid())
        part(tmp_path, f"trace.vram.{DEAD}.part")
        found = collect(output, RUN)
        assert [each.path for each in found.growing] == [str(growing)]
        assert sorted(os.listdir(tmp_path)) == sorted(["trace.vram", growing.name])

    def test_a_file_that_appeared_meanwhile_is_not_replaced(self, output: str, tmp_path: Path) -> None:
        left = part(tmp_path, f"trace.vram.{DEAD}.part")
        Path(output).write_text("somebody else's")
        found = collect(output, RUN)
        assert (found.trace, [each.path for each in found.left]) == (None, [str(left)])
        assert found.reason
        assert Path(output).read_text() == "somebody else's"

    def test_with_force_it_is(self, output: str, tmp_path: Path) -> None:
        part(tmp_path, f"trace.vram.{DEAD}.part")
        part(tmp_path, f"trace.vram.{DEAD}-2.part", at=2)
        Path(output).write_text("old")
        assert collect(output, RUN, force=True).trace == output
        assert Path(output).read_bytes().startswith(b"VRAMTRAC")

    def test_parts_that_cannot_be_joined_stay(self, output: str, tmp_path: Path) -> None:
        """Where there is no room for a copy, nothing is lost and nothing half-made is left."""
        for number in range(2):
            part(tmp_path, f"trace.vram.{DEAD + number}.part", pid=DEAD + number, body=b"x" * 60_000)
        pid = os.fork()
        if pid == 0:
            import resource

            sys.dont_write_bytecode = True
            resource.setrlimit(resource.RLIMIT_FSIZE, (80_000, 80_000))
            found = collect(output, RUN)
            os._exit(0 if found.trace is None and len(found.left) == 2 and found.reason else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert sorted(os.listdir(tmp_path)) == [f"trace.vram.{DEAD}.part", f"trace.vram.{DEAD + 1}.part"]

    def test_a_header_that_is_cut_is_no_part(self, tmp_path: Path) -> None:
        path = part(tmp_path, "trace.vram.1.part")
        os.truncate(path, 50)
        assert read_part(str(path)) is None
