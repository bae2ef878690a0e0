"""The survey: every source under one deadline, whatever each of them meets. It never raises."""

from __future__ import annotations

from collections.abc import Iterable

from vram import __version__
from vram.host.ports import Clock, Host, WindowsQuery
from vram.model.observation import HostFacts, Observation, ProbeRun, Status, Survey, with_code
from vram.probes.sources import elsewhere, exports, files, nvml, processes

# A call that hangs takes all the time it gets: the sources after it must still have some.
_DRIVER_SHARE = 0.8
_TRIES = 2

_WORST_LAST: tuple[Status, ...] = ("ok", "unsupported", "denied", "timeout", "lost", "failed")


class _Collected:
    """What was observed so far, and how each source went."""

    def __init__(self, clock: Clock, deadline_s: float) -> None:
        self._clock = clock
        self._deadline = clock.monotonic() + deadline_s
        self.observed: list[Observation] = []
        self.runs: list[ProbeRun] = []

    def left_s(self) -> float:
        # A source that comes late still gets a moment: a little more is better than nothing.
        return max(0.1, self._deadline - self._clock.monotonic())

    def take(self, name: str, source: Iterable[Observation], began: float | None = None) -> None:
        """Collect *source*; an error in it costs the rest of that source and nothing else."""
        began = self._clock.monotonic() if began is None else began
        first = len(self.observed)
        try:
            for observation in source:
                self.observed.append(with_code(observation))
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            self.observed.append(Observation(probe=name, status="failed", code="error", message=message))
        self.runs.append(_run(name, self.observed[first:], self._clock.monotonic() - began))

    def forget(self, name: str) -> None:
        """Drop what a source said: it will be read again."""
        self.observed = [each for each in self.observed if not each.probe.startswith(f"{name}.")]
        self.runs = [run for run in self.runs if run.name != name]


def survey(host: Host, *, deadline_s: float = 5.0) -> Survey:
    """Read every source, within about *deadline_s*."""
    collected = _Collected(host.clock, deadline_s)
    taken_at, began = host.clock.now(), host.clock.monotonic()
    # The driver is read by a process of its own, beside our walk over all processes' files.
    driver = _start_driver(host, collected.left_s() * _DRIVER_SHARE)
    me = host.facts()
    # And so is Windows, where this is Linux inside of it.
    query: WindowsQuery | None = None
    if me.wsl:
        from vram.probes.sources import windows

        query = windows.begin(host, me, collected.left_s() * _DRIVER_SHARE)
    try:
        _read_all(host, me, collected, driver, began)
        if query is not None:
            collected.take(windows.NAME, windows.observe(query, me), began)
    finally:
        if query is not None:
            query.close()
    return Survey(
        program=f"vram {__version__}",
        taken_at=taken_at,
        host=me,
        observations=tuple(collected.observed),
        probes=tuple(collected.runs),
    )


def _read_all(
    host: Host, me: HostFacts, collected: _Collected, driver: Iterable[Observation], began: float
) -> None:
    collected.take(files.NAME, files.observe(host, collected.left_s()))
    collected.take(nvml.NAME, driver, began)
    for _ in range(_TRIES):
        try:
            if not nvml.ended_meanwhile(host, collected.observed):
                break
        except Exception:  # the source of processes will meet it too, and say so
            break
        collected.forget(nvml.NAME)
        collected.take(nvml.NAME, _start_driver(host, collected.left_s() * _DRIVER_SHARE), began)
    collected.take(files.LATE_NAME, files.observe_latecomers(host, collected.observed, collected.left_s()))
    collected.take(exports.NAME, exports.observe(host, collected.observed, collected.left_s()))
    if elsewhere.is_needed(me, collected.observed):
        all_asked = exports.asks_all(collected.observed)
        collected.take(elsewhere.NAME, elsewhere.observe(host, collected.left_s(), all_asked=all_asked))
    if host.cgroups.counts_device_memory:
        from vram.probes.sources import cgroups  # most kernels count none

        collected.take(cgroups.NAME, cgroups.observe(host, collected.observed))
    if host.drm.drivers:
        from vram.probes.sources import drm  # most machines have no such GPU

        collected.take(drm.NAME, drm.observe(host, collected.observed))
    collected.take(processes.NAME, processes.observe(host, collected.observed))


def _start_driver(host: Host, deadline_s: float) -> Iterable[Observation]:
    try:
        return host.nvml.read(deadline_s)
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
        return [Observation(probe="nvml.init", status="failed", code="error", message=message)]


def _run(name: str, said: list[Observation], duration_s: float) -> ProbeRun:
    worst = max(said, key=lambda each: _WORST_LAST.index(each.status), default=None)
    status: Status = worst.status if worst else "ok"
    return ProbeRun(
        name, status, round(duration_s, 6), worst.message if worst else None, worst.code if worst else None
    )
