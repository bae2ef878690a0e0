"""`vram why`: the answer on any surface, from any source, with an exit code that says how whole it is."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import termios
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from jsonschema import validate

from tests.cli.conftest import PROGRAM, Run, Write
from tests.ledger.world import World
from tests.virtualgpu.conftest import HOLDER
from vram.model.observation import ProbeRun
from vram.report.schema import SHIPPED
from vram.units import GIB
from vram.virtualgpu import VirtualGpu


def test_json_is_one_valid_object_whose_entries_balance(vram: Run, busy: str) -> None:
    answer = vram("why", "--json", "--from", busy)
    report = json.loads(answer.out)
    validate(report, json.loads(SHIPPED.read_bytes()))
    assert answer.code == 0
    for gpu in report["gpus"]:
        assert sum(entry["nbytes"] or 0 for entry in gpu["entries"]) == gpu["total_bytes"]
    assert "VR101" in {finding["code"] for finding in report["findings"]}


def test_text_names_the_holder_and_what_to_do(vram: Run, busy: str) -> None:
    answer = vram("why", "--from", busy)
    assert answer.code == 0
    assert "pid 201" in answer.out
    assert "What to do, least harm first" in answer.out
    assert max(map(len, answer.out.splitlines())) <= 80


@pytest.mark.parametrize("words", [["1"], ["0,1"], ["1", "0"]])
def test_gpus_can_be_chosen(vram: Run, busy: str, words: list[str]) -> None:
    options = [part for word in words for part in ("--gpu", word)]
    report = json.loads(vram("why", "--json", "--from", busy, *options).out)
    assert [gpu["index"] for gpu in report["gpus"]] == sorted(int(n) for n in ",".join(words).split(","))
    if words == ["1"]:
        assert not [finding for finding in report["findings"] if 0 in finding["gpus"]]


def test_an_unknown_gpu_is_refused_with_those_that_exist(vram: Run, busy: str) -> None:
    answer = vram("why", "--from", busy, "--gpu", "0,7")
    assert (answer.code, answer.out) == (2, "")
    assert "there is no GPU 7" in answer.err
    assert "0 (NVIDIA Test), 1 (NVIDIA Test)" in answer.err


@pytest.mark.parametrize("word", ["x", "", "-1", "0,,1", "²", "0:", "0:1:2", "MIG-", "GPU-x"])
def test_a_gpu_has_a_number_or_a_uuid(vram: Run, busy: str, word: str) -> None:
    answer = vram("why", "--from", busy, f"--gpu={word}")
    assert answer.code == 2
    assert "is not the name of a GPU" in answer.err


@pytest.mark.parametrize("format", [[], ["--json"]])
def test_a_lost_gpu_makes_the_answer_partial_and_the_rest_is_given(
    vram: Run, half_lost: str, format: list[str]
) -> None:
    answer = vram("why", "--from", half_lost, *format)
    assert answer.code == 3
    assert "GPU-0" in answer.out if format else "GPU 0" in answer.out
    assert "lost" in answer.out


def test_a_hung_driver_is_partial_not_missing(vram: Run, snapshot: Write) -> None:
    answer = vram("why", "--from", snapshot(World(), ProbeRun("nvml", "timeout", 5.0, "nvmlInit hangs")))
    assert answer.code == 3
    assert "nvmlInit hangs" in answer.out


def test_without_a_driver_it_says_so_and_names_the_demo(vram: Run, no_driver: str) -> None:
    answer = vram("why", "--from", no_driver)
    assert (answer.code, answer.out) == (4, "")
    assert "no NVIDIA driver answers" in answer.err
    assert "vram demo" in answer.err


def test_without_a_driver_scripts_still_get_their_object(vram: Run, no_driver: str) -> None:
    answer = vram("why", "--json", "--from", no_driver)
    assert answer.code == 4
    assert json.loads(answer.out)["gpus"] == []


def test_a_denied_probe_is_a_whole_answer(vram: Run, snapshot: Write) -> None:
    world = World(uid=1000).gpu(0).unreadable(3)
    answer = vram("why", "--from", snapshot(world, ProbeRun("files", "denied", 0.01)))
    assert answer.code == 0
    assert "the open files of 3 processes may not be read" in answer.out


@pytest.mark.parametrize("contents", ["", "{", "[]", '{"schema": 99}', '{"gpus": []}', "\x00\xff"])
def test_a_broken_foreign_or_newer_snapshot_exits_with_5(vram: Run, tmp_path: Path, contents: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(contents, encoding="latin-1")
    answer = vram("why", "--from", str(path))
    assert (answer.code, answer.out) == (5, "")
    assert "hint:" in answer.err


def test_a_snapshot_that_is_not_there_exits_with_5(vram: Run, tmp_path: Path) -> None:
    assert vram("why", "--from", str(tmp_path / "none.json")).code == 5


@pytest.mark.parametrize(
    "argv", [("--watch", "--from", "x"), ("--watch", "0"), ("--watch", "nan"), ("--watch", "--svg", "x")]
)
def test_what_cannot_be_watched_is_a_usage_error(vram: Run, argv: tuple[str, ...]) -> None:
    assert vram("why", *argv).code == 2


def test_a_picture_and_json_at_once_are_a_usage_error(vram: Run, busy: str, tmp_path: Path) -> None:
    answer = vram("why", "--from", busy, "--json", "--svg", str(tmp_path / "why.svg"))
    assert (answer.code, answer.out) == (2, "")
    assert os.listdir(tmp_path) == ["snapshot.json"]


def test_an_svg_is_written_whole(vram: Run, busy: str, tmp_path: Path) -> None:
    target = tmp_path / "why.svg"
    answer = vram("why", "--from", busy, "--svg", str(target))
    assert answer == (0, "", "")
    assert target.read_text().startswith("<svg")
    assert sorted(os.listdir(tmp_path)) == ["snapshot.json", "why.svg"]


def test_an_svg_that_cannot_be_written_is_a_usage_error(vram: Run, busy: str, tmp_path: Path) -> None:
    answer = vram("why", "--from", busy, "--svg", str(tmp_path / "none" / "why.svg"))
    assert answer.code == 2
    assert "cannot be written" in answer.err


def surface(argv: Sequence[str], **environment: str) -> bytes:
    """What the program writes to a pipe."""
    known = {
        key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")
    }
    done = subprocess.run([*PROGRAM, *argv], env=known | environment, stdout=subprocess.PIPE, check=True)
    return done.stdout


def terminal(argv: Sequence[str], **environment: str) -> bytes:
    """What the program writes to a terminal."""
    ours, theirs = pty.openpty()
    known = {
        key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")
    }
    known["TERM"] = "xterm-256color"
    process = subprocess.Popen([*PROGRAM, *argv], env=known | environment, stdout=theirs)
    os.close(theirs)
    written = b""
    # Linux says EIO where the other end of a terminal is closed.
    with suppress(OSError):
        while chunk := os.read(ours, 65536):
            written += chunk
    os.close(ours)
    assert process.wait() == 0
    return written


def test_colour_is_for_terminals(busy: str) -> None:
    argv = ["why", "--from", busy]
    assert b"\x1b[" in terminal(argv)
    assert b"\x1b[" not in surface(argv)


@pytest.mark.parametrize("refusal", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_colour_can_be_refused_by_the_environment(busy: str, refusal: dict[str, str]) -> None:
    assert b"\x1b[" not in terminal(["why", "--from", busy], **refusal)


def test_colour_can_be_refused_and_asked_for(busy: str) -> None:
    assert b"\x1b[" not in terminal(["why", "--from", busy, "--no-color"])
    assert b"\x1b[" in surface(["why", "--from", busy], FORCE_COLOR="1")
    assert b"\x1b[" not in surface(["why", "--from", busy], FORCE_COLOR="1", NO_COLOR="1")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_ascii_is_chosen_where_the_encoding_has_no_bars(busy: str, encoding: str) -> None:
    assert surface(["why", "--from", busy], PYTHONIOENCODING=encoding).isascii()


def test_ascii_on_request(busy: str) -> None:
    assert surface(["why", "--from", busy, "--ascii"], PYTHONIOENCODING="utf-8").isascii()
    assert not surface(["why", "--from", busy], PYTHONIOENCODING="utf-8").isascii()


@pytest.mark.parametrize("columns", [80, 200])
def test_the_width_of_the_terminal_is_used_and_kept(busy: str, columns: int) -> None:
    lines = (
        surface(["why", "--from", busy], COLUMNS=str(columns), PYTHONIOENCODING="utf-8").decode().splitlines()
    )
    assert max(map(len, lines)) == columns
    assert not [line for line in lines if line != line.rstrip()]


def test_a_live_host_is_read(virtual_gpu: VirtualGpu) -> None:
    process = virtual_gpu.popen([*PROGRAM, "why", "--json"], stdout=subprocess.PIPE)
    report = json.loads(process.communicate()[0])
    assert process.returncode == 0
    assert report["host"]["virtual"] is True
    assert report["gpus"][0]["facts"]["virtual"] is True


def test_watching_as_json_gives_a_line_each_time_until_interrupted(virtual_gpu: VirtualGpu) -> None:
    process = virtual_gpu.popen(
        [*PROGRAM, "why", "--json", "--watch", "0.1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    reports = [json.loads(process.stdout.readline()) for _ in range(2)]
    process.send_signal(signal.SIGINT)
    _, complaint = process.communicate()
    assert (process.returncode, complaint) == (130, b"")
    assert [len(report["gpus"]) for report in reports] == [1, 1]


def test_watching_on_a_terminal_leaves_it_as_it_was(virtual_gpu: VirtualGpu) -> None:
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (40, 80))
    process = virtual_gpu.popen([*PROGRAM, "why", "--watch", "0.1"], stdout=theirs, stderr=theirs)
    os.close(theirs)
    written = b""
    while b"sum" not in written:
        written += os.read(ours, 65536)
    process.send_signal(signal.SIGINT)
    with suppress(OSError):
        while chunk := os.read(ours, 65536):
            written += chunk
    os.close(ours)
    assert process.wait() == 130
    assert b"\x1b[?1049h" in written
    assert written.rindex(b"\x1b[?1049l") > written.rindex(b"sum")
    assert b"Traceback" not in written


HOSTILE = b"\x1b]0;owned\x07\x1b[2J\r\xff\xe2\x80\xae[bold]"


def test_a_live_process_with_a_hostile_name_leaves_the_terminal_alone(virtual_gpu: VirtualGpu) -> None:
    holder = virtual_gpu.popen(
        [sys.executable, str(HOLDER), str(GIB), "0", HOSTILE], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    pid = int(holder.stdout.readline())
    shown = {}
    for command in (["why"], ["why", "--json"], ["who"], ["who", "--json"], ["check"], ["check", "--json"]):
        process = virtual_gpu.popen([*PROGRAM, *command], stdout=subprocess.PIPE)
        shown[tuple(command)] = process.communicate()[0].decode()
    holder.communicate()
    for command, text in shown.items():
        assert str(pid) in text, command
        assert "[bold]" in text, command
        assert text.replace("\n", "").isprintable(), command
