"""The machine at hand: one file per port, foreign errors translated once."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING

from vram.host.local.child import Child, interpreter, start

if TYPE_CHECKING:
    from vram.host.local.checkpoint import LocalCheckpoint
    from vram.host.local.checkpoint_start import Started
    from vram.host.local.drm import LocalDrm
    from vram.host.local.exports import LocalExports
    from vram.host.local.process_limits import LocalProcessLimits
    from vram.host.local.signals import LocalSignals
    from vram.host.local.system_info import LocalSystemInfo
    from vram.host.local.vendor import LocalVendor
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

    return start(job, interpreter("vram.host.local.nvml_child", "--serve"), two_way=True)


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

    def nvidia_gpus(self) -> int | None:
        return None


def _drm(root: str) -> LocalDrm | _NoCards:
    if not root or not os.path.isdir(f"{root}/class/drm"):
        return _NoCards()
    from vram.host.local.drm import LocalDrm

    return LocalDrm(root)


class LocalHost:
    """This machine, or the virtual GPU where the environment names one.

    *sys_root* is where GPUs of AMD and Intel are looked for: /sys, or nowhere where the GPU is
    virtual, since real cards have no part in its account.

    With *read_ahead_s* the driver and everybody's files are read from the first moment on,
    beside the imports that are needed: for a command that makes a survey within so many
    seconds, as most do. *reader* is one that reads the driver already, *checkpoint_worker* one that wakes
    it up already for parking.

    Windows around WSL2 is asked whenever somebody wants to know; with *windows_every_s* not more
    often than that, and without *ask_windows* never.

    With *keep_driver_open* one process reads NVML for all surveys, instead of one for each: opening the
    driver is most of the cost of a survey that is made every second. *kept_reader* is that process, where it
    runs already.
    """

    def __init__(
        self,
        proc_root: str = "/proc",
        *,
        sys_root: str | None = None,
        reader: Child | None = None,
        read_ahead_s: float | None = None,
        checkpoint_worker: Started | None = None,
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
    def signals(self) -> LocalSignals:
        from vram.host.local.signals import LocalSignals

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
        from vram.host.local.vendor import LocalVendor

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
