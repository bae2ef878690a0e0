"""The machine around the GPUs: read from files below *root*, or tried on processes of our own."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping, Sequence

from vram.host.local.confinement import confinement, container, runtimes
from vram.host.local.driver_files import device_nodes, driver_files, read
from vram.host.local.tracing import cupti_places, tracing
from vram.host.local.trials import LocalTrials
from vram.model.surroundings import Mps, Premises, Tracing

_MPS_FOLDER = "/tmp/nvidia-mps"


class LocalSurroundings:
    """Looks below *root*; *environment* is our own unless said otherwise."""

    def __init__(self, root: str = "", environment: Mapping[str, str] | None = None) -> None:
        self._root = root
        self._environment = os.environ if environment is None else environment

    def premises(self) -> Premises:
        root, environment = self._root, self._environment
        return Premises(
            driver=driver_files(root),
            nodes=device_nodes(root),
            confinement=confinement(root),
            container=container(root, environment),
            runtimes=runtimes(root),
            mps=self._mps(),
            injection=environment.get("CUDA_INJECTION64_PATH") or None,
            machine=platform.machine(),
        )

    def cupti(self) -> tuple[str, ...]:
        return cupti_places(self._root, self._environment)

    def tracing(self, pids: Iterable[int]) -> tuple[Tracing, ...]:
        return tracing(f"{self._root}/proc", pids)

    def start_trials(self, libraries: Sequence[str]) -> LocalTrials:
        return LocalTrials(libraries)

    def _mps(self) -> Mps:
        said = self._environment.get("CUDA_MPS_PIPE_DIRECTORY")
        folder = said or _MPS_FOLDER
        place = self._root + folder
        number = read(f"{place}/nvidia-cuda-mps-control.pid", 32).strip()
        alive = number.isdigit() and os.path.isdir(f"{self._root}/proc/{number}")
        return Mps(folder, int(number) if alive else None, os.path.exists(f"{place}/control"))
