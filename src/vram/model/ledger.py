"""Where every byte is: entries that sum to a GPU's total, to the byte."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from msgspec import Struct

from vram.model.cgroups import CgroupHolder, DmemFacts
from vram.model.gpu import DriverFacts, GpuFacts, MemoryFacts, Vendor
from vram.model.observation import HostFacts, ProbeRun, Status
from vram.model.process import Job, ParkedProcess, Workload
from vram.model.windows import WindowsProcess, WindowsSide

# ---- the kinds of entries, and what each one means: the only place that classifies them ----


Kind = Literal[
    "free",
    "reserved",
    "context",
    "live",
    "cached",
    "fragmented",
    "outside",
    "process",
    "orphaned",
    "exported",
    "hidden",
    "windows",
    "guest",
    "overhead",
    "preallocated",
    "cpu",
    "withheld",
    "unattributed",
    "unreported",
    "unassigned",
]

Leftover = Literal["yes", "no", "by-holder", "unknown"]
"""Whether these bytes are no longer in use; "by-holder": the state of their holder decides."""


class KindFacts(NamedTuple):
    """What a kind of memory means."""

    used: bool | None
    """Whether the bytes are in use; None where the driver does not report it."""
    held: bool
    """Whether a process holds them, named or not. False: the driver's own, or unused."""
    charged: bool
    """Whether a working process is charged with them: a whole process, or a part of its memory."""
    leftover: Leftover


_NOT_USED = KindFacts(used=False, held=False, charged=False, leftover="no")
_CHARGED = KindFacts(used=True, held=True, charged=True, leftover="by-holder")
_LEFT = KindFacts(used=True, held=True, charged=False, leftover="yes")
_UNSEEN = KindFacts(used=True, held=True, charged=False, leftover="unknown")

KINDS: dict[Kind, KindFacts] = {
    "free": _NOT_USED,
    "reserved": _NOT_USED,  # by the driver, for itself and its firmware: never free, never anybody's
    "unassigned": _NOT_USED,  # memory of a GPU under MIG that no instance was given
    "unreported": KindFacts(used=None, held=False, charged=False, leftover="unknown"),
    "overhead": KindFacts(used=True, held=False, charged=False, leftover="no"),
    # What is not proved to be it may be a hidden process's: diagnosis/verdict.py asks the confidence, too.
    "preallocated": KindFacts(used=True, held=False, charged=False, leftover="no"),
    "cpu": KindFacts(used=True, held=False, charged=False, leftover="no"),
    "withheld": KindFacts(used=True, held=False, charged=False, leftover="no"),
    "process": _CHARGED,
    "context": _CHARGED,
    "live": _CHARGED,
    "cached": _CHARGED,
    "fragmented": _CHARGED,
    "outside": _CHARGED,  # of a process that was asked: what none of its frameworks accounts for
    "orphaned": _LEFT,
    "exported": _LEFT,
    "unattributed": _LEFT,
    "hidden": _UNSEEN,
    "guest": _UNSEEN,  # of Linux processes together, as Windows counts them
    "windows": KindFacts(used=True, held=True, charged=False, leftover="no"),
}

MEANINGS: dict[Kind, tuple[str, tuple[str, ...]]] = {
    "free": ("not in use", ()),
    "reserved": ("the driver's own part: firmware, page tables, ECC", ("VR401",)),
    "process": ("charged to a living process, not split further", ("VR206",)),
    "context": ("what CUDA itself uses in a process, before any allocation", ("VR205",)),
    "live": ("arrays and allocations that the program still has", ("VR206",)),
    "cached": ("freed by the program, but kept by a pool for its next allocation", ()),
    "fragmented": ("cached, but between arrays in use, so that a trim does not free it", ()),
    "outside": (
        "beyond what the frameworks of a process account for: allocations of others in it, and its context",
        ("VR206",),
    ),
    "orphaned": (
        ("memory of a dead process, held by a living one (visible or not)"),
        ("VR101", "VR105", "VR203"),
    ),
    "exported": ("held by an open handle or a dma-buf; no process list names it", ("VR103", "VR104")),
    "hidden": ("held by a process that is not visible from here", ("VR301", "VR302")),
    "overhead": ("in use beyond what the driver charges to processes; each context adds some", ()),
    "preallocated": (
        "the driver's reserve for managed memory; it goes with the last CUDA process",
        ("VR408",),
    ),
    "cpu": ("CPU programs and the kernel, where a GPU uses the same memory", ()),
    "withheld": ("within a control group's limit, and not available: others use the GPU, or it is kept", ()),
    "windows": ("held by a Windows program, under WSL2", ("VR602",)),
    "guest": ("held by Linux processes together, as Windows counts them under WSL2", ("VR604",)),
    "unassigned": ("in no MIG instance: no program can use it", ("VR406",)),
    "unreported": ("free, or held by a process that is not visible: the driver does not report it", ()),
    "unattributed": ("in use, and nothing visible accounts for it", ("VR106",)),
}
"""What each line of a ledger is, and the findings that tell more about it."""


MAX_CONTEXT_OVERHEAD = 16 << 20
"""Up to so much that a context uses beyond its charge is overhead: 6 MiB on an H200, and drivers differ."""

MIN_PREALLOCATED, MAX_PREALLOCATED = 2 << 20, 126 << 20
"""How large the driver's reserve for managed memory can be. It takes 64 pieces of 2 MiB at a time, where
one is needed and none is left (the parameter uvm_perf_pma_batch_nonpinned_order of nvidia-uvm is 6), and
returns each that is freed. Measured on an H200, driver 580.159: up to 124 MiB."""

Confidence = Literal["fact", "likely", "unknown"]
Medium = Literal["handle", "dmabuf", "managed", "shared"]
NoteCode = Literal[
    "overlap",
    "moved",
    "totals-apart",
    "listed-again",
    "too-many-listed",
    "ended-meanwhile",
    "mig-changed",
    "over-full",
    "windows-old",
    "windows-apart",
    "not-divided",
    "queried",
    "system-memory",
    "cgroup-limit",
    "vgpu",
]
"""What a note is about; docs/reference/json.md has a line for each."""
Sharing = Literal["all", "one", "together"]
Proof = Literal["relative", "adopted"]
"""What several holders of one entry mean; see Entry."""


class Holder(Struct, frozen=True, kw_only=True):
    """A process that holds an entry's bytes. ``alive`` False: the driver charges a pid that is gone."""

    pid: int
    started_at: int | None
    user: str | None
    command: str | None
    alive: bool
    age_s: float | None = None
    state: str | None = None
    exiting: bool = False
    parent: int | None = None
    executable: str | None = None
    executable_deleted: bool = False
    executable_trusted: bool | None = None
    """False: the path is that of a part of the system, and the file need not be the one root installed."""
    kernel_thread: bool | None = None
    descriptors: int | None = None
    lists: tuple[str, ...] = ()
    workload: Workload = Workload()
    inner_pid: int | None = None
    """Its pid as its own PID namespace counts, where that is not ours: what a container calls it."""
    uid: int | None = None
    """Who may see what of it is asked by this: a name need not be anybody's."""
    job: Job | None = None
    """What it was launched as a part of, and whether its launcher is dead."""
    kill_pending: bool = False
    """SIGKILL is pending, and has had no effect so far."""
    waits_in: str | None = None
    """The kernel's function that it is in, where signals have no effect and that is known."""
    visible: bool = True
    """False: it may live where we cannot see it (another PID namespace, hidepid), whatever ``alive`` says."""


class TakenOver(Struct, frozen=True):
    """Bytes that a process has likely been charged with since ``pid`` ended, who was charged until then."""

    pid: int
    nbytes: int


class Entry(Struct, frozen=True, kw_only=True):
    """Some bytes of a GPU, who holds them, and how we know.

    ``nbytes`` None: the process surely has memory here, and how much is unknown; its bytes are counted
    in another entry.

    ``sharing`` says what the holder and the ``co_holders`` have to do with each other:
    "all": they hold the same bytes, which return when the last of them has released them;
    "one": one of them holds the bytes, unknown which; "together": they have the bytes among them,
    and how much each has is unknown (there is no ``holder`` then). With "one" as a fact, each of them
    holds the bytes of one of the entries that have these holders, and ``unheld`` of those entries are
    held by none of them.

    ``charged_pid`` is the pid that the driver's list names where that is not the holder, and
    ``charged_state`` its state while /proc still knows it ("Z": a zombie). ``claimed`` is the
    driver's own figure where figures overlap and not all of it could be counted here.
    ``medium`` says what keeps an exported entry alive, or that bytes of a process are managed memory, or
    shared by several clients of a GPU. ``hidden_by`` is what keeps us from naming the holder of a
    hidden entry ("end": it ended while it was read; "cgroup": the kernel says for which control group it is,
    ``cgroup``, and not for which process). ``windows`` is the Windows process that holds the
    bytes, or that Windows counts a guest's under: no holder, for its pid is not one of Linux. ``proof`` says
    why the holders of a dead pid's memory are a fact: each is of its session, group or children ("relative"),
    or has lost its own parent, and no living process can be the source of its files ("adopted").
    ``taken_over`` is memory that others were charged with until they ended, as far as the history knows.
    ``gpu_instance`` is the part of a GPU divided by MIG that the bytes lie in, and
    ``compute_instance`` the one that their process runs on. ``mps_server`` is the pid of the MPS
    server that opened the GPU for the holder.
    """

    kind: Kind
    nbytes: int | None
    holder: Holder | None = None
    evidence: tuple[str, ...] = ()
    confidence: Confidence = "fact"
    co_holders: tuple[Holder, ...] = ()
    sharing: Sharing | None = None
    charged_pid: int | None = None
    claimed: int | None = None
    charged_state: str | None = None
    medium: Medium | None = None
    hidden_by: Literal["namespace", "permission", "windows", "end", "cgroup"] | None = None
    windows: WindowsProcess | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None
    mps_server: int | None = None
    unheld: int = 0
    proof: Proof | None = None
    taken_over: tuple[TakenOver, ...] = ()
    cgroup: CgroupHolder | None = None

    @property
    def kind_facts(self) -> KindFacts:
        """What its kind means."""
        return KINDS[self.kind]

    @property
    def holders(self) -> tuple[Holder, ...]:
        """Its holder, if there is one, and the co-holders."""
        return self.co_holders if self.holder is None else (self.holder, *self.co_holders)


def known_bytes(entries: Iterable[Entry]) -> int:
    """The sum of *entries*, without those whose size is unknown."""
    return sum(entry.nbytes for entry in entries if entry.nbytes is not None)


class OpenOnly(Struct, frozen=True, kw_only=True):
    """A process that has a GPU's files open only: it is charged nothing.

    ``inherited_from`` names the living process whose very files these are: that process's memory
    returns only when this one has ended too. ``exported_bytes`` is the size of exported allocations
    that it has open while their maker lives and is charged for them: when the maker ends, this
    process still holds them.
    """

    holder: Holder
    inherited_from: int | None = None
    exported_bytes: int | None = None


class SystemMemory(Struct, frozen=True, kw_only=True):
    """The machine's own memory that a GPU uses: beside the GPU's total, never a part of it.

    Its entries sum to ``used_bytes``, where the driver tells that.
    """

    total_bytes: int | None
    used_bytes: int | None
    entries: tuple[Entry, ...]


class MigDevice(Struct, frozen=True, kw_only=True):
    """What programs run on: a compute instance. ``index`` is its number on the GPU."""

    index: int
    uuid: str
    name: str
    compute_instance: int


class Note(Struct, frozen=True):
    """Something worth knowing about a GPU's figures. ``code`` never changes its meaning.

    Where processes were queried: ``stopped_s`` is for how long one of them was stopped at most, ``waited_s``
    for how long another thread of one waited at most.
    """

    code: NoteCode
    text: str
    stopped_s: float | None = None
    waited_s: float | None = None


class Instance(Struct, frozen=True, kw_only=True):
    """One GPU instance of a divided GPU, and the MIG devices that share its memory.

    The GPU's entries with this ``gpu_instance`` sum to ``total_bytes``; where that is None
    they could not be balanced, and ``message`` says why.
    """

    gpu_instance: int
    devices: tuple[MigDevice, ...]
    total_bytes: int | None
    memory: MemoryFacts | None = None
    message: str | None = None
    notes: tuple[Note, ...] = ()


class GpuLedger(Struct, frozen=True, kw_only=True):
    """One GPU. Its entries sum to ``total_bytes``; where that is None, ``status`` says why.

    A GPU without memory of its own has a total of zero; what it uses is in ``system``.
    A GPU divided by MIG has ``instances``, each with a balance of its own, and entries of no
    instance: what the driver reserves, and memory that no instance was given ("unassigned").
    ``mig`` is set where this is the ledger of one instance alone: its first device, as "0:1".
    """

    index: int
    uuid: str | None
    name: str
    total_bytes: int | None
    entries: tuple[Entry, ...]
    status: Status = "ok"
    message: str | None = None
    code: str | None = None
    """Why ``status`` is not ok, as the observation said it; None where the ledger found it out."""
    notes: tuple[Note, ...] = ()
    open_only: tuple[OpenOnly, ...] = ()
    facts: GpuFacts | None = None
    memory: MemoryFacts | None = None
    vendor: Vendor = "nvidia"
    system: SystemMemory | None = None
    windows: WindowsSide | None = None
    """Under WSL2, what the other side says."""
    instances: tuple[Instance, ...] = ()
    mig: str | None = None
    limits: tuple[DmemFacts, ...] = ()
    """Control groups with memory or limits here, where the kernel counts that."""
    outside: tuple[Entry, ...] = ()
    """Where the total is the limit of our own group: what processes outside it hold, in no sum here."""

    @property
    def accounted(self) -> tuple[Entry, ...]:
        """Who has what: of its own memory, or of the machine's where it has none of its own."""
        return self.system.entries if self.total_bytes == 0 and self.system else self.entries

    def of_kind(self, kind: Kind) -> tuple[Entry, ...]:
        """Its own memory of one kind: how memory is read that no process holds, and that is in no hold."""
        return tuple(entry for entry in self.entries if entry.kind == kind)

    def bytes_by_kind(self) -> dict[Kind, int]:
        """What is accounted for of each kind that there is; sizes that are unknown are in no sum."""
        sums: dict[Kind, int] = {}
        for entry in self.accounted:
            sums[entry.kind] = sums.get(entry.kind, 0) + (entry.nbytes or 0)
        return sums

    @property
    def has_own_memory(self) -> bool:
        """Whether its total is a GPU's, not the machine's memory: parking moves from one to the other."""
        return self.memory is None or self.memory.counted_by != "kernel"

    @property
    def driver(self) -> str:
        """The kernel's driver; what only NVIDIA's can do asks this first."""
        return self.facts.driver if self.facts else "nvidia"


class Ledger(Struct, frozen=True, kw_only=True, weakref=True):
    """All GPUs of a host at one moment, and what the judgement needs beside them."""

    taken_at: str
    host: HostFacts
    gpus: tuple[GpuLedger, ...]
    driver: DriverFacts | None = None
    unreadable_processes: int = 0
    unreadable_users: tuple[str, ...] = ()
    probes: tuple[ProbeRun, ...] = ()
    parked: tuple[ParkedProcess, ...] = ()
