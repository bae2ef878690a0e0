"""The machine at hand: one file per port, foreign errors translated once."""

from __future__ import annotations

import os

from vram.host.local.clock import LocalClock
from vram.host.local.device_files import VIRTUAL_GPU, DeviceNames
from vram.host.local.exports import LocalExports
from vram.host.local.identity import host_facts
from vram.host.local.nvml import LocalNvml
from vram.host.local.open_files import LocalOpenFiles
from vram.host.local.procfs import LocalProc
from vram.model.observation import HostFacts


class LocalHost:
    """This machine, or the virtual GPU where the environment names one."""

    def __init__(self, proc_root: str = "/proc") -> None:
        virtual = os.environ.get(VIRTUAL_GPU) or None
        self.clock = LocalClock()
        self.proc = LocalProc(proc_root)
        self.nvml = LocalNvml()
        self.files = LocalOpenFiles(DeviceNames(virtual), proc_root, ignore=self.nvml.own_pids)
        self.exports = LocalExports()
        self._proc_root = proc_root
        self._virtual = virtual is not None

    def facts(self) -> HostFacts:
        return host_facts(self._proc_root, virtual=self._virtual)
