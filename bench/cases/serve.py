"""`vram serve` on a large machine: its share of one core, and the memory of all its processes.

16 GPUs, 2,000 processes, 128 of which have a context and memory on a GPU; a reading every 5 s, a scrape every
15 s, history on. Processor times are those of /proc, of every process of the service, ended ones included,
over minutes: everybody's open files, which are read again after two minutes here, are in them twice. What a
virtual GPU's own library takes is measured apart, on the same machine, and taken off.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from bench.cases.top import family, used_s
from bench.company import standing
from bench.native import ROOT, build
from bench.row import Row
from bench.timing import CommandFailed, program

MIB = 1024**2
GPUS, PROCESSES, HOLDERS, DESCRIPTORS = 16, 2000, 128, 30
EVERY_S, SCRAPE_S = 5.0, 15.0
STARTED_S, MEASURED_S = 20.0, 270.0
ROUNDS = 20
ONE_PERCENT = 0.01
MAX_BYTES = 60 * MIB


def run(turns: int) -> list[Row]:
    from vram.virtualgpu import VirtualGpu

    with tempfile.TemporaryDirectory() as folder, VirtualGpu.create(gpus=GPUS) as gpu:
        environment = gpu.environment()
        crowd, holders = build("crowd", Path(folder)), build("gpu_crowd", Path(folder))
        with (
            standing([str(holders), str(HOLDERS), str(64 * MIB)], environment),
            standing([str(crowd), str(PROCESSES - HOLDERS), str(DESCRIPTORS)]),
            _service(Path(folder), environment) as service,
        ):
            used = _measured(service)
            inside_s = _driver_s(environment)
    share = used.cpu_s / used.elapsed_s
    own = share - inside_s * used.readings / used.elapsed_s
    what = f"vram serve, {GPUS} GPUs, {PROCESSES:,} processes: processor time of a second"
    return [
        Row(f"{what}, without the virtual driver's own", own, "s", target=ONE_PERCENT),
        Row(f"{what}, with it", share, "s", note=f"{used.readings:.0f} readings"),
        Row("vram serve, memory of all its processes (PSS)", used.pss_bytes, "bytes", target=MAX_BYTES),
        Row("vram serve, the same as RSS, shared pages counted again", used.rss_bytes, "bytes"),
    ]


class _Used(NamedTuple):
    cpu_s: float
    elapsed_s: float
    readings: float
    pss_bytes: int
    rss_bytes: int


class _Service(NamedTuple):
    process: subprocess.Popen[str]
    url: str

    def scrape(self) -> str:
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as answer:
            return str(answer.read().decode())

    def readings(self) -> float:
        return sum(float(n) for n in re.findall(r"^vram_readings_total\{.*\} (.*)$", self.scrape(), re.M))

    def cpu_s(self) -> float:
        if self.process.poll() is not None:
            raise CommandFailed(f"vram serve ended with {self.process.returncode}")
        return sum(map(used_s, family(self.process.pid)))

    def memory(self, field: str) -> int:
        return sum(_memory(pid, field) for pid in family(self.process.pid))


@contextmanager
def _service(folder: Path, environment: dict[str, str]) -> Iterator[_Service]:
    words = [program("vram") or "vram", "serve", "--listen", "127.0.0.1:0", "--interval", f"{EVERY_S:g}s"]
    words += ["--state", str(folder / "state"), "--socket", str(folder / "vram.sock")]
    # Others may want the processors too: a reading that is late because of them says nothing about vram.
    words += ["--deadline", "60s"]
    with subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            yield _Service(process, _url(process.stderr))
        finally:
            process.send_signal(signal.SIGTERM)


def _url(said: Iterator[str]) -> str:
    """Where it listens; what it says besides is passed over."""
    for line in said:
        if found := re.search(r"listening on (http://\S+?)/ ", line):
            return found[1]
    raise CommandFailed("vram serve does not listen")


def _measured(service: _Service) -> _Used:
    while not service.readings():
        time.sleep(0.5)
    time.sleep(STARTED_S)
    began, before, readings = time.monotonic(), service.cpu_s(), service.readings()
    pss = rss = 0
    while (left_s := began + MEASURED_S - time.monotonic()) > 0:
        time.sleep(min(SCRAPE_S, left_s))
        service.scrape()
        pss, rss = max(pss, service.memory("Pss")), max(rss, service.memory("Rss"))
    return _Used(service.cpu_s() - before, time.monotonic() - began, service.readings() - readings, pss, rss)


def _memory(pid: int, field: str) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # it has ended
        return 0
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def _driver_s(environment: dict[str, str]) -> float:
    """Processor time of the library's own in one round."""
    words = [sys.executable, str(ROOT / "bench" / "driver_rounds.py"), str(ROUNDS)]
    done = subprocess.run(words, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return float(done.stdout.split()[0])
