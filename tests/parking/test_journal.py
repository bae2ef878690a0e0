"""The journal outlives what it cannot judge: other PID namespaces, full disks, vrams that died writing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time

import pytest

from tests.needs import skip_without
from tests.parking.conftest import CHECKPOINTED, Machine, runs_on
from tests.patience import PATIENCE_S

OTHER_NAMESPACE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")

WRITE_WITHOUT_ROOM = """
import json, resource, sys
from vram.errors import AuditUnavailable
from vram.host.local import LocalHost
from vram.model.parking import Parked
from vram.reclaim import identity
from vram.reclaim.journal import Journal
host = LocalHost()
journal = Journal(host)
entry = Parked(host=journal.host_name, boot_id=journal.boot_id, target=identity.identify(host, {pid}),
               shares=(), since=host.clock.now(), by_user="me", by_pid=1, purpose="park")
sys.dont_write_bytecode = True
resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
try:
    journal.write(entry)
except AuditUnavailable as error:
    print(json.dumps(str(error)))
"""


@pytest.fixture(scope="module")
def elsewhere() -> tuple[str, ...]:
    """The way into another PID namespace."""
    tried = (*OTHER_NAMESPACE, "true")
    if not shutil.which("unshare") or subprocess.run(tried, capture_output=True).returncode:
        skip_without("namespaces", "no PID namespace may be made here")
    return OTHER_NAMESPACE


def vram_in(enter: tuple[str, ...], machine: Machine, *words: object) -> subprocess.CompletedProcess[str]:
    argv = [*enter, sys.executable, "-m", "vram", *map(str, words)]
    return subprocess.run(argv, env=machine.environment(), capture_output=True, text=True, timeout=PATIENCE_S)


def test_another_pid_namespace_sees_what_is_parked_and_leaves_it_alone(
    machine: Machine, elsewhere: tuple[str, ...]
) -> None:
    """There the pid names nobody; that is no sign of its end."""
    worker = machine.worker()
    machine.vram("park", worker.pid)
    seen = vram_in(elsewhere, machine, "park", "--json")
    assert [(line["pid"], line["state"]) for line in json.loads(seen.stdout)["parked"]] == [
        (worker.pid, "elsewhere")
    ]
    text = vram_in(elsewhere, machine, "park").stdout
    assert f"{worker.pid}  0 " in text
    assert "parked in another PID namespace" in " ".join(text.split())
    refused = vram_in(elsewhere, machine, "unpark", worker.pid)
    assert (refused.returncode, "another PID namespace" in refused.stderr) == (20, True)
    everybody = vram_in(elsewhere, machine, "unpark", "--all")
    assert (everybody.returncode, "another PID namespace" in everybody.stderr) == (0, True)
    assert machine.state(worker.pid) == CHECKPOINTED
    assert [line["state"] for line in machine.parked()] == ["parked"]
    assert machine.vram("unpark", worker.pid).returncode == 0
    assert runs_on(worker)


def test_an_entry_that_names_no_namespace_is_judged_here(machine: Machine) -> None:
    """Vrams before this one wrote none."""
    worker = machine.worker()
    machine.vram("park", worker.pid)
    (file,) = (machine.state_home / "vram").glob("parked-*")
    entry = json.loads(file.read_text())
    assert entry.pop("pid_namespace") == os.stat("/proc/self/ns/pid").st_ino
    file.write_text(json.dumps(entry))
    assert [line["pid"] for line in machine.parked()] == [worker.pid]
    worker.kill()
    assert machine.parked() == []
    assert not file.exists()


def test_a_write_that_fails_leaves_nothing(machine: Machine) -> None:
    worker = machine.worker()
    assert "cannot write" in machine.api(WRITE_WITHOUT_ROOM.format(pid=worker.pid))
    assert list((machine.state_home / "vram").glob("parked-*")) == []


def test_what_a_vram_that_died_writing_left_is_swept(machine: Machine) -> None:
    """But not what may be in the middle of its writing."""
    folder = machine.state_home / "vram"
    folder.mkdir(mode=0o700)
    left, fresh = (folder / f"parked-boot-{pid}-1.json.{pid}.new" for pid in (5, 6))
    for file in (left, fresh):
        file.write_text("{")
    yesterday = time.time() - 24 * 3600
    os.utime(left, (yesterday, yesterday))
    assert machine.parked() == []
    assert [left.exists(), fresh.exists()] == [False, True]
