"""For every code one ledger in which it fires, and the nearest one in which it must not."""

from __future__ import annotations

from msgspec import Struct

from tests.diagnosis.ledgers import (
    CONTEXT,
    TOTAL,
    dead,
    entry,
    facts,
    forked_child,
    gpu,
    holder,
    host,
    job,
    ledger,
    memory,
    process,
    silent_gpu,
)
from vram.model.cgroups import CgroupHolder
from vram.model.gpu import DriverFacts, MemoryFacts, SystemMemoryUse
from vram.model.ledger import Ledger, OpenOnly
from vram.model.observation import ProbeRun
from vram.model.process import Workload
from vram.model.windows import WindowsProcess, WindowsSide, WslFacts
from vram.units import GIB, MIB


class Case(Struct):
    fires: Ledger
    near_miss: Ledger


def _orphan(charged: int = 50, **about: object) -> Ledger:
    return ledger(gpu(entry("orphaned", charged_pid=charged, **about)))


def _exported(medium: str) -> Ledger:
    return ledger(gpu(entry("exported", holder=holder(), medium=medium)))


def _driver(**versions: str | bool) -> Ledger:
    return ledger(gpu(), driver=DriverFacts(**versions))  # type: ignore[arg-type]


def _contexts(count: int, nbytes: int = CONTEXT, orphans: int = 0) -> Ledger:
    """So many processes with little more than a context, the first *orphans* of them one orphaned job."""
    lost = [{"job": job(rank=rank)} if rank < orphans else {} for rank in range(count)]
    return ledger(gpu(*(process(200 + at, nbytes, **about) for at, about in enumerate(lost))))


def _ranks(*contexts: int, **of_all: object) -> Ledger:
    """Rank after rank of one job with its memory on a GPU of its own, and this much on GPU 0."""
    about = [{"job": job(is_orphan=False, rank=rank)} | of_all for rank in range(1, 1 + len(contexts))]
    return ledger(
        gpu(*(process(200 + at, nbytes, **about[at]) for at, nbytes in enumerate(contexts))),
        *(gpu(process(200 + at, 9 * GIB, **about[at]), index=1 + at) for at in range(len(contexts))),
    )


def _shared(files: int) -> MemoryFacts:
    return memory(counted_by="kernel", system=SystemMemoryUse(None, 0, files, 0))


def _spill(nbytes: int, **about: object) -> Ledger:
    return ledger(gpu(windows=WindowsSide(read=True, host_bytes=nbytes), **about))


CASES: dict[str, Case] = {
    # The holder with the charged pid itself is a newcomer with a used pid, not a child.
    "VR101": Case(_orphan(holder=holder(51)), _orphan(51, holder=holder(51))),
    "VR102": Case(
        ledger(gpu(process(50), open_only=(forked_child(51, of=50),))),
        ledger(gpu(process(50), open_only=(forked_child(51, of=None),))),
    ),
    "VR103": Case(_exported("handle"), _exported("dmabuf")),
    "VR104": Case(_exported("dmabuf"), _exported("handle")),
    "VR105": Case(_orphan(holder=dead(50)), _orphan(holder=holder(51))),
    "VR106": Case(
        ledger(gpu(entry("unattributed", 64 * MIB))), ledger(gpu(entry("unattributed", 64 * MIB - 1)))
    ),
    "VR107": Case(
        ledger(gpu(entry(holder=holder(), claimed=6 * GIB))),
        ledger(gpu(entry(holder=holder(), claimed=4 * GIB), memory=memory(moved_bytes=0))),
    ),
    "VR201": Case(ledger(gpu(process(state="T"))), ledger(gpu(process(state="S")))),
    "VR202": Case(ledger(gpu(process(state="D"))), ledger(gpu(process(state="R")))),
    "VR203": Case(_orphan(holder=holder(51), charged_state="Z"), _orphan(holder=holder(51))),
    "VR204": Case(ledger(gpu(process(executable_deleted=True))), ledger(gpu(process()))),
    "VR205": Case(_contexts(3), _contexts(2)),
    "VR206": Case(ledger(gpu(process())), ledger(gpu(process(alive=False)))),
    "VR207": Case(
        ledger(gpu(process(), entry(holder=holder(), medium="managed"))), ledger(gpu(process(), process()))
    ),
    "VR208": Case(
        ledger(gpu(process(job=job()))), ledger(gpu(process(job=job(is_orphan=False, launcher=7))))
    ),
    # Once it exits, the driver takes its time to close the files.
    "VR209": Case(
        ledger(gpu(process(state="R", kill_pending=True, waits_in="uvm_spin_loop"))),
        ledger(gpu(process(state="R", kill_pending=True, exiting=True))),
    ),
    "VR210": Case(_ranks(CONTEXT, CONTEXT), _ranks(CONTEXT)),
    # Without persistence mode the driver starts the GPU for each reading, and reports its own work.
    "VR211": Case(
        ledger(gpu(facts=facts(utilization=100, persistence=True))),
        ledger(gpu(facts=facts(utilization=100, persistence=False))),
    ),
    "VR301": Case(
        ledger(gpu(entry("hidden")), host=host(initial_pid_namespace=False)),
        ledger(gpu(entry("hidden", hidden_by="permission")), host=host(initial_pid_namespace=False)),
    ),
    "VR302": Case(
        ledger(gpu(entry("hidden")), unreadable_processes=3, unreadable_users=("root", "bob")),
        ledger(gpu(process()), unreadable_processes=3, unreadable_users=("root", "bob")),
    ),
    "VR304": Case(
        ledger(gpu(entry("hidden", hidden_by="cgroup", cgroup=CgroupHolder("/a.slice/b.scope", Workload())))),
        ledger(gpu(entry("hidden", hidden_by="namespace"))),
    ),
    # Anybody may call a program nvidia-cuda-mps-server; only an installed one is the server.
    "VR303": Case(
        ledger(gpu(process(executable="/usr/bin/nvidia-cuda-mps-server"))),
        ledger(gpu(process(executable="/home/alice/nvidia-cuda-mps-server"))),
    ),
    "VR401": Case(
        ledger(gpu(entry("reserved", 615 * MIB), memory=memory(v1_used=615 * MIB, reserved=615 * MIB))),
        ledger(gpu(entry("reserved", 615 * MIB), memory=memory(v1_used=0, reserved=615 * MIB))),
    ),
    "VR402": Case(
        ledger(gpu(facts=facts(bar1_total=100 * MIB, bar1_used=90 * MIB))),
        ledger(gpu(facts=facts(bar1_total=100 * MIB, bar1_used=90 * MIB - 1))),
    ),
    "VR403": Case(
        ledger(gpu(facts=facts(remap_pending=True))),
        ledger(gpu(facts=facts(remap_pending=False, remapped_correctable=3))),
    ),
    "VR404": Case(
        ledger(silent_gpu("failed", code="nvml-16")),
        ledger(silent_gpu("failed", "unknown error")),
    ),
    "VR405": Case(ledger(silent_gpu("timeout")), ledger(silent_gpu("unsupported"))),
    # Seven instances of one slice leave an eighth to nobody; that is no finding.
    "VR406": Case(
        ledger(gpu(entry("unassigned", 15 * GIB), facts=facts(mig_enabled=True))),
        ledger(gpu(entry("unassigned", 10 * GIB), facts=facts(mig_enabled=True))),
    ),
    "VR408": Case(
        ledger(gpu(process(), entry("preallocated", 124 * MIB, medium="managed"))),
        ledger(gpu(process(), entry("overhead", 124 * MIB))),
    ),
    "VR407": Case(
        ledger(gpu(facts=facts(mig_enabled=False, mig_pending=True))),
        ledger(gpu(facts=facts(mig_enabled=True, mig_pending=True))),
    ),
    # The management library puts the CUDA release in front of the driver's version.
    "VR409": Case(
        ledger(gpu(memory=_shared(files=TOTAL // 10))),
        ledger(gpu(memory=_shared(files=TOTAL // 10 - 1))),
    ),
    "VR501": Case(
        _driver(module_version="580.159.04", library_version="13.590.10"),
        _driver(module_version="580.159.04", library_version="13.580.159.04"),
    ),
    "VR601": Case(_spill(256 * MIB), _spill(256 * MIB - 1)),
    "VR602": Case(
        ledger(gpu(entry("windows", 64 * MIB, windows=WindowsProcess(7, "game.exe")))),
        ledger(gpu(entry("windows", 64 * MIB - 1, windows=WindowsProcess(7, "game.exe")))),
    ),
    # Hidden by a container's namespace is another matter.
    "VR603": Case(
        ledger(gpu(entry("hidden", hidden_by="windows")), host=host(wsl=True, wsl_facts=WslFacts(2))),
        ledger(gpu(entry("hidden", hidden_by="namespace")), host=host(wsl=True, wsl_facts=WslFacts(2))),
    ),
    "VR604": Case(
        ledger(gpu(entry("guest"))),
        ledger(gpu(entry("guest"), entry(nbytes=None, holder=holder(), confidence="unknown"))),
    ),
}

FURTHER: tuple[tuple[str, Ledger], ...] = (
    ("VR102", ledger(gpu(process(50), open_only=(OpenOnly(holder=holder(51), exported_bytes=GIB),)))),
    ("VR105", _orphan(holder=None)),
    ("VR105", _orphan(51, holder=holder(51))),
    ("VR107", ledger(gpu(memory=memory(moved_bytes=MIB)))),
    ("VR201", ledger(gpu(process(state="t")))),
    ("VR202", ledger(gpu(process(exiting=True)))),
    ("VR202", ledger(gpu(process(state="D", kill_pending=True, exiting=True)))),
    ("VR209", ledger(gpu(process(state="D", kill_pending=True)))),
    ("VR210", _ranks(CONTEXT, CONTEXT, CONTEXT, job=None, parent=900)),
    ("VR210", _ranks(871 * MIB, 871 * MIB)),
    ("VR211", ledger(gpu(entry("unattributed", 3 * MIB), facts=facts(utilization=50)))),
    ("VR211", ledger(gpu(facts=facts(utilization=100)), unreadable_processes=1)),
    ("VR301", ledger(gpu(entry("hidden", hidden_by="namespace")))),
    ("VR302", ledger(silent_gpu("denied"))),
    ("VR303", ledger(gpu(process(lists=("mps",))))),
    ("VR403", ledger(gpu(facts=facts(remap_failed=True)))),
    ("VR403", ledger(gpu(facts=facts(retired_pending=True)))),
    ("VR404", ledger(silent_gpu("lost"))),
    ("VR405", ledger(gpu(), probes=(ProbeRun("dmabuf", "failed", 0.1),))),
    ("VR501", ledger(probes=(ProbeRun("nvml", "failed", 0.1, "the versions differ", "nvml-18"),))),
)

QUIET: tuple[tuple[str, Ledger], ...] = (
    ("VR101", _orphan(holder=holder(51), charged_state="Z")),
    ("VR102", ledger(gpu(open_only=(forked_child(51, of=50),)))),
    ("VR201", _orphan(51, holder=holder(51, state="T"))),
    ("VR202", ledger(gpu(process(state="D", kill_pending=True)))),
    ("VR205", _contexts(3, 641 * MIB)),
    ("VR205", _contexts(3, 4 * MIB)),
    ("VR205", _ranks(CONTEXT, CONTEXT, CONTEXT)),
    ("VR205", _contexts(4, orphans=2)),
    ("VR206", ledger(gpu(process(state="T")))),
    ("VR206", ledger(gpu(process(state="R", kill_pending=True)))),
    ("VR210", _contexts(3)),
    ("VR210", _ranks(CONTEXT, 5 * GIB)),  # one rank has its memory on two GPUs
    ("VR210", _ranks(CONTEXT, CONTEXT, job=None, parent=1)),
    ("VR210", _ranks(CONTEXT, CONTEXT, job=job())),  # an orphaned job, VR208
    ("VR211", ledger(gpu(facts=facts(utilization=49)))),
    ("VR211", ledger(gpu(process(), facts=facts(utilization=100)))),
    ("VR211", ledger(gpu(entry("hidden", None), facts=facts(utilization=100)))),
    ("VR211", ledger(gpu(open_only=(forked_child(51, of=None),), facts=facts(utilization=100)))),
    ("VR211", ledger(gpu(facts=facts(utilization=100)), host=host(hides_processes=True))),
    ("VR211", ledger(gpu(facts=facts(utilization=100)), host=host(initial_pid_namespace=False))),
    ("VR211", ledger(gpu(facts=facts(utilization=100)), probes=(ProbeRun("files", "timeout", 1.0),))),
    ("VR211", ledger(gpu(facts=facts(utilization=100, mig_enabled=True)))),
    ("VR302", ledger(gpu(entry("hidden")), host=host(initial_pid_namespace=False))),
    ("VR402", ledger(gpu(process(nbytes=79 * GIB), facts=facts(bar1_total=100, bar1_used=100)))),
    ("VR405", ledger(silent_gpu("failed", code="nvml-16"))),
    ("VR501", _driver(module_version="580.159.04")),
    ("VR501", _driver(module_version="1", library_version="2", virtual=True)),
)
