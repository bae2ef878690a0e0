"""The service and everything that goes wrong around it: it answers from what it knows, and goes on."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.faults.record import Tally
from tests.needs import needs, skip_without
from tests.patience import PATIENCE_S, until
from tests.serve.conftest import StartDemo, StartService
from tests.serve.running import RunningService
from vram.units import GIB
from vram.virtualgpu import VirtualGpu
from vram.virtualgpu.demos import PROGRAMS

KILLS = int(os.environ.get("VRAM_SERVE_KILLS", "12"))
QUICK = ("--deadline", "0.5s")


def events(service: RunningService) -> list[str]:
    return [each["change"]["event"] for each in service.get("/api/v1/changes")["changes"]]


def family(pid: int) -> list[int]:
    """What *pid* has started, and what that has."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [each for child in children for each in (int(child), *family(int(child)))]


@pytest.mark.fault(3)
def test_a_scrape_while_nvml_hangs_is_answered_at_once_from_the_last_reading(
    start_service: StartService, virtual_gpu: VirtualGpu, demo: StartDemo
) -> None:
    """The reading hangs before, meanwhile and after: nobody waited for it."""
    demo("memory.plain", 2 * GIB)
    service = start_service("--deadline", f"{PATIENCE_S}s")
    service.until(lambda: service.metrics()["vram_gpu_processes", "0"] == 1)
    virtual_gpu.fail("nvmlDeviceGetMemoryInfo*", hang=True)
    service.until(lambda: service.get("/api/v1/health")["reading_for_s"] > 1.0)
    health = service.get("/healthz")
    held = service.metrics()["vram_gpu_memory_bytes", "0", "process"]
    assert service.get("/healthz")["reading_for_s"] > health["reading_for_s"] > 1.0
    assert health["good_age_s"] > 1.0
    assert held > 2 * GIB
    service.close()
    virtual_gpu.clear_faults()
    # A reading ends by its own deadline: that GPU does not answer, and the service says so.
    service = start_service("--deadline", "2s")
    service.until(lambda: service.metrics()["vram_gpu_processes", "0"] == 1)
    virtual_gpu.fail("nvmlDeviceGetMemoryInfo*", hang=True)
    service.until(lambda: service.metrics()["vram_gpu_up", "0"] == 0)
    assert len(family(service.process.pid)) < 8, "readers pile up"
    virtual_gpu.clear_faults()
    service.until(lambda: service.metrics()["vram_gpu_up", "0"] == 1)
    service.until(lambda: service.metrics()["vram_gpu_memory_bytes", "0", "process"] > 2 * GIB)


@pytest.mark.fault(8)
@pytest.mark.parametrize("error", [9, 18], ids=["unloaded", "replaced"])
def test_a_driver_that_leaves_and_comes_back(
    start_service: StartService, virtual_gpu: VirtualGpu, demo: StartDemo, error: int
) -> None:
    demo("memory.plain", 2 * GIB)
    service = start_service()
    service.until(lambda: service.metrics()["vram_gpu_processes", "0"] == 1)
    virtual_gpu.fail("nvml*", error=error)
    service.until(lambda: "driver-gone" in events(service))
    assert service.request("/healthz")[0] == 200
    why = service.get("/api/v1/why")
    assert any(probe["status"] != "ok" for probe in why["probes"] if probe["name"] == "nvml")
    assert ("vram_gpu_memory_total_bytes", "0") not in service.metrics()
    virtual_gpu.clear_faults()
    service.until(lambda: "driver-back" in events(service))
    service.until(lambda: service.metrics().get(("vram_gpu_processes", "0")) == 1)
    assert "Traceback" not in service.log


@pytest.mark.fault(9)
def test_a_gpu_that_is_lost_ends_its_series_and_comes_back(
    tmp_path: Path, two_virtual_gpus: VirtualGpu
) -> None:
    with RunningService(tmp_path, two_virtual_gpus) as service:
        two_virtual_gpus.fail("nvmlDevice*", gpu=1, error="GPU_IS_LOST")
        service.until(lambda: "gpu-lost" in events(service))
        metrics = service.metrics()
        assert metrics["vram_gpu_up", "1"] == 0
        assert ("vram_gpu_memory_total_bytes", "1") not in metrics
        assert metrics["vram_gpu_up", "0"] == 1
        assert metrics["vram_gpu_memory_total_bytes", "0"] > 0
        two_virtual_gpus.clear_faults()
        service.until(lambda: service.metrics()["vram_gpu_up", "1"] == 1)


def divide(gpu: VirtualGpu, service: RunningService, mig: str) -> None:
    """Change MIG as a reset does: whoever has the driver open must open it anew."""
    gpu.set(mig=mig)
    _, driver_reader = family(service.process.pid)
    os.kill(driver_reader, signal.SIGKILL)


@pytest.mark.fault(9)
def test_mig_that_is_switched_on_is_counted_once(
    start_service: StartService, virtual_gpu: VirtualGpu
) -> None:
    service = start_service()
    total = service.metrics()["vram_gpu_memory_total_bytes", "0"]
    divide(virtual_gpu, service, "3g.71gb,2g.35gb")
    service.until(lambda: mig_devices(service) == {"0:0", "0:1"})
    metrics = service.metrics()
    kinds = [value for (name, *_), value in metrics.items() if name == "vram_gpu_memory_bytes"]
    assert sum(kinds) == metrics["vram_gpu_memory_total_bytes", "0"] == total
    divide(virtual_gpu, service, "2g.35gb")
    service.until(lambda: mig_devices(service) == {"0:0"})


def mig_devices(service: RunningService) -> set[str]:
    return {labels[2] for name, *labels in service.metrics() if name == "vram_mig_memory_bytes"}


def test_the_reading_process_killed_at_random_moments(
    service: RunningService, demo: StartDemo, tally: Tally
) -> None:
    demo("memory.plain", 2 * GIB)
    chance = random.Random(15)
    for number in range(KILLS):
        (reader, *_) = service.until(lambda: family(service.process.pid))
        victims = [reader, *family(reader)]
        with suppress(ProcessLookupError):  # it has ended since it was listed
            os.kill(chance.choice(victims), signal.SIGKILL)
        time.sleep(chance.random() * 0.3)
        assert service.request("/healthz")[0] == 200, number
    service.until(lambda: service.metrics()["vram_gpu_processes", "0"] == 1)
    service.until(lambda: service.get("/healthz")["status"] == "ok")
    assert service.metrics()["vram_reader_restarts_total",] > 0
    service.until(lambda: len(family(service.process.pid)) <= 2)
    assert "Traceback" not in service.log


def test_a_stopped_reading_process_is_given_up_and_replaced(start_service: StartService) -> None:
    """As one that hangs in the kernel, for as long as it likes."""
    service = start_service("--deadline", "1s")
    (reader, *_) = service.until(lambda: family(service.process.pid))
    os.kill(reader, signal.SIGSTOP)
    service.until(lambda: service.metrics()["vram_reader_restarts_total",] >= 1)
    service.until(lambda: service.get("/healthz")["status"] == "ok")
    service.until(lambda: reader not in family(service.process.pid))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_end_at_any_moment_leaves_nothing_behind(
    start_service: StartService, virtual_gpu: VirtualGpu, number: signal.Signals
) -> None:
    chance = random.Random(int(number))
    for turn in range(4):
        service = start_service(waits=turn % 2 == 1)
        if turn == 3:
            virtual_gpu.fail("nvmlDeviceGetMemoryInfo*", hang=True)
            until_hanging(service)
        time.sleep(chance.random() * 0.5)
        started = [service.process.pid, *family(service.process.pid)]
        assert service.stop(number) == 0, service.log
        assert "Traceback" not in service.log
        until_none_left(started)


@pytest.mark.fault(10)
def test_a_service_that_is_killed_leaves_nothing_and_starts_again(
    start_service: StartService, virtual_gpu: VirtualGpu
) -> None:
    virtual_gpu.add_fault("nvmlDeviceGetMemoryInfo* slow=0.2")
    for _ in range(2):
        service = start_service()
        started = family(service.process.pid)
        service.process.kill()
        service.process.wait(PATIENCE_S)
        until_none_left(started)
    assert start_service().request("/healthz")[0] == 200


def until_hanging(service: RunningService) -> None:
    service.until(lambda: service.get("/api/v1/health")["reading_for_s"] > 0.1)


def until_none_left(pids: list[int]) -> None:
    until(lambda: not any(map(is_ours, pids)), lambda: [pid for pid in pids if is_ours(pid)])


def is_ours(pid: int) -> bool:
    try:
        return b"vram" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


@pytest.mark.fault(21)
@needs("root", detail="only root mounts a disk for the time of a test")
def test_a_full_disk_is_said_and_readings_go_on(
    start_service: StartService, demo: StartDemo, tmp_path: Path
) -> None:
    """State, history and the textfile lie on a disk that is full from the beginning, and then has room."""
    disk, config = tmp_path / "disk", tmp_path / "serve.toml"
    disk.mkdir()
    config.write_text(f'[textfile]\npath = "{disk}/vram.prom"\n')
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=0700", "none", disk], check=False)
    if mounted.returncode:
        skip_without("mounts", "nothing may be mounted here")
    try:
        service = start_service("--config", str(config), "--state", str(disk / "state"))
        service.until(lambda: (disk / "vram.prom").exists())
        with pytest.raises(OSError, match="No space"):
            fill(disk / "filler")
        service.until(lambda: part(service, "textfile")["status"] == "failed")
        assert "No space left" in part(service, "textfile")["message"]
        demo("memory.plain", 2 * GIB)
        service.until(lambda: service.metrics()["vram_gpu_processes", "0"] == 1)
        assert service.request("/healthz")[0] == 200
        # Whoever scrapes the file meanwhile finds the old one, whole.
        assert (disk / "vram.prom").read_text().endswith("\n")
        os.unlink(disk / "filler")
        service.until(lambda: part(service, "textfile")["status"] == "ok")
        assert service.log.count("No space left") < 10
        assert service.stop() == 0
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def fill(path: Path) -> None:
    with open(path, "wb", buffering=0) as file:
        while file.write(b"\0" * 4096):
            pass


def part(service: RunningService, name: str) -> dict[str, str]:
    return next(each for each in service.get("/api/v1/health")["parts"] if each["name"] == name)


NAMED = """
import ctypes, driver, protocol, sys
driver.context()
driver.alloc(1 << 30)
protocol.ready("allocated")
protocol.wait()
"""
HOSTILE = b'a"b\\c\n<script>\x1b[2J\xe2\x80\xae\xff=cmd'


@pytest.mark.fault(26, 27)
def test_hostile_names_are_inert_in_every_answer(
    start_service: StartService, virtual_gpu: VirtualGpu, tmp_path: Path
) -> None:
    virtual_gpu.set(name='GPU "x" \\n <script>')
    argv = [sys.executable.encode(), b"-c", NAMED.encode(), HOSTILE]
    process = virtual_gpu.popen(argv, cwd=PROGRAMS, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout.readline()
        service = start_service()
        service.until(lambda: service.get("/api/v1/ps")["processes"])
        for path in ("/api/v1/why", "/api/v1/ps", "/api/v1/changes", "/api/v1/health", "/metrics"):
            _, body, headers = service.request(path)
            text = body.decode()
            assert all(char == "\n" or char.isprintable() for char in text), path
            assert headers["X-Content-Type-Options"] == "nosniff"
        (row,) = json.loads(service.request("/api/v1/ps")[1])["processes"]
        assert "<script>\x1b[2J" in row["command"]
        (labels,) = (labels for name, *labels in service.metrics() if name == "vram_gpu_info")
        assert 'GPU "x" \\n <script> (virtual)' in labels
    finally:
        process.communicate()
