"""Every command on a machine whose GPU has no memory of its own: figures where there are some."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import Popen

import pytest

from tests.release.conftest import StandIn
from tests.search_path import search_path
from tests.serve.running import RunningService
from tests.top.conftest import run, viewing
from tests.unified.conftest import SharedMachine
from vram.errors import ExitCode
from vram.units import GIB
from vram.virtualgpu.config import UNIFIED
from vram.virtualgpu.demos import PROGRAMS, DemoProgram

pytestmark = pytest.mark.native

CPU = int(UNIFIED["cpu_bytes"])
TOTAL = int(UNIFIED["total_bytes"])

WHY = ("COLUMNS=80", sys.executable, "-m", "vram")
Hold = Callable[[int], Popen[str]]


def test_the_screen_says_which_sum_it_is_on_one_line(machine: SharedMachine, hold: Hold) -> None:
    hold(4 * GIB)
    lines = machine.vram().stdout.splitlines()
    assert lines[1] == "GPU 0: the total is the system's memory; CPU programs and kernel use 8.6 GiB"
    assert "/121.7 GiB" in lines[0]
    assert all(len(line) <= 80 for line in lines)
    assert not any("unknown" in line for line in lines)


def test_the_command_line_makes_such_a_machine(machine: SharedMachine) -> None:
    shown = machine.vram("virtual", "--unified", "--memory", "64GiB", "--", "env", *WHY).stdout
    assert "/64.0 GiB" in shown
    assert "the total is the system's memory" in shown


def test_why_accounts_for_every_byte_and_names_the_cpus_part(machine: SharedMachine, hold: Hold) -> None:
    process = hold(4 * GIB)
    gpu = machine.why()
    kinds = {entry["kind"]: entry for entry in gpu["entries"]}
    assert set(kinds) == {"process", "cpu", "free"}
    assert gpu["total_bytes"] == TOTAL
    assert kinds["process"]["holder"]["pid"] == process.pid
    # What CUDA costs beyond the charge is in no list: it cannot be told from what programs have.
    assert 0 <= kinds["cpu"]["nbytes"] - CPU < GIB // 8
    assert gpu["memory"]["counted_by"] == "kernel"
    assert gpu["memory"]["system"]["programs"] == CPU


def test_a_ghost_is_found_and_freed_and_what_is_available_is_read_again(
    machine: SharedMachine, ghost: DemoProgram
) -> None:
    held, available = machine.of_kind("orphaned"), machine.of_kind("free")
    assert held > ghost.nbytes
    assert "VR101" in machine.vram("why", "-v").stdout
    done = machine.ask("free", "--yes")
    assert done["receipt"]["returned_bytes"] >= held
    assert machine.of_kind("free") - available >= held
    assert machine.of_kind("orphaned") == 0


def test_check_calls_it_clean_whatever_the_cpu_uses(machine: SharedMachine, ghost: DemoProgram) -> None:
    machine.vram("check", "--leftovers", code=ExitCode.HELD)
    machine.vram("free", "--yes")
    machine.gpu.set(cpu_bytes=80 * GIB)
    machine.vram("check")


def test_a_size_is_what_the_kernel_says_is_available(machine: SharedMachine, hold: Hold) -> None:
    """Cached files give way, so they are no obstacle."""
    machine.gpu.set(cpu_bytes=100 * GIB, cache_bytes=15 * GIB)
    machine.vram("free", "20GiB")
    hold(4 * GIB)
    done = machine.vram("free", "20GiB", "--dry-run", code=ExitCode.GOAL_IMPOSSIBLE)
    assert "17.2 GiB would be available" in done.stderr
    assert "park" not in done.stderr


def test_nothing_is_parked_where_it_would_free_nothing(machine: SharedMachine, hold: Hold) -> None:
    process = hold(4 * GIB)
    for words in (("park", str(process.pid)), ("borrow", "118GiB", "--pid", str(process.pid), "--", "true")):
        done = machine.vram(*words, code=ExitCode.CANNOT_PARK)
        assert "no memory of its own" in done.stderr
    assert process.poll() is None
    advice = json.dumps(machine.ask("why"))
    assert "vram park" not in advice
    assert f"vram trim {process.pid}" in advice


def test_a_servers_release_is_measured_by_what_is_available(machine: SharedMachine) -> None:
    """What it moves to the machine's memory is charged to it no more, and is not available either."""
    server = StandIn({**machine.environment, "PYTHONPATH": search_path(PROGRAMS)}, "vllm")
    try:
        receipt = machine.ask("release", str(server.pid), "--yes")["receipt"]
    finally:
        server.close()
    assert receipt["order"]["whole_gpu"] is True
    assert receipt["charged_before"] > CPU
    assert receipt["charged_before"] - receipt["charged_after"] > GIB


def test_ps_who_and_the_page_of_a_process(machine: SharedMachine, hold: Hold) -> None:
    process = hold(4 * GIB)
    (row,) = machine.ask("ps")["processes"]
    assert (row["pid"], row["nbytes"]) == (process.pid, 4 * GIB + 518 * 2**20)
    assert f"pid {process.pid}" in machine.vram("who").stdout
    assert "4.5 GiB" in machine.vram("why", str(process.pid)).stdout


def test_a_snapshot_says_the_same_anywhere(machine: SharedMachine, hold: Hold, tmp_path: Path) -> None:
    hold(4 * GIB)
    path = tmp_path / "spark.json"
    machine.vram("snapshot", "--redact", "-o", str(path))
    found = machine.ask("why", "--from", str(path))["gpus"][0]
    assert {entry["kind"] for entry in found["entries"]} == {"process", "cpu", "free"}
    assert [note["code"] for note in found["notes"]] == ["system-memory"]


def test_an_out_of_memory_message_finds_its_gpu(machine: SharedMachine, hold: Hold) -> None:
    hold(110 * GIB)
    message = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity"
        " of 121.69 GiB of which 1.10 GiB is free."
    )
    (case,) = machine.ask("oom", "--live", given=message)["cases"]
    assert case["live"]["gpu"] == 0
    assert case["live"]["total"] == TOTAL


def test_the_service_measures_it_lets_others_wait_and_records_it(
    machine: SharedMachine, ghost: DemoProgram, tmp_path: Path
) -> None:
    with RunningService(tmp_path, machine.gpu) as service:
        figures = service.metrics()
        assert figures["vram_gpu_memory_total_bytes", "0"] == TOTAL
        assert figures["vram_gpu_memory_bytes", "0", "cpu"] >= CPU
        assert figures["vram_gpu_memory_bytes", "0", "orphaned"] > ghost.nbytes
        assert figures["vram_gpu_memory_bytes", "0", "unattributed"] == 0
        there = ("--socket", str(service.socket))
        assert machine.vram("wait", "20GiB", *there).stdout == "0\n"
        machine.vram("wait", "120GiB", "--timeout", "1ms", *there, code=ExitCode.TIMED_OUT)
        assert service.stop() == 0
    (recorded,) = tmp_path.rglob("history.sqlite")
    (past,) = machine.ask("history", "ghosts", "--file", str(recorded))["ghosts"]
    assert past["pid"] == ghost.pids["child"]
    points = machine.ask("history", "series", "--gpu", "0", "--file", str(recorded))["points"]
    known = [point for point in points if point["total_bytes"] is not None]
    assert {point["total_bytes"] for point in known} == {TOTAL}
    assert all(point["kinds"]["cpu"] >= CPU for point in known)


def test_the_view_shows_it(
    machine: SharedMachine, ghost: DemoProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in machine.environment.items():
        monkeypatch.setenv(name, value)

    async def look() -> None:
        async with viewing() as view:
            await view.until(lambda: view.line_of(ghost.pids["child"]))
            assert "121.7 GiB" in view.gpus
            assert "GHOST" in (view.line_of(ghost.pids["child"]) or "")

    run(look)
