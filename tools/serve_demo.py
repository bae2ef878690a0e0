"""`vram serve` on a virtual GPU with a few processes, one of them a ghost: something to click and to type.

python tools/serve_demo.py [--for DURATION] [--port PORT]

Prints where the page, the metrics and the API are, and commands for another terminal. Ctrl-C ends everything
that it started.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from vram.units import GIB, parse_duration, spell_duration
from vram.virtualgpu import VirtualGpu
from vram.virtualgpu.demos import DemoProgram

GPUS, MEMORY = 2, 24 * GIB
ENTERED = ("VRAM_VIRTUAL_GPU", "LD_LIBRARY_PATH", "LD_PRELOAD")
POLICY = """\
[[policy]]
name = "leftovers"
do = "end-leftovers"
mode = "dry-run"
after = "10s"
"""
WORDS = """\
vram serve runs on {gpus} virtual GPUs of 24 GiB, with a job, a pool that
keeps what was freed, and a ghost: memory of a dead process that another one holds. A policy
would end it after 10 s; it is a dry run, and says so on the page.

  page      {url}/
  metrics   {url}/metrics
  health    {url}/healthz
  JSON      {url}/api/v1/why   ps   ghosts   changes   health

In another terminal:

  . {enter}
  vram                              # who holds what, as the page shows it
  curl -s {url}/api/v1/ghosts
  vram serve status --socket {folder}/vram.sock
  vram history ghosts --file {folder}/state/history.sqlite     # after a minute
  vram free                         # shows the plan that ends the ghost, and asks; then look at the page

{end}
"""


def main() -> int:
    parser = argparse.ArgumentParser(description="vram serve on a virtual GPU with demo processes")
    parser.add_argument(
        "--for", dest="seconds", type=parse_duration, metavar="DURATION", help="end after this time, e.g. 60s"
    )
    parser.add_argument("--port", type=int, default=0, help="listen there (default: a free one)")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="vram-serve-")))
        gpu = stack.enter_context(VirtualGpu.create(gpus=GPUS, memory_bytes=MEMORY, name="NVIDIA GPU"))
        stack.enter_context(processes(gpu))
        service = stack.enter_context(serving(gpu, folder, arguments.port))
        assert service.stderr is not None
        url = address(service.stderr)
        if url is None:
            return 1
        end = (
            f"It ends after {spell_duration(arguments.seconds)}." if arguments.seconds else "Ctrl-C ends it."
        )
        words = WORDS.format(gpus=GPUS, url=url, enter=entrance(gpu, folder), folder=folder, end=end)
        print(words, flush=True)
        try:
            service.wait(arguments.seconds)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            return 0
        return service.returncode


@contextmanager
def processes(gpu: VirtualGpu) -> Iterator[None]:
    with (
        DemoProgram(gpu, "memory.plain", 8 * GIB),
        DemoProgram(gpu, "pools.trim", 3 * GIB) as pool,
        DemoProgram(gpu, "forks.orphan", 4 * GIB) as family,
    ):
        pool.go()  # to where it has freed its memory, and its pool keeps it
        family.kill("parent")
        yield


@contextmanager
def serving(gpu: VirtualGpu, folder: Path, port: int) -> Iterator[subprocess.Popen[str]]:
    """The service, with its state in *folder*; ended with SIGTERM, as systemd does."""
    words = [sys.executable, "-m", "vram", "serve", "--interval", "1s", "--listen", f"127.0.0.1:{port}"]
    words += ["--state", str(folder / "state"), "--socket", str(folder / "vram.sock")]
    words += ["--config", str(folder / "serve.toml")]
    (folder / "serve.toml").write_text(POLICY)
    service = gpu.popen(words, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        yield service
    finally:
        service.terminate()
        service.wait()


def address(said: IO[str]) -> str | None:
    """Where the service listens; where it ends instead, what it said goes on to whoever started the demo."""
    lines = []
    for line in said:
        if found := re.search(r"listening on (http://\S+?)/ ", line):
            return found[1]
        lines.append(line)
    sys.stderr.writelines(lines)
    return None


def entrance(gpu: VirtualGpu, folder: Path) -> Path:
    """A file that a shell reads to be on these GPUs, with this vram."""
    environment = gpu.environment()
    lines = [f"export {name}={shlex.quote(environment[name])}" for name in ENTERED]
    lines.append(f"export PATH={shlex.quote(os.path.dirname(sys.executable))}:$PATH")
    file = folder / "enter"
    file.write_text("\n".join(lines) + "\n")
    return file


if __name__ == "__main__":
    sys.exit(main())
