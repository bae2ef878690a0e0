"""Exported allocations: proved, measured, named for everybody who keeps them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence

import pytest

from tests.probes.conftest import facts, said, take
from vram.host.ports import ExportCandidate, Proof
from vram.model.files import DeviceFile, ExportFacts, FilesFacts
from vram.model.gpu import ChargeFacts, MemoryFacts
from vram.model.observation import Observation
from vram.model.process import ProcessRef
from vram.payloads import GONE
from vram.payloads.exports import ImportFailed, copy_descriptor
from vram.payloads.procfs import started_at
from vram.probes.sources.exports import candidates_of, observe, residual
from vram.virtualgpu import VirtualGpu
from vram.virtualgpu.demos import DemoProgram

MIB = 1024**2


@pytest.mark.parametrize("nbytes", [2 * MIB, 6 * MIB, 4096 * MIB, 10_000 * MIB])
def test_a_holder_is_proved_and_measured(virtual_gpu: VirtualGpu, nbytes: int) -> None:
    with DemoProgram(virtual_gpu, "exports.handle", nbytes) as demo:
        demo.go()
        demo.go()
        survey = take(virtual_gpu)
        ((export, about),) = facts(survey, ExportFacts)
        assert (export.process.pid, export.nbytes, export.gpu) == (demo.pids["holder"], nbytes, 0)
        assert about.description is not None


def test_reading_takes_no_memory_and_keeps_nothing_open(virtual_gpu: VirtualGpu) -> None:
    """The account is the same before and after; and once the holder closes, all is free."""
    with DemoProgram(virtual_gpu, "exports.handle") as demo:
        demo.go()
        demo.go()
        used = [facts(take(virtual_gpu), MemoryFacts)[0][1].used for _ in range(2)]
        assert used == [demo.nbytes, demo.nbytes]
        demo.go()
        ((_, memory),) = facts(take(virtual_gpu), MemoryFacts)
        assert memory.used == 0


def test_everybody_who_keeps_it_is_named(virtual_gpu: VirtualGpu) -> None:
    """A holder that forks makes two holders of one open file: one proof, two names, one identity."""
    with DemoProgram(virtual_gpu, "exports.handle") as demo:
        demo.go()
        demo.go()
        with _copy_holder(demo.pids["holder"], demo) as other:
            found = facts(take(virtual_gpu), ExportFacts)
            assert {export.process.pid for export, _ in found} == {demo.pids["holder"], other.pid}
            assert {export.nbytes for export, _ in found} == {demo.nbytes}
            assert len({about.description for _, about in found}) == 1
            other.kill()


def _copy_holder(holder: int, demo: DemoProgram) -> subprocess.Popen[bytes]:
    """Hand a copy of the holder's descriptor to a process of its own, and keep none."""
    import ctypes

    pidfd = os.pidfd_open(holder)
    copy = ctypes.CDLL(None).syscall(438, pidfd, _control_descriptor(holder), 0)
    assert copy >= 0
    ours, theirs = socket.socketpair()
    code = (
        "import socket, sys; s = socket.socket(fileno=int(sys.argv[1]));"
        "kept = socket.recv_fds(s, 1, 1); print(flush=True); input()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(theirs.fileno())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=[theirs.fileno()],
    )
    socket.send_fds(ours, [b"."], [copy])
    process.stdout.readline()
    for descriptor in (copy, pidfd):
        os.close(descriptor)
    ours.close()
    theirs.close()
    return process


def _control_descriptor(pid: int) -> int:
    links = {int(fd): os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
    return next(fd for fd, link in links.items() if "/nvidiactl." in link)


def test_a_driver_that_hangs_is_a_statement(virtual_gpu: VirtualGpu) -> None:
    with DemoProgram(virtual_gpu, "exports.handle") as demo:
        demo.go()
        demo.go()
        virtual_gpu.fail("cuMemImportFromShareableHandle", hang=True)
        survey = take(virtual_gpu, "--deadline", "6")
        (hung,) = said(survey, "driver.exports")
        assert (hung.status, hung.process.pid, hung.nbytes) == ("timeout", demo.pids["holder"], None)
        assert facts(survey, MemoryFacts)[0][1].used == demo.nbytes


def test_a_driver_that_fails_is_a_statement(virtual_gpu: VirtualGpu) -> None:
    with DemoProgram(virtual_gpu, "exports.handle") as demo:
        demo.go()
        demo.go()
        virtual_gpu.fail("cuInit", error="SYSTEM_NOT_READY")
        (failed,) = said(take(virtual_gpu), "driver.exports")
        assert (failed.status, "cuInit" in failed.message) == ("failed", True)


def test_ordinary_processes_are_not_asked_about(virtual_gpu: VirtualGpu) -> None:
    """What a context costs beyond its charge is no reason to load the driver."""
    virtual_gpu.fail("cuMemImportFromShareableHandle", hang=True)
    with DemoProgram(virtual_gpu, "memory.plain"):
        survey = take(virtual_gpu)
        assert said(survey, "driver.exports") == []
        assert {run.name: run.status for run in survey.probes}["exports"] == "ok"


def _seen(used: int, *charges: int | None) -> list[Observation]:
    memory = Observation(probe="nvml.memory", gpu=0, facts=MemoryFacts(1000, 1000 - used, used))
    listed = [
        Observation(
            probe="nvml.processes", gpu=0, process=ProcessRef(pid), nbytes=nbytes, facts=ChargeFacts(())
        )
        for pid, nbytes in enumerate(charges, 1)
    ]
    return [memory, *listed]


def test_residual_is_what_no_list_accounts_for() -> None:
    assert residual(_seen(700, 500, 100)) == (100, 2)
    assert residual(_seen(700, 500, 300)) == (0, 2)  # shared bytes are charged twice
    assert residual(_seen(700, None)) == (700, 1)
    assert residual([]) == (0, 0)


def test_who_holds_no_gpu_is_asked_first() -> None:
    def holding(pid: int, *kinds: str) -> Observation:
        files = tuple(DeviceFile(fd, kind, "x") for fd, kind in enumerate(kinds, 3))
        return Observation(probe="proc.files", process=ProcessRef(pid, 1), facts=FilesFacts(files))

    idle, busy = candidates_of([holding(1, "gpu", "control"), holding(2, "control", "dmabuf")])
    assert [(each.process.pid, each.fd) for each in idle] == [(2, 3)]
    assert [(each.process.pid, each.fd) for each in busy] == [(1, 4)]


class _Driver:
    """Finds an allocation of a size behind every descriptor, and remembers whose it was asked about."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.asked: list[int] = []
        self.exports = self.clock = self

    def monotonic(self) -> float:
        return 0.0

    def prove(
        self, candidates: Sequence[ExportCandidate], deadline_s: float, views: Sequence[str]
    ) -> Iterator[Proof]:
        self.asked += [each.process.pid for each in candidates]
        yield from (Proof(each, exported=True, nbytes=self.nbytes) for each in candidates)


@pytest.mark.parametrize(("charged", "asked"), [(200 * MIB, [8, 9]), (None, [8, 9]), (50 * MIB, [8])])
def test_what_a_listed_process_may_be_charged_for_explains_no_missing_bytes(
    charged: int | None, asked: list[int]
) -> None:
    """A busy holder is asked too, unless what was found is surely what is missing."""
    files = {8: ("control",), 9: ("control", "gpu")}
    holding = [
        Observation(
            probe="proc.files",
            process=ProcessRef(pid, 1),
            facts=FilesFacts(tuple(DeviceFile(fd, kind, "x") for fd, kind in enumerate(kinds, 3))),
        )
        for pid, kinds in files.items()
    ]
    driver = _Driver(100 * MIB)
    list(observe(driver, [*_seen(100 * MIB + (charged or 0), charged), *holding], 1.0))  # type: ignore[arg-type]
    assert driver.asked == asked


class _Leaving(_Driver):
    """Those of *gone* have ended when they are asked about."""

    def __init__(self, *gone: int) -> None:
        super().__init__(100 * MIB)
        self.gone = gone

    def prove(
        self, candidates: Sequence[ExportCandidate], deadline_s: float, views: Sequence[str]
    ) -> Iterator[Proof]:
        for proof in super().prove(candidates, deadline_s, views):
            if proof.candidate.process.pid in self.gone:
                yield Proof(proof.candidate, exported=None, status="failed", code=GONE)
            else:
                yield proof


@pytest.mark.parametrize(
    ("gone", "asked", "named"), [((), [7], [7, 8, 9]), ((7,), [7, 8], [8, 9]), ((7, 8, 9), [7, 8, 9], [])]
)
@pytest.mark.fault(11)
def test_who_ends_meanwhile_keeps_nothing_and_the_next_one_is_asked(
    gone: tuple[int, ...], asked: list[int], named: list[int]
) -> None:
    """Several processes have one open file, which is tried by the first of them that is still there."""
    shared = FilesFacts((DeviceFile(3, "control", "x", description=4711),))
    holding = [Observation(probe="proc.files", process=ProcessRef(pid, 1), facts=shared) for pid in (7, 8, 9)]
    driver = _Leaving(*gone)
    found = list(observe(driver, [*_seen(100 * MIB), *holding], 1.0))  # type: ignore[arg-type]
    assert driver.asked == asked
    assert [(each.process.pid, each.status) for each in found if each.process] == [
        (pid, "ok") for pid in named
    ]


@pytest.mark.fault(11)
def test_a_process_that_has_ended_is_gone_and_so_is_a_closed_descriptor() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    own = os.getpid()
    for word in (f"{ended.pid}:1:3", f"{own}:1:3", f"{own}:{started_at(own)}:100000"):
        with pytest.raises(ImportFailed) as failed:
            copy_descriptor(*map(int, word.split(":")))
        assert failed.value.code == GONE, word
