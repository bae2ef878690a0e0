"""A trace made by hand for pages and pictures: a training run on some GPUs, with native frames."""

from __future__ import annotations

import math
import random

from tests.trace_report.training_traces import SECOND, python
from vram.model.trace import (
    ON_GPU,
    BlockUse,
    CallStack,
    ChurnSite,
    FailedAllocation,
    Frame,
    Gap,
    GpuUse,
    HeldBefore,
    Holes,
    LeakSite,
    Mark,
    MemoryKind,
    Site,
    TimelinePoint,
    TracedProcess,
    TraceView,
)
from vram.units import GIB, MIB

TORCH = "/opt/venv/lib/python3.12/site-packages/torch"
WORK = "/home/user/project"


def process(index: int = 0, pid: int = 4711, **changes: object) -> TracedProcess:
    values: dict[str, object] = {
        "index": index,
        "pid": pid,
        "parent_pid": 4700,
        "command": ("python", "train.py", "--epochs", "3", "--batch", "32"),
        "executable": "/opt/venv/bin/python",
        "python": "3.12.4",
        "attached": False,
        "forked": False,
        "stacks": "native",
        "started_wall_ns": 1_767_268_800 * SECOND,
        "first_ns": 0,
        "last_ns": 132 * SECOND,
        "end": "exit",
        "threads": 9,
        "events": 9_812_412,
    }
    return TracedProcess(**(values | changes))  # type: ignore[arg-type]


def native_frame(function: str, library: str, offset: int = 0x1F40) -> Frame:
    return Frame("native", function, f"/opt/venv/lib/python3.12/site-packages/nvidia/lib/{library}", offset)


MAIN = (python("main", f"{WORK}/train.py", 112), python("<module>", f"{WORK}/train.py", 131))
FIT = (python("fit", f"{WORK}/trainer.py", 57), *MAIN)
CALL = python("_call_impl", f"{TORCH}/nn/modules/module.py", 1762)
MODEL = (
    CALL,
    python("forward", f"{WORK}/model.py", 88),
    CALL,
    python("step", f"{WORK}/trainer.py", 74),
    *FIT,
)
ATTENTION = (python("forward", f"{WORK}/attention.py", 41), *MODEL)
FEED_FORWARD = (python("forward", f"{WORK}/feed_forward.py", 23), *MODEL)
LINEAR = python("forward", f"{TORCH}/nn/modules/linear.py", 125)
BACKWARD = (
    python("_engine_run_backward", f"{TORCH}/autograd/graph.py", 841),
    python("backward", f"{TORCH}/_tensor.py", 648),
    python("step", f"{WORK}/trainer.py", 79),
    *FIT,
)
ADAM = (
    python("_init_group", f"{TORCH}/optim/adamw.py", 154),
    python("step", f"{TORCH}/optim/adamw.py", 232),
    python("wrapper", f"{TORCH}/optim/optimizer.py", 493),
    python("step", f"{WORK}/trainer.py", 82),
    *FIT,
)
LOAD = (
    python("convert", f"{TORCH}/nn/modules/module.py", 1341),
    python("_apply", f"{TORCH}/nn/modules/module.py", 928),
    python("to", f"{TORCH}/nn/modules/module.py", 1355),
    python("build_model", f"{WORK}/model.py", 140),
    *MAIN,
)
CACHING = native_frame(
    "c10::cuda::CUDACachingAllocator::Native::DeviceCachingAllocator::malloc", "libc10_cuda.so", 0x3A21
)

# (stack, kind, at the peak on each of two GPUs in MiB, allocations, share never freed, verdict)
PLACES: tuple[tuple[tuple[Frame, ...], MemoryKind, float, int, float, str], ...] = (
    ((CACHING, *LOAD), "device", 13_400, 214, 1.0, "in use at exit"),
    ((CACHING, *ADAM), "device", 26_800, 428, 1.0, "in use at exit"),
    ((CACHING, LINEAR, CALL, *ATTENTION), "device", 6_144, 96, 0.0, ""),
    (
        (CACHING, python("softmax", f"{TORCH}/nn/functional.py", 2140), *ATTENTION),
        "device",
        4_096,
        64,
        0.0,
        "",
    ),
    ((CACHING, LINEAR, CALL, *FEED_FORWARD), "device", 5_120, 96, 0.0, ""),
    (
        (CACHING, python("gelu", f"{TORCH}/nn/functional.py", 1780), *FEED_FORWARD),
        "device",
        3_072,
        48,
        0.0,
        "",
    ),
    (
        (CACHING, python("dropout", f"{TORCH}/nn/functional.py", 1424), *FEED_FORWARD),
        "device",
        1_024,
        48,
        0.0,
        "",
    ),
    ((CACHING, *BACKWARD), "device", 7_680, 310, 0.0, ""),
    (
        (
            native_frame("cublasLtCreate", "libcublasLt.so.13", 0x8F120),
            native_frame("cublasCreate_v2", "libcublas.so.13", 0x2210),
            LINEAR,
            CALL,
            *ATTENTION,
        ),
        "device",
        96,
        3,
        1.0,
        "in use at exit",
    ),
    (
        (
            native_frame("ncclCommInitRank", "libnccl.so.2", 0x51A0),
            python("init_process_group", f"{TORCH}/distributed/distributed_c10d.py", 1764),
            *MAIN,
        ),
        "device",
        412,
        12,
        1.0,
        "in use at exit",
    ),
    (
        (python("remember", f"{WORK}/metrics.py", 41), python("step", f"{WORK}/trainer.py", 86), *FIT),
        "device",
        640,
        320,
        1.0,
        "growing",
    ),
    (
        (
            python("load_plugin", "/opt/venv/lib/python3.12/site-packages/fastdecode/codec.py", 77),
            native_frame("fd_context_new", "libfastdecode.so.1", 0x9C0),
            python("decode", f"{WORK}/data.py", 19),
            *FIT,
        ),
        "device",
        256,
        4,
        0.5,
        "leaked",
    ),
    (
        (native_frame("cuLibraryLoadData", "libcudart.so.13", 0x7710), *LOAD),
        "module",
        148,
        37,
        1.0,
        "in use at exit",
    ),
    (
        (
            python("__init__", "/opt/venv/lib/python3.12/site-packages/cupy/cuda/memory.py", 811),
            python("augment", f"{WORK}/data.py", 63),
            *FIT,
        ),
        "stream-ordered",
        768,
        9_000,
        0.0,
        "",
    ),
    (
        (
            python("pin_memory", f"{TORCH}/utils/data/_utils/pin_memory.py", 98),
            python("_worker", "/usr/lib/python3.12/threading.py", 1010),
        ),
        "pinned host",
        512,
        640,
        0.25,
        "in use at exit",
    ),
    ((LINEAR, CALL, *ATTENTION), "torch block", 5_900, 1_000, 0.0, ""),
    (ADAM, "torch block", 26_700, 428, 1.0, "in use at exit"),
    (LOAD, "torch block", 13_300, 214, 1.0, "in use at exit"),
    (BACKWARD, "torch block", 7_400, 800, 0.0, ""),
)


def training(gpus: int = 2) -> TraceView:
    """A run of PyTorch on some GPUs, in one process for each, with a leak, a failure, a gap and marks."""
    stacks = tuple(CallStack(place[0]) for place in PLACES)
    allocations: list[Site] = []
    peak: list[Site] = []
    leaks: list[LeakSite] = []
    churn: list[ChurnSite] = []
    for gpu in range(gpus):
        for stack, (_, kind, mib, count, left, verdict) in enumerate(PLACES):
            repeated = 1 if left == 1 else 420
            allocations.append(_site(stack, gpu, repeated))
            if kind != "pinned host":
                peak.append(_site(stack, gpu, 1))
            if left:
                leaks.append(
                    LeakSite(
                        site=_site(stack, gpu, left),
                        verdict=verdict,  # type: ignore[arg-type]
                        first_ns=3 * SECOND,
                        last_ns=(128 if verdict == "growing" else 9) * SECOND,
                        freed=int(count * (1 - left)),
                        largest=int(mib * MIB / count),
                    )
                )
            if repeated > 1 and kind in ("device", "stream-ordered"):
                life = 40_000 if kind == "stream-ordered" else 21_000_000
                churn.append(
                    ChurnSite(site=_site(stack, gpu, repeated), median_life_ns=life, per_second=count * 3.2)
                )
    timeline: list[TimelinePoint] = []
    for gpu in range(gpus):
        highest = sum(site.nbytes for site in peak if site.gpu == gpu and site.kind in ON_GPU)
        end = sum(leak.site.nbytes for leak in leaks if leak.site.gpu == gpu and leak.site.kind in ON_GPU)
        timeline += saw_tooth(gpu, 132 * SECOND, 1000, highest, end)
    uses = tuple(gpu_use(gpu, timeline, allocations) for gpu in range(gpus))
    return TraceView(
        paths=("vram-trace-train.vram",),
        processes=tuple(process(gpu, 4711 + gpu, forked=gpu > 0) for gpu in range(gpus)),
        stacks=stacks,
        duration_ns=132 * SECOND,
        events=9_812_412 * gpus,
        gpus=uses,
        allocations=tuple(allocations),
        peak=tuple(peak),
        leaks=tuple(leaks),
        timeline=tuple(timeline),
        churn=tuple(churn),
        holes=tuple(scattered(gpu, uses[gpu].peak_ns, len(stacks)) for gpu in range(gpus)),
        failures=(FailedAllocation(0, 97 * SECOND, "device", 0, 96 * GIB, 2, 2),),
        failures_in_all=1,
        gaps=(Gap(0, "another subscriber", 52 * SECOND, 57 * SECOND),),
        marks=(
            Mark(0, 9 * SECOND, "epoch 1"),
            Mark(0, 50 * SECOND, "epoch 2"),
            Mark(0, 91 * SECOND, "epoch 3"),
        ),
        before=(HeldBefore(0, 0, 512 * MIB, "the CUDA context"),),
        host_peak_nbytes=512 * MIB,
        frameworks=tuple(
            BlockUse(
                process=gpu,
                framework="PyTorch",
                gpu=gpu,
                at=at,  # type: ignore[arg-type]
                reserved_nbytes=int(reserved * (1 - 0.07 * gpu) * GIB),
                used_nbytes=int(used * (1 - 0.07 * gpu) * GIB),
                sites=tuple(each for each in peak if each.kind == "torch block" and each.gpu == gpu),
            )
            for gpu in range(gpus)
            for at, reserved, used in (("peak", 65.7, 54.8), ("end", 39.2, 38.7))
        ),
    )


def _site(stack: int, gpu: int, share: float) -> Site:
    _, kind, mib, count, _, _ = PLACES[stack]
    nbytes = int(mib * MIB * share * (1 - 0.07 * gpu))
    return Site(stack=stack, kind=kind, gpu=gpu, process=gpu, count=max(1, int(count * share)), nbytes=nbytes)


def saw_tooth(gpu: int, duration_ns: int, points: int, highest: int, end: int) -> list[TimelinePoint]:
    """Memory as training has it: weights first, then a tooth for every step, and what is left at the end."""
    shape = _shape(gpu, points)
    scale = highest / max(high for high, _ in shape)
    chance = random.Random(gpu)
    found = []
    for at, (high, low) in enumerate(shape):
        figures = (high * scale, low * scale, (low + (high - low) * chance.random()) * scale)
        if at > points * 0.985:
            figures = (end, end, end)
        found.append(TimelinePoint(duration_ns * at // points, gpu, *(round(each) for each in figures)))
    return found


def _shape(gpu: int, points: int) -> list[tuple[float, float]]:
    found = []
    for at in range(points):
        share = at / points
        weights = 13.4 * min(1.0, share / 0.04) + (26.8 if share > 0.09 else 0)
        tooth = (
            (0.5 + 0.5 * math.sin(at * 0.31 + gpu)) * 22 * (1 + 0.12 * math.sin(share * 40))
            if share > 0.07
            else 0
        )
        found.append((weights + tooth + 1.4 + share * 0.6, weights + tooth * 0.35 + 0.9 + share * 0.6))
    return found


def gpu_use(gpu: int, timeline: list[TimelinePoint], allocations: list[Site]) -> GpuUse:
    own = [point for point in timeline if point.gpu == gpu]
    highest = max(own, key=lambda point: point.highest)
    sites = [site for site in allocations if site.gpu == gpu]
    count = sum(site.count for site in sites)
    return GpuUse(
        gpu=gpu,
        peak_nbytes=highest.highest,
        peak_ns=highest.time_ns,
        end_nbytes=own[-1].last,
        allocated_nbytes=sum(site.nbytes for site in sites),
        allocations=count,
        frees=count - 1018,
        name="NVIDIA H200",
        total_nbytes=143156 * MIB,
    )


def scattered(gpu: int, at_ns: int, stacks: int, blocks: int = 400) -> Holes:
    """Blocks of chosen sizes with holes between some of them, in two clusters."""
    chance = random.Random(7 + gpu)
    address, found, gaps = 0x7F2E_0000_0000, [], []
    for number in range(blocks):
        if number == blocks // 2:
            address += 600 * GIB
        nbytes = chance.choice((2, 2, 20, 20, 64, 128, 512, 1024)) * MIB
        found.append((address, nbytes, chance.randrange(stacks)))
        gap = chance.choice((0, 0, 0, 2, 20, 256)) * MIB
        address += nbytes + gap
        gaps.append(gap)
    live = sum(nbytes for _, nbytes, _ in found)
    return Holes(
        gpu=gpu,
        process=gpu,
        at_ns=at_ns,
        live_nbytes=live,
        spanned_nbytes=live + sum(gaps),
        holes=sum(gap > 0 for gap in gaps),
        hole_nbytes=sum(gaps),
        largest_hole=max(gaps),
        blocks=tuple(found),
    )
