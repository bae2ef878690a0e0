"""What the service answers about real processes on a virtual GPU."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from tests.serve.conftest import StartDemo, StartService
from tests.serve.running import RunningService
from tests.signalled import TRIES, require_plain_end, signalled
from vram.report import schema
from vram.units import GIB
from vram.virtualgpu import VirtualGpu

SCHEMAS = Path(schema.__file__).parent


def test_why_and_ps_have_the_schemas_of_the_commands(service: RunningService, demo: StartDemo) -> None:
    holder = demo("memory.plain", 2 * GIB).pids["self"]
    service.until(lambda: service.get("/api/v1/ps")["processes"])
    for path, file in (("/api/v1/why", "why"), ("/api/v1/ps", "ps")):
        answer = service.get(path)
        jsonschema.validate(answer, json.loads((SCHEMAS / f"{file}.schema.json").read_text()))
    (row,) = service.get("/api/v1/ps")["processes"]
    assert row["pid"] == holder
    assert row["nbytes"] > 2 * GIB


def test_a_ghost_is_shown_with_its_evidence_since_when_and_the_command(
    service: RunningService, demo: StartDemo
) -> None:
    family = demo("forks.orphan", 2 * GIB)
    family.kill("parent")
    service.until(lambda: service.get("/api/v1/ghosts")["ghosts"])
    report = service.get("/api/v1/ghosts")
    (ghost,) = report["ghosts"]
    assert ghost["code"] == "VR101"
    assert ghost["pids"] == [family.pids["child"]]
    assert ghost["evidence"]
    assert ghost["since"] is not None
    assert report["command"] == "vram free"
    service.until(
        lambda: any(c["change"]["event"] == "ghost" for c in service.get("/api/v1/changes")["changes"])
    )
    metrics = service.metrics()
    assert metrics["vram_gpu_ghosts", "VR101", "0"] == 1
    assert metrics["vram_gpu_leftover_bytes", "0"] == ghost["nbytes"]
    family.kill("child")
    service.until(lambda: not service.get("/api/v1/ghosts")["ghosts"])
    assert ("vram_gpu_ghosts", "VR101", "0") not in service.metrics()


def test_the_kinds_of_a_gpu_sum_to_its_total(service: RunningService, demo: StartDemo) -> None:
    demo("memory.plain", 3 * GIB)
    service.until(lambda: service.metrics()["vram_gpu_processes", "0"] == 1)
    metrics = service.metrics()
    kinds = [value for (name, *_), value in metrics.items() if name == "vram_gpu_memory_bytes"]
    assert sum(kinds) == metrics["vram_gpu_memory_total_bytes", "0"]
    assert metrics["vram_gpu_memory_bytes", "0", "process"] > 3 * GIB


def test_health_says_how_old_the_last_good_reading_is(service: RunningService) -> None:
    service.until(lambda: service.request("/readyz")[0] == 200)
    health = service.get("/healthz")
    assert health["status"] == "ok"
    assert 0 <= health["good_age_s"] < health["uptime_s"]
    assert health["parts"][0]["name"] == "reading"


def test_changes_after_a_number(service: RunningService, demo: StartDemo) -> None:
    demo("memory.plain", 1 * GIB)
    service.until(lambda: service.get("/api/v1/changes")["changes"])
    report = service.get("/api/v1/changes")
    numbers = [each["number"] for each in report["changes"]]
    assert numbers == list(range(1, len(numbers) + 1))
    assert service.get(f"/api/v1/changes?after={report['last']}")["changes"] == []
    assert "hint" in service.get("/api/v1/changes?after=-1", 400)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly(service: RunningService, number: signal.Signals) -> None:
    assert service.stop(number) == 0
    assert "Traceback" not in service.log


@pytest.mark.fault(31)
def test_a_second_service_leaves_and_the_first_goes_on(
    service: RunningService, start_service: StartService
) -> None:
    words = [sys.executable, "-m", "vram", "serve", "--listen", "", "--state", str(service.state)]
    second = subprocess.run(words, capture_output=True, text=True)
    assert second.returncode == 24
    assert f"pid {service.process.pid}" in second.stderr
    service.readings()


def test_a_port_that_is_taken_is_a_sentence(service: RunningService, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "vram", "serve", "--listen", f"127.0.0.1:{service.port}"]
    done = subprocess.run([*words, "--state", str(tmp_path / "other")], capture_output=True, text=True)
    assert done.returncode == 25
    assert "address already in use" in done.stderr
    assert "--listen" in done.stderr


def test_reload_takes_a_good_file_and_keeps_the_old_one_before_a_bad_one(
    start_service: StartService, tmp_path: Path
) -> None:
    file = tmp_path / "serve.toml"
    file.write_text('[http]\nhosts = ["one.example"]\n')
    service = start_service("--config", str(file))
    service.notified()
    file.write_text('[http]\nhost = ["two.example"]\n')
    service.send(signal.SIGHUP)
    service.until(lambda: "READY=1" in service.notified())
    assert "did you mean" not in service.log
    assert "there is no key http.host" in service.log
    assert service.metrics()["vram_config_last_reload_successful",] == 0
    assert service.request("/healthz", headers={"Host": "one.example"})[0] == 200
    file.write_text('[http]\nhosts = ["two.example"]\n')
    service.send(signal.SIGHUP)
    service.until(lambda: service.metrics()["vram_config_last_reload_successful",] == 1)
    assert service.request("/healthz", headers={"Host": "two.example"})[0] == 200
    assert service.request("/healthz", headers={"Host": "one.example"})[0] == 421


def test_without_prometheus_client_it_says_what_to_install(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['prometheus_client'] = None; from vram.cli.app import main; sys.exit(main())"
    )
    words = [sys.executable, "-c", code, "serve", "--listen", "", "--state", str(tmp_path / "state")]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 2
    assert "-m pip install 'prometheus-client>=0.14'" in done.stderr
    assert not (tmp_path / "state").exists()


def test_many_reloads_at_once_end_with_the_last_file(start_service: StartService, tmp_path: Path) -> None:
    file = tmp_path / "serve.toml"
    file.write_text("")
    service = start_service("--config", str(file))
    for number in range(20):
        file.write_text(f'[http]\nhosts = ["host{number}.example"]\n')
        service.send(signal.SIGHUP)
    service.until(lambda: service.request("/healthz", headers={"Host": "host19.example"})[0] == 200)
    assert service.metrics()["vram_config_last_reload_successful",] == 1
    assert "Traceback" not in service.log


def test_a_signal_ends_who_waits_for_room_and_the_command(
    service: RunningService, virtual_gpu: VirtualGpu
) -> None:
    """At any moment: before the command runs, and while it does."""
    chance = random.Random("25 wait")
    words = ("wait", "--socket", str(service.socket), "1GiB", "--", "sleep", "1000")
    for _ in range(TRIES):
        require_plain_end(signalled(words, virtual_gpu.environment(), chance, within_s=1.0))
