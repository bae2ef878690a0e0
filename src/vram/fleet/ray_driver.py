"""The process that talks to a Ray cluster for :mod:`vram.fleet.transports.ray`.

Ray prints, waits for as long as it likes and may end its process when it is unhappy: all of that happens
here, behind a pipe, where the one who asks has a deadline. One JSON object a line: the first request is
the cluster's address, the first answer its nodes; then commands for nodes, answered as they end.
"""

from __future__ import annotations

import os
import select
import sys
import time
from importlib import import_module
from typing import Any

import msgspec

from vram.children import LineInbox

_WAIT_S = 0.05
_ERRORS_ONLY = 40  # of the module logging


class RayStart(msgspec.Struct, frozen=True, kw_only=True):
    address: str


class RayNode(msgspec.Struct, frozen=True, kw_only=True):
    """One node as the cluster lists it."""

    node_id: str
    name: str
    address: str
    host: str
    alive: bool


class RayCluster(msgspec.Struct, frozen=True, kw_only=True):
    """The first answer. ``error`` says why there are no nodes; ``code`` the same to programs."""

    nodes: tuple[RayNode, ...] = ()
    code: str | None = None
    error: str | None = None


class RayCommand(msgspec.Struct, frozen=True, kw_only=True):
    """*words* for vram on one node. ``vram`` empty: as a module of the Python that Ray runs there."""

    number: int
    node_id: str
    vram: tuple[str, ...]
    words: tuple[str, ...]
    within_s: float
    nbytes: int


class RayAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """How a command ended; ``code`` and ``error`` where it did not run to its end."""

    number: int
    status: int | None = None
    output: bytes = b""
    errors: bytes = b""
    code: str | None = None
    error: str | None = None


def run_on_node(
    vram: list[str], words: list[str], within_s: float, most: int
) -> tuple[int | None, bytes, bytes]:
    """Runs on the node, and travels there as it is: standard library only, nothing of vram.

    Returns the exit status, None where it was too late or wrote too much, and what it wrote.
    """
    import os
    import signal
    import subprocess
    import sys
    import tempfile
    import time

    argv = [*(vram or [sys.executable, "-m", "vram"]), *words]
    until = time.monotonic() + within_s
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, start_new_session=True
            )
        except OSError as error:
            return 127, b"", str(error).encode(errors="replace")
        too_large = late = False
        while process.poll() is None and not (too_large or late):
            try:
                process.wait(0.02)
            except subprocess.TimeoutExpired:
                too_large = os.fstat(output.fileno()).st_size + os.fstat(errors.fileno()).st_size > most
                late = time.monotonic() >= until
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)  # not reaped: the group is still its own
            process.wait()
        if too_large or os.fstat(output.fileno()).st_size > most:
            return None, b"", b"too large"
        if late:
            return None, b"", b"late"
        output.seek(0)
        errors.seek(max(0, errors.seek(0, 2) - 8192))
        return process.returncode, output.read(), errors.read()


def main() -> None:
    # What Ray prints must not get between our lines.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    start = msgspec.json.decode(sys.stdin.buffer.readline(), type=RayStart)
    cluster, driver = _connect(start.address)
    _say(answers, cluster)
    if driver is not None:
        driver.serve(answers)
    answers.flush()
    os._exit(0)  # a goodbye to the cluster may wait for a node that hangs


def _say(answers: Any, answer: msgspec.Struct) -> None:
    answers.write(msgspec.json.encode(answer) + b"\n")
    answers.flush()


def _connect(address: str) -> tuple[RayCluster, _Driver | None]:
    try:
        ray: Any = import_module("ray")
    except ImportError:
        return RayCluster(code="no-ray", error="Ray is not installed here"), None
    try:
        ray.init(address=address, log_to_driver=False, logging_level=_ERRORS_ONLY, configure_logging=False)
        return RayCluster(nodes=tuple(_nodes(ray.nodes()))), _Driver(ray)
    except Exception as error:  # of every kind, from every layer of Ray
        first = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        mismatch = "ersion mismatch" in str(error)
        words = " ".join(str(error).split()) if mismatch else first
        return RayCluster(code="version" if mismatch else "connect", error=words[:400]), None


def _nodes(listed: list[dict[str, Any]]) -> list[RayNode]:
    return [
        RayNode(
            node_id=str(each.get("NodeID", "")),
            name=str(each.get("NodeName") or ""),
            address=str(each.get("NodeManagerAddress") or ""),
            host=str(each.get("NodeManagerHostname") or ""),
            alive=bool(each.get("Alive")),
        )
        for each in listed
    ]


class _Driver:
    """Starts a task for each command, and answers when it has ended or its time is up."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        # By value: where vram is missing or older on a node, an import of this module would fail there.
        ray.cloudpickle.register_pickle_by_value(sys.modules[run_on_node.__module__])
        self._task = ray.remote(num_cpus=0, max_retries=0)(run_on_node)
        self._affinity = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        self._running: dict[Any, tuple[RayCommand, float]] = {}

    def serve(self, answers: Any) -> None:
        requests, reading = LineInbox(), True
        while reading or self._running:
            wait_s = 0.0 if self._running else 3600.0
            if reading and select.select([0], [], [], wait_s)[0]:
                part = os.read(0, 1 << 16)
                reading = bool(part)
                for line in requests.add(part):
                    self._begin(msgspec.json.decode(line, type=RayCommand), answers)
            self._finish(answers)

    def _begin(self, command: RayCommand, answers: Any) -> None:
        try:
            there = self._affinity(command.node_id, soft=False)
            reference = self._task.options(scheduling_strategy=there).remote(
                list(command.vram), list(command.words), command.within_s, command.nbytes
            )
        except Exception as error:
            _say(answers, _failed(command, error))
            return
        self._running[reference] = command, time.monotonic() + command.within_s

    def _finish(self, answers: Any) -> None:
        if not self._running:
            return
        done, _ = self._ray.wait(list(self._running), num_returns=1, timeout=_WAIT_S, fetch_local=False)
        for reference in done:
            command, _ = self._running.pop(reference)
            _say(answers, self._answer(reference, command))
        late = [each for each, (_, until) in self._running.items() if time.monotonic() >= until]
        for reference in late:
            command, _ = self._running.pop(reference)
            self._ray.cancel(reference, force=True)
            _say(answers, _late(command))

    def _answer(self, reference: Any, command: RayCommand) -> RayAnswer:
        try:
            status, output, errors = self._ray.get(reference, timeout=max(1.0, command.within_s))
        except Exception as error:
            return _failed(command, error)
        if status is None:
            if errors == b"too large":
                words = f"its answer is longer than {command.nbytes >> 20} MiB"
                return RayAnswer(number=command.number, code="too-large", error=words)
            return _late(command)
        return RayAnswer(number=command.number, status=status, output=output, errors=errors)


def _late(command: RayCommand) -> RayAnswer:
    return RayAnswer(number=command.number, code="no-answer", error="no answer within the deadline")


def _failed(command: RayCommand, error: Exception) -> RayAnswer:
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return RayAnswer(
        number=command.number, code="unreachable", error=f"{type(error).__name__}: {first}"[:400]
    )
