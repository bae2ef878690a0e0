"""The machine at hand: one file per port, foreign errors translated once."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING

from vram.children import Child, driver_environment, interpreter, spawn, start
from vram.payloads import command

if TYPE_CHECKING:
    from vram.host.local.cgroups import LocalCgroups
    from vram.host.local.checkpoint import LocalCheckpoint
    from vram.host.local.drm import LocalDrm
    from vram.host.local.exports import LocalExports
    from vram.host.local.process_limits import LocalProcessLimits
    from vram.host.local.processes import LocalSignals
    from vram.host.local.system_info import LocalSystemInfo, LocalVendor
    from vram.host.ports import Card, ComputeCharge, Windows
    from vram.model.observation import HostFacts


def start_reader(skip: set[int]) -> Child:
    """Start a process that reads NVML of every GPU that is not in *skip*; nvml_child.py tells what it says.

    Next to nothing is imported up to here, so that it can be the first thing done.
    """

    def job(pipe: int) -> None:
        from vram.host.local.nvml_child import read_into

        read_into(pipe, skip)

    return start(job, interpreter("vram.host.local.nvml_child", *map(str, sorted(skip))))


FIGURES, EVERYTHING = b"f", b"e"
"""What a kept reader is asked for: what changes from moment to moment, or all."""


def start_kept_reader() -> Child:
    """Start a process that opens NVML once and reads every GPU each time it is asked to."""

    def job(pipe: int) -> None:
        from vram.host.local.nvml_child import serve

        serve(pipe)

    return start(job, interpreter("vram.host.local.nvml_child", "--serve"), link="stream")


def start_checkpoint_worker() -> Child:
    """Start a process that makes the driver's checkpoint calls, before vram does anything else.

    The driver takes as long to initialise as the rest of vram takes to be imported. In a session of its own:
    what is typed at our terminal is not for it.
    """
    words = command("checkpoint_worker", "vram-checkpoint-worker")
    return spawn(words, driver_environment(), apart="session", link="packets")


class LocalClock:
    """Wall time for people, monotonic time for deadlines."""

    def now(self) -> str:
        # strftime and not datetime: importing the latter costs more than a whole scan.
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class _NoCards:
    """A machine that has no GPU of AMD or Intel: that needs no looking, and no importing."""

    drivers: frozenset[str] = frozenset()

    def cards(self) -> tuple[Card, ...]:
        return ()

    def compute(self) -> tuple[ComputeCharge, ...]:
        return ()

    def nvidia_gpus(self) -> int:
        return 0


def _drm(root: str) -> LocalDrm | _NoCards:
    if not root or not os.path.isdir(f"{root}/class/drm"):
        return _NoCards()
    from vram.host.local.drm import LocalDrm

    return LocalDrm(root)


class LocalHost:
    """This machine, or the virtual GPU where the environment names one.

    *sys_root* is where GPUs of AMD and Intel are looked for; beside a virtual GPU there are none. With
    *read_ahead_s* the driver and all processes' files are read from the first moment on, beside the imports,
    for a survey within so many seconds. *reader* and *checkpoint_worker* are processes that run already.
    Windows around WSL2 is asked at every survey, with *windows_every_s* not more often than that, and without
    *ask_windows* never. With *keep_driver_open* one process, *kept_reader* where it runs already, reads NVML
    for all surveys: opening the driver is most of the cost of one that is made every second.
    """

    def __init__(
        self,
        proc_root: str = "/proc",
        *,
        sys_root: str | None = None,
        reader: Child | None = None,
        read_ahead_s: float | None = None,
        checkpoint_worker: Child | None = None,
        ask_windows: bool = True,
        windows_every_s: float = 0.0,
        keep_driver_open: bool = False,
        kept_reader: Child | None = None,
    ) -> None:
        self._checkpoint_worker = checkpoint_worker
        self._ask_windows = ask_windows
        self._windows_every_s = windows_every_s
        if reader is None and read_ahead_s is not None:
            with suppress(OSError):  # the reading itself meets it again, and reports it
                reader = start_reader(set())
        from vram.host.local.nvml import LocalNvml
        from vram.host.local.open_files import VIRTUAL_GPU, DeviceNames, LocalOpenFiles
        from vram.host.local.processes import LocalProc

        virtual = os.environ.get(VIRTUAL_GPU) or None
        self.clock = LocalClock()
        self.proc = LocalProc(proc_root)
        self.nvml = LocalNvml(reader, keep_open=keep_driver_open, kept=kept_reader)
        self.drm = _drm(sys_root or ("" if virtual else "/sys"))
        names = DeviceNames(virtual, self.drm.drivers)
        self.files = LocalOpenFiles(names, proc_root, ignore=self.nvml.own_pids)
        if read_ahead_s is not None:
            self.files.begin_scan(read_ahead_s)
        self._proc_root = proc_root
        self._virtual = virtual

    # What most commands never ask for is imported by those that do: starting fast is a promise.

    @cached_property
    def exports(self) -> LocalExports:
        from vram.host.local.exports import LocalExports

        return LocalExports()

    @cached_property
    def cgroups(self) -> LocalCgroups:
        from vram.host.local.cgroups import LocalCgroups

        return LocalCgroups()

    @cached_property
    def signals(self) -> LocalSignals:
        from vram.host.local.processes import LocalSignals

        return LocalSignals(self._proc_root)

    @cached_property
    def checkpoint(self) -> LocalCheckpoint:
        from vram.host.local.checkpoint import LocalCheckpoint

        return LocalCheckpoint(self._checkpoint_worker)

    @cached_property
    def limits(self) -> LocalProcessLimits:
        from vram.host.local.process_limits import LocalProcessLimits

        return LocalProcessLimits(self._proc_root)

    @cached_property
    def vendor(self) -> LocalVendor:
        from vram.host.local.system_info import LocalVendor

        return LocalVendor()

    @cached_property
    def system(self) -> LocalSystemInfo:
        from vram.host.local.system_info import LocalSystemInfo

        return LocalSystemInfo()

    @cached_property
    def windows(self) -> Windows:
        from vram.host.local.windows import LocalWindows

        windows = LocalWindows(virtual=self._virtual is not None, proc_root=self._proc_root)
        if self._ask_windows and not self._windows_every_s:
            return windows
        from vram.host.local.windows import SeldomWindows, UnaskedWindows

        return SeldomWindows(windows, self._windows_every_s) if self._ask_windows else UnaskedWindows()

    def facts(self) -> HostFacts:
        from vram.host.local.identity import host_facts

        return host_facts(self._proc_root, virtual=self._virtual)
