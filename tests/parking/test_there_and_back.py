"""A process is parked and comes back whole; what is parked is listed; several at once."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys

from tests.parking.conftest import CHECKPOINTED, RUNNING, Machine, is_stopped, runs_on
from tests.patience import PATIENCE_S
from vram.units import GIB, MIB

CONTEXT = 518 * MIB


def test_a_parked_process_leaves_nothing_on_the_gpu_and_finds_everything_again(machine: Machine) -> None:
    worker = machine.worker()
    before = machine.used()
    assert machine.vram("park", worker.pid).returncode == 0
    assert (machine.used(), machine.state(worker.pid)) == (0, CHECKPOINTED)
    assert is_stopped(worker)
    worker.go()
    assert machine.vram("unpark", worker.pid).returncode == 0
    assert [worker.told(), worker.told()] == ["asked", "before"]
    assert (machine.used(), machine.state(worker.pid)) == (before, RUNNING)


def test_parked_lists_who_since_when_how_large_and_by_whom(machine: Machine) -> None:
    worker = machine.worker()
    machine.vram("park", worker.pid)
    (line,) = machine.parked()
    assert (line["pid"], line["nbytes"], line["state"], line["purpose"]) == (
        worker.pid,
        CONTEXT + 64 * MIB,
        "parked",
        "park",
    )
    assert line["since"].endswith("Z")
    assert line["by"] == line["user"]
    text = machine.vram("park").stdout
    assert f"{worker.pid}" in text
    assert "582.0 MiB" in text
    machine.vram("unpark", "--all")
    assert machine.vram("park").stdout == "Nothing is parked.\n"


def test_several_are_parked_in_one_call_and_all_brought_back(machine: Machine) -> None:
    workers = [machine.worker(), machine.worker()]
    done = machine.vram("park", "--json", *(worker.pid for worker in workers))
    assert [line["pid"] for line in json.loads(done.stdout)["moved"]] == [worker.pid for worker in workers]
    assert machine.used() == 0
    done = machine.vram("unpark", "--all", "--json")
    assert {line["pid"] for line in json.loads(done.stdout)["moved"]} == {worker.pid for worker in workers}
    assert all(runs_on(worker) for worker in workers)


def test_one_that_cannot_be_parked_keeps_the_others_of_the_call_where_they_are(machine: Machine) -> None:
    worker = machine.worker()
    assert machine.vram("park", worker.pid, 2**21).returncode == 10
    assert machine.state(worker.pid) == RUNNING
    assert machine.audit() == []


def test_the_longest_waits_that_are_accepted_are_no_trouble(machine: Machine) -> None:
    worker = machine.worker()
    assert machine.vram("park", "--lock-timeout", "1000000s", worker.pid).returncode == 0
    assert machine.vram("unpark", "--wait", "1000000s", worker.pid).returncode == 0
    assert machine.vram("kill", "--yes", "--grace", "1000000s", worker.pid).returncode == 0


def test_parked_twice_is_refused(machine: Machine) -> None:
    worker = machine.worker()
    machine.vram("park", worker.pid)
    again = machine.vram("park", worker.pid)
    assert (again.returncode, "already parked" in again.stderr) == (20, True)


def test_every_move_is_written_down_before_and_after(machine: Machine) -> None:
    worker = machine.worker()
    machine.vram("park", worker.pid)
    machine.vram("unpark", worker.pid)
    lines = machine.audit()
    assert [(line["event"], line.get("action"), line.get("status")) for line in lines] == [
        ("intend", "park", None),
        ("outcome", None, "done"),
        ("intend", "unpark", None),
        ("outcome", None, "done"),
    ]
    assert lines[0]["target"]["process"]["pid"] == worker.pid
    assert lines[0]["token"] == lines[1]["token"]


def test_a_log_that_cannot_be_written_means_no_action(machine: Machine) -> None:
    worker = machine.worker()
    (machine.state_home / "vram").mkdir(mode=0o755)
    (machine.state_home / "vram").chmod(0o755)
    refused = machine.vram("park", worker.pid)
    assert refused.returncode == 17, refused.stderr
    assert machine.state(worker.pid) == RUNNING


def test_the_entry_of_a_process_that_has_ended_is_swept(machine: Machine) -> None:
    worker = machine.worker()
    machine.vram("park", worker.pid)
    worker.kill()
    assert machine.parked() == []
    assert not list((machine.state_home / "vram").glob("parked-*"))


def test_an_entry_of_another_boot_is_swept(machine: Machine) -> None:
    """After a reboot the same pid, even with the same start time, is another process."""
    worker = machine.worker()
    machine.vram("park", worker.pid)
    (file,) = (machine.state_home / "vram").glob("parked-*")
    entry = json.loads(file.read_text())
    entry["boot_id"] = "00000000-0000-0000-0000-000000000000"
    boot = file.name.removeprefix("parked-").rsplit("-", 2)[0]
    file.rename(file.with_name(file.name.replace(boot, entry["boot_id"])))
    (file,) = (machine.state_home / "vram").glob("parked-*")
    file.write_text(json.dumps(entry))
    assert known_from(machine) == ["driver"]
    assert not file.exists()


def test_an_entry_of_another_machine_that_shares_the_home_is_left_alone(machine: Machine) -> None:
    worker = machine.worker()
    machine.vram("park", worker.pid)
    (file,) = (machine.state_home / "vram").glob("parked-*")
    entry = json.loads(file.read_text())
    pid, started_at = file.stem.rsplit("-", 2)[1:]
    file = file.rename(file.with_name(f"parked-another-{pid}-{started_at}.json"))
    file.write_text(json.dumps({**entry, "host": "elsewhere", "boot_id": "another"}))
    assert known_from(machine) == ["driver"]
    assert file.exists()


def known_from(machine: Machine) -> list[str]:
    """Who tells of each process that is parked: it is parked whatever the journal says."""
    return [line["known_from"] for line in machine.parked()]


def test_a_person_at_a_terminal_sees_it_move(machine: Machine) -> None:
    """The bar is fed by what NVML says while the driver is at work."""
    worker = machine.worker(NBYTES=str(1 * GIB))
    machine.gpu.fail("cuCheckpointProcessCheckpoint", slow_s=PATIENCE_S)
    ours, theirs = pty.openpty()
    argv = [sys.executable, "-m", "vram", "park", str(worker.pid)]
    with subprocess.Popen(
        argv, env=machine.environment(), stdout=subprocess.DEVNULL, stderr=theirs
    ) as process:
        os.close(theirs)
        seen = b""
        try:
            while part := os.read(ours, 4096):
                seen += part
                if seen.count(f"parking pid {worker.pid}".encode()) > 2:
                    machine.gpu.clear_faults()
        except OSError:  # the terminal's other end is closed
            pass
        assert process.wait(PATIENCE_S) == 0
    os.close(ours)
    assert seen.count(f"parking pid {worker.pid}".encode()) > 2
    assert b"of 1.5 GiB" in seen
