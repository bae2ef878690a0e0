"""From a program that leaks to the forecast of the service: API, metrics, page; and who may see its names."""

from __future__ import annotations

import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.forecast.growing_program import PROGRAM, GrowingProgram
from tests.recording.conftest import Workplace
from tests.serve.conftest import StartService
from tests.serve.running import RunningService
from vram.virtualgpu import VirtualGpu

SOON = '[forecast]\nafter = "2s"\n'
"""Growth of two seconds is believed: the tests need not wait for minutes."""


@pytest.fixture
def growing(virtual_gpu: VirtualGpu, stack: ExitStack) -> GrowingProgram:
    return stack.enter_context(GrowingProgram(virtual_gpu))


def configured(start_service: StartService, folder: Path, more: str = "", **options: Any) -> RunningService:
    (folder / "serve.toml").write_text(f"{SOON}{more}")
    return start_service("--config", str(folder / "serve.toml"), "--deadline", "60s", **options)


def forecast(service: RunningService, growing: GrowingProgram) -> dict[str, Any]:
    """The forecast, once there is one; the program leaks meanwhile."""

    def found() -> list[dict[str, Any]]:
        growing.grow()
        forecasts: list[dict[str, Any]] = service.get("/api/v1/forecasts")["forecasts"]
        return forecasts

    first: dict[str, Any] = service.until(found)[0]
    return first


def test_a_leak_is_forecast_with_its_program_until_it_ends(
    start_service: StartService, tmp_path: Path, growing: GrowingProgram
):
    service = configured(start_service, tmp_path)
    found = forecast(service, growing)
    assert found["gpu"] == 0
    assert found["earliest_s"] <= found["full_in_s"] <= found["latest_s"]
    (program,) = found["growing"]
    assert program["pid"] == growing.pid
    assert "leaking.py" in program["command"]
    (line,) = service.get("/page/now.json")["forecasts"]
    assert line["gpu"] == 0
    assert re.match(r"GPU 0 full in .* at this rate.*; pid \d+ grows by .*: .*leaking\.py$", line["text"])
    said = subprocess.run(
        [sys.executable, "-m", "vram", "serve", "status", "--socket", str(service.socket)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert re.search(r"^forecast  GPU 0 full in .* at this rate", said.stdout, re.MULTILINE), said.stdout
    metrics = service.metrics()
    assert metrics["vram_gpu_growth_bytes_per_second", "0", ""] > 0
    full_at = metrics["vram_gpu_full_timestamp_seconds", "0", ""]
    assert metrics["vram_gpu_full_earliest_timestamp_seconds", "0", ""] <= full_at
    assert full_at <= metrics["vram_gpu_full_latest_timestamp_seconds", "0", ""]
    growing.close()
    service.until(lambda: not service.get("/api/v1/forecasts")["forecasts"])
    assert "vram_gpu_full_timestamp_seconds" not in {name for name, *_ in service.metrics()}


def test_readers_see_no_command_where_the_configuration_says_never(
    start_service: StartService, tmp_path: Path, growing: GrowingProgram
):
    service = configured(start_service, tmp_path, '[show]\ncommands = "never"\n')
    (program,) = forecast(service, growing)["growing"]
    assert (program["pid"], program["command"]) == (growing.pid, None)


@pytest.mark.parametrize("show", ["always", "as-proc"])
def test_the_line_of_a_recorded_program_is_for_readers_who_may_see_everything(
    start_service: StartService, virtual_gpu: VirtualGpu, tmp_path: Path, stack: ExitStack, show: str
):
    (tmp_path / "recorded").mkdir()
    work = Workplace(virtual_gpu, tmp_path / "recorded")
    stack.callback(work.close)
    program = stack.enter_context(GrowingProgram(virtual_gpu, work.recorder_environment("trace")))
    service = configured(start_service, tmp_path, f'[show]\ncommands = "{show}"\n')
    leaks = next(at for at, line in enumerate(PROGRAM.read_text().splitlines(), 1) if "# the leak" in line)
    if show == "always":

        def line() -> str | None:
            (first,) = forecast(service, program)["growing"]
            return first["line"]

        assert service.until(line) == f"leaking.py:{leaks}"
        (said,) = service.get("/page/now.json")["forecasts"]
        assert f"at leaking.py:{leaks}" in said["text"]
    else:
        forecast(service, program)
        for _ in range(6):
            program.grow()
            service.readings(1)
            assert [each["growing"][0]["line"] for each in service.get("/api/v1/forecasts")["forecasts"]] == [
                None
            ]


def test_a_program_that_does_not_grow_has_no_forecast(
    start_service: StartService, tmp_path: Path, growing: GrowingProgram
):
    service = configured(start_service, tmp_path)
    growing.grow(4096)
    service.readings(20)
    assert service.get("/api/v1/forecasts")["forecasts"] == []
