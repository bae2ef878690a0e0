"""Metrics for Prometheus: few labels (GPU, kind, code), never a pid, user or command; times as timestamps.

A series whose GPU is gone ends: everything is made anew from the last reading for each scrape.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import vram
from vram.errors import UsageError
from vram.ledger.processes import in_use
from vram.model.kinds import KINDS
from vram.model.ledger import Entry, GpuLedger, Ledger
from vram.report.escape import inert
from vram.serve.part import Health
from vram.serve.state import Reading

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from vram.serve.service import Service

MAX_LABEL_LENGTH = 200
_STATES: tuple[Health, ...] = ("ok", "degraded", "failed")


def require_library() -> None:
    """Raise UsageError where prometheus-client is not installed."""
    try:
        import prometheus_client  # noqa: F401
    except ImportError as error:
        raise UsageError(
            "vram serve needs prometheus-client, which is not installed", hint="pip install 'vram[serve]'"
        ) from error


def exposition(service: Service, accept: str = "") -> tuple[bytes, str]:
    """All metrics as text, and its content type: OpenMetrics where *accept* asks for it."""
    from prometheus_client.exposition import choose_encoder

    encoder, content_type = choose_encoder(accept)
    return encoder(_Collected(service)), content_type


class _Collected:
    """What an encoder takes for a registry: something to collect from."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        yield from _of_service(self._service)
        reading = self._service.state.last
        if reading is not None and reading.ledger is not None:
            yield from _of_ledger(self._service, reading, reading.ledger)
        for part in self._service.parts:
            yield from _of_part(part.part.metrics)


def _of_part(metrics: Callable[[], Iterable[Metric]]) -> list[Metric]:
    try:
        return list(metrics())
    except Exception:  # its health says why; the others' metrics are still worth having
        return []


def label(text: str | None) -> str:
    """Foreign text as a label: the format carries quotes, backslashes and newlines; the rest is inert."""
    return "\n".join(inert(line) for line in (text or "")[:MAX_LABEL_LENGTH].split("\n"))


# ---- the service itself ----


def _of_service(service: Service) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily

    state, now = service.state, service.clock.now()
    yield InfoMetricFamily("vram_build", "version of this program", value={"version": vram.__version__})
    yield _gauge("vram_start_time_seconds", "when the service started", now.wall_of(state.started))
    yield _gauge("vram_interval_seconds", "the interval of readings", service.config.interval_s)
    if state.last is not None:
        read_at = now.wall_of(state.last.moment)
        yield _gauge(
            "vram_last_reading_timestamp_seconds", "when the host was last read, well or not", read_at
        )
        yield _gauge("vram_reading_duration_seconds", "how long the last reading took", state.last.took_s)
    if state.good is not None:
        yield _gauge(
            "vram_last_good_reading_timestamp_seconds",
            "when the host was last read without an error",
            now.wall_of(state.good.moment),
        )
    readings = CounterMetricFamily("vram_readings", "readings of the host, by result", labels=["result"])
    for result in ("ok", "failed"):
        readings.add_metric([result], state.readings[result])
    yield readings
    restarts = "times that the reading process was started again"
    yield CounterMetricFamily("vram_reader_restarts", restarts, value=state.reader_restarts)
    changes = CounterMetricFamily(
        "vram_changes", "changes of GPU memory, as `vram watch` reports", labels=["event"]
    )
    for event, count in sorted(state.changes_by_event.items()):
        changes.add_metric([event], count)
    yield changes
    yield _gauge(
        "vram_config_last_reload_successful",
        "1 where the configuration file was right",
        service.reloaded_well,
    )
    yield _gauge(
        "vram_config_last_reload_success_timestamp_seconds",
        "when the configuration in use was read",
        now.wall_of(service.reloaded_at),
    )
    _, parts = service.health()
    healthy = GaugeMetricFamily("vram_part_healthy", "1 where a part of the service is well", labels=["part"])
    for name, health in parts:
        healthy.add_metric([name], float(health.status == "ok"))
    yield healthy
    errors = CounterMetricFamily("vram_part_errors", "errors in a part of the service", labels=["part"])
    for part in service.parts:
        errors.add_metric([part.name], part.errors)
    yield errors


def _gauge(name: str, what: str, value: float) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    return GaugeMetricFamily(name, what, value=float(value))


# ---- the GPUs ----


def _of_ledger(service: Service, reading: Reading, ledger: Ledger) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily

    if ledger.driver is not None:
        driver = InfoMetricFamily("vram_driver", "versions of the NVIDIA driver")
        versions = {
            "driver_version": ledger.driver.driver_version,
            "cuda_version": ledger.driver.cuda_version,
        }
        driver.add_metric([], {name: label(value) for name, value in versions.items()})
        yield driver
    info = InfoMetricFamily("vram_gpu", "the GPUs of this host", labels=["gpu"])
    up = GaugeMetricFamily("vram_gpu_up", "1 where the GPU answers", labels=["gpu"])
    total = GaugeMetricFamily("vram_gpu_memory_total_bytes", "memory of the GPU", labels=["gpu"])
    kinds = GaugeMetricFamily(
        "vram_gpu_memory_bytes", "memory by kind; the kinds of a GPU sum to its total", labels=["gpu", "kind"]
    )
    processes = GaugeMetricFamily(
        "vram_gpu_processes", "processes that hold memory of the GPU", labels=["gpu"]
    )
    for gpu in ledger.gpus:
        name = str(gpu.index)
        info.add_metric([name], {"uuid": label(gpu.uuid), "name": label(gpu.name), "vendor": gpu.vendor})
        up.add_metric([name], float(gpu.status in ("ok", "denied", "unsupported")))
        if gpu.total_bytes is None:
            continue
        total.add_metric([name], gpu.total_bytes)
        for kind, nbytes in _by_kind(gpu.entries).items():
            kinds.add_metric([name, kind], nbytes)
        processes.add_metric([name], len(_holders(gpu)))
    yield from (info, up, total, kinds, processes)
    yield from _of_instances(ledger)
    yield from _of_ghosts(service, ledger)
    findings = GaugeMetricFamily(
        "vram_findings", "causes that were found, by rule", labels=["code", "severity"]
    )
    for (code, severity), count in Counter((each.code, each.severity) for each in reading.findings).items():
        findings.add_metric([code, severity], count)
    yield findings
    yield _gauge(
        "vram_parked_processes", "processes whose GPU memory lies in host memory", len(ledger.parked)
    )


def _by_kind(entries: Iterable[Entry]) -> dict[str, int]:
    """Bytes of every kind, zero where there are none: a series that comes and goes cannot be compared."""
    sums: dict[str, int] = dict.fromkeys(KINDS, 0)
    for entry in entries:
        sums[entry.kind] += entry.nbytes or 0
    return sums


def _holders(gpu: GpuLedger) -> set[int]:
    return {entry.holder.pid for entry in gpu.accounted if in_use(entry) and entry.holder is not None}


def _of_instances(ledger: Ledger) -> Iterator[Metric]:
    """MIG: each instance has a balance of its own."""
    from prometheus_client.core import GaugeMetricFamily

    divided = [gpu for gpu in ledger.gpus if gpu.instances]
    if not divided:
        return
    kinds = GaugeMetricFamily(
        "vram_mig_memory_bytes", "memory of a MIG instance by kind", labels=["gpu", "mig", "kind"]
    )
    for gpu in divided:
        for instance in gpu.instances:
            first = instance.devices[0].index if instance.devices else f"gi{instance.gpu_instance}"
            mine = (each for each in gpu.entries if each.gpu_instance == instance.gpu_instance)
            for kind, nbytes in _by_kind(mine).items():
                kinds.add_metric([str(gpu.index), f"{gpu.index}:{first}", kind], nbytes)
    yield kinds


def _of_ghosts(service: Service, ledger: Ledger) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    now = service.clock.now()
    count = GaugeMetricFamily(
        "vram_gpu_ghosts", "leftovers: memory of dead owners, by rule", labels=["gpu", "code"]
    )
    nbytes = GaugeMetricFamily(
        "vram_gpu_leftover_bytes", "memory of dead owners that is held", labels=["gpu"]
    )
    oldest = GaugeMetricFamily(
        "vram_gpu_oldest_ghost_timestamp_seconds", "since when the oldest leftover is known", labels=["gpu"]
    )
    for gpu in ledger.gpus:
        ghosts = [each for each in service.state.ghosts if each.gpu == gpu.index]
        name = str(gpu.index)
        nbytes.add_metric([name], sum(each.nbytes for each in ghosts))
        for code, number in sorted(Counter(each.code for each in ghosts).items()):
            count.add_metric([name, code], number)
        if ghosts:
            oldest.add_metric([name], min(now.wall_of(each.since) for each in ghosts))
    yield from (count, nbytes, oldest)
