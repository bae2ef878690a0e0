"""`vram why`: the answer on any surface, from any source, with an exit code that says how whole it is."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from jsonschema import validate

from tests.cli.conftest import PROGRAM, Run, Write
from tests.ledger.world import OVERHEAD, World
from tests.patience import PATIENCE_S
from tests.virtualgpu.conftest import HOLDER
from vram.model.observation import ProbeRun
from vram.model.process import ProcessFacts, ProcessRef
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


@pytest.mark.parametrize("words", [("why",), ()])
def test_text_names_the_holder_and_the_one_command(vram: Run, busy: str, words: tuple[str, ...]) -> None:
    answer = vram(*words, "--from", busy)
    assert answer.code == 0
    (ghost,) = [line.split() for line in answer.out.splitlines() if "GHOST" in line]
    assert ghost[3] == "201"
    assert "Get it back: vram free" in answer.out
    assert len(answer.out.splitlines()) < 12


@pytest.mark.parametrize("words", [("-v",), ("--gpu", "0"), ("--verbose",)])
def test_the_whole_account_sums_to_the_byte(vram: Run, busy: str, words: tuple[str, ...]) -> None:
    answer = vram("why", "--from", busy, *words)
    assert answer.code == 0
    assert "the lines above sum to the total exactly" in " ".join(answer.out.split())
    assert "What to do, least harm first" in answer.out
    assert "kill 100" not in answer.out  # of the healthy process
    assert max(map(len, answer.out.splitlines())) <= 80


def test_one_gpu_is_told_with_its_families(vram: Run, busy: str) -> None:
    shown = vram("why", "--gpu", "0", "--from", busy).out
    families = shown.partition("\nFamilies\n")[2]
    assert families.index("pid 200") < families.index("pid 201") < families.index("pid 100")
    assert "Families" not in vram("why", "-v", "--from", busy).out


def test_one_process_is_told_with_family_evidence_and_what_can_be_done(vram: Run, busy: str) -> None:
    ghost = vram("why", "201", "--from", busy).out
    assert "Its family" in ghost
    assert "pid 200" in ghost
    assert "vram free" in ghost
    healthy = vram("why", "100", "--from", busy).out
    assert "vram trim 100" in healthy  # who asks about one process may act on it
    assert "Its family" not in healthy


def test_a_snapshot_comes_through_a_pipe(busy: str) -> None:
    snapshot = Path(busy).read_bytes()
    done = subprocess.run([*PROGRAM, "why", "--from", "-"], input=snapshot, capture_output=True, check=True)
    assert b"GHOST" in done.stdout
    broken = subprocess.run([*PROGRAM, "--from", "-"], input=snapshot[:500], capture_output=True)
    assert broken.returncode == 5
    assert b"standard input" in broken.stderr


def test_a_snapshot_is_not_awaited_from_a_keyboard(busy: str) -> None:
    ours, theirs = pty.openpty()
    done = subprocess.run(
        [*PROGRAM, "why", "--from", "-"], stdin=theirs, capture_output=True, timeout=PATIENCE_S
    )
    os.close(ours)
    os.close(theirs)
    assert done.returncode == 2
    assert b"vram snapshot -o -" in done.stderr


def test_a_terminal_gets_no_more_lines_than_it_has(snapshot: Write) -> None:
    world = World().gpu(0, used=60 * (GIB + OVERHEAD))
    for pid in range(100, 160):
        world.cuda(pid, GIB)
    path = snapshot(world)
    shown = terminal(["--from", path], LINES="24").decode().splitlines()
    assert len(shown) == 23
    assert "more processes" in shown[-1]
    piped = surface(["--from", path]).decode().splitlines()
    assert len([line for line in piped if line.split()[2:4] and line.split()[0] == "0"]) == 60


def test_piped_lines_are_one_process_each_and_never_cut(snapshot: Write) -> None:
    command = ("python", "train.py", *(f"--option-{n}=value" for n in range(40)))
    world = World().gpu(0, used=GIB + OVERHEAD)
    world.charge(7, GIB).files(7, family=7)
    facts = ProcessFacts(command="python", argv=command, user="alice", state="S", parent=1)
    world._see("proc.processes", process=ProcessRef(7, started_at=70), facts=facts)
    path = snapshot(world)
    for words in (["--from", path], ["ps", "--from", path]):
        (line,) = [each for each in surface(words).decode().splitlines() if "train.py" in each]
        assert line.endswith("--option-39=value")
        fitted = surface(words, COLUMNS="80").decode().splitlines()
        assert max(map(len, fitted)) <= 80


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
    assert "is not a GPU" in answer.err


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
    assert "the open files of 3 processes" in vram("why", "-v", "--from", snapshot(world)).out


@pytest.mark.parametrize("contents", ["", "{", "[]", '{"schema": 99}', '{"gpus": []}', "\x00\xff"])
def test_a_broken_foreign_or_newer_snapshot_exits_with_5(vram: Run, tmp_path: Path, contents: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(contents, encoding="latin-1")
    answer = vram("why", "--from", str(path))
    assert (answer.code, answer.out) == (5, "")
    assert "hint:" in answer.err


def test_a_snapshot_that_is_not_there_exits_with_5(vram: Run, tmp_path: Path) -> None:
    assert vram("why", "--from", str(tmp_path / "none.json")).code == 5


def test_watching_is_another_command(vram: Run) -> None:
    answer = vram("why", "--watch", "2")
    assert (answer.code, answer.out) == (2, "")
    assert "vram watch" in answer.err


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
    assert "cannot write" in answer.err


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
    assert b"\x1b[" not in terminal(["why", "--from", busy, "--color=never"], FORCE_COLOR="1")
    assert b"\x1b[" in surface(["why", "--from", busy, "--color=always"], NO_COLOR="1")
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
    assert columns - 20 <= max(map(len, lines)) <= columns
    assert not [line for line in lines if line != line.rstrip()]


def test_a_live_host_is_read(virtual_gpu: VirtualGpu) -> None:
    process = virtual_gpu.popen([*PROGRAM, "why", "--json"], stdout=subprocess.PIPE)
    report = json.loads(process.communicate()[0])
    assert process.returncode == 0
    assert report["host"]["virtual"] is True
    assert report["gpus"][0]["facts"]["virtual"] is True


HOSTILE = b"\x1b]0;owned\x07\x1b[2J\r\xff\xe2\x80\xae[bold]"


def test_a_live_process_with_a_hostile_name_leaves_the_terminal_alone(virtual_gpu: VirtualGpu) -> None:
    holder = virtual_gpu.popen(
        [sys.executable, str(HOLDER), str(GIB), "0", HOSTILE], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    pid = int(holder.stdout.readline())
    shown = {}
    for command in (
        [],
        ["why"],
        ["why", "-v"],
        ["ps"],
        ["ps", "--json"],
        ["why", "--json"],
        ["who"],
        ["who", "--json"],
        ["check"],
        ["check", "--json"],
    ):
        process = virtual_gpu.popen([*PROGRAM, *command], stdout=subprocess.PIPE)
        shown[tuple(command)] = process.communicate()[0].decode()
    holder.communicate()
    for command, text in shown.items():
        assert str(pid) in text, command
        assert "[bold]" in text, command
        assert text.replace("\n", "").isprintable(), command
