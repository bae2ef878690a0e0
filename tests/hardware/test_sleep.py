"""Programs that sleep on real hardware: each request is answered, rightly, and the wake adds little to the
driver's.

python -m pytest --real-gpu -s tests/hardware/test_sleep.py
"""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.hardware.conftest import Record
from tests.needs import skip_without
from tests.patience import PATIENCE_S, until
from tests.search_path import search_path
from vram.units import GIB

pytestmark = pytest.mark.gpu

ROUNDS = int(os.environ.get("VRAM_SLEEPS", "4"))
SERVERS = 3
GIB_EACH = 2
# A transformer with random weights, weights of so many GiB beside it, and an event that is asked without a
# pause.
SERVER = """
import sys, threading, torch
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
torch.manual_seed(0)
layer = torch.nn.TransformerEncoderLayer(1024, 16, batch_first=True)
model = torch.nn.TransformerEncoder(layer, 12).half().cuda().eval()
weights = torch.full((int(sys.argv[1]) << 30,), 7, dtype=torch.uint8, device="cuda")
data = torch.ones(1, 64, 1024, dtype=torch.half, device="cuda")
lock = threading.Lock()
def answer():
    with lock, torch.no_grad():
        return f"{model(data).float().sum().item():.6f} {int(weights[::1 << 20].sum())}"
class Handler(BaseHTTPRequestHandler):
    def log_message(self, *about): pass
    def do_GET(self):
        body = answer().encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
answer()
server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


class Bench:
    """Servers on the GPU, and vram with a state folder of its own."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.environment = {**os.environ, "XDG_STATE_HOME": str(folder), "PYTHONPATH": search_path()}
        self._stack = stack

    def server(self) -> tuple[subprocess.Popen[str], int]:
        words = [sys.executable, "-c", SERVER, str(GIB_EACH)]
        process = self._stack.enter_context(subprocess.Popen(words, stdout=subprocess.PIPE, text=True))
        self._stack.callback(process.kill)
        assert process.stdout is not None
        return process, int(process.stdout.readline())

    def vram(self, *words: object) -> Any:
        done = subprocess.run(
            [sys.executable, "-m", "vram", *map(str, words), "--json"],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["sleeping"]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    if find_spec("torch") is None:
        skip_without("torch", "PyTorch is not installed")
    tmp_path.chmod(0o700)
    with ExitStack() as stack:
        yield Bench(tmp_path, stack)


def get(port: int) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        connection.request("GET", "/")
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def test_servers_sleep_and_answer(bench: Bench, record: Record) -> None:
    """Asleep, awake and asked while they go to sleep: the same answer each time."""
    chance = random.Random(1)
    servers = [bench.server() for _ in range(SERVERS)]
    right = [get(port) for _, port in servers]
    assert all(answer.endswith(f" {7 * (GIB_EACH << 10)}") for answer in right)
    awake_s: list[float] = []
    asleep_s: list[float] = []
    added_s: list[float] = []
    for _ in range(ROUNDS):
        at = chance.randrange(SERVERS)
        process, port = servers[at]
        until(lambda process=process: _sleeps(bench, process.pid), max_pause_s=0.5)
        began = time.monotonic()
        assert get(port) == right[at]
        asleep_s.append(time.monotonic() - began)
        began = time.monotonic()
        assert get(port) == right[at]
        awake_s.append(time.monotonic() - began)
        added_s.append(asleep_s[-1] - awake_s[-1] - _driver_s(bench.environment["XDG_STATE_HOME"]))
    record(rounds=ROUNDS, nbytes=GIB_EACH * GIB, asleep_s=asleep_s, awake_s=awake_s, added_s=added_s)
    assert sorted(added_s)[ROUNDS // 2] < 0.15


def test_continued_by_hand_they_are_woken_unharmed(bench: Bench, record: Record) -> None:
    """Without their memory they would die of an ordinary call."""
    process, port = bench.server()
    right = get(port)
    for _ in range(ROUNDS):
        until(lambda: _sleeps(bench, process.pid), max_pause_s=0.5)
        process.send_signal(signal.SIGCONT)
        until(lambda: not bench.vram("sleep"), max_pause_s=0.2)
        assert get(port) == right
    record(rounds=ROUNDS, harmed=0)


def _sleeps(bench: Bench, pid: int) -> bool:
    """Whether it has gone to sleep; one that has just answered may still work."""
    words = [sys.executable, "-m", "vram", "sleep", str(pid)]
    done = subprocess.run(words, env=bench.environment, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0 or "works" in done.stderr or "arrived" in done.stderr, done.stderr
    return done.returncode == 0


def _driver_s(folder: str) -> float:
    """What the driver's calls of the last move took, by the audit log."""
    lines = [json.loads(line) for line in Path(folder, "vram", "audit.jsonl").read_text().splitlines()]
    return float([line["driver_s"] for line in lines if line.get("driver_s") is not None][-1])
