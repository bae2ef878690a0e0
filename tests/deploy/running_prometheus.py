"""Prometheus and node_exporter as Debian ships them, on free ports of their own, gone with the test."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.needs import find_program
from tests.patience import PATIENCE_S, until


class Listening:
    """A program that says on which port it listens."""

    def __init__(self, argv: Sequence[str], log: Path) -> None:
        self._log = log
        with log.open("wb") as out:
            self._process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        try:
            (self.port,) = self.until(
                lambda: re.findall(r'"Listening on" address=127\.0\.0\.1:(\d+)', log.read_text())
            )
        except BaseException:
            self.close()
            raise

    def until(self, what: Callable[[], Any]) -> Any:
        """Come back when *what* is true, with it."""

        def answer() -> Any:
            found = what()
            assert found or self._process.poll() is None, self._log.read_text()[-4000:]
            return found

        return until(answer, lambda: self._log.read_text()[-4000:])

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=PATIENCE_S) as answer:
            return str(answer.read().decode())

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Any:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Prometheus(Listening):
    """Scrapes *targets* as the job ``vram``, each second, and judges *rules* as often."""

    def __init__(self, folder: Path, targets: Sequence[str], rules: Sequence[Path]) -> None:
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(path) for path in rules],
            "scrape_configs": [{"job_name": "vram", "static_configs": [{"targets": list(targets)}]}],
        }
        (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
        program = find_program("prometheus")
        assert program is not None
        super().__init__(
            [
                program,
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                "--web.listen-address=127.0.0.1:0",
            ],
            folder / "prometheus.log",
        )
        self.until(self._is_ready)

    def _is_ready(self) -> bool:
        try:
            return bool(self.get("/-/ready"))
        except OSError:
            return False

    def api(self, path: str, **query: str) -> Any:
        answer = json.loads(self.get(f"/api/v1/{path}?{urllib.parse.urlencode(query)}"))
        assert answer["status"] == "success", answer
        return answer["data"]

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of each series; the last values of a range."""
        found = []
        for series in self.api("query", query=expression)["result"]:
            _, value = series["value"] if "value" in series else series["values"][-1]
            found.append((series["metric"], float(value)))
        return found


def node_exporter(folder: Path) -> Listening:
    """node_exporter with the textfile collector alone, on *folder*."""
    program = find_program("prometheus-node-exporter") or find_program("node_exporter")
    assert program is not None
    return Listening(
        [
            program,
            "--collector.disable-defaults",
            "--collector.textfile",
            f"--collector.textfile.directory={folder}",
            "--web.listen-address=127.0.0.1:0",
        ],
        folder.parent / "node_exporter.log",
    )
