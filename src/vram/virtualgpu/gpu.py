"""A virtual GPU from its making to its end: a folder, and the environment in which programs find it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vram.errors import VirtualGpuError
from vram.virtualgpu import FOLDER_VARIABLE, config, current
from vram.virtualgpu import folder as private
from vram.virtualgpu.config import Setting

Command = Sequence[str | os.PathLike[str]]

DEVICES = ("nvidiactl", "nvidia-uvm")
WINDOWS_DEVICES = ("dxg",)
"""Under Windows' driver, as in WSL2, there is one device for every GPU."""


class VirtualGpu:
    """One or several virtual GPUs in one private folder.

    Its maker ends it with :meth:`close` (or ``with``): the folder is gone then.
    Processes that still run in it lose their GPU, as they would when a driver is unloaded.
    """

    def __init__(self, folder: Path, lock: int | None = None) -> None:
        self.folder = folder
        self._lock = lock

    @classmethod
    def create(
        cls,
        gpus: int = 1,
        memory_bytes: int | None = None,
        name: str | None = None,
        folder: str | os.PathLike[str] | None = None,
        **settings: Setting,
    ) -> VirtualGpu:
        """Make *gpus* equal GPUs; what is left out is as measured on an H200.

        *settings* are those of :mod:`vram.virtualgpu.config`; ``mig="3g.71gb,2g.35gb"`` divides every
        GPU. *folder* names one that is empty or does not exist yet; left out,
        it is a new one in shared memory or $TMPDIR.
        """
        named = {"total_bytes": memory_bytes, "name": name}
        said = {key: value for key, value in named.items() if value is not None}
        lines = config.first_lines(gpus, said | settings)
        devices = WINDOWS_DEVICES if settings.get("wddm") else DEVICES
        path = private.make(folder)
        made = cls(path, private.lock(path))
        try:
            made._fill_folder(lines, devices)
        except BaseException:
            made.close()
            raise
        return made

    @classmethod
    def inside(cls) -> VirtualGpu:
        """The one this process runs under."""
        path = current()
        if path is None:
            raise VirtualGpuError(
                "this process does not run under a virtual GPU",
                hint="start it with `vram virtual -- COMMAND`",
            )
        return cls(private.check(path))

    def __enter__(self) -> VirtualGpu:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the folder and everything in it, if it is we who made it."""
        if self._lock is not None:
            if not (self.folder / private.KEPT).exists():
                shutil.rmtree(self.folder, ignore_errors=True)
            os.close(self._lock)
            self._lock = None

    def keep(self) -> None:
        """Let the folder stay behind."""
        (self.folder / private.KEPT).touch()

    # ---- running programs in it ----

    def environment(self, base: Mapping[str, str] | None = None) -> dict[str, str]:
        """*base* (or our own environment), changed so that programs find this GPU's driver."""
        variables = dict(os.environ if base is None else base)
        searched = [path for path in variables.get("LD_LIBRARY_PATH", "").split(":") if path]
        variables["LD_LIBRARY_PATH"] = ":".join([str(self.folder / "lib"), *searched])
        variables["LD_PRELOAD"] = private.with_runtimes(variables.get("LD_PRELOAD", ""))
        variables[FOLDER_VARIABLE] = str(self.folder)
        return variables

    def run(self, argv: Command, **options: Any) -> subprocess.CompletedProcess[Any]:
        """``subprocess.run`` under this GPU; *options* are its own."""
        return subprocess.run(argv, env=self.environment(options.pop("env", None)), **options)

    def popen(self, argv: Command, **options: Any) -> subprocess.Popen[Any]:
        """``subprocess.Popen`` under this GPU; *options* are its own."""
        return subprocess.Popen(argv, env=self.environment(options.pop("env", None)), **options)

    def launches(self) -> int:
        """Kernel launches of all its programs so far: counted, and never run."""
        try:
            return int.from_bytes((self.folder / "launches").read_bytes()[:8], sys.byteorder)
        except FileNotFoundError:
            return 0

    # ---- changing it ----

    def set(self, gpu: int | None = None, **settings: Setting) -> None:
        """Change settings, of one GPU or of all, for every process that starts from now on."""
        path = self.folder / "config"
        lines = config.lines(settings, gpu, path.read_text())
        with path.open("a") as file:
            file.writelines(f"{line}\n" for line in lines)

    def add_cgroup(self, path: str, *, limited: bool = True) -> str:
        """Make a control group ("/user.slice/a.scope") and those above it: the kernel counts GPU memory then.

        A process is in it by VRAM_VIRTUAL_CGROUP in its environment, which this returns the value of. Not
        *limited*: the group has no controller, and limits above it are its own.
        """
        root = self.folder / "cgroup"
        folder = root / path.strip("/")
        for each in reversed((folder, *folder.parents)):
            if root in each.parents and not each.exists():
                each.mkdir(parents=True)
                if limited or each != folder:
                    for name in ("dmem.max", "dmem.min"):
                        (each / name).touch()
        counts = config.gpu_totals((self.folder / "config").read_text())
        lines = (f"nvidia/00000000:{at + 1:02x}:00.0/vidmem {nbytes}\n" for at, nbytes in enumerate(counts))
        (root / "dmem.capacity").write_text("".join(lines))
        return f"/{path.strip('/')}"

    def fail(
        self,
        function: str,
        *,
        gpu: int | None = None,
        error: str | int | None = None,
        sticky: str | int | None = None,
        after: int | None = None,
        nth: int | None = None,
        hang: bool = False,
        slow_s: float | None = None,
        sentinel: bool = False,
        halfway: str | int | None = None,
        value: int | None = None,
    ) -> None:
        """Let calls that match *function* misbehave from now on, in running processes too."""
        words = {
            "gpu": gpu,
            "after": after,
            "nth": nth,
            "error": error,
            "sticky": sticky,
            "slow": slow_s,
            "halfway": halfway,
            "value": value,
        }
        said = [f"{key}={value}" for key, value in words.items() if value is not None]
        self.add_fault(" ".join([function, *said, *["hang"] * hang, *["sentinel"] * sentinel]))

    def add_fault(self, line: str) -> None:
        """The same, from one line in the words of :mod:`vram.virtualgpu.config`."""
        self._write_faults([*self.faults(), config.read_fault(line)])

    def faults(self) -> list[str]:
        """The lines that are in force."""
        return (self.folder / "faults").read_text().splitlines()

    def clear_faults(self) -> None:
        """Let every call work again; slow ones go on at once, those that hang go on hanging."""
        self._write_faults([])

    def _write_faults(self, lines: Sequence[str]) -> None:
        # Calls read this file while we write: it is replaced whole, never seen half-way.
        fresh = self.folder / "faults.new"
        fresh.write_text("".join(f"{line}\n" for line in lines))
        fresh.replace(self.folder / "faults")

    def _fill_folder(self, lines: Sequence[str], devices: Sequence[str]) -> None:
        private.link_libraries(self.folder / "lib")
        (self.folder / "dev").mkdir()
        for name in devices:
            (self.folder / "dev" / name).touch()
        (self.folder / "admission.lock").touch()
        (self.folder / "faults").touch()
        # Last, because a folder with a config is one that can be entered.
        (self.folder / "config").write_text("".join(f"{line}\n" for line in lines))
