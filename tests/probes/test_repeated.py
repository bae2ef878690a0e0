"""Surveys again and again: the figures are always new, everything else where something may have changed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.patience import until
from vram.host.local import LocalHost
from vram.ledger.build import build_ledger
from vram.model.observation import Survey
from vram.probes.repeated import RepeatedSurvey
from vram.report.process_rows import rows
from vram.units import GIB
from vram.virtualgpu import VirtualGpu
from vram.virtualgpu.demos import DemoProgram

NEVER_S = 1e9


class Watch:
    """A host that is surveyed again and again, and how often everybody's files were read for that."""

    def __init__(self, gpu: VirtualGpu, stack: ExitStack, whole_every_s: float = NEVER_S) -> None:
        self.gpu = gpu
        self._stack = stack
        self.host = LocalHost(keep_driver_open=True)
        stack.callback(self.host.nvml.close)
        self.surveys = RepeatedSurvey(self.host, 60.0, whole_every_s)
        self.scans = 0
        scan = self.host.files.scan

        def counted(deadline_s: float, pids=None):  # type: ignore[no-untyped-def]
            self.scans += pids is None
            return scan(deadline_s, pids)

        self.host.files.scan = counted  # type: ignore[method-assign]

    def demo(self, program: str, nbytes: int) -> DemoProgram:
        return self._stack.enter_context(DemoProgram(self.gpu, program, nbytes))

    def read(self) -> Survey:
        return self.surveys.read()

    def states(self) -> dict[int | None, tuple[str, int | None]]:
        return {row.pid: (row.state, row.nbytes) for row in rows(build_ledger(self.read()))}


@pytest.fixture
def watch(virtual_gpu: VirtualGpu, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    for name, value in virtual_gpu.environment().items():
        monkeypatch.setenv(name, value)
    with ExitStack() as stack:
        yield Watch(virtual_gpu, stack)


def settled(watch: Watch) -> Survey:
    """A survey of a machine where nothing happens any more."""
    before = watch.read()
    while (now := watch.read()) is not before:
        before = now
    return now


def test_where_nothing_changes_the_same_survey_comes_back(watch: Watch) -> None:
    watch.demo("memory.plain", 1 * GIB)
    last = settled(watch)
    scans = watch.scans
    assert watch.read() is last
    assert watch.scans == scans


def test_figures_are_new_without_reading_files(watch: Watch) -> None:
    demo = watch.demo("memory.plain", 4 * GIB)
    settled(watch)
    scans = watch.scans
    demo.go()
    _, nbytes = watch.states()[demo.pids["self"]]
    assert nbytes is not None
    assert nbytes < 1 * GIB
    assert watch.scans == scans


def test_the_light_survey_says_what_a_whole_one_says(watch: Watch) -> None:
    demo = watch.demo("memory.plain", 4 * GIB)
    watch.demo("pools.trim", 1 * GIB)
    settled(watch)
    demo.go()
    # On a busy machine a program that has said where it is may still run for a while.
    until(lambda: {state for state, _ in watch.states().values()} == {"idle"}, watch.states)
    light = rows(build_ledger(settled(watch)))
    whole = rows(build_ledger(watch.surveys.read_whole()))
    assert [(row.pid, row.nbytes, row.state, row.command) for row in light] == [
        (row.pid, row.nbytes, row.state, row.command) for row in whole
    ]


def test_somebody_who_comes_or_goes_is_found_at_once(watch: Watch) -> None:
    first = watch.demo("memory.plain", 1 * GIB)
    assert watch.states().keys() == {first.pids["self"]}
    second = watch.demo("memory.plain", 2 * GIB)
    assert watch.states().keys() == {first.pids["self"], second.pids["self"]}
    first.kill("self")
    assert watch.states().keys() == {second.pids["self"]}


def test_a_ghost_is_found_at_once(watch: Watch) -> None:
    family = watch.demo("forks.orphan", 1 * GIB)
    assert family.pids["parent"] in watch.states()
    family.kill("parent")
    assert watch.states()[family.pids["child"]][0] == "ghost"


def test_a_process_that_stops_is_found_at_once(watch: Watch) -> None:
    pid = watch.demo("memory.plain", 1 * GIB).pids["self"]
    settled(watch)
    scans = watch.scans
    os.kill(pid, signal.SIGSTOP)
    try:
        os.waitid(os.P_PID, pid, os.WSTOPPED)
        assert watch.states()[pid][0] == "stopped"
        assert watch.scans == scans
    finally:
        os.kill(pid, signal.SIGCONT)


def test_after_a_while_everything_is_read(virtual_gpu: VirtualGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in virtual_gpu.environment().items():
        monkeypatch.setenv(name, value)
    with ExitStack() as stack:
        watch = Watch(virtual_gpu, stack, whole_every_s=0.0)
        watch.read()
        scans = watch.scans
        watch.read()
        assert watch.scans == scans + 1


def test_a_lost_gpu_is_said_every_time_and_then_forgotten(watch: Watch) -> None:
    pid = watch.demo("memory.plain", 1 * GIB).pids["self"]
    settled(watch)
    watch.gpu.fail("nvmlDeviceGetMemoryInfo*", error="GPU_IS_LOST")
    for _ in range(3):
        assert build_ledger(watch.read()).gpus[0].status == "lost"
    watch.gpu.clear_faults()
    assert build_ledger(watch.read()).gpus[0].status == "ok"
    assert pid in watch.states()


def test_one_reader_of_the_driver_serves_many_surveys(watch: Watch) -> None:
    watch.read()
    (first,) = watch.host.nvml.own_pids()
    for _ in range(3):
        watch.surveys.read_whole()
    assert watch.host.nvml.own_pids() == {first}
    os.kill(first, signal.SIGKILL)
    os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
    assert all(each.status == "ok" for each in watch.read().observations if each.probe.startswith("nvml"))
    assert watch.host.nvml.own_pids() != {first}
