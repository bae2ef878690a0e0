"""What blocks of pages look at: `setup.py NAME...` makes it, prints `export` lines and "ready", and keeps it
until its standard input ends."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from tests.patience import until  # noqa: E402
from vram.units import GIB, MIB  # noqa: E402
from vram.virtualgpu import VirtualGpu  # noqa: E402
from vram.virtualgpu.demos import FORK, DemoProgram  # noqa: E402

SSH = """#!/bin/sh
case "$*" in *"-G -- "*) echo "hostname 127.0.0.1"; exit 0;; esac
while [ "$1" != -- ]; do shift; done
[ -e "FOLDER/$2.env" ] || { echo "ssh: connect to host $2 port 22: No route to host" >&2; exit 255; }
. "FOLDER/$2.env"
exec sh -c "$3"
"""
"""What stands for ssh: the last words are the node and the command."""


class Setup:
    def __init__(self, stack: ExitStack) -> None:
        self.stack = stack
        # Short: the path of a socket is limited.
        self.folder = Path(stack.enter_context(TemporaryDirectory(prefix="vram-page-")))
        self.exports: dict[str, str] = {"XDG_STATE_HOME": str(self.private("home"))}

    def ghost(self) -> None:
        """4 GiB of a dead process, held by its child."""
        self._ghost(VirtualGpu.inside())

    def job(self) -> None:
        """A program that holds 8 GiB."""
        self.stack.enter_context(DemoProgram(VirtualGpu.inside(), "memory.plain", 8 * GIB))

    def service(self) -> None:
        """`vram serve`, configured by serve.toml in the working directory where there is one."""
        self.exports |= {
            "STATE_DIRECTORY": str(self.private("state")),
            "RUNTIME_DIRECTORY": str(self.private("run")),
            "CONFIGURATION_DIRECTORY": os.getcwd(),
        }
        self.exports["SERVICE"] = self._serve({**os.environ, **self.exports})

    def history(self) -> None:
        """history.sqlite in the working directory: what a service recorded in two hours of September 2026."""
        from tests.history.written import example

        written = example(self.private("state"))
        written.store.close()
        shutil.copy(written.path, ".")
        self.exports["TZ"] = "UTC"

    def fleet(self) -> None:
        """Hosts that a stand-in for ssh reaches: gpu-1, and gpu-2 with a ghost and a service."""
        for name in ("gpu-1", "gpu-2"):
            gpu = self.stack.enter_context(VirtualGpu.create(gpus=2))
            there = {"RUNTIME_DIRECTORY": str(self.private(f"run-{name}"))}
            variables = gpu.environment(there)
            lines = (f"export {key}={shlex.quote(value)}\n" for key, value in variables.items())
            (self.folder / f"{name}.env").write_text("".join(lines))
            if name == "gpu-2":
                self._ghost(gpu)
                folders = dict.fromkeys(
                    ("STATE_DIRECTORY", "CONFIGURATION_DIRECTORY"), str(self.private("state"))
                )
                self._serve({**os.environ, **self.exports, **variables, **folders})
        self._program("ssh", SSH.replace("FOLDER", str(self.folder)))

    def windows(self) -> None:
        """Another virtual GPU, as in WSL2: one program of Linux and one of Windows hold memory."""
        from tests.wsl.windows import encoded, install, speaking

        gpu = self.stack.enter_context(
            VirtualGpu.create(
                memory_bytes=24 * GIB, name="NVIDIA GeForce RTX 4090", wddm=True, windows_bytes=GIB
            )
        )
        self.stack.enter_context(DemoProgram(gpu, "memory.plain", 8 * GIB))
        self.exports |= {
            name: value for name, value in gpu.environment().items() if name.startswith(("LD_", "VRAM_"))
        }
        install(self.private("bin"), encoded(speaking("en", guest=8 * GIB + 518 * MIB)))
        self._search_ours()

    def cards(self) -> None:
        """A card of AMD and one of Intel, in trees like /proc and /sys."""
        from tests.vendors.fdinfo_styles import Use
        from tests.vendors.machine import Machine

        machine = Machine(self.folder / "machine")
        amd = machine.card("amdgpu", "0000:03:00.0", total=24 * GIB, used=8 * GIB + 128 * MIB)
        intel = machine.card("i915", "0000:07:00.0")
        machine.client(machine.process(5_000_001, "python train.py"), amd, Use(vram=8 * GIB))
        machine.client(machine.process(5_000_002, "python infer.py"), intel, Use(vram=3 * GIB))
        self.exports |= {key: machine.environment[key] for key in ("VRAM_PROC_ROOT", "VRAM_SYS_ROOT")}

    # ---- parts of these ----

    def private(self, name: str) -> Path:
        folder = self.folder / name
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder

    def _ghost(self, gpu: VirtualGpu) -> None:
        FORK.prepare(self.stack.enter_context(DemoProgram(gpu, FORK.program, FORK.size)))

    def _serve(self, environment: Mapping[str, str]) -> str:
        """Start a service; return its address when it has read."""
        words = ["vram", "serve", "--interval", "0.5s", "--listen", "127.0.0.1:0"]
        log = self.folder / "serve.log"
        with log.open("wb") as file:
            service = subprocess.Popen(
                words, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file
            )
        self.stack.callback(service.wait)
        self.stack.callback(service.terminate)
        listening = re.compile(r"listening on http://([^\s/]+)/")
        until(lambda: listening.search(log.read_text()) or service.poll() is not None)
        found = listening.search(log.read_text())
        if found is None:
            sys.exit(log.read_text())
        until(lambda: _answers(f"http://{found[1]}/readyz"))
        return found[1]

    def _program(self, name: str, text: str) -> None:
        path = self.private("bin") / name
        path.write_text(text)
        path.chmod(stat.S_IRWXU)
        self._search_ours()

    def _search_ours(self) -> None:
        self.exports["PATH"] = f"{self.folder / 'bin'}:{os.environ['PATH']}"


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url):
            return True
    except urllib.error.HTTPError:
        return False


def main() -> None:
    with ExitStack() as stack:
        setup = Setup(stack)
        for name in sys.argv[1:]:
            getattr(setup, name)()
        for key, value in setup.exports.items():
            print(f"export {key}={shlex.quote(value)}")
        print("ready", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
