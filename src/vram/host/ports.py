"""The doors to the world, as protocols. Everything that touches it comes in as ``Host``.

No port raises for what the world does: a denial, a hang, an absence is part of the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from vram.children import Sent as Sent
from vram.model.cgroups import CgroupLimit, DmemFacts
from vram.model.files import ClientFacts, DeviceFile, ElsewhereCode
from vram.model.gpu import GpuFacts
from vram.model.observation import HostFacts, Observation, Status
from vram.model.process import ProcessFacts, ProcessRef, RestFacts

if TYPE_CHECKING:  # most commands park nothing
    from typing import Protocol

    from vram.model.doctor import DriverTest, HostFiles, KernelTest, Tracing
    from vram.model.parking import CheckpointAnswer, GpuShare, ProcessLimits
else:
    # Only type checkers read protocols, and making one costs 60 µs: there are many.
    Protocol = object


class Dmabuf(Struct, frozen=True):
    """A dma-buf that a process has open; ``nbytes`` and ``exporter`` as its fdinfo says."""

    fd: int
    inode: int
    nbytes: int | None
    exporter: str | None


class DrmClient(Struct, frozen=True):
    """An open file on a GPU of AMD or Intel, and what was wrong with its figures, if anything was."""

    facts: ClientFacts
    status: Status = "ok"
    message: str | None = None
    code: str | None = None


class FileHolder(Struct, frozen=True):
    """One process and the device files that it has open; ``files`` are NVIDIA's."""

    process: ProcessRef
    files: tuple[DeviceFile, ...]
    dmabufs: tuple[Dmabuf, ...] = ()
    mappings: int | None = None
    managed_bytes: int | None = None
    clients: tuple[DrmClient, ...] = ()


class FileScan(Struct, frozen=True):
    """Who has device files open, and how far we could look.

    ``full``: there were too many to read them all. ``cut`` have more open than are listed, and are processes
    of ``cut_users``.
    """

    holders: tuple[FileHolder, ...]
    denied_users: tuple[str, ...] = ()
    denied_processes: int = 0
    complete: bool = True
    full: bool = False
    cut: tuple[ProcessRef, ...] = ()
    cut_users: tuple[str, ...] = ()


class ExportCandidate(Struct, frozen=True):
    """A control descriptor that may be an exported allocation."""

    process: ProcessRef
    fd: int
    description: int | None = None


class Proof(Struct, frozen=True):
    """What importing a copy of a candidate showed. ``exported`` None: it could not be tried."""

    candidate: ExportCandidate
    exported: bool | None
    nbytes: int | None = None
    gpu_uuid: str | None = None
    status: Status = "ok"
    message: str | None = None
    code: str | None = None


class NvmlReader(Protocol):
    """The management library, read where a deadline can end it.

    Calling ``read`` starts the reading at once, in a process of its own; the iterator
    collects it. A call that fails, hangs or answers nonsense is an observation with that
    status, and a GPU that hangs does not keep the others from being read. With *figures_only* a reader
    that was kept repeats only GPUs, memory and process lists, with facts that seldom change as they were.
    """

    def read(self, deadline_s: float, *, figures_only: bool = False) -> Iterator[Observation]: ...


class OpenFiles(Protocol):
    """Device files that processes hold open: of *pids*, or of all processes."""

    def scan(self, deadline_s: float, pids: Sequence[int] | None = None) -> FileScan: ...

    def elsewhere(self, deadline_s: float) -> tuple[ElsewhereCode, ...]:
        """Where GPU memory may be held that no open file shows; nothing: nowhere."""


class Card(Struct, frozen=True):
    """A GPU that the kernel's DRM drives, as sysfs tells. Unknown is None, with a status.

    ``total`` and ``used`` are its own memory, ``system_total`` and ``system_used`` the machine's
    memory that it may use and does.
    """

    address: str
    facts: GpuFacts
    total: int | None = None
    used: int | None = None
    system_total: int | None = None
    system_used: int | None = None
    status: Status = "ok"
    message: str | None = None
    code: str | None = None


class ComputeCharge(Struct, frozen=True):
    """What the kernel's ROCm driver charges a process with on one GPU.

    ``system``: it takes that memory from the machine, as on most processors with a GPU.
    """

    pid: int
    address: str
    nbytes: int | None
    status: Status = "ok"
    message: str | None = None
    code: str | None = None
    system: bool = False


class Drm(Protocol):
    """GPUs of AMD and Intel, and ROCm's list of processes. Their open files are with all others'.

    ``drivers`` are the kernel's drivers that have such GPUs: with none, there is none.
    ``nvidia_gpus`` is how many GPUs NVIDIA's own driver drives, as far as is known.
    """

    @property
    def drivers(self) -> Collection[str]: ...
    def cards(self) -> Sequence[Card]: ...
    def compute(self) -> Sequence[ComputeCharge]: ...
    def nvidia_gpus(self) -> int: ...


class DmemUse(Struct, frozen=True):
    """What a control group has of the GPU at a PCI address, without groups below it."""

    address: str
    nbytes: int
    facts: DmemFacts


class LimitAnswer(Struct, frozen=True):
    """What NVML answered about a control group's limit; ``code`` None: nothing in time."""

    cgroup: str
    code: int | None
    limit: CgroupLimit | None = None


class ControlGroups(Protocol):
    """Control groups as the kernel counts GPU memory for them, and their limits, which are the driver's.

    ``counts_device_memory``: whether the kernel does. ``problem`` is why a path is no group that could have a
    limit. Limits are asked of NVML and set through it, in a process that a deadline can end.
    """

    @property
    def counts_device_memory(self) -> bool: ...
    def device_memory(self) -> Sequence[DmemUse]: ...
    def problem(self, cgroup: str) -> str | None: ...
    def limits(self, uuid: str, cgroups: Sequence[str], deadline_s: float) -> Sequence[LimitAnswer]: ...
    def set_limit(
        self, uuid: str, cgroup: str, soft: int, hard: int | None, deadline_s: float
    ) -> LimitAnswer: ...


class Exports(Protocol):
    """Tells exported allocations from ordinary control descriptors.

    A process sees one MIG device at most: where GPUs are divided, *views* are what each try may
    see, as the driver's own variable names it. Without, one try sees all GPUs.
    """

    def prove(
        self, candidates: Sequence[ExportCandidate], deadline_s: float, views: Sequence[str] = ()
    ) -> Iterable[Proof]: ...


class ProcessCondition(Struct, frozen=True):
    """A process at this moment; ``image`` is as :class:`Proc` has it, ``cpu_s`` is what its threads used."""

    started_at: int
    state: str
    exiting: bool
    parent: int | None
    image: str | None
    cpu_s: float = 0.0


class Proc(Protocol):
    """What /proc knows of one process, or None where it is gone.

    ``image`` names the program that was loaded last: exec changes it, even into the same file.
    None where we may not look, or where the process is gone. ``relatives`` are the pids whose parent,
    process group or session is one of those given, whichever user's they are; ``descendants`` are the
    living children of a process, their children, and so on, each after its parent. ``condition`` is
    what changes of a process while it lives. ``rest_of_job`` is what lives on this machine of the job that
    those given are parts of, and None where that is not certain.
    """

    def facts(self, pid: int) -> tuple[ProcessRef, ProcessFacts] | None: ...
    def relatives(self, pids: Collection[int]) -> list[int]: ...
    def descendants(self, pid: int) -> list[int]: ...
    def started_at(self, pid: int) -> int | None: ...
    def image(self, pid: int) -> str | None: ...
    def condition(self, pid: int) -> ProcessCondition | None: ...
    def rest_of_job(self, known: Collection[tuple[ProcessRef, ProcessFacts]]) -> RestFacts | None: ...


class PidHandle(Protocol):
    """One process, opened by pidfd: whatever happens to its pid, this stays the same process."""

    pid: int

    def pid_in_proc(self) -> int | None: ...
    def send(self, number: int) -> Sent: ...
    def ended(self, timeout_s: float = 0.0) -> bool: ...
    def close(self) -> None: ...


class Signals(Protocol):
    """Opens processes by pidfd: None where no process has the pid. ``self_and_ancestors`` is our own pid and
    those of all our ancestors."""

    def open(self, pid: int) -> PidHandle | None: ...
    def self_and_ancestors(self) -> frozenset[int]: ...


class ClaimFile(Protocol):
    """The lock that lets one vram move a process, held while the descriptor is open."""

    def fileno(self) -> int: ...


class ParkTarget(Struct, frozen=True):
    """A process that is to be moved, the claim on it, and what it has on its GPUs.

    ``pairs`` are old and new UUID of every GPU that it sees, where it comes back on another one.
    """

    handle: PidHandle
    claim: ClaimFile
    shares: tuple[GpuShare, ...]
    pairs: tuple[tuple[str, str], ...] = ()


class CheckpointWorker(Protocol):
    """A process of ours that makes the driver's checkpoint calls, and outlives us if it must.

    It parks all *targets* or none. What it has parked it brings back when we hang up or die, unless
    ``keep_parked`` was called; after ``until``, not before that process has ended. *watch* is called with
    each GPU's used bytes while the driver works.
    """

    def state(self, pid: int, deadline_s: float) -> CheckpointAnswer: ...
    def park(
        self,
        targets: Sequence[ParkTarget],
        *,
        lock_timeout_s: float,
        deadline_s: float,
        watch: Watch | None = None,
    ) -> tuple[CheckpointAnswer, ...]: ...
    def unpark(
        self,
        target: ParkTarget,
        *,
        room_patience_s: float,
        deadline_s: float,
        watch: Watch | None = None,
        on_restored: OnRestored | None = None,
    ) -> CheckpointAnswer: ...
    def keep_parked(self, pids: Sequence[int]) -> CheckpointAnswer: ...
    def until(self, handle: PidHandle) -> CheckpointAnswer: ...
    def hang_up(self, wait_s: float) -> bool: ...


Watch = Callable[[dict[str, int]], None]
OnRestored = Callable[[], None]
"""Called when the memory is back, before the process runs: who holds its threads lets them off."""


class Checkpoint(Protocol):
    """Opens checkpoint workers; one that is started early is ready when needed."""

    def open(self) -> CheckpointWorker: ...


class CudaProcesses(Struct, frozen=True):
    """Who has the CUDA driver's library loaded, of those we may look into. Not ``complete``: the time
    was up before all processes were read."""

    pids: tuple[int, ...]
    complete: bool


class ParkedMemory(Struct, frozen=True):
    """What a parked process itself tells of the room that it needs; None where that cannot be read.

    All that it had on its GPUs lies in its ``private_bytes`` of host memory, beside whatever else
    does. ``visible_gpus`` is the CUDA_VISIBLE_DEVICES that it was started with.
    """

    private_bytes: int | None
    visible_gpus: str | None


class LimitReader(Protocol):
    """What bears on parking a process, beyond who it is."""

    def read(self, pid: int) -> ProcessLimits: ...
    def parked_memory(self, pid: int) -> ParkedMemory: ...
    def cuda_processes(self, deadline_s: float) -> CudaProcesses: ...
    def uses_cuda(self, pid: int) -> bool: ...
    def profiler(self, pid: int) -> str | None: ...
    def boot_id(self) -> str: ...


class VendorAnswer(Struct, frozen=True):
    """What the vendor's own tool said. ``code`` None: it is missing, or did not end in time."""

    code: int | None
    output: str


class Vendor(Protocol):
    """The vendor's own tool, for what only that may do."""

    def reset_command(self, gpu: int) -> tuple[str, ...]: ...
    def run(self, command: Sequence[str], deadline_s: float) -> VendorAnswer: ...


class SelfTests(Protocol):
    """Calls that may hang or be forbidden, made by processes of their own from the start on."""

    def driver(self, deadline_s: float) -> DriverTest: ...
    def kernel(self, deadline_s: float) -> KernelTest: ...


class SystemInfo(Protocol):
    """The machine around the GPUs, and what we may do on it. No process of others is touched."""

    def host_files(self) -> HostFiles: ...
    def cupti(self) -> tuple[str, ...]: ...
    def tracing(self, pids: Iterable[int]) -> tuple[Tracing, ...]: ...
    def start_self_tests(self, libraries: Sequence[str]) -> SelfTests: ...


class WindowsAnswer(Struct, frozen=True):
    """What Windows' own shell printed, or why it printed nothing."""

    status: Status
    output: bytes = b""
    message: str | None = None
    code: str | None = None
    age_s: float = 0.0
    """How long ago Windows was asked, where an earlier answer is given again."""


class WindowsQuery(Protocol):
    """A question to Windows that is under way; ``close`` ends it unheard."""

    def answer(self) -> WindowsAnswer: ...
    def close(self) -> None: ...


class Windows(Protocol):
    """Windows, where this is Linux inside of it. Asking starts at once, beside us."""

    def ask(self, script: str, deadline_s: float) -> WindowsQuery: ...


class Clock(Protocol):
    """Time, so that tests can hold it still."""

    def now(self) -> str: ...
    def monotonic(self) -> float: ...
    def sleep(self, seconds: float) -> None: ...


class Host(Protocol):
    """One machine: every port, and who we are on it."""

    @property
    def nvml(self) -> NvmlReader: ...
    @property
    def files(self) -> OpenFiles: ...
    @property
    def drm(self) -> Drm: ...
    @property
    def exports(self) -> Exports: ...
    @property
    def cgroups(self) -> ControlGroups: ...
    @property
    def proc(self) -> Proc: ...
    @property
    def signals(self) -> Signals: ...
    @property
    def checkpoint(self) -> Checkpoint: ...
    @property
    def limits(self) -> LimitReader: ...
    @property
    def vendor(self) -> Vendor: ...
    @property
    def system(self) -> SystemInfo: ...
    @property
    def windows(self) -> Windows: ...
    @property
    def clock(self) -> Clock: ...

    def facts(self) -> HostFacts: ...
