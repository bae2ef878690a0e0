"""A service in a process of its own, on a virtual GPU: started, asked, signalled, and gone with its test."""

from __future__ import annotations

import http.client
import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.patience import PATIENCE_S, until
from vram.virtualgpu import VirtualGpu


class Samples(dict[tuple[str, ...], float]):
    """Metrics by name and labels. One that is not there, as while a GPU does not answer, equals nothing."""

    def __missing__(self, key: tuple[str, ...]) -> float:
        return math.nan


class RunningService:
    """``vram serve`` with a state folder in *folder*; it has read when the constructor returns,
    unless *waits* says otherwise."""

    def __init__(
        self,
        folder: Path,
        gpu: VirtualGpu | None = None,
        *words: str,
        interval: str = "0.5s",
        listen: str = "127.0.0.1:0",
        environment: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
        waits: bool = True,
    ) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.socket = folder / "run" / "vram.sock"
        self.log_path = folder / "serve.log"
        self._notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        notify_path = str(folder / f"notify-{os.urandom(4).hex()}")
        self._notify.bind(notify_path)
        os.chmod(notify_path, 0o777)
        base = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), **(environment or {})}
        base["NOTIFY_SOCKET"] = notify_path
        argv = [
            *prefix,
            *(sys.executable, "-m", "vram", "serve", "--interval", interval, "--listen", listen),
            *("--state", str(self.state), "--socket", str(self.socket)),
            *words,
        ]
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                argv,
                env=gpu.environment(base) if gpu else base,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            self.until(lambda: "READY=1" in self.notified())
            if waits and listen:
                self.until(lambda: self.request("/readyz")[0] == 200)
        except BaseException:
            self.close()
            raise

    def notified(self) -> str:
        """What the service has told systemd since the last time."""
        said = []
        with suppress(BlockingIOError):
            while True:
                said.append(self._notify.recv(4096, socket.MSG_DONTWAIT).decode())
        return "\n".join(said)

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    @property
    def port(self) -> int:
        found = re.findall(r"listening on http://[^\s]*:(\d+)/", self.log)
        return int(found[-1])

    def until(self, what: Callable[[], Any]) -> Any:
        """Come back when *what* is true, with it. A service that ends meanwhile fails the test."""

        def answer() -> Any:
            found = what()
            assert found or self.process.poll() is None, f"ended with {self.process.returncode}: {self.log}"
            return found

        # Each question costs both sides milliseconds, and the next reading is half a second away.
        return until(answer, lambda: self.log, max_pause_s=0.05)

    def request(
        self, path: str, method: str = "GET", headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes, http.client.HTTPMessage]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            connection.request(method, path, headers=dict(headers or {}))
            answer = connection.getresponse()
            return answer.status, answer.read(), answer.headers
        finally:
            connection.close()

    def get(self, path: str, status: int = 200) -> Any:
        """The JSON at *path*."""
        got, body, _ = self.request(path)
        assert got == status, body
        return json.loads(body)

    def metrics(self) -> Samples:
        """Every sample by its name and label values, in the order of the labels' names."""
        from prometheus_client.parser import text_string_to_metric_families

        _, body, _ = self.request("/metrics")
        return Samples(
            ((sample.name, *(value for _, value in sorted(sample.labels.items()))), sample.value)
            for family in text_string_to_metric_families(body.decode())
            for sample in family.samples
        )

    def readings(self, count: int = 2) -> None:
        """Come back after so many more readings: the last one began after now."""
        wanted = self._taken() + count
        self.until(lambda: self._taken() >= wanted)

    def _taken(self) -> float:
        _, body, _ = self.request("/metrics")
        return sum(map(float, re.findall(rb"^vram_readings_total\{.*\} (\S+)$", body, re.MULTILINE)))

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End it as systemd does; its exit code."""
        self.send(number)
        return self.process.wait(PATIENCE_S)

    def close(self) -> None:
        """End it and all that it started: they are a group of their own. Can be called again."""
        if self._notify.fileno() < 0:  # the group's number may be somebody else's by now
            return
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._notify.close()

    def __enter__(self) -> RunningService:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
