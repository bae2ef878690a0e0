"""The machine at hand: one file per port, foreign errors translated once."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING

from vram.host.local.nvml_start import start_reader

if TYPE_CHECKING:
    from vram.host.local.checkpoint import LocalCheckpoint
    from vram.host.local.child import Child
    from vram.host.local.exports import LocalExports
    from vram.host.local.keeper_start import Started
    from vram.host.local.signals import LocalSignals
    from vram.host.local.vendor import LocalVendor
    from vram.host.local.vitals import LocalVitalSigns
    from vram.model.observation import HostFacts


class LocalHost:
    """This machine, or the virtual GPU where the environment names one.

    With *read_ahead_s* the driver and everybody's files are read from the first moment on,
    beside the imports that are needed: for a command that makes a survey within so many
    seconds, as most do. *reader* is one that reads the driver already, *keeper* one that wakes
    it up already for parking.
    """

    def __init__(
        self,
        proc_root: str = "/proc",
        *,
        reader: Child | None = None,
        read_ahead_s: float | None = None,
        keeper: Started | None = None,
    ) -> None:
        self._keeper = keeper
        if reader is None and read_ahead_s is not None:
            with suppress(OSError):  # will be met again by the reading itself, and told
                reader = start_reader(set())
        from vram.host.local.clock import LocalClock
        from vram.host.local.device_files import VIRTUAL_GPU, DeviceNames
        from vram.host.local.nvml import LocalNvml
        from vram.host.local.open_files import LocalOpenFiles
        from vram.host.local.procfs import LocalProc

        virtual = os.environ.get(VIRTUAL_GPU) or None
        self.clock = LocalClock()
        self.proc = LocalProc(proc_root)
        self.nvml = LocalNvml(reader)
        self.files = LocalOpenFiles(DeviceNames(virtual), proc_root, ignore=self.nvml.own_pids)
        if read_ahead_s is not None:
            self.files.look_ahead(read_ahead_s)
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

        return LocalCheckpoint(self._keeper)

    @cached_property
    def vitals(self) -> LocalVitalSigns:
        from vram.host.local.vitals import LocalVitalSigns

        return LocalVitalSigns(self._proc_root)

    @cached_property
    def vendor(self) -> LocalVendor:
        from vram.host.local.vendor import LocalVendor

        return LocalVendor()

    def facts(self) -> HostFacts:
        from vram.host.local.identity import host_facts

        return host_facts(self._proc_root, virtual=self._virtual)
