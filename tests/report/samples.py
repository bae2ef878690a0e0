"""Hand-built ledgers: formats know nothing of machines, so their tests need none."""

from __future__ import annotations

from vram.model.finding import Finding, Remedy
from vram.model.gpu import DriverFacts
from vram.model.ledger import Entry, GpuLedger, Holder, Ledger, known_bytes
from vram.model.observation import HostFacts, ProbeRun
from vram.model.process import Workload
from vram.units import GIB, MIB

TOTAL = 143_771 * MIB


def make_holder(pid: int, command: str = "python train.py", **fields: object) -> Holder:
    """A living process of alice's, three hours old."""
    known = {"started_at": pid * 7, "user": "alice", "alive": True, "age_s": 11_000.0, "state": "S"}
    return Holder(pid=pid, command=command, **(known | fields))  # type: ignore[arg-type]


def make_gpu(*held: Entry, index: int = 0, **fields: object) -> GpuLedger:
    """A GPU whose free entry makes its sum exact."""
    reserved = Entry(kind="reserved", nbytes=645_005_312, evidence=("the driver's memory info, version 2",))
    free = Entry(kind="free", nbytes=TOTAL - reserved.nbytes - known_bytes(held))
    known = {"uuid": f"GPU-{index}", "name": "NVIDIA H200", "total_bytes": TOTAL, "facts": None}
    return GpuLedger(index=index, entries=(free, reserved, *held), **(known | fields))  # type: ignore[arg-type]


def make_ledger(*gpus: GpuLedger, **fields: object) -> Ledger:
    known = {
        "taken_at": "2026-11-15T02:03:08Z",
        "host": HostFacts(name="node7", kernel="6.18.0", user="alice", uid=1000),
        "driver": DriverFacts(driver_version="580.159.04", cuda_version="13.0"),
        "probes": (ProbeRun("nvml", "ok", 0.004), ProbeRun("files", "ok", 0.011)),
    }
    return Ledger(gpus=gpus, **(known | fields))  # type: ignore[arg-type]


ORPHAN = Entry(
    kind="orphaned",
    nbytes=4614 * MIB,
    holder=make_holder(
        4243, "python -m torch.distributed.run --nproc-per-node 8 train.py --config /data/runs/big.yaml"
    ),
    evidence=("the driver charges pid 4242, which is gone", "pid 4243 holds its 23 device files"),
    co_holders=(make_holder(4244), make_holder(4245)),
    charged_pid=4242,
)
EXPORT = Entry(
    kind="exported",
    nbytes=2 * GIB,
    holder=make_holder(5150, "buffer-server --listen /run/buffers.sock", user="bob"),
    evidence=("its dma-buf of this size was exported by nv_dmabuf",),
    confidence="likely",
    medium="dmabuf",
)
WORKER = Entry(
    kind="process",
    nbytes=48 * GIB + 12345,
    holder=make_holder(
        6001, "vllm serve meta/llama", workload=Workload(container="3f2a9c1be77d" * 5, runtime="docker")
    ),
    evidence=("the driver's compute list",),
)
LOOSE = Entry(kind="unattributed", nbytes=77 * MIB, evidence=("used, but in no list",), confidence="unknown")

FINDINGS = (
    Finding(
        code="VR101",
        title="A forked child keeps a dead process's memory",
        nbytes=4614 * MIB,
        cause="Pid 4242 is gone, but pids 4243, 4244 and 4245 inherited its device files when it forked. "
        "The driver gives memory back when the last of these files closes.",
        gpus=(0,),
        pids=(4243, 4244, 4245),
        evidence=("pid 4243 has 23 descriptors on /dev/nvidia0, /dev/nvidiactl and /dev/nvidia-uvm",),
        remedies=(
            Remedy(
                step="kill",
                target="pid 4243",
                text="End the children, youngest first",
                command="kill 4243 4244 4245",
                harm="loses-work",
            ),
            Remedy(
                step="explain", target="VR101", text="Read why this happens", command="vram explain VR101"
            ),
        ),
    ),
    Finding(
        code="VR201",
        title="This process uses it",
        nbytes=48 * GIB + 12345,
        cause="Pid 6001 (alice, docker 3f2a9c1be77d) has used 48.0 GiB for 3 h 3 min.",
        gpus=(0,),
        pids=(6001,),
        severity="info",
    ),
)
