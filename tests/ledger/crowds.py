"""Surveys of very many processes: what grows with them, and how fast.

Each kind of crowd is the worst case of some step: all share the same open files, none do, all are charged,
none are, all come from one dead process, each is the child of the one before it.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from tests.ledger.world import World
from vram.model.files import ClientFacts, DeviceFile, FilesFacts, Region
from vram.model.gpu import GpuFacts, MemoryFacts
from vram.model.observation import Observation, Survey
from vram.model.process import LaunchClaim, ProcessFacts, ProcessRef, RestFacts
from vram.units import GIB, MIB

FIRST_PID = 1000
DEAD_PID = 900
ADOPTER_PID, LAUNCHER_PID = 901, 902
RANKS = 8
PYTHON = "/usr/bin/python3"
CONTEXT_FILES = 20

Crowd = Callable[[int, int], Survey]


def _machine(gpus: int) -> World:
    world = World()
    for index in range(gpus):
        world.gpu(index, used=60 * GIB)
    return world


def _pids(processes: int) -> range:
    return range(FIRST_PID, FIRST_PID + processes)


def _process(pid: int, parent: int, *, forked: bool | None = None, session: int = 0) -> Observation:
    facts = ProcessFacts(
        command="python",
        argv=("python", "train.py", f"--rank={pid}"),
        uid=0,
        user="root",
        executable=PYTHON,
        state="S",
        forked=forked,
        parent=parent,
        group=session,
        session=session,
        age_s=100.0,
    )
    return Observation(probe="proc.processes", process=ProcessRef(pid, pid * 10), facts=facts)


def _files(pid: int, minors: range, count: int, first_description: int | None) -> Observation:
    """*count* descriptors on each of *minors*, with descriptions from the first on, where they are told."""
    files = [DeviceFile(3, "control", "/dev/nvidiactl"), DeviceFile(4, "uvm", "/dev/nvidia-uvm")]
    for minor in minors:
        path = f"/dev/nvidia{minor}"
        for at in range(count):
            number = None if first_description is None else first_description + minor * count + at
            files.append(DeviceFile(10 + minor * count + at, "gpu", path, minor, number))
    facts = FilesFacts(tuple(files), 31, 0)
    return Observation(probe="proc.files", process=ProcessRef(pid, pid * 10), facts=facts)


def sharing(processes: int, gpus: int) -> Survey:
    """Forks of one charged process: all have its files on the first GPU."""
    world = _machine(gpus).charge(FIRST_PID, 4 * GIB)
    for pid in _pids(processes):
        world.observations.append(_process(pid, FIRST_PID if pid != FIRST_PID else 1, forked=True))
        world.observations.append(_files(pid, range(1), CONTEXT_FILES, 1))
    return world.survey()


def sharing_all_gpus(processes: int, gpus: int) -> Survey:
    """Forks of one process that is charged on every GPU: all have its files on all of them."""
    world = _machine(gpus)
    for index in range(gpus):
        world.charge(FIRST_PID, 4 * GIB, gpu=index)
    for pid in _pids(processes):
        world.observations.append(_process(pid, FIRST_PID if pid != FIRST_PID else 1, forked=True))
        world.observations.append(_files(pid, range(gpus), 5, 1))
    return world.survey()


def apart(processes: int, gpus: int) -> Survey:
    """Each is charged on one GPU and shares its files with nobody."""
    world = _machine(gpus)
    for at, pid in enumerate(_pids(processes)):
        minor = at % gpus
        world.charge(pid, MIB, gpu=minor, started_at=pid * 10)
        world.observations.append(_process(pid, 1))
        world.observations.append(_files(pid, range(minor, minor + 1), CONTEXT_FILES, 1 + pid * 1000))
    return world.survey()


def in_jobs(processes: int, gpus: int) -> Survey:
    """As apart(), in jobs of eight ranks: with a launcher, adopted by init, or not whole and idle."""
    taken = apart(processes, gpus)
    found = list(taken.observations)
    for at, each in enumerate(found):
        if each.process is not None and isinstance(each.facts, ProcessFacts):
            found[at] = replace(each, facts=_as_rank(each.process.pid, each.facts))
        elif isinstance(each.facts, GpuFacts):
            found[at] = replace(each, facts=replace(each.facts, utilization=0))
    above = {1: "/usr/lib/systemd/systemd", ADOPTER_PID: "/usr/bin/supervise", LAUNCHER_PID: PYTHON}
    for pid, program in above.items():
        facts = ProcessFacts(command="x", uid=0, user="root", executable=program, state="S", parent=1)
        found.append(Observation(probe="proc.processes", process=ProcessRef(pid, 1), facts=facts))
    for first in range(FIRST_PID, FIRST_PID + processes, RANKS):
        if _kind(first) == "not whole":
            left = tuple(range(first, min(first + RANKS - 1, FIRST_PID + processes)))
            rest = RestFacts(tuple(range(len(left))), left, 1000.0)
            found += (
                Observation(probe="proc.jobs", process=ProcessRef(pid, pid * 10), facts=rest) for pid in left
            )
    return replace(taken, observations=tuple(found))


def _kind(pid: int) -> str:
    """What becomes of the job that *pid* is a part of."""
    return ("whole", "adopted", "not whole")[(pid - FIRST_PID) // RANKS % 3]


def _as_rank(pid: int, facts: ProcessFacts) -> ProcessFacts:
    job, rank = divmod(pid - FIRST_PID, RANKS)
    kind = _kind(pid)
    if kind == "not whole" and rank == RANKS - 1:
        return facts  # its place was taken by somebody who is no rank
    claim = LaunchClaim(
        "torchrun", f"torchrun.{job:08x}", direct=True, rank=rank, size=RANKS, local_size=RANKS
    )
    parent = {"whole": LAUNCHER_PID, "adopted": 1, "not whole": ADOPTER_PID}[kind]
    return replace(facts, parent=parent, session=pid, group=pid, launch=claim)


def uncharged(processes: int, gpus: int) -> Survey:
    """Each has a context's files of its own, and the driver's list names nobody."""
    world = _machine(gpus)
    for at, pid in enumerate(_pids(processes)):
        minor = at % gpus
        world.observations.append(_process(pid, 1))
        world.observations.append(_files(pid, range(minor, minor + 1), CONTEXT_FILES, 1 + pid * 1000))
    return world.survey()


def sharing_uncharged(processes: int, gpus: int) -> Survey:
    """All have the same files on the first GPU, and the driver's list names nobody."""
    world = _machine(gpus)
    for pid in _pids(processes):
        world.observations.append(_process(pid, 1, forked=True))
        world.observations.append(_files(pid, range(1), CONTEXT_FILES, 1))
    return world.survey()


def one_dead_parent(processes: int, gpus: int) -> Survey:
    """Forks of one dead process that the driver still charges, on every GPU."""
    world = _machine(gpus)
    for index in range(gpus):
        world.charge(DEAD_PID, 4 * GIB, gpu=index)
    for pid in _pids(processes):
        world.observations.append(_process(pid, 1, forked=True, session=DEAD_PID))
        world.observations.append(_files(pid, range(1), CONTEXT_FILES, 1))
    return world.survey()


def indistinct(processes: int, gpus: int) -> Survey:
    """Forks of one dead process where the kernel does not tell open files apart: each is a family."""
    world = _machine(gpus)
    for index in range(gpus):
        world.charge(DEAD_PID, 4 * GIB, gpu=index)
    for pid in _pids(processes):
        world.observations.append(_process(pid, DEAD_PID, forked=True))
        world.observations.append(_files(pid, range(1), CONTEXT_FILES, None))
    return world.survey()


def many_dead(processes: int, gpus: int) -> Survey:
    """Half of them died and are charged still; the other half hold their files, one each."""
    world = _machine(gpus)
    for at, pid in enumerate(_pids(processes)):
        if at % 2:
            world.charge(pid, MIB, gpu=at % gpus)
        else:
            world.observations.append(_process(pid, 1, forked=True))
            world.observations.append(_files(pid, range(gpus), CONTEXT_FILES // gpus + 5, 1 + pid * 1000))
    return world.survey()


def ended_meanwhile(processes: int, gpus: int) -> Survey:
    """All were charged when the list was read, and were gone when they were looked at."""
    world = _machine(gpus)
    for at, pid in enumerate(_pids(processes)):
        world.charge(pid, MIB, gpu=at % gpus, started_at=pid * 10)
        world.observations.append(_files(pid, range(1), CONTEXT_FILES, 1 + pid * 1000))
    return world.survey()


def chain(processes: int, gpus: int) -> Survey:
    """Each is the child of the one before it; the first is charged, and open files are not told apart."""
    world = _machine(gpus)
    for index in range(gpus):
        world.charge(FIRST_PID, 4 * GIB, gpu=index)
    for pid in _pids(processes):
        world.observations.append(_process(pid, pid - 1, forked=True))
        world.observations.append(_files(pid, range(1), CONTEXT_FILES, None))
    return world.survey()


def unsized(processes: int, gpus: int) -> Survey:
    """The driver lists all of them, and does not say how much any of them has."""
    world = _machine(gpus)
    for at, pid in enumerate(_pids(processes)):
        minor = at % gpus
        world.charge(pid, None, gpu=minor)
        world.observations.append(_process(pid, 1))
        world.observations.append(_files(pid, range(minor, minor + 1), 5, 1 + pid * 1000))
    return world.survey()


def mps_clients(processes: int, gpus: int) -> Survey:
    """Clients of one MPS server, which has the files for all of them."""
    world = _machine(gpus)
    server = "/usr/bin/nvidia-cuda-mps-server"
    world.process(FIRST_PID - 1, executable=server).files(FIRST_PID - 1, minors=tuple(range(gpus)))
    for at, pid in enumerate(_pids(processes)):
        world.charge(pid, MIB, gpu=at % gpus, lists=("mps",))
        world.observations.append(_process(pid, 1))
    return world.survey()


def exporting(processes: int, gpus: int) -> Survey:
    """Each has an exported allocation of its own and is charged a little."""
    world = _machine(gpus)
    for at, pid in enumerate(_pids(processes)):
        world.charge(pid, (1 + at % 7) * MIB, gpu=at % gpus)
        world.observations.append(_process(pid, pid - 1, session=pid))
        world.observations.append(_files(pid, range(1), 1, 1 + pid * 1000))
        world.export(pid, (1 + at % 5) * MIB, gpu=at % gpus, description=pid)
    return world.survey()


def drm_clients(processes: int, gpus: int) -> Survey:
    """Forks of one process that opened AMD's GPUs: all have its clients, and one of their own each."""
    world = World()
    for index in range(gpus):
        address = f"0000:{index:02x}:00.0"
        facts = GpuFacts(
            uuid=f"PCI-{address}", name="AMD Test", bus_id=address, vendor="amd", driver="amdgpu"
        )
        memory = MemoryFacts(total=64 * GIB, free=24 * GIB, used=40 * GIB)
        world.observations.append(Observation(probe="drm.gpu", gpu=index, facts=facts))
        world.observations.append(Observation(probe="drm.memory", gpu=index, facts=memory))
    for pid in _pids(processes):
        world.observations.append(_process(pid, pid - 1))
        for index in range(gpus):
            world.observations.append(_client(pid, index, 3, 7, GIB))
        world.observations.append(_client(pid, pid % gpus, 4, pid, MIB))
    return world.survey()


def _client(pid: int, gpu: int, fd: int, client: int, nbytes: int) -> Observation:
    facts = ClientFacts(
        fd=fd,
        driver="amdgpu",
        address=f"0000:{gpu:02x}:00.0",
        client=client,
        regions=(Region("vram", True, nbytes),),
    )
    return Observation(probe="drm.clients", process=ProcessRef(pid, pid * 10), nbytes=nbytes, facts=facts)


CROWDS: dict[str, Crowd] = {
    each.__name__: each
    for each in (
        sharing,
        sharing_all_gpus,
        apart,
        in_jobs,
        uncharged,
        sharing_uncharged,
        one_dead_parent,
        indistinct,
        many_dead,
        ended_meanwhile,
        chain,
        unsized,
        mps_clients,
        exporting,
        drm_clients,
    )
}
