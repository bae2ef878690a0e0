"""The nodes of a Ray cluster: one task on each, that takes no resources and runs nowhere else."""

from __future__ import annotations

import os
import queue
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import get_args

import msgspec

from vram import untrusted
from vram.children import interpreter
from vram.errors import UsageError, VramError
from vram.fleet.ray_driver import RayAnswer, RayCluster, RayCommand, RayNode, RayStart
from vram.fleet.transport import Cancelled, CommandResult, NodeAddress, NodeFailed
from vram.installation import how_to_add
from vram.model.fleet import NodeCode

_CONNECT_S = 60.0
_MAX_LINE = 256 << 20
_NOT_FOUND = 127
# A task that comes back right at its deadline still has to be reported.
_REPORT_S = 3.0


class RayNodes:
    """The nodes of the cluster at *address*. *vram* empty: as a module of the Python that runs Ray there."""

    source = "ray"

    def __init__(self, address: str, *, vram: Sequence[str] = (), connect_s: float = _CONNECT_S) -> None:
        if find_spec("ray") is None:
            raise UsageError("--ray needs Ray, which is not installed", hint=how_to_add("fleet"))
        self._vram = tuple(vram)
        self._process = subprocess.Popen(
            interpreter("vram.fleet.ray_driver"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._waiting: dict[int, queue.SimpleQueue[RayAnswer | None]] = {}
        self._lock = threading.Lock()
        self._numbers = iter(range(1, 1 << 62))
        self._listener: threading.Thread | None = None
        try:
            self._cluster = self._connect(address, connect_s)
        except BaseException:
            self.cancel()
            self.close()
            raise
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _connect(self, address: str, connect_s: float) -> RayCluster:
        try:
            self._send(RayStart(address=address))
        except NodeFailed as error:
            raise _unreachable(address, error.message) from error
        pidfd = os.pidfd_open(self._process.pid)
        assert self._process.stdout is not None
        try:
            line = untrusted.receive(
                self._process.stdout.fileno(),
                nbytes=_MAX_LINE,
                until=time.monotonic() + connect_s,
                pidfd=pidfd,
            )
            cluster = untrusted.decode(line, RayCluster)
        except untrusted.Rejected as error:
            late = f"within {connect_s:.0f} s" if error.code == "late" else f"({error})"
            raise _unreachable(address, f"Ray did not connect {late}") from error
        finally:
            os.close(pidfd)
        if cluster.code == "version":
            hint = "run `vram fleet` with the Python and the Ray version that the cluster has"
            raise VramError(f"Ray here and Ray at {address} differ: {cluster.error}", hint=hint)
        if cluster.code is not None:
            raise _unreachable(address, cluster.error or "Ray did not connect")
        os.set_blocking(self._process.stdout.fileno(), True)
        return cluster

    def nodes(self) -> tuple[NodeAddress, ...]:
        """Every living node, and dead ones that no living one has replaced."""
        living = [node for node in self._cluster.nodes if node.alive]
        names = {_name(node) for node in living}
        gone = [node for node in self._cluster.nodes if not node.alive and _name(node) not in names]
        often = Counter(_name(node) for node in (*living, *gone))
        return tuple(_address(node, often[_name(node)] > 1) for node in (*living, *gone))

    def run(
        self, node: NodeAddress, words: Sequence[str], *, until: float, nbytes: int = 1 << 20
    ) -> CommandResult:
        within_s = until - time.monotonic()
        if within_s <= 0:
            raise NodeFailed("no-answer", "no answer within the deadline")
        answer = self._ask(node, tuple(words), within_s, nbytes)
        if answer.code is not None:
            code: NodeCode = answer.code if answer.code in get_args(NodeCode) else "failed"  # type: ignore[assignment]
            raise NodeFailed(code, answer.error or "Ray gave no reason")
        result = CommandResult(answer.status or 0, answer.output, answer.errors)
        if result.status == _NOT_FOUND or (result.status and b"No module named vram" in result.errors):
            raise NodeFailed("no-vram", "vram is not installed in the Python that runs Ray there")
        return result

    def _ask(self, node: NodeAddress, words: tuple[str, ...], within_s: float, nbytes: int) -> RayAnswer:
        answers: queue.SimpleQueue[RayAnswer | None] = queue.SimpleQueue()
        with self._lock:
            number = next(self._numbers)
            self._waiting[number] = answers
            self._send(
                RayCommand(
                    number=number,
                    node_id=node.address,
                    vram=self._vram,
                    words=words,
                    within_s=within_s,
                    nbytes=nbytes,
                )
            )
        try:
            answer = answers.get(timeout=within_s + _REPORT_S)
        except queue.Empty as error:
            raise NodeFailed("no-answer", "no answer within the deadline") from error
        finally:
            with self._lock:
                self._waiting.pop(number, None)
        if answer is None:
            raise Cancelled
        return answer

    def _send(self, message: msgspec.Struct) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(msgspec.json.encode(message) + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise NodeFailed("unreachable", "the connection to Ray has ended") from error

    def _listen(self) -> None:
        """Hand each answer to the thread that waits for it; when the driver has ended, tell all that wait."""
        assert self._process.stdout is not None
        while line := self._process.stdout.readline(_MAX_LINE):
            with suppress(untrusted.Rejected):
                answer = untrusted.decode(line, RayAnswer)
                if answers := self._waiting.get(answer.number):
                    answers.put(answer)
        with self._lock:
            waiting = list(self._waiting.items())
        for number, answers in waiting:
            lost = RayAnswer(number=number, code="unreachable", error="the connection to Ray has ended")
            answers.put(lost)

    def cancel(self) -> None:
        with self._lock:
            waiting = list(self._waiting.values())
        for answers in waiting:
            answers.put(None)
        self._process.kill()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        if self._listener is not None:
            self._listener.join()
        for stream in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                assert stream is not None
                stream.close()


def _unreachable(address: str, why: str) -> VramError:
    return VramError(f"no Ray cluster answers at {address}: {why}", hint="HOST:6379, or ray://HOST:10001")


def _name(node: RayNode) -> str:
    """Its own name where it was given one; Ray's default for that is the address."""
    return node.name if node.name and node.name != node.address else node.host or node.address


def _address(node: RayNode, ambiguous: bool) -> NodeAddress:
    name = f"{_name(node)}-{node.node_id[:6]}" if ambiguous else _name(node)
    gone = "" if node.alive else "Ray lists it as dead"
    return NodeAddress(name, node.node_id, (node.host,) if node.host else None, gone)
