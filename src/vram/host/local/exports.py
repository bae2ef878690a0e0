"""Exported allocations, distinguished from ordinary control descriptors by importing a copy.

The work is done by payloads/exports.py in an interpreter of its own: it loads libcuda, and
what it imports must be gone when it ends.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from vram.children import VISIBLE, Child, driver_environment, spawn
from vram.host.ports import ExportCandidate, Proof
from vram.model.observation import Status
from vram.payloads import command

_GRACE_S = 0.2


class _Line(msgspec.Struct):
    """What the payload prints for the candidate at ``at``; without one, about all of them."""

    at: int | None = None
    exported: bool | None = None
    nbytes: int | None = None
    uuid: str | None = None
    status: Status = "ok"
    message: str | None = None
    code: str | None = None


class LocalExports:
    """Asks the driver, in a process that can be ended."""

    def __init__(self) -> None:
        self._stuck: list[Child] = []

    def prove(
        self, candidates: Sequence[ExportCandidate], deadline_s: float, views: Sequence[str] = ()
    ) -> Iterator[Proof]:
        """One proof per candidate, in no particular order."""
        deadline = time.monotonic() + deadline_s
        left: dict[ExportCandidate, Proof | None] = dict.fromkeys(candidates)
        for view in views or (None,):
            if not left:
                return
            for proof in self._ask(list(left), view, deadline):
                if proof.exported:
                    del left[proof.candidate]
                    yield proof
                elif left[proof.candidate] is None or proof.exported is False:
                    left[proof.candidate] = proof
        yield from (proof for proof in left.values() if proof is not None)

    def _ask(
        self, candidates: Sequence[ExportCandidate], view: str | None, deadline: float
    ) -> Iterator[Proof]:
        self._stuck = [child for child in self._stuck if not child.wait(0.0)]
        if self._stuck:
            message = "an earlier import still hangs in the driver"
            yield from _unproved(candidates, "timeout", "still-hangs", message)
            return
        words = (f"{each.process.pid}:{each.process.started_at or 0}:{each.fd}" for each in candidates)
        visible = {} if view is None else {VISIBLE: view}
        try:
            child = spawn(command("exports", *words), {**driver_environment(), **visible})
        except OSError as error:
            message = f"no process could be started: {error.strerror}"
            yield from _unproved(candidates, "failed", "reader-not-started", message)
            return
        decoder = msgspec.json.Decoder(_Line)
        left = dict(enumerate(candidates))
        reason: tuple[Status, str, str] = ("failed", "reader-died", "the importing process exited early")
        try:
            for line in map(decoder.decode, child.lines(deadline)):
                if line.at is None:
                    reason = (line.status, line.code or line.status, line.message or "")
                elif candidate := left.pop(line.at, None):
                    yield Proof(
                        candidate, line.exported, line.nbytes, line.uuid, line.status, line.message, line.code
                    )
        except TimeoutError:
            reason = ("timeout", "hangs", "the driver did not answer in time")
        finally:
            child.hang_up()
            if not child.end(_GRACE_S):
                self._stuck.append(child)
        yield from _unproved(left.values(), *reason)


def _unproved(
    candidates: Iterable[ExportCandidate], status: Status, code: str, message: str
) -> Iterator[Proof]:
    for candidate in candidates:
        yield Proof(candidate, None, status=status, message=message, code=code)
