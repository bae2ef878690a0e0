"""The answer is one screen: golden screens at three widths, and what holds for every one of them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from rich.cells import cell_len

from tests.golden.screens import FOLDER, HEIGHT, SITUATIONS, WIDTHS, Machine, made, printed
from tests.golden.test_pages import difference
from tests.ledger.world import World
from tests.patience import until
from vram.cli.app import main
from vram.model.observation import ProbeRun
from vram.units import GIB
from vram.virtualgpu import VirtualGpu
from vram.virtualgpu.demos import DemoProgram

WRITES = bool(os.environ.get("VRAM_WRITE_GOLDEN"))


def page(name: str) -> str:
    """One situation at all widths, then without Unicode."""
    shown = {f"{width} columns": made(name, width) for width in WIDTHS}
    shown["80 columns, ASCII"] = made(name, 80, ascii=True)
    return "".join(f"---- {title}\n{screen}" for title, screen in shown.items())


@pytest.mark.parametrize("name", SITUATIONS)
def test_the_screen_is_the_golden_one(name: str) -> None:
    file = FOLDER / f"{name}.txt"
    if WRITES:
        FOLDER.mkdir(exist_ok=True)
        file.write_text(page(name))
    committed, now = file.read_text() if file.exists() else "", page(name)
    assert now == committed, "\n".join(
        ["run `make golden` and look at the difference:", *difference(name, committed, now)]
    )


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", SITUATIONS)
def test_it_fits_24_lines_and_the_width(name: str, width: int) -> None:
    lines = made(name, width).splitlines()
    assert len(lines) <= HEIGHT
    assert max(map(cell_len, lines)) <= width


@pytest.mark.parametrize("name", SITUATIONS)
def test_ascii_is_ascii_and_unicode_is_the_same_otherwise(name: str) -> None:
    plain = made(name, 200, ascii=True)
    assert plain.isascii()
    assert len(plain.splitlines()) == len(made(name, 200).splitlines())


def test_without_a_driver_it_says_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    missing = ProbeRun("nvml", "unsupported", 0.01, "libnvidia-ml.so.1 is not installed")
    path = tmp_path / "no-driver.json"
    path.write_bytes(msgspec.json.encode(replace(World().survey(), probes=(missing,))))
    assert main(["--from", str(path)]) == 4
    out, complaint = capsys.readouterr()
    file = FOLDER / "no-driver.txt"
    if WRITES:
        file.write_text(complaint)
    assert (out, complaint) == ("", file.read_text())


@pytest.mark.parametrize("name", ["one-healthy-job", "eight-busy", "idle"])
def test_nothing_is_advised_where_all_is_healthy(name: str) -> None:
    shown = made(name, 100)
    assert not re.search(r"kill|free\b|VR\d", shown)


def test_eight_gpus_with_forty_processes_are_all_told_in_24_lines() -> None:
    shown = made("eight-busy", 100)
    assert shown.count("+4 workers") == 8
    assert "more process" not in shown


def test_processes_beyond_the_screen_are_counted_and_problems_keep_their_place() -> None:
    machine = Machine().ghost(900, 901, "python train.py", 30)
    for pid in range(1000, 1060):
        machine.job(pid, "python notebook.py", 0.5)
    shown = printed(machine.with_gpus(1).ledger(), 100).splitlines()
    assert len(shown) == HEIGHT
    assert "GHOST" in shown[3]
    (surplus,) = [line for line in shown if line.startswith("+")]
    hidden = 61 - len([line for line in shown if "alice" in line])
    assert surplus.startswith(f"+{hidden} more processes, ")
    assert "VR101, certain" in shown[-2]
    assert "vram free" in shown[-1]


def test_problems_beyond_the_screen_are_counted() -> None:
    machine = Machine()
    for pid in range(1000, 1040, 2):
        machine.ghost(pid, pid + 1, "python train.py", 1)
    for pid in range(2000, 2020):
        machine.job(pid, "python train.py", 1, state="T")
    shown = printed(machine.with_gpus(1).ledger(), 80).splitlines()
    assert len(shown) <= HEIGHT
    told = len([line for line in shown if line.startswith("  GPU 0: 1.5 GiB of dead")])
    assert told >= 2
    assert f"  +{20 - told} more: vram why -v" in shown
    assert shown[-1] == "+20 more findings: vram why -v"


@pytest.mark.parametrize("width", [80, 200])
def test_findings_of_one_kind_have_one_heading_and_one_command(width: int) -> None:
    machine = Machine()
    for gpu in range(4):
        machine.ghost(2990 + 10 * gpu, 2995 + 10 * gpu, f"python train.py --rank {gpu}", 30, gpu=gpu)
    shown = printed(machine.with_gpus(8).ledger(), width).splitlines()
    at = next(at for at, line in enumerate(shown) if line.startswith("●"))
    assert shown[at].startswith("● GPUs 0–3: 4 ghosts, 122.0 GiB ")
    assert shown[at + 1 : at + 5] == [
        f"  GPU {gpu}: 30.5 GiB of dead pid {2990 + 10 * gpu}, held by its forked child {2995 + 10 * gpu}"
        for gpu in range(4)
    ]
    assert shown[at + 5 :] == ["  Get it back: vram free   Why: vram why 2995"]


def test_the_one_command_names_every_process_and_works(virtual_gpu: VirtualGpu) -> None:
    """Pasted into a shell, the command under the heading continues both stopped processes."""
    with (
        DemoProgram(virtual_gpu, "memory.plain", GIB) as one,
        DemoProgram(virtual_gpu, "memory.plain", GIB) as other,
    ):
        pids = [one.pids["self"], other.pids["self"]]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
            until(lambda pid=pid: _state(pid) == "T")
        argv = [sys.executable, "-m", "vram"]
        shown = virtual_gpu.run(argv, capture_output=True, text=True).stdout
        (heading,) = [line for line in shown.splitlines() if "VR201" in line]
        assert "2 times Stopped process, 3.0 GiB" in heading
        (command,) = re.findall(r"Continue it: (.+?)(?:   Why|$)", shown, re.MULTILINE)
        subprocess.run(["bash", "-c", command], check=True)
        for pid in pids:
            until(lambda pid=pid: _state(pid) != "T")


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]


def test_every_golden_screen_is_made() -> None:
    assert {file.stem for file in FOLDER.glob("*.txt")} == {*SITUATIONS, "no-driver"}
