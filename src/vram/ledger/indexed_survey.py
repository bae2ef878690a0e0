"""A survey's observations, found by what they are about: each GPU, each process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct

from vram.ledger.ancestry import Ancestry
from vram.ledger.launchers import find_jobs
from vram.model.cgroups import DmemFacts
from vram.model.files import (
    CapacityFacts,
    ClientFacts,
    ComputeFacts,
    DmabufFacts,
    ElsewhereFacts,
    ExportFacts,
    FilesFacts,
    SystemMemoryFacts,
    UnreadableFacts,
)
from vram.model.gpu import ChargeFacts, DriverFacts, GpuFacts, MemoryFacts, MigFacts, Vendor
from vram.model.ledger import Holder, Medium
from vram.model.observation import HostFacts, Observation, Status, Survey
from vram.model.process import Job, ProcessFacts, ProcessRef, RestFacts
from vram.model.windows import AdapterFacts, WindowsMemoryFacts


class Charge(Struct, frozen=True):
    """The driver's list names *process*; ``nbytes`` None where it does not say how much."""

    process: ProcessRef
    nbytes: int | None
    lists: tuple[str, ...]
    gpu_instance: int | None = None
    compute_instance: int | None = None
    ended: bool = False
    exiting: bool = False


class ClientObservation(Struct, frozen=True):
    """One descriptor of *process* on a GPU of AMD or Intel."""

    process: ProcessRef
    facts: ClientFacts


class ExportedDescriptor(Struct, frozen=True):
    """One open descriptor that keeps an exported allocation or a dma-buf alive.

    ``exporter`` is the driver that a dma-buf says it comes from.
    """

    process: ProcessRef
    nbytes: int
    identity: object
    fd: int
    medium: Medium
    gpu: int | None = None
    exporter: str | None = None
    gpu_instance: int | None = None


class OpenedByProcess(Struct, frozen=True):
    """What one process has open on one GPU; ``descriptions`` as far as the kernel numbers them."""

    descriptors: int
    descriptions: tuple[int, ...]

    @property
    def is_numbered(self) -> bool:
        return len(self.descriptions) == self.descriptors


class GpuObservations(Struct):
    """All statements about one GPU; ``unreported`` says why the size of its memory is unknown."""

    index: int
    facts: GpuFacts | None = None
    memory: MemoryFacts | None = None
    status: Status = "ok"
    message: str | None = None
    code: str | None = None
    charges: list[Charge] = []
    ended: list[Charge] = []
    """Charges of processes that ended while they were read (ledger/process_lists.py)."""
    unnamed: list[Charge] = []
    """Charges that are too many to be named one by one (ledger/process_lists.py), and how often others were
    repeated on each GPU instance."""
    repeated: dict[int | None, int] = {}
    lists: Status = "ok"
    """How the process lists were read; unless well, nothing follows from who is not charged."""
    mig: list[MigFacts] = []
    capacity: int | None = None
    size_unknown: str | None = None
    system: SystemMemoryFacts | None = None
    clients: list[ClientObservation] = []
    compute: list[Charge] = []
    """ROCm's figures of the GPU's own memory, and of the machine's that it uses instead."""
    compute_system: list[Charge] = []
    cgroups: list[tuple[DmemFacts, int]] = []
    """What the kernel counts for control groups: with the bytes of each without groups below it."""

    @property
    def driver(self) -> str:
        return self.facts.driver if self.facts else "nvidia"

    @property
    def listed(self) -> set[int]:
        """The pids that the driver charges, named one by one or not."""
        return {charge.process.pid for charge in (*self.charges, *self.unnamed)}


class IndexedSurvey(Struct):
    """All statements of a survey, found by what they are about."""

    host: HostFacts
    gpus: dict[int, GpuObservations] = {}
    processes: dict[int, tuple[ProcessRef, ProcessFacts]] = {}
    files: dict[int, FilesFacts] = {}
    rests: dict[int, RestFacts] = {}
    """What is left of jobs that are not whole, by the pids of their parts."""
    parked: frozenset[int] = frozenset()
    cut: set[int] = set()
    """Who has more files open than were read."""
    unfinished: bool = False
    """There was no time, or no room, to read all processes' files: one that shows none may have some."""
    shares: list[ExportedDescriptor] = []
    has_unsized: bool = False
    """A dma-buf does not report its size."""
    driver: DriverFacts | None = None
    unreadable: UnreadableFacts = UnreadableFacts(processes=0)
    elsewhere: ElsewhereFacts | None = None
    """Where memory may be held that no open file shows; None where it was not asked."""
    clients: list[ClientObservation] = []
    compute: list[tuple[ComputeFacts, Charge]] = []
    adapters: list[AdapterFacts] = []
    windows: list[WindowsMemoryFacts] = []
    windows_message: str | None = None
    windows_code: str | None = None
    """Why Windows said nothing."""
    windows_age: str | None = None
    """How old its figures are, where they were not asked for just now."""
    made_opened: dict[int, dict[int, OpenedByProcess]] | None = None
    made_ancestry: Ancestry | None = None
    made_relatives: dict[int, list[int]] | None = None
    made_uncharged: list[int] | None = None
    made_in_use: bool | None = None
    made_jobs: dict[int, Job] | None = None
    made_holders: dict[tuple[int, tuple[str, ...]], Holder] = {}
    """Made from the rest when they are first asked for: each is needed for every GPU."""

    def opened(self, minor: int | None) -> dict[int, OpenedByProcess]:
        """Who has files of the GPU open, dead or alive; *minor* None: of any GPU."""
        if self.made_opened is None:
            self.made_opened = _opened_by_gpu(self.files)
        if minor is None and _ANY_GPU not in self.made_opened:
            self.made_opened[_ANY_GPU] = _opened_anywhere(self.files)
        return self.made_opened.get(_ANY_GPU if minor is None else minor, {})

    def is_numbered(self, pid: int, minor: int | None) -> bool:
        """Whether every open file description that *pid* has on the GPU is known by its number.

        If not, it may share one with anybody: the kernel refused to compare them, there was no time, or there
        are more files than were read.
        """
        opened = self.opened(minor).get(pid)
        return opened is not None and opened.is_numbered and pid not in self.cut

    @property
    def ancestry(self) -> Ancestry:
        if self.made_ancestry is None:
            parents = {pid: facts.parent for pid, (_, facts) in self.processes.items() if facts.parent}
            self.made_ancestry = Ancestry(parents)
        return self.made_ancestry

    @property
    def jobs(self) -> dict[int, Job]:
        """What each process belongs to that was launched together with others, by pid."""
        if self.made_jobs is None:
            busy = self._on_working_gpus() if self.rests else ()
            self.made_jobs = find_jobs(self.processes, self.rests, {*self.parked, *busy})
        return self.made_jobs

    def _on_working_gpus(self) -> Iterator[int]:
        """Processes on GPUs that are busy, or do not report whether they are."""
        for gpu in self.gpus.values():
            if gpu.facts is None or gpu.facts.utilization != 0:
                yield from gpu.listed
                yield from (client.process.pid for client in gpu.clients)
                if gpu.lists != "ok":
                    yield from self.opened(gpu.facts.minor if gpu.facts else None)

    def alive(self, pid: int) -> bool:
        """Whether *pid* is a process that can still hold files: there, and no zombie."""
        known = self.processes.get(pid)
        return known is not None and not known[1].is_dead

    def state_of(self, pid: int | None) -> str | None:
        """The state of the process that has *pid* now; None where there is none."""
        known = self.processes.get(pid) if pid is not None else None
        return known[1].state if known else None

    @property
    def lists_other_pids(self) -> bool:
        """Whether the driver's lists may name pids of another namespace than ours.

        Older drivers show the host's pids inside of containers, where they name no process, or another
        one. Drivers from about 560 on translate them; those before 570 are not taken at their word.
        """
        if self.host.initial_pid_namespace:
            return False
        version = (self.driver.driver_version if self.driver else None) or ""
        major = version.split(".")[0]
        return not major.isdigit() or int(major) < _PIDS_TRANSLATED_SINCE

    def may_read_files_of(self, pid: int) -> bool:
        known = self.processes.get(pid)
        return known is not None and self.host.uid in (0, known[1].uid)


_VENDORS: dict[str, Vendor] = {"amdgpu": "amd", "xe": "intel", "i915": "intel"}
_PIDS_TRANSLATED_SINCE = 570

_ANY_GPU = -1

# The driver writes 2^64-1 where it has no figure; no GPU is near that size.
_SENTINEL = 1 << 62


def index_survey(taken: Survey) -> IndexedSurvey:
    """Sort the survey's statements; later statements about the same thing win."""
    survey = IndexedSurvey(host=taken.host, parked=frozenset(each.pid for each in taken.parked))
    for observation in taken.observations:
        _place(survey, observation)
    if survey.clients or survey.compute:
        _join(survey)
    return survey


def _opened_by_gpu(files: dict[int, FilesFacts]) -> dict[int, dict[int, OpenedByProcess]]:
    found: dict[int, dict[int, OpenedByProcess]] = {}
    for pid, facts in files.items():
        numbers: dict[int, list[int | None]] = {}
        for file in facts.files:
            if file.kind == "gpu" and file.minor is not None:
                numbers.setdefault(file.minor, []).append(file.description)
        for minor, reported in numbers.items():
            found.setdefault(minor, {})[pid] = _opened(reported)
    return found


def _opened_anywhere(files: dict[int, FilesFacts]) -> dict[int, OpenedByProcess]:
    numbers = {
        pid: [file.description for file in facts.files if file.kind == "gpu"] for pid, facts in files.items()
    }
    return {pid: _opened(reported) for pid, reported in numbers.items() if reported}


def _opened(descriptions: list[int | None]) -> OpenedByProcess:
    return OpenedByProcess(len(descriptions), tuple(each for each in descriptions if each is not None))


def _join(survey: IndexedSurvey) -> None:
    """Give clients to their GPUs: by PCI address, or by the number of the device file."""
    gpus = [gpu for gpu in survey.gpus.values() if gpu.facts and gpu.driver != "nvidia"]
    by_address = {gpu.facts.bus_id: gpu for gpu in gpus if gpu.facts}
    by_node = {node: gpu for gpu in gpus if gpu.facts for node in gpu.facts.nodes}
    for client in survey.clients:
        facts = client.facts
        gpu = by_address.get(facts.address) if facts.address else by_node.get(facts.node or 0)
        if gpu is None and facts.address and facts.driver in _VENDORS:
            gpu = by_address[facts.address] = _unplugged(survey, facts.address, facts.driver)
        if gpu is not None:
            gpu.clients.append(client)
    for where, charge in survey.compute:
        if gpu := by_address.get(where.address):
            (gpu.compute_system if where.system else gpu.compute).append(charge)


def _unplugged(survey: IndexedSurvey, address: str, driver: str) -> GpuObservations:
    """A GPU that processes have open still, and that the kernel does not show any more."""
    index = max(survey.gpus, default=-1) + 1
    facts = GpuFacts(
        uuid=f"PCI-{address}", name="unknown GPU", bus_id=address, vendor=_VENDORS[driver], driver=driver
    )
    message = f"processes have the GPU at {address} open, but it is no longer in sysfs"
    survey.gpus[index] = GpuObservations(index, facts, status="lost", message=message, code="unplugged")
    return survey.gpus[index]


def _place(survey: IndexedSurvey, observation: Observation) -> None:
    # Those of which there are thousands come first.
    match observation.facts:
        case ProcessFacts() as facts if observation.process:
            survey.processes[observation.process.pid] = (observation.process, facts)
        case FilesFacts() as facts if observation.process:
            survey.files[observation.process.pid] = facts
        case ClientFacts() as facts if observation.process:
            survey.clients.append(ClientObservation(observation.process, facts))
        case ChargeFacts():
            pass  # it is about a GPU, as below
        case DriverFacts() as facts:
            survey.driver = facts
        case RestFacts() as facts if observation.process:
            survey.rests[observation.process.pid] = facts
        case UnreadableFacts() as facts:
            survey.unreadable = facts
        case ElsewhereFacts() as facts:
            survey.elsewhere = facts
        case AdapterFacts() as facts:
            survey.adapters.append(facts)
        case WindowsMemoryFacts() as facts:
            survey.windows.append(facts)
        case None if observation.probe == "proc.files" and observation.process:
            survey.cut.add(observation.process.pid)
        case None if observation.probe == "proc.files":
            survey.unfinished = True
        case None if observation.probe == "windows.ask":
            survey.windows_message = observation.message
            survey.windows_code = observation.code
        case None if observation.probe == "windows.age":
            survey.windows_age = observation.message
        case (DmabufFacts() | ExportFacts()) as facts if observation.process and observation.nbytes:
            survey.shares.append(_share(observation.process, observation.nbytes, facts, observation.gpu))
        case DmabufFacts():
            survey.has_unsized = True
        case ComputeFacts() as facts if observation.process:
            charge = Charge(observation.process, _known(observation.nbytes), ("compute",))
            survey.compute.append((facts, charge))
    if observation.gpu is not None:
        _place_on_gpu(survey.gpus.setdefault(observation.gpu, GpuObservations(observation.gpu)), observation)


def _share(
    process: ProcessRef, nbytes: int, facts: DmabufFacts | ExportFacts, gpu: int | None
) -> ExportedDescriptor:
    if isinstance(facts, DmabufFacts):
        return ExportedDescriptor(process, nbytes, facts.inode, facts.fd, "dmabuf", gpu, facts.exporter)
    # Where the kernel does not number descriptions, every descriptor is its own.
    identity = facts.description if facts.description is not None else (process.pid, facts.fd)
    return ExportedDescriptor(process, nbytes, identity, facts.fd, "handle", gpu, None, facts.gpu_instance)


def _place_on_gpu(gpu: GpuObservations, observation: Observation) -> None:
    match observation.facts:
        case GpuFacts() as facts:
            gpu.facts = facts
        case MemoryFacts() as facts:
            gpu.memory = facts
        case ChargeFacts() as facts if observation.process:
            where = (facts.gpu_instance, facts.compute_instance)
            how = (facts.lists, *where, facts.ended, facts.exiting)
            gpu.charges.append(Charge(observation.process, _known(observation.nbytes), *how))
        case MigFacts() as facts:
            gpu.mig.append(facts)
        case CapacityFacts() as facts:
            gpu.capacity = facts.total
        case SystemMemoryFacts() as facts:
            gpu.system = facts
        case DmemFacts() as facts:
            gpu.cgroups.append((facts, observation.nbytes or 0))
        case None if observation.probe == "drm.memory":
            gpu.size_unknown = observation.message
        case None if _cost_the_lists(observation):
            gpu.lists = observation.status
    # Something unsupported is a gap in the picture; a GPU that failed is a gap in the answer.
    if observation.status not in ("ok", "unsupported") and gpu.status == "ok":
        gpu.status = observation.status
        gpu.message = observation.message
        gpu.code = observation.code


def _cost_the_lists(observation: Observation) -> bool:
    """Whether the driver's lists are missing; they are reported after the last figures of memory."""
    if observation.probe == "nvml.processes":
        return observation.status != "ok"
    return observation.probe == "nvml.memory" and observation.status in ("failed", "timeout", "lost")


def _known(nbytes: int | None) -> int | None:
    return nbytes if nbytes is not None and 0 <= nbytes < _SENTINEL else None


def by_allocation(shares: Iterable[ExportedDescriptor]) -> list[list[ExportedDescriptor]]:
    """Group descriptors of the same allocation, largest allocation first."""
    groups: dict[object, list[ExportedDescriptor]] = {}
    for share in shares:
        groups.setdefault((share.medium, share.identity), []).append(share)
    return sorted(groups.values(), key=lambda group: (-group[0].nbytes, group[0].process.pid, group[0].fd))


# ---- from a pid to what is known of the process ----


def holder(survey: IndexedSurvey, process: ProcessRef, lists: tuple[str, ...] = ()) -> Holder:
    """Describe *process* as far as /proc let us see it."""
    key = (process.pid, lists)
    made = survey.made_holders.get(key)
    if made is None:
        made = survey.made_holders[key] = _describe(survey, process, lists)
    return made


def _describe(survey: IndexedSurvey, process: ProcessRef, lists: tuple[str, ...]) -> Holder:
    known = survey.processes.get(process.pid)
    if known is None:
        return departed(process.pid, lists)
    ref, facts = known
    files = survey.files.get(process.pid)
    return Holder(
        pid=ref.pid,
        started_at=ref.started_at,
        user=facts.user,
        command=" ".join(facts.argv) or facts.command,
        alive=not facts.is_dead,
        age_s=facts.age_s,
        state=facts.state,
        exiting=facts.exiting,
        parent=facts.parent,
        executable=facts.executable,
        executable_deleted=facts.executable_deleted,
        executable_trusted=facts.executable_trusted,
        kernel_thread=facts.kernel_thread,
        descriptors=len(files.files) if files else None,
        lists=lists,
        workload=facts.workload,
        inner_pid=facts.namespace_pids[-1] if len(facts.namespace_pids) > 1 else None,
        uid=facts.uid,
        job=survey.jobs.get(process.pid) if facts.launch is not None else None,
        kill_pending=facts.kill_pending,
        waits_in=facts.waits_in,
    )


def departed(pid: int, lists: tuple[str, ...] = (), *, visible: bool = True) -> Holder:
    """A process that is gone, or out of sight; nothing is said of another process that has its pid now."""
    return Holder(
        pid=pid, started_at=None, user=None, command=None, alive=False, lists=lists, visible=visible
    )


def holders(survey: IndexedSurvey, pids: Iterable[int]) -> tuple[Holder, ...]:
    """Describe *pids*, each once, in ascending order."""
    return tuple(
        holder(survey, survey.processes[pid][0]) for pid in sorted(set(pids)) if pid in survey.processes
    )
