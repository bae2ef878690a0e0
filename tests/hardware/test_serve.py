"""The service on a real card: what it reports, what its policies end and park, and what it costs.

python -m pytest --real-gpu -s tests/hardware/test_serve.py
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.hardware.conftest import Record
from tests.needs import needs
from tests.reclaim.conftest import Bench
from tests.reclaim.test_free import ghost
from tests.serve.running import RunningService
from vram.units import GIB, MIB

pytestmark = [pytest.mark.gpu, needs("prometheus_client")]

POLICIES = """
[[policy]]
name = "ghosts"
do = "end-leftovers"
mode = "act"
after = "2s"
readings = 2
[policy.match]
min-size = "1GiB"

[[policy]]
name = "room"
do = "park-idle"
mode = "act"
after = "2s"
readings = 2
unpark-after = "1s"
[policy.match]
min-size = "1GiB"
"""
LISTENS_S = 30.0
MEASURED_S = 10.0


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    place = Bench(dict(os.environ), tmp_path / "owner", real=True)
    yield place
    place.close()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def serve(folder: Path, stack: ExitStack, config: str = "", **options: Any) -> RunningService:
    (folder / "serve.toml").write_text(config)
    words = ("--config", str(folder / "serve.toml"))
    return stack.enter_context(RunningService(folder, None, *words, **options))


def by_kind(service: RunningService) -> dict[str, float]:
    return {key[2]: value for key, value in service.metrics().items() if key[0] == "vram_gpu_memory_bytes"}


def holders(report: dict[str, Any]) -> set[int]:
    """Who holds memory on the GPU, by an answer of `vram why --json`."""
    (gpu,) = report["gpus"]
    return {entry["holder"]["pid"] for entry in gpu["entries"] if entry["holder"]}


def test_metrics_are_the_ledger_and_the_ghost_has_its_command(
    bench: Bench, tmp_path: Path, stack: ExitStack, record: Record
) -> None:
    service = serve(tmp_path, stack)
    holder = ghost(bench, "VR101", 4 * GIB)
    (found,) = service.until(lambda: service.get("/api/v1/ghosts")["ghosts"])
    assert holder in found["pids"]
    assert found["command"] == "vram free"
    metrics = service.metrics()
    total = metrics["vram_gpu_memory_total_bytes", "0"]
    assert sum(by_kind(service).values()) == total
    assert metrics["vram_gpu_leftover_bytes", "0"] == found["nbytes"] >= 4 * GIB
    asked = json.loads(bench.vram("serve", "free", "--socket", str(service.socket), "--yes", "--json").stdout)
    returned = asked["receipt"]["returned_bytes"]
    assert returned >= 4 * GIB
    service.until(lambda: not service.get("/api/v1/ghosts")["ghosts"])
    (past,) = service.get("/api/v1/history/ghosts")["ghosts"]
    assert past["pid"] == holder
    assert past["until"] is not None
    record(ghost_mib=found["nbytes"] // MIB, freed_mib=returned // MIB)


def test_a_policy_ends_a_ghost_and_measures(
    bench: Bench, tmp_path: Path, stack: ExitStack, record: Record
) -> None:
    service = serve(tmp_path, stack, POLICIES)
    neighbour = bench.demo("memory.plain", 2 * GIB).pids["self"]
    holder = ghost(bench, "VR101", 4 * GIB)
    pidfd = os.pidfd_open(holder)
    stack.callback(os.close, pidfd)

    def done() -> list[dict[str, Any]]:
        decisions = service.get("/api/v1/policies")["decisions"]
        return [each for each in decisions if each["status"] == "done"]

    (decision,) = service.until(done)
    assert [each["pid"] for each in decision["targets"]] == [holder]
    assert select.select([pidfd], [], [], LISTENS_S)[0], "the holder lives on"
    assert decision["freed_bytes"] >= 4 * GIB
    assert os.path.exists(f"/proc/{neighbour}")
    record(held_s=decision["held_s"], freed_mib=decision["freed_bytes"] // MIB)


def test_an_idle_process_makes_room_and_comes_back(
    bench: Bench, tmp_path: Path, stack: ExitStack, record: Record
) -> None:
    """It has agreed (VRAM_ALLOW_PARK=idle); room is made when somebody waits, and only for as long."""
    service = serve(tmp_path, stack, POLICIES)
    generous = Bench(bench.environment(VRAM_ALLOW_PARK="idle"), tmp_path / "owner", real=True)
    stack.callback(generous.close)
    other = bench.demo("memory.plain", 2 * GIB).pids["self"]
    pid = generous.demo("memory.plain", 6 * GIB).pids["self"]
    service.readings(2)
    wanted = int(by_kind(service)["free"]) + 3 * GIB
    began = time.monotonic()
    vram = [sys.executable, "-m", "vram"]
    words = ["serve", "wait", "--socket", str(service.socket), "--timeout", "60s", f"{wanted}B"]
    waiting = subprocess.run(
        [*vram, *words, "--", *vram, "why", "--json"],
        env=bench.environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert waiting.returncode == 0, (waiting.stderr, service.log)
    waited_s = time.monotonic() - began
    assert holders(json.loads(waiting.stdout)) == {other}
    service.until(lambda: holders(service.get("/api/v1/why")) == {other, pid})
    record(waited_s=round(waited_s, 2), back_s=round(time.monotonic() - began - waited_s, 2))


def test_what_it_costs(tmp_path: Path, stack: ExitStack, record: Record) -> None:
    """Figures for the record, at the usual interval of 5 s."""
    service = serve(tmp_path, stack, interval="5s")
    service.readings(1)
    group = os.getpgid(service.process.pid)
    pids = [int(each) for each in os.listdir("/proc") if each.isdigit() and _group(int(each)) == group]
    before, began = _cpu_s(pids), time.monotonic()
    time.sleep(MEASURED_S)  # asking how far it is would be what it costs
    used, passed = _cpu_s(pids) - before, time.monotonic() - began
    pss = {pid: _kib(pid, "Pss") for pid in pids}
    rss = {pid: _kib(pid, "Rss") for pid in pids}
    record(
        percent_of_a_core=round(100 * used / passed, 2),
        seconds=round(passed, 1),
        pss_mib=[round(each / 1024, 1) for each in pss.values()],
        rss_mib=[round(each / 1024, 1) for each in rss.values()],
    )
    assert used / passed < 0.05


def _group(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except OSError:
        return None


def _cpu_s(pids: list[int]) -> float:
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _kib(pid: int, name: str) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
