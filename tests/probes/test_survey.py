"""The survey: whatever its sources meet, an answer comes back."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from types import SimpleNamespace

import pytest

from tests.needs import needs
from tests.probes.conftest import facts, take
from vram.diagnosis.verdict import judge, overall
from vram.errors import ExitCode
from vram.host.local import LocalHost
from vram.host.ports import Card, ExportCandidate, FileScan, Host, Proof
from vram.ledger.build import build_ledger
from vram.model.files import DmabufFacts, FilesFacts
from vram.model.gpu import ChargeFacts, MemoryFacts
from vram.model.ledger import known_bytes
from vram.model.observation import HostFacts, Observation, with_code
from vram.model.process import ProcessFacts, ProcessRef
from vram.probes.survey import survey
from vram.virtualgpu import VirtualGpu
from vram.virtualgpu.demos import DemoProgram


class Quiet:
    """Ports of a machine on which nothing is to be seen."""

    drivers: tuple[str, ...] = ()
    counts_device_memory = False

    def read(self, deadline_s: float) -> Iterator[Observation]:
        return iter(())

    def scan(self, deadline_s: float, pids: Sequence[int] | None = None) -> FileScan:
        return FileScan(())

    def prove(self, candidates: Sequence[ExportCandidate], deadline_s: float) -> Iterator[Proof]:
        return iter(())

    def facts(self, pid: int) -> tuple[ProcessRef, ProcessFacts] | None:
        return None

    def started_at(self, pid: int) -> int | None:
        return None


class Broken(Quiet):
    """Ports with a defect that nobody foresaw."""

    drivers = ("amdgpu",)

    def cards(self) -> Sequence[Card]:
        raise RuntimeError("cards")

    def read(self, deadline_s: float) -> Iterator[Observation]:
        raise RuntimeError("read")

    def scan(self, deadline_s: float, pids: Sequence[int] | None = None) -> FileScan:
        raise RuntimeError("scan")

    def facts(self, pid: int) -> tuple[ProcessRef, ProcessFacts] | None:
        raise RuntimeError("facts")

    def started_at(self, pid: int) -> int | None:
        raise RuntimeError("started_at")


class Charging(Quiet):
    def read(self, deadline_s: float) -> Iterator[Observation]:
        process = ProcessRef(7, 1)
        yield Observation(probe="nvml.processes", gpu=0, process=process, nbytes=5, facts=ChargeFacts(()))


class Ending(Charging):
    """A driver whose one process ends right after it was listed."""

    def __init__(self) -> None:
        self.readings = 0

    def read(self, deadline_s: float) -> Iterator[Observation]:
        self.readings += 1
        return super().read(deadline_s) if self.readings == 1 else iter(())


def host(**ports: object) -> Host:
    quiet = Quiet()
    names = ("nvml", "files", "exports", "proc", "drm", "cgroups")
    whole = dict.fromkeys(names, quiet) | ports
    who = HostFacts(name="h", kernel="k", user="u", uid=1)
    return SimpleNamespace(**whole, clock=LocalHost().clock, facts=lambda: who)


def test_nothing_to_see() -> None:
    taken = survey(host())
    assert taken.observations == ()
    assert {run.status for run in taken.probes} == {"ok"}


@pytest.mark.parametrize("port", ["nvml", "files", "proc", "drm"])
def test_an_unforeseen_error_is_a_statement(port: str) -> None:
    taken = survey(host(**{"nvml": Charging(), port: Broken()}))
    failed = [each for each in taken.observations if each.status == "failed"]
    assert failed
    assert all("RuntimeError" in each.message for each in failed)
    assert "failed" in {run.status for run in taken.probes}


def test_a_process_that_ended_meanwhile_is_no_ghost() -> None:
    """It was alive when the driver listed it: another reading tells it from memory left behind."""
    nvml = Ending()
    taken = survey(host(nvml=nvml))
    assert nvml.readings == 2
    assert taken.observations == ()
    assert [run.name for run in taken.probes].count("nvml") == 1


def test_this_machine_can_be_surveyed() -> None:
    taken = survey(LocalHost())
    assert taken.host.uid == os.geteuid()
    assert {run.name for run in taken.probes} >= {"nvml", "files", "processes", "exports"}
    assert all(run.duration_s < 5.0 for run in taken.probes)


def test_a_working_process_is_told_whole(virtual_gpu: VirtualGpu) -> None:
    with DemoProgram(virtual_gpu, "forks.orphan") as demo:
        taken = take(virtual_gpu)
        assert taken.host.virtual
        files = {each.process.pid: about for each, about in facts(taken, FilesFacts)}
        assert set(files) == {demo.pids["parent"], demo.pids["child"]}
        # The child has the parent's very files.
        one, other = (
            {file.description for file in files[demo.pids[part]].files if file.kind == "gpu"}
            for part in ("parent", "child")
        )
        assert one == other
        assert None not in one
        processes = {each.process.pid: about for each, about in facts(taken, ProcessFacts)}
        assert processes[demo.pids["child"]].parent == demo.pids["parent"]
        # Ancestors are there by name, without their arguments.
        assert processes[os.getpid()].argv == ()
        assert processes[os.getpid()].command


def test_a_process_that_ends_before_it_is_looked_at_leaves_nothing_over(virtual_gpu: VirtualGpu) -> None:
    with DemoProgram(virtual_gpu, "memory.plain") as demo:
        ledger = build_ledger(take(virtual_gpu, "--end", str(demo.pids["self"])))
    (gpu,) = ledger.gpus
    assert known_bytes(gpu.entries) == gpu.total_bytes
    assert [entry.hidden_by for entry in gpu.entries if entry.holder] == ["end"]
    assert overall(judge(ledger, leftovers=True)) == "clean"


def test_a_process_that_ends_before_it_is_looked_at_leaves_a_child_that_keeps_its_files(
    virtual_gpu: VirtualGpu,
) -> None:
    with DemoProgram(virtual_gpu, "forks.orphan") as demo:
        ledger = build_ledger(take(virtual_gpu, "--end", str(demo.pids["parent"])))
    (orphan,) = [entry for entry in ledger.gpus[0].entries if entry.holder]
    assert (orphan.kind, orphan.holder.pid) == ("orphaned", demo.pids["child"])
    assert overall(judge(ledger, leftovers=True)) == "held"


def test_dmabufs_are_told_with_their_bytes(virtual_gpu: VirtualGpu) -> None:
    with DemoProgram(virtual_gpu, "exports.dmabuf") as demo:
        demo.go()
        demo.go()
        taken = take(virtual_gpu)
        ((buffer, about),) = facts(taken, DmabufFacts)
        assert (buffer.process.pid, buffer.nbytes) == (demo.pids["holder"], demo.nbytes)
        assert about.inode > 0
        assert facts(taken, ChargeFacts) == []
        assert facts(taken, MemoryFacts)[0][1].used == demo.nbytes


def test_a_stopped_process_is_seen_as_such(virtual_gpu: VirtualGpu) -> None:
    with DemoProgram(virtual_gpu, "forks.orphan") as demo:
        os.kill(demo.pids["child"], signal.SIGSTOP)  # ours: the demo holds it by pidfd
        try:
            while True:
                taken = take(virtual_gpu)
                state = {each.process.pid: about.state for each, about in facts(taken, ProcessFacts)}
                if state[demo.pids["child"]] == "T":
                    break
        finally:
            os.kill(demo.pids["child"], signal.SIGCONT)


HOARD = """
import os, resource, sys
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
for number in range(file + 1, file + 5000):
    os.dup2(file, number)
print(flush=True)
sys.stdin.read()
"""


@needs(
    "kernel",
    there=resource.getrlimit(resource.RLIMIT_NOFILE)[1] >= 8192,
    detail="the limit allows no 5,000 descriptors",
)
def test_a_process_with_thousands_of_device_files_is_read_in_part_and_that_is_told(
    virtual_gpu: VirtualGpu,
) -> None:
    """It costs whoever looks no more than its share, and the answer says that it is a part."""
    command = [sys.executable, "-c", HOARD, str(virtual_gpu.folder / "dev" / "nvidia0.17")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as hoarder:
        hoarder.stdout.readline()
        taken = take(virtual_gpu)
        done = virtual_gpu.run([sys.executable, "-m", "vram", "why"], stdout=subprocess.PIPE, text=True)
        hoarder.stdin.close()
    held = {each.process.pid: told for each, told in facts(taken, FilesFacts) if each.process}
    assert len(held[hoarder.pid].files) == 4096
    assert next(run.status for run in taken.probes if run.name == "files") == "failed"
    words = " ".join(done.stdout.split())
    assert f"pid {hoarder.pid} has thousands of device files open: only the first ones were read" in words
    assert done.returncode == ExitCode.PARTIAL
    assert all(gpu.total_bytes == known_bytes(gpu.entries) for gpu in build_ledger(taken).gpus)


def test_what_is_not_ok_has_a_code():
    """A probe that knows no better code says its status."""
    assert with_code(Observation(probe="drm.clients", status="denied")).code == "denied"
    assert with_code(Observation(probe="nvml.init", status="failed", code="nvml-18")).code == "nvml-18"
    assert with_code(Observation(probe="nvml.init")).code is None
