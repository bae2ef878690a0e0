"""NVML, read in processes of its own: a call that never returns costs one GPU's answer, not all.

The reader announces every call. When it takes too long over one GPU, a second reader is
started for the GPUs that are left, and the first may still finish its own until the
deadline: slow is not hung. Who cannot be ended (state D) is remembered, and the GPU it
hangs on is left alone in later rounds: nothing piles up.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec

from vram.children import Child, Inbox
from vram.host.local import EVERYTHING, FIGURES, start_kept_reader, start_reader
from vram.model.cgroups import CgroupLimit
from vram.model.gpu import ChargeFacts, DriverFacts, GpuFacts, MemoryFacts, MigFacts, SystemMemoryUse
from vram.model.observation import Observation, Status
from vram.model.process import ProcessRef

# A GPU that takes longer than this gets its reader relieved. NVML answers in microseconds;
# waking a GPU without persistence mode takes seconds, but that happens inside nvmlInit.
_GPU_S = 1.0
_GRACE_S = 0.2

_FACTS: dict[str, type[msgspec.Struct]] = {
    "driver": DriverFacts,
    "gpu": GpuFacts,
    "memory": MemoryFacts,
    "mig": MigFacts,
    "charge": ChargeFacts,
}


class Calling(msgspec.Struct, frozen=True):
    """The call that a reader is in."""

    probe: str
    gpu: int | None
    call: str


class _Reader:
    """One reading process, as seen from outside."""

    def __init__(self, child: Child) -> None:
        self.child = child
        self.inbox: Inbox[tuple[Any, ...]] = Inbox()
        self.calling = Calling("nvml.init", None, "nvmlInit")
        self.arrived_at = time.monotonic()
        self.meanwhile: Observation | None = None
        self.relieved = False
        self.done = False
        self.stays = False

    def receive(self) -> tuple[list[tuple[Any, ...]], bool]:
        """What it said since, and whether it has hung up."""
        try:
            part = os.read(self.child.pipe, 1 << 18)
        except BlockingIOError:
            return [], False
        return list(self.inbox.add(part)), not part

    def moves_to(self, calling: Calling) -> None:
        if calling.gpu != self.calling.gpu:
            self.arrived_at = time.monotonic()
            self.meanwhile = None
        self.calling = calling


class LocalNvml:
    """Reads NVML under a deadline, again and again, whatever it does."""

    def __init__(
        self, started: Child | None = None, *, keep_open: bool = False, kept: Child | None = None
    ) -> None:
        self._started = started  # a reader of everything that has begun already
        self._keep_open = keep_open
        self._kept = kept  # one that waits for its next round
        self._stuck: list[_Reader] = []
        self._own: set[int] = set()

    def prepare(self) -> None:
        """Many readings will come: what each reader would import is imported here, once."""
        with suppress(ImportError):  # the reading itself will say so
            import pynvml  # noqa: F401

    def own_pids(self) -> set[int]:
        """The processes that have the driver open on our behalf."""
        return self._own

    def close(self) -> None:
        """End the reader that was kept."""
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.hang_up()
            kept.end(_GRACE_S)

    def read(self, deadline_s: float, *, figures_only: bool = False) -> Iterator[Observation]:
        self._stuck = [reader for reader in self._stuck if not reader.child.wait(0.0)]
        self._own = {reader.child.pid for reader in self._stuck}
        stuck = [reader.calling for reader in self._stuck]
        if any(calling.gpu is None for calling in stuck):
            return iter([_still_stuck(calling) for calling in stuck])
        try:
            skip = {call.gpu for call in stuck if call.gpu is not None}
            reading = _Reading(self, skip, deadline_s, figures_only)
        except OSError as error:
            message = f"the process that reads NVML could not be started: {error.strerror}"
            return iter(
                [Observation(probe="nvml.init", status="failed", code="reader-not-started", message=message)]
            )
        return reading.observations([_still_stuck(calling) for calling in stuck])

    def start(self, skip: set[int], *, figures_only: bool = False) -> _Reader:
        if self._keep_open and not skip:
            return self._ask_kept(figures_only)
        child, self._started = self._started, None
        reader = _Reader(child or start_reader(skip))
        self._own.add(reader.child.pid)
        return reader

    def _ask_kept(self, figures_only: bool) -> _Reader:
        """Another round of the reader that was kept; a new one where it has ended."""
        child, self._kept = self._kept, None
        if child is not None and child.wait(0.0):
            child.hang_up()
            child = None
        reader = _Reader(child or start_kept_reader())
        self._own.add(reader.child.pid)
        with suppress(BrokenPipeError):  # then it ends, which is met when it is heard
            os.write(reader.child.pipe, FIGURES if figures_only else EVERYTHING)
        return reader

    def dismiss(self, reader: _Reader) -> None:
        if reader.done and reader.stays and self._kept is None:
            self._kept = reader.child
            return
        # One that said all it had ends by itself, but its files' release can take a moment.
        ended = reader.done and reader.child.wait(_GRACE_S)
        reader.child.hang_up()
        if ended or reader.child.end(_GRACE_S):
            self._own.discard(reader.child.pid)
        else:
            self._stuck.append(reader)


class _Reading:
    """One round over all GPUs."""

    def __init__(self, nvml: LocalNvml, skip: set[int], deadline_s: float, figures_only: bool) -> None:
        self._nvml = nvml
        self._began = time.monotonic()
        self._deadline = self._began + deadline_s
        self._gpu_s = min(_GPU_S, deadline_s / 4)
        self._gpus = 0
        self._owner: dict[int, _Reader | None] = dict.fromkeys(skip)
        self._first = nvml.start(skip, figures_only=figures_only)
        self._readers = [self._first]

    def observations(self, already: list[Observation]) -> Iterator[Observation]:
        yield from already
        try:
            # What was said in time counts, even if we come to listen after the deadline.
            while self._active():
                ready = self._ready()
                if not ready and time.monotonic() >= self._deadline:
                    break
                for reader in ready:
                    yield from self._hear(reader)
                self._relieve()
            yield from self._missing()
        finally:
            for reader in self._readers:
                self._nvml.dismiss(reader)

    def _active(self) -> list[_Reader]:
        return [reader for reader in self._readers if not reader.done]

    def _ready(self) -> list[_Reader]:
        """Readers that have something to say, now or until something else is to be done."""
        poll = select.poll()
        active = {reader.child.pipe: reader for reader in self._active()}
        for pipe in active:
            poll.register(pipe, select.POLLIN)
        return [active[pipe] for pipe, _ in poll.poll(self._patience_s() * 1000)]

    def _patience_s(self) -> float:
        """How long nothing needs to be done unless something is heard."""
        moments = [reader.arrived_at + self._gpu_s for reader in self._active() if not reader.relieved]
        return max(0.001, min([self._deadline, *moments]) - time.monotonic())

    def _hear(self, reader: _Reader) -> Iterator[Observation]:
        messages, hung_up = reader.receive()
        for message in messages:
            yield from self._take(reader, message)
        if hung_up and not reader.done:
            reader.done = True
            yield from self._give_up(
                reader, "failed", "reader-died", "the process that reads NVML died in {call}"
            )
            self._start_relief()

    def _take(self, reader: _Reader, message: tuple[Any, ...]) -> Iterator[Observation]:
        if reader.done:
            return
        match message:
            case "calling", probe, gpu, call:
                self._follow(reader, Calling(probe, gpu, call))
            case "found", gpus:
                self._gpus = max(self._gpus, gpus)
            case "saw", fields:
                seen = observation(fields)
                # A reader that relieves another repeats the driver's versions: once is enough.
                if seen.gpu is not None or reader is self._first:
                    reader.meanwhile = None
                    yield seen
            case "meanwhile", fields:
                reader.meanwhile = observation(fields)
            case "done", stays:
                reader.done, reader.stays = True, stays

    def _follow(self, reader: _Reader, calling: Calling) -> None:
        """A GPU belongs to the reader that came to it first; one that was relieved, woke up
        and meets its relief has nothing left to do."""
        reader.moves_to(calling)
        if calling.gpu is not None and self._owner.setdefault(calling.gpu, reader) is not reader:
            reader.done = True

    def _relieve(self) -> None:
        now = time.monotonic()
        for reader in self._active():
            overdue = now - reader.arrived_at >= self._gpu_s
            if overdue and not reader.relieved and reader.calling.gpu is not None:
                reader.relieved = True
                self._start_relief()

    def _start_relief(self) -> None:
        if any(index not in self._owner for index in range(self._gpus)):
            try:
                self._readers.append(self._nvml.start(set(self._owner)))
            except OSError:
                return  # the GPUs that no reader came to are reported by _missing

    def _missing(self) -> Iterator[Observation]:
        for reader in self._active():
            yield from self._give_up(
                reader, "timeout", "hangs", "{call} did not answer within {waited:.1f} s"
            )
        for index in range(self._gpus):
            if index not in self._owner:
                call = Calling("nvml.gpu", index, "nvmlDeviceGetHandleByIndex")
                message = "not called within {waited:.1f} s: other calls hang"
                yield self._failure(call, "timeout", "not-reached", message)

    def _give_up(self, reader: _Reader, status: Status, code: str, message: str) -> Iterator[Observation]:
        if reader.meanwhile is not None:
            yield reader.meanwhile
        yield self._failure(reader.calling, status, code, message)

    def _failure(self, calling: Calling, status: Status, code: str, message: str) -> Observation:
        words = message.format(call=calling.call, waited=time.monotonic() - self._began)
        return Observation(probe=calling.probe, gpu=calling.gpu, status=status, code=code, message=words)


def _still_stuck(calling: Calling) -> Observation:
    words = f"{calling.call} from an earlier reading still hangs in the driver"
    return Observation(
        probe=calling.probe, gpu=calling.gpu, status="timeout", code="still-hangs", message=words
    )


def observation(fields: dict[str, Any]) -> Observation:
    """What the reader said, as the model has it; *fields* are not used again.

    The reader is this very program, so nothing is checked again: ``msgspec.convert`` would, and
    for that read every annotation of the model first, 2.4 ms of each command.
    """
    if process := fields.get("process"):
        fields["process"] = ProcessRef(**process)
    if facts := fields.get("facts"):
        fields["facts"] = _facts(facts)
    return Observation(**fields)


def _facts(fields: dict[str, Any]) -> Any:
    kind = _FACTS[fields.pop("type")]
    if kind is MigFacts and fields["memory"]:
        fields["memory"] = _facts(fields["memory"])
    if fields.get("limit"):
        fields["limit"] = CgroupLimit(**fields["limit"])
    if fields.get("system"):
        fields["system"] = SystemMemoryUse(**fields["system"])
    return kind(**fields)
