"""Metrics for Prometheus: few labels (GPU, kind, code), never a pid, user or command; times as timestamps.

A series whose GPU is gone ends: everything is made anew from the last reading for each scrape.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import vram
from vram.errors import UsageError
from vram.installation import how_to_add
from vram.ledger.holds import find_holds
from vram.model.ledger import KINDS, Entry, Ledger
from vram.report.escape import inert
from vram.serve.part import counter, gauge
from vram.serve.state import ANSWERING, Reading

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from vram.serve.service import Service

MAX_LABEL_LENGTH = 200


def require_library() -> None:
    """Raise UsageError where prometheus-client is not installed."""
    try:
        import prometheus_client  # noqa: F401
    except ImportError as error:
        raise UsageError(
            "vram serve needs prometheus-client, which is not installed", hint=how_to_add("serve")
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
    from prometheus_client.core import InfoMetricFamily

    state, now = service.state, service.clock.now()
    yield InfoMetricFamily("vram_build", "version of this program", value={"version": vram.__version__})
    yield gauge("vram_start_time_seconds", "when the service started", now.wall_of(state.started))
    yield gauge("vram_interval_seconds", "the interval of readings", service.config.interval_s)
    if state.last is not None:
        read_at, what = now.wall_of(state.last.moment), "when the host was last read, well or not"
        yield gauge("vram_last_reading_timestamp_seconds", what, read_at)
        yield gauge("vram_reading_duration_seconds", "how long the last reading took", state.last.took_s)
    if state.good is not None:
        read_at, what = now.wall_of(state.good.moment), "when the host was last read without an error"
        yield gauge("vram_last_good_reading_timestamp_seconds", what, read_at)
    readings = [(result, state.readings[result]) for result in ("ok", "failed")]
    yield counter("vram_readings", "readings of the host, by result", readings, "result")
    restarts = "times that the reading process was started again"
    yield counter("vram_reader_restarts", restarts, state.reader_restarts)
    changes = sorted(state.changes_by_event.items())
    yield counter("vram_changes", "changes of GPU memory, as `vram watch` reports", changes, "event")
    what = "1 where the configuration file was right"
    yield gauge("vram_config_last_reload_successful", what, service.reloaded_well)
    what, read_at = "when the configuration in use was read", now.wall_of(service.reloaded_at)
    yield gauge("vram_config_last_reload_success_timestamp_seconds", what, read_at)
    healthy = [(name, health.status == "ok") for name, health in service.health()[1]]
    yield gauge("vram_part_healthy", "1 where a part of the service is well", healthy, "part")
    errors = [(part.name, part.errors) for part in service.parts]
    yield counter("vram_part_errors", "errors in a part of the service", errors, "part")


# ---- the GPUs ----


def _of_ledger(service: Service, reading: Reading, ledger: Ledger) -> Iterator[Metric]:
    from prometheus_client.core import InfoMetricFamily

    if ledger.driver is not None:
        driver = InfoMetricFamily("vram_driver", "versions of the NVIDIA driver")
        versions = {
            "driver_version": ledger.driver.driver_version,
            "cuda_version": ledger.driver.cuda_version,
        }
        driver.add_metric([], {name: label(value) for name, value in versions.items()})
        yield driver
    info = InfoMetricFamily("vram_gpu", "the GPUs of this host", labels=["gpu"])
    for gpu in ledger.gpus:
        about = {"uuid": label(gpu.uuid), "name": label(gpu.name), "vendor": gpu.vendor}
        info.add_metric([str(gpu.index)], about)
    yield info
    up = [(str(gpu.index), gpu.status in ANSWERING) for gpu in ledger.gpus]
    yield gauge("vram_gpu_up", "1 where the GPU answers", up, "gpu")
    known = [(str(gpu.index), at, gpu) for at, gpu in enumerate(ledger.gpus) if gpu.total_bytes is not None]
    totals = [(name, gpu.total_bytes or 0) for name, _, gpu in known]
    yield gauge("vram_gpu_memory_total_bytes", "memory of the GPU", totals, "gpu")
    kinds = [((name, kind), n) for name, _, gpu in known for kind, n in _by_kind(gpu.entries)]
    what = "memory by kind; the kinds of a GPU sum to its total"
    yield gauge("vram_gpu_memory_bytes", what, kinds, "gpu", "kind")
    # Those that hold memory of their own, by the place of their GPU.
    holds = (hold for hold in find_holds(ledger, empty=True) if hold.what == "process")
    counts = Counter(at for hold in holds for at in {part.at for part in hold.parts})
    processes = [(name, counts[at]) for name, at, _ in known]
    yield gauge("vram_gpu_processes", "processes that hold memory of the GPU", processes, "gpu")
    yield from _of_instances(ledger)
    yield from _of_ghosts(service, ledger)
    findings = Counter((each.code, each.severity) for each in reading.findings).items()
    yield gauge("vram_findings", "causes that were found, by rule", findings, "code", "severity")
    what = "processes whose GPU memory lies in host memory"
    yield gauge("vram_parked_processes", what, len(ledger.parked))
    asleep = sum(each.asleep for each in ledger.parked)
    yield gauge("vram_sleeping_programs", "processes of the service's own user that sleep", asleep)


def _by_kind(entries: Iterable[Entry]) -> Iterable[tuple[str, int]]:
    """Bytes of every kind, zero where there are none: a series that comes and goes cannot be compared."""
    sums: dict[str, int] = dict.fromkeys(KINDS, 0)
    for entry in entries:
        sums[entry.kind] += entry.nbytes or 0
    return sums.items()


def _of_instances(ledger: Ledger) -> Iterator[Metric]:
    """MIG: each instance has a balance of its own."""
    divided = [gpu for gpu in ledger.gpus if gpu.instances]
    samples: list[tuple[tuple[str, ...], float]] = []
    for gpu in divided:
        for instance in gpu.instances:
            first = instance.devices[0].index if instance.devices else f"gi{instance.gpu_instance}"
            mine = (each for each in gpu.entries if each.gpu_instance == instance.gpu_instance)
            name = (str(gpu.index), f"{gpu.index}:{first}")
            samples += [((*name, kind), nbytes) for kind, nbytes in _by_kind(mine)]
    if divided:
        what = "memory of a MIG instance by kind"
        yield gauge("vram_mig_memory_bytes", what, samples, "gpu", "mig", "kind")


def _of_ghosts(service: Service, ledger: Ledger) -> Iterator[Metric]:
    now, state = service.clock.now(), service.state
    ghosts = {str(gpu.index): [each for each in state.ghosts if each.gpu == gpu.index] for gpu in ledger.gpus}
    counts = [
        ((name, code), count)
        for name, mine in ghosts.items()
        for code, count in sorted(Counter(each.code for each in mine).items())
    ]
    yield gauge("vram_gpu_ghosts", "ghosts: memory of dead owners, by rule", counts, "gpu", "code")
    sizes = [(name, sum(each.nbytes for each in mine)) for name, mine in ghosts.items()]
    yield gauge("vram_gpu_leftover_bytes", "memory of dead owners that is held", sizes, "gpu")
    oldest = [(name, min(now.wall_of(each.since) for each in mine)) for name, mine in ghosts.items() if mine]
    what = "since when the oldest ghost is known"
    yield gauge("vram_gpu_oldest_ghost_timestamp_seconds", what, oldest, "gpu")
