"""The history of a real service: recorded on a virtual GPU, asked over HTTP and by `vram history`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.limited_files import NO_BYTECODE
from tests.serve.conftest import StartDemo, StartService
from tests.serve.running import RunningService
from tests.serve.users import UsersMachine, needs_root
from vram.errors import ExitCode
from vram.report.schema import shipped
from vram.units import GIB
from vram.virtualgpu import VirtualGpu

API = "/api/v1/history"


def ask(service: RunningService, *words: str, code: int = 0) -> Any:
    """`vram history WORDS --json` on the service's file."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "vram",
            "history",
            *words,
            "--json",
            "--file",
            str(service.state / "history.sqlite"),
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout) if not code else done.stderr


@pytest.fixture(scope="module")
def asked_service(
    native_libraries: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningService]:
    """One service for all that is only asked."""
    with VirtualGpu.create() as gpu, RunningService(tmp_path_factory.mktemp("asked"), gpu) as service:
        yield service


def holders(service: RunningService, query: str = "") -> list[dict[str, Any]]:
    return list(service.get(f"{API}/holders?gpu=0{query}")["holders"])


def held_by(service: RunningService, pid: int) -> dict[str, Any]:
    return service.until(lambda: next((each for each in holders(service) if each["pid"] == pid), None))


def test_who_held_the_gpu_is_known_after_they_have_gone(service: RunningService, demo: StartDemo) -> None:
    """A process is there at the time when it was, and no more afterwards; its end has a time."""
    program = demo("memory.plain", 3 * GIB)
    pid = program.pids["self"]
    row = held_by(service, pid)
    then = time.time()
    assert row["nbytes"] >= 3 * GIB
    assert (row["kind"], row["until"], row["uid"]) == ("process", None, os.geteuid())
    program.kill("self")
    service.until(lambda: pid not in [each["pid"] for each in holders(service)])
    (before,) = [each for each in holders(service, f"&at={then:.3f}") if each["pid"] == pid]
    assert before["since"] <= before["until"]
    assert before["since_seen"]
    assert before["until_seen"]
    found = service.get(f"{API}/search?q=memory.py")["rows"]
    assert pid in [each["pid"] for each in found]


def test_a_ghost_has_an_age_that_outlives_the_service(start_service: StartService, demo: StartDemo) -> None:
    """The service is killed and started again; the ghost is known since the same moment."""
    first = start_service()
    family = demo("forks.orphan", 2 * GIB)
    family.kill("parent")
    ghost = first.until(lambda: next(iter(first.get(f"{API}/ghosts")["ghosts"]), None))
    assert (ghost["code"], ghost["dead_pid"], ghost["pid"]) == (
        "VR101",
        family.pids["parent"],
        family.pids["child"],
    )
    assert first.stop() == 0
    again = start_service()
    again.readings(2)
    (same,) = again.get(f"{API}/ghosts")["ghosts"]
    assert (same["since"], same["until"], same["pid"]) == (ghost["since"], None, ghost["pid"])
    assert same["held_s"] >= ghost["held_s"]
    family.kill("child")
    (ended,) = again.until(lambda: [each for each in again.get(f"{API}/ghosts")["ghosts"] if each["until"]])
    assert ended["since"] == ghost["since"]
    assert again.stop(signal.SIGTERM) == 0
    # The same from the file, without a service.
    (read,) = ask(again, "ghosts")["ghosts"]
    assert (read["since"], read["until"]) == (ended["since"], ended["until"])


def test_every_answer_has_the_form_of_its_schema(service: RunningService, demo: StartDemo) -> None:
    held_by(service, demo("memory.plain", GIB).pids["self"])
    service.stop()
    for name, words in {
        "history": (),
        "history-ghosts": ("ghosts",),
        "history-waste": ("waste",),
        "history-series": ("series",),
        "history-search": ("search", "python"),
    }.items():
        report = ask(service, *words)
        jsonschema.validate(report, json.loads(shipped(name).read_bytes()))


def test_the_series_sums_to_the_total(service: RunningService, demo: StartDemo) -> None:
    held_by(service, demo("memory.plain", 5 * GIB).pids["self"])
    points = service.get(f"{API}/series?gpu=0&points=50")["points"]
    known = [point for point in points if point["total_bytes"] is not None]
    assert all(sum(point["kinds"].values()) == point["total_bytes"] for point in known)
    assert max(point["kinds"].get("process", 0) for point in known) >= 5 * GIB


@pytest.mark.parametrize(
    ("query", "status", "word"),
    [
        ("holders?gpu=99", 404, "no GPU 99"),
        ("holders?at=1000000000", 404, "nothing was recorded"),
        ("holders?at=half+past+three", 400, "is not a time"),
        ("search", 400, "q is missing"),
        ("search?q=x&limit=100000000", 400, "limit"),
        ("series?gpu=0&points=0", 400, "points"),
        ("ghosts?from=1794802320&to=1794802319", 400, "before it begins"),
        ("search?q=%00%27%3b--%25_%5c", 200, ""),
    ],
)
def test_a_question_that_cannot_be_meant_gets_a_sentence(
    asked_service: RunningService, query: str, status: int, word: str
) -> None:
    got, body, _ = asked_service.request(f"{API}/{query}")
    assert (got, word in json.loads(body).get("error", "")) == (status, True), body


def test_without_a_history_there_is_nothing_to_ask(start_service: StartService, tmp_path: Path) -> None:
    config = tmp_path / "serve.toml"
    config.write_text("[history]\nenabled = false\n")
    service = start_service("--config", str(config))
    assert "no history" in service.get(f"{API}/holders", status=404)["error"]
    assert not (service.state / "history.sqlite").exists()


def test_a_file_that_is_no_history_is_moved_aside(start_service: StartService, tmp_path: Path) -> None:
    """What lay there is kept, byte for byte, and the service says so."""
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "state" / "history.sqlite").write_bytes(b"somebody's notes\n" * 100)
    service = start_service()
    assert service.get(f"{API}/holders?gpu=0")["recorded"]["readings"] > 0
    (aside,) = (tmp_path / "state").glob("history.sqlite.foreign-*")
    assert aside.read_bytes() == b"somebody's notes\n" * 100
    parts = {each["name"]: each for each in service.get("/api/v1/health")["parts"]}
    assert parts["history"]["status"] == "degraded"
    assert aside.name in parts["history"]["message"]


def test_a_link_is_refused_and_the_service_goes_on(start_service: StartService, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir(mode=0o700)
    target = tmp_path / "target"
    (tmp_path / "state" / "history.sqlite").symlink_to(target)
    service = start_service()
    service.readings(2)
    assert "is a link" in service.get(f"{API}/holders?gpu=0", status=503)["error"]
    assert service.request("/healthz")[0] == 200
    assert not target.exists()


@needs_root
def test_an_unreadable_history_names_the_api(virtual_gpu: VirtualGpu, stack: ExitStack) -> None:
    """Another user gets no byte of it, and is told whom to ask."""
    machine = UsersMachine(virtual_gpu, stack)
    service = machine.start()
    done = machine.vram("alice", "history", "--file", service.state / "history.sqlite")
    assert done.returncode == ExitCode.NOT_PERMITTED, done.stderr
    assert "/api/v1/history" in done.stderr


@pytest.mark.fault(21)
def test_without_room_the_service_goes_on_and_records_as_soon_as_there_is_some(
    start_service: StartService,
) -> None:
    """Files of more than 20 kB cannot be written; then they can."""
    service = start_service(prefix=("prlimit", "--fsize=20000:"), environment=NO_BYTECODE)
    service.readings(2)
    assert "history cannot be kept" in service.get(f"{API}/holders", status=503)["error"]
    assert service.request("/healthz")[0] == 200
    assert service.metrics()["vram_history_recording",] == 0
    subprocess.run(["prlimit", f"--pid={service.process.pid}", "--fsize=unlimited:"], check=True)
    service.until(lambda: service.request(f"{API}/holders")[0] == 200)
    assert "history: recorded again" in service.log
    assert service.metrics()["vram_history_recording",] == 1
