"""The journal is a help, the driver is the truth: no entry can hide a parked process, or harm the others."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.needs import require
from tests.parking.conftest import CHECKPOINTED, LOCKED, RUNNING, SOMEBODY_ELSES, Machine, kill_both, runs_on
from tests.patience import PATIENCE_S
from vram.host.local import LocalHost
from vram.model.parking import GpuShare, Parked
from vram.reclaim.identity import identify
from vram.reclaim.journal import Journal, parked_now

FULL = """
    cuda.start()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    cuda.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    cuda.alloc(free.value - 4 * MIB)
    cuda.tell("ready")
    cuda.heard()
"""
PARK_BY_HAND = """
    cuda.call("cuInit", 0)
    cuda.tell("ready")
    pid = int(cuda.heard())
    for verb in ("Lock", "Checkpoint"):
        cuda.call(f"cuCheckpointProcess{verb}", pid, None)
    cuda.tell("parked")
    cuda.heard()
"""

UNPARK_AS_NOBODY = """
import json, os
from vram.reclaim.audit import refusals_logged
from vram.errors import NotPermitted
from vram.host.local import LocalHost, process_limits, processes
from vram.reclaim import audit, parking
os.environ["XDG_STATE_HOME"] = {home!r}
host = LocalHost()
host.facts()
os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    with refusals_logged("unpark", [{pid}]), parking.Parking(host) as open:
        open.entry_of({pid})
except NotPermitted as error:
    print(json.dumps(str(error)))
"""

Damage = Callable[[Path], object]


def changed(**fields: Any) -> Damage:
    """The entry with other values, and so with the name that it has."""
    return lambda file: file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


def target(**fields: Any) -> Damage:
    def damage(file: Path) -> None:
        entry = json.loads(file.read_text())
        entry["target"].update(fields)
        file.write_text(json.dumps(entry))

    return damage


def share(**fields: Any) -> Damage:
    def damage(file: Path) -> None:
        entry = json.loads(file.read_text())
        entry["shares"][0].update(fields)
        file.write_text(json.dumps(entry))

    return damage


def replaced_by(make: Damage) -> Damage:
    def damage(file: Path) -> None:
        file.unlink()
        make(file)

    return damage


def with_one_bad_byte(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[data.index(b"command") + 12] = 0xFF
    file.write_bytes(bytes(data))


def bound(file: Path) -> None:
    """A socket's name may not be long; the folder's is."""
    here = os.open(file.parent, os.O_RDONLY)
    socket.socket(socket.AF_UNIX).bind(f"/proc/self/fd/{here}/{file.name}")
    os.close(here)


DAMAGES: dict[str, tuple[Damage, str]] = {
    "a bad byte": (with_one_bad_byte, "not UTF-8"),
    "empty": (lambda file: file.write_bytes(b""), "it is empty"),
    "cut": (lambda file: os.truncate(file, file.stat().st_size // 2), "truncated"),
    "huge": (lambda file: os.truncate(file, 1 << 40), "larger than 1 MiB"),
    "deep": (lambda file: file.write_bytes(b"[" * 200_000), "items"),
    "nested": (lambda file: file.write_bytes(b'{"a":' * 3_000), ""),  # how deep is too deep, Python decides
    "a list": (lambda file: file.write_bytes(b"[]"), "Expected"),
    "a newer schema": (changed(schema=2), "version 2"),
    "no schema": (changed(schema="1"), "Expected"),
    "no shares": (changed(shares=None), "Expected"),
    "too many shares": (
        changed(shares=[{"gpu": 0, "uuid": "GPU-1", "nbytes": 1}] * 300),
        "it names 300 GPUs",
    ),
    "a negative size": (share(nbytes=-1), "-1 bytes"),
    "a size beyond all": (share(nbytes=1 << 62), "bytes on GPU 0"),
    "a size beyond 64 bits": (share(nbytes=1 << 64), "64 bits"),
    "a UUID that is none": (share(uuid="\x1b[2J"), "UUID"),
    "a time that is none": (changed(since="yesterday"), "time"),
    "another process": (target(process={"pid": 1, "started_at": 1}), "name"),
    "a pid that is none": (target(process={"pid": -5, "started_at": 1}), "not a pid"),
    "an unknown purpose": (changed(purpose="erase"), "purpose"),
    "a link": (replaced_by(lambda file: file.symlink_to("/etc/passwd")), "it is a link"),
    "a hard link": (lambda file: os.link(file, file.with_name("other")), "second hard link"),
    "a folder": (replaced_by(lambda file: (file / "more").mkdir(parents=True)), "not a regular file"),
    "a pipe": (replaced_by(os.mkfifo), "not a regular file"),
    "a socket": (replaced_by(bound), "No such device or address"),
    "open to others": (lambda file: file.chmod(0o666), "could have changed it"),
}


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Journal:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return Journal(LocalHost())


@pytest.fixture
def entry(journal: Journal) -> Iterator[Parked]:
    """The entry of a process that lives, on the disk."""
    with subprocess.Popen(["sleep", "1000"]) as process:
        host = LocalHost()
        made = Parked(
            host=journal.host_name,
            boot_id=journal.boot_id,
            target=identify(host, process.pid),
            shares=(GpuShare(0, "GPU-1", 1 << 30),),
            since=host.clock.now(),
            by_user="me",
            by_pid=os.getpid(),
            purpose="park",
        )
        journal.write(made)
        yield made
        process.kill()


def entry_file(folder: Path) -> Path:
    (file,) = (folder / "vram").glob("parked-*.json")
    return file


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_bad_entry_is_set_aside(journal: Journal, entry: Parked, tmp_path: Path, kind: str) -> None:
    """It is neither obeyed nor deleted, and the audit log tells of it."""
    file = entry_file(tmp_path)
    damage, reason = DAMAGES[kind]
    damage(file)
    assert parked_now(LocalHost()) == ()
    assert os.path.lexists(file), "showing changes nothing"
    assert journal.entries() == ()
    (bad,) = journal.set_aside
    assert (bad.name, os.path.lexists(file)) == (file.name, False)
    assert reason in bad.reason
    assert bad.kept_as is not None
    assert os.path.lexists(file.with_name(bad.kept_as))
    (line,) = map(json.loads, (tmp_path / "vram" / "audit.jsonl").read_text().splitlines())
    assert (line["event"], line["entry"], line["message"]) == ("refused", file.name, bad.reason)
    journal.write(entry)
    assert journal.entries() == (entry,), "the next one is as good as ever"


def test_a_name_that_is_not_utf_8_is_told_in_ascii(journal: Journal, tmp_path: Path) -> None:
    (tmp_path / "vram").mkdir(mode=0o700)
    os.close(os.open(bytes(tmp_path) + b"/vram/parked-\xff\x1b-1-1.json", os.O_CREAT | os.O_WRONLY, 0o600))
    assert journal.entries() == ()
    assert [bad.name for bad in journal.set_aside] == ["parked-\\xff\x1b-1-1.json"]


def test_an_entry_that_cannot_be_renamed_is_told_and_passed_over(
    journal: Journal, entry: Parked, tmp_path: Path
) -> None:
    """Its name is as long as a name can be."""
    name = f"parked-{'x' * 236}-1-1.json"
    (tmp_path / "vram" / name).write_text("")
    assert journal.entries() == (entry,)
    (bad,) = journal.set_aside
    assert bad.name == name


def test_an_entry_cut_at_any_byte_is_not_used(journal: Journal, entry: Parked, tmp_path: Path) -> None:
    file, host = entry_file(tmp_path), LocalHost()
    whole = file.read_bytes()
    (shown,) = parked_now(host)
    for length in range(len(whole) - 1):
        file.write_bytes(whole[:length])
        assert parked_now(host) == (), length
    file.write_bytes(whole[:-1])
    assert parked_now(host) == (shown,), "only the end of the line is missing"


def test_random_bytes_in_an_entry_are_no_trouble(journal: Journal, entry: Parked, tmp_path: Path) -> None:
    """Whatever it is made to say, it is an entry or it is not: nothing else is raised."""
    file, host, chance = entry_file(tmp_path), LocalHost(), random.Random(5)
    whole = file.read_bytes()
    for _ in range(2000):
        data = bytearray(whole)
        for _ in range(chance.randrange(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        file.write_bytes(data)
        for found in parked_now(host):
            assert found.pid == entry.target.process.pid


@pytest.fixture
def nobodys_folder() -> Iterator[Path]:
    """A folder of another user's, where that user can reach it."""
    with tempfile.TemporaryDirectory() as folder:
        if not os.geteuid():
            os.chown(folder, 65534, 65534)
        yield Path(folder)


def entry_of(machine: Machine, pid: int) -> Path:
    (file,) = (machine.state_home / "vram").glob(f"parked-*-{pid}-*.json")
    return file


@pytest.mark.fault(10)
@pytest.mark.parametrize("kind", ["a bad byte", "cut", "a pipe"])
def test_one_bad_entry_is_reported_and_harms_nobody(machine: Machine, kind: str) -> None:
    """Its own process is found by asking the driver; everybody else is as before."""
    one, other = machine.worker(), machine.worker()
    assert machine.vram("park", one.pid, other.pid).returncode == 0
    file = entry_of(machine, one.pid)
    damage, reason = DAMAGES[kind]
    damage(file)
    done = machine.vram("park", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert {line["pid"]: line["known_from"] for line in report["parked"]} == {
        one.pid: "driver",
        other.pid: "journal",
    }
    (bad,) = report["set_aside"]
    assert (bad["name"], reason in bad["reason"]) == (file.name, True)
    assert f"{file.name} is not used: {bad['reason']}" in done.stderr
    assert machine.vram("unpark", one.pid, other.pid).returncode == 0
    assert runs_on(one)
    assert runs_on(other)


@pytest.mark.fault(10)
def test_a_deleted_entry_leaves_a_way_back(machine: Machine) -> None:
    worker = machine.worker()
    machine.vram("park", worker.pid)
    entry_of(machine, worker.pid).unlink()
    (line,) = machine.parked()
    assert (line["pid"], line["state"], line["known_from"], line["since"]) == (
        worker.pid,
        "parked",
        "driver",
        None,
    )
    text = " ".join(machine.vram("park").stdout.split())
    assert "found by querying the driver" in text
    everybody = machine.vram("unpark", "--all")
    assert (everybody.returncode, f"`vram unpark {worker.pid}`" in everybody.stderr) == (0, True)
    assert machine.state(worker.pid) == CHECKPOINTED, "nobody knows who parked it, so it must be named"
    again = machine.vram("park", worker.pid)
    assert (again.returncode, "already parked" in again.stderr) == (20, True), again.stderr
    done = machine.vram("unpark", worker.pid)
    assert (done.returncode, "is running again, 582.0 MiB on GPU 0" in done.stdout) == (0, True), done
    assert runs_on(worker)
    intended, outcome = machine.audit()[-2:]
    assert (intended["action"], intended["found_by"], outcome["status"]) == (
        "unpark",
        "asking the driver",
        "done",
    )


def test_what_another_program_parked_is_listed_and_brought_back(machine: Machine) -> None:
    worker, parker = machine.worker(), machine.program(PARK_BY_HAND)
    parker.go(str(worker.pid))
    assert parker.told() == "parked"
    assert [(line["pid"], line["known_from"]) for line in machine.parked()] == [(worker.pid, "driver")]
    assert machine.vram("unpark", worker.pid).returncode == 0
    assert runs_on(worker)


@pytest.mark.fault(10)
def test_a_process_left_locked_without_an_entry_is_unlocked_by_name(machine: Machine) -> None:
    worker = machine.worker()
    machine.gpu.fail("cuCheckpointProcessCheckpoint", slow_s=PATIENCE_S)
    vram = machine.start("park", worker.pid)
    machine.wait_for(worker.pid, LOCKED)
    kill_both(vram)
    machine.gpu.clear_faults()
    entry_of(machine, worker.pid).unlink()
    (line,) = machine.parked()
    assert (line["state"], machine.state(worker.pid)) == ("locked", LOCKED), "listed, and not touched"
    hog = machine.program(FULL)
    assert machine.vram("unpark", worker.pid).returncode == 0, "it needs no room: it has its memory"
    assert runs_on(worker)
    hog.kill()


@pytest.mark.fault(19)
def test_room_for_a_process_of_unknown_size_is_its_host_memory(machine: Machine) -> None:
    worker = machine.worker()
    machine.vram("park", worker.pid)
    entry_of(machine, worker.pid).unlink()
    hog = machine.program(FULL)
    short = machine.vram("unpark", worker.pid)
    assert short.returncode == 20, short.stderr
    assert "may need up to" in short.stderr
    assert "--anyway" in short.stderr
    assert machine.vram("unpark", "--anyway", worker.pid).returncode == 20, "the driver finds none either"
    assert machine.state(worker.pid) == CHECKPOINTED
    hog.kill()
    assert machine.vram("unpark", worker.pid).returncode == 0
    assert runs_on(worker)


def test_an_entry_that_says_parked_does_not_keep_a_running_process_from_parking(machine: Machine) -> None:
    """The driver says that it runs: the entry is removed, and park parks."""
    worker = machine.worker()
    machine.vram("park", worker.pid)
    file = entry_of(machine, worker.pid)
    stale = file.read_bytes()
    machine.vram("unpark", worker.pid)
    file.write_bytes(stale)
    assert machine.parked() == []
    assert not file.exists()
    file.write_bytes(stale)
    assert machine.vram("park", worker.pid).returncode == 0
    assert machine.state(worker.pid) == CHECKPOINTED
    machine.vram("unpark", worker.pid)
    assert runs_on(worker)


@pytest.mark.parametrize("number", [7, -1, 2**31 - 1])
def test_a_state_that_nobody_knows_is_told_and_nothing_is_done(machine: Machine, number: int) -> None:
    parked, running = machine.worker(), machine.worker()
    machine.vram("park", parked.pid)
    machine.gpu.fail("cuCheckpointProcessGetState", value=number)
    words = f"the driver reports a state unknown to this version ({number})"
    for command, worker in (("park", running), ("unpark", parked), ("unpark", running)):
        done = machine.vram(command, worker.pid)
        assert (done.returncode, words in done.stderr) == (3, True), (command, done.stderr)
    listed = machine.vram("park", "--json")
    (line,) = json.loads(listed.stdout)["parked"]
    assert (line["pid"], line["state"], line["detail"]) == (parked.pid, "unknown", words)
    assert words in listed.stderr
    machine.gpu.clear_faults()
    assert (machine.state(parked.pid), machine.state(running.pid)) == (CHECKPOINTED, RUNNING)
    assert machine.vram("unpark", parked.pid).returncode == 0
    assert runs_on(parked)
    assert runs_on(running)


def test_another_users_parked_process_is_nobodys_but_roots(machine: Machine, nobodys_folder: Path) -> None:
    require("root", detail="only root can play two users")
    machine.gpu.folder.chmod(0o755)  # the virtual driver in their process reads it as nobody
    theirs, ours = machine.program(SOMEBODY_ELSES), machine.worker()
    for program in (theirs, ours):
        parker = machine.program(PARK_BY_HAND)
        parker.go(str(program.pid))
        assert parker.told() == "parked"
    assert "belongs to root" in machine.api(UNPARK_AS_NOBODY.format(home=str(nobodys_folder), pid=ours.pid))
    assert '"event":"refused"' in (nobodys_folder / "vram" / "audit.jsonl").read_text()
    assert sorted(line["pid"] for line in machine.parked()) == sorted([theirs.pid, ours.pid])
    assert machine.vram("unpark", theirs.pid, ours.pid).returncode == 0
    assert runs_on(ours)
