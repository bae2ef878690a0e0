"""Metrics that Prometheus reads back as they were meant, whatever the names are; and a file of them."""

from __future__ import annotations

import asyncio
import os
import re
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families as plain

import vram
from tests.ledger.world import CONTEXT, World
from tests.serve.conftest import StartService
from tests.serve.simulated import SimulatedClock, SimulatedSource
from vram.ledger.build import build_ledger
from vram.live_reader import LiveReading
from vram.report.escape import inert
from vram.serve.config import Places, ServeConfig
from vram.serve.service import Service
from vram.serve.web.metrics import MAX_LABEL_LENGTH, exposition
from vram.units import GIB

HOSTILE = st.text(
    st.sampled_from('"\\\n\r\t{}=, \x00\x1b\u202e\ud800\udcff<>#aé'), max_size=MAX_LABEL_LENGTH
) | st.text(max_size=MAX_LABEL_LENGTH)


def service_with(name: str, uuid: str) -> Service:
    ledger = build_ledger(World().gpu(0, used=GIB + CONTEXT).cuda(100, GIB + CONTEXT).survey())
    gpu = replace(ledger.gpus[0], name=name, uuid=uuid)
    clock = SimulatedClock()
    service = Service(
        ServeConfig(), Places("/nonexistent", "/nonexistent"), clock=clock, source=SimulatedSource(_none)
    )
    service.state.take(LiveReading(taken_at="", took_s=0.0, ledger=replace(ledger, gpus=(gpu,))), clock.now())
    return service


def _none() -> LiveReading:
    return LiveReading(taken_at="", took_s=0.0)


@pytest.mark.fault(27)
@given(HOSTILE, HOSTILE)
def test_any_name_round_trips_through_both_parsers(name: str, uuid: str) -> None:
    """Quotes, backslashes and newlines as they are; what no terminal should meet in its visible spelling."""
    service = service_with(name, uuid)
    expected = {"name": _expected(name), "uuid": _expected(uuid), "gpu": "0", "vendor": "nvidia"}
    for accept, parser in (("", plain), ("application/openmetrics-text; version=1.0.0", open_metrics)):
        body, content_type = exposition(service, accept)
        assert ("openmetrics" in content_type) == bool(accept)
        samples = [each for family in parser(body.decode()) for each in family.samples]
        assert [each.labels for each in samples if each.name == "vram_gpu_info"] == [expected]
        total = next(each.value for each in samples if each.name == "vram_gpu_memory_total_bytes")
        assert total == 100 * GIB
        assert all(char == "\n" or char.isprintable() for char in body.decode())


def _expected(text: str) -> str:
    return "\n".join(inert(line) for line in text.split("\n"))


def test_no_label_names_a_process_a_user_or_a_command() -> None:
    body, _ = exposition(service_with("GPU", "GPU-0"))
    names = {label for family in plain(body.decode()) for each in family.samples for label in each.labels}
    assert names <= {
        *("gpu", "kind", "mig", "code", "severity", "event", "part", "result", "version", "uuid", "name"),
        *("vendor", "driver_version", "cuda_version", "status"),
    }


def test_names_follow_the_rules_of_the_trade() -> None:
    body, _ = exposition(service_with("GPU", "GPU-0"), "application/openmetrics-text")
    for family in open_metrics(body.decode()):
        assert family.name.startswith("vram_")
        assert family.documentation
        if family.type == "counter":
            assert all(each.name.endswith("_total") for each in family.samples)
        if "byte" in family.documentation or "memory of" in family.documentation:
            assert not family.name.endswith("_total")
        assert not family.name.endswith(("_mib", "_gib", "_ms", "_age"))


def test_a_reading_that_failed_keeps_the_figures_and_shows_the_age() -> None:
    service = service_with("GPU", "GPU-0")
    clock = service.clock
    asyncio.run(clock.sleep(60))
    failed = LiveReading(taken_at="", took_s=0.0, error="no answer")
    service.state.take(failed, clock.now())
    samples = {
        each.name: each.value for family in plain(exposition(service)[0].decode()) for each in family.samples
    }
    ages = (
        samples["vram_last_reading_timestamp_seconds"] - samples["vram_last_good_reading_timestamp_seconds"]
    )
    assert ages == 60
    assert samples["vram_gpu_memory_total_bytes"] == 100 * GIB


def test_the_textfile_is_whole_readable_by_others_and_follows_the_configuration(
    start_service: StartService, tmp_path: Path
) -> None:
    folder, config = tmp_path / "textfile", tmp_path / "serve.toml"
    folder.mkdir()
    config.write_text(f'[textfile]\npath = "{folder}/vram.prom"\n')
    service = start_service("--config", str(config), prefix=("sh", "-c", 'umask 077; exec "$@"', "sh"))
    file = folder / "vram.prom"
    service.until(file.exists)
    seen = {family.name for _ in range(20) for family in plain(file.read_text())}
    assert "vram_gpu_memory_bytes" in seen
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o644
    service.readings()
    assert os.listdir(folder) == ["vram.prom"]


SOURCES = Path(vram.__file__).parent
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"


def test_the_reference_page_has_every_metric_and_no_other() -> None:
    """By name, as the parsers know a family: counters and infos without their endings."""
    text = "".join(
        file.read_text() for folder in ("serve", "policy") for file in (SOURCES / folder).rglob("*.py")
    )
    made = set(re.findall(r'(?:MetricFamily|gauge|counter)\(\s*"(vram_[a-z0-9_]+)"', text))
    listed = re.findall(r"^\| `(vram_[a-z0-9_]+)` \|", PAGE.read_text(), re.MULTILINE)
    assert len(listed) == len(set(listed))
    assert {name.removesuffix("_total").removesuffix("_info") for name in listed} == made


@pytest.mark.parametrize(
    ("took_s", "cpu_s", "status"),
    [(0.2, 0.1, "ok"), (6.0, 0.5, "ok"), (6.0, 6.0, "degraded"), (20, 0, "degraded")],
)
def test_health_says_when_readings_are_late(took_s: float, cpu_s: float, status: str) -> None:
    """One user's flood of descriptors must not go unnoticed: what is shown would be half a minute old."""
    service = service_with("GPU", "GPU-0")
    reading = LiveReading(taken_at="", took_s=took_s, cpu_s=cpu_s)
    service.state.take(reading, service.clock.now())
    _, parts = service.health()
    health = dict(parts)["reading"]
    assert health.status == status
    assert ("readings come every" in health.message) == (status == "degraded")
