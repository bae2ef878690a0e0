"""Traces made by hand for terminals: a training run with a bit of everything, an empty and a hostile one."""

from __future__ import annotations

from vram.model.trace import (
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
    Site,
    TimelinePoint,
    TracedProcess,
    TraceView,
)
from vram.units import GIB, MIB

SECOND = 10**9
TORCH = "/usr/lib/python3/dist-packages/torch"
HOME = "/home/user/project"


def python(function: str, file: str, line: int) -> Frame:
    return Frame("python", function, file, line)


def native(function: str, library: str, offset: int) -> Frame:
    return Frame("native", function, library, offset)


MAIN = python("<module>", f"{HOME}/train.py", 112)
TRAIN = python("train", f"{HOME}/train.py", 80)
STACKS = (
    CallStack(),
    CallStack((python("load_weights", f"{HOME}/model.py", 31), python("main", f"{HOME}/train.py", 97), MAIN)),
    CallStack(
        (
            python("Linear.forward", f"{TORCH}/nn/modules/linear.py", 125),
            python("Module._call_impl", f"{TORCH}/nn/modules/module.py", 1762),
            python("Model.forward", f"{HOME}/model.py", 88),
            TRAIN,
            MAIN,
        )
    ),
    CallStack((python("History.remember", f"{HOME}/history.py", 14), TRAIN, MAIN)),
    CallStack(
        (python("make_workspace", f"{HOME}/kernels.py", 52), python("close", f"{HOME}/kernels.py", 70), MAIN)
    ),
    CallStack(
        (
            native("cuMemAlloc_v2", "/usr/lib/x86_64-linux-gnu/libcuda.so.1", 0x2F10),
            native("cublasCreate_v2", "/opt/cuda/lib64/libcublas.so.13", 0x9A0F10),
            native("handle()", f"{TORCH}/lib/libtorch_cuda.so", 0x1F40),
        )
    ),
    CallStack((python("batches.<locals>.batch", f"{HOME}/data.py", 20), TRAIN, MAIN)),
)


def site(stack: int, nbytes: int, count: int = 1, **changes: object) -> Site:
    values = {"kind": "device", "gpu": 0, "process": 0, **changes}
    return Site(stack=stack, nbytes=nbytes, count=count, **values)  # type: ignore[arg-type]


def process(**changes: object) -> TracedProcess:
    values = {
        "index": 0,
        "pid": 4101,
        "parent_pid": 4100,
        "command": ("python", "train.py", "--lr", "1e-3"),
        "executable": "/usr/bin/python3.12",
        "python": "3.12.3",
        "attached": False,
        "forked": False,
        "stacks": "python",
        "started_wall_ns": 1_767_268_800 * SECOND,
        "first_ns": 0,
        "last_ns": 64 * SECOND,
        "end": "exit",
        "threads": 4,
        "events": 182_340,
        **changes,
    }
    return TracedProcess(**values)  # type: ignore[arg-type]


def leak(stack: int, nbytes: int, count: int, verdict: str, **changes: object) -> LeakSite:
    values = {"first_ns": SECOND, "last_ns": 60 * SECOND, "freed": 0, "largest": nbytes // count, **changes}
    return LeakSite(site=site(stack, nbytes, count), verdict=verdict, **values)  # type: ignore[arg-type]


def _timeline() -> tuple[TimelinePoint, ...]:
    live = [0, 6, 6, 8, 12, 9, 13, 10, 14, 11, 15, 12, 16, 13, 18, 8, 7]
    return tuple(
        TimelinePoint(at * 4 * SECOND, 0, value * GIB, min(value, live[max(0, at - 1)]) * GIB, value * GIB)
        for at, value in enumerate(live)
    )


def training(**changes: object) -> TraceView:
    """A training run: weights that stay, activations, a list that grows, a workspace that leaks."""
    peak = (
        site(1, 6 * GIB, 148),
        site(2, 8 * GIB, 96),
        site(3, 3 * GIB, 48),
        site(4, 512 * MIB, 2),
        site(5, 64 * MIB, 1),
        site(6, 448 * MIB, 4, kind="stream-ordered"),
    )
    values = {
        "paths": ("train.vram",),
        "processes": (process(),),
        "stacks": STACKS,
        "duration_ns": 64 * SECOND,
        "events": 182_340,
        "gpus": (
            GpuUse(
                gpu=0,
                peak_nbytes=18 * GIB,
                peak_ns=56 * SECOND,
                end_nbytes=7 * GIB,
                allocated_nbytes=4000 * GIB,
                allocations=91_320,
                frees=91_020,
            ),
        ),
        "allocations": (*peak, site(6, 900 * GIB, 64_000, kind="stream-ordered")),
        "peak": peak,
        "leaks": (
            leak(4, 512 * MIB, 2, "leaked", first_ns=2 * SECOND, last_ns=30 * SECOND),
            leak(3, 3 * GIB, 48, "growing", freed=3),
            leak(1, 6 * GIB, 148, "in use at exit", last_ns=3 * SECOND),
            leak(5, 64 * MIB, 1, "in use at exit", last_ns=SECOND),
        ),
        "timeline": _timeline(),
        "churn": (
            ChurnSite(
                site=site(6, 900 * GIB, 64_000, kind="stream-ordered"),
                median_life_ns=840_000,
                per_second=1000.0,
            ),
        ),
        "holes": (
            Holes(
                gpu=0,
                process=0,
                at_ns=64 * SECOND,
                live_nbytes=7 * GIB,
                spanned_nbytes=10 * GIB,
                holes=3,
                hole_nbytes=3 * GIB,
                largest_hole=2 * GIB,
                blocks=(
                    (0x7F2000000000, 3 * GIB, 1),
                    (0x7F2000000000 + 3 * GIB + 512 * MIB, 3 * GIB, 1),
                    (0x7F2000000000 + 7 * GIB, GIB // 2, 3),
                    (0x7F4000000000, GIB // 2, 4),
                ),
            ),
        ),
        "failures": (
            FailedAllocation(
                process=0, time_ns=57 * SECOND, kind="device", gpu=0, nbytes=20 * GIB, result=2, stack=6
            ),
        ),
        "failures_in_all": 1,
        "gaps": (Gap(0, "another subscriber", 20 * SECOND, 24 * SECOND),),
        "marks": (Mark(0, 4 * SECOND, "epoch 1"), Mark(0, 34 * SECOND, "epoch 2")),
        "before": (),
        "host_peak_nbytes": 256 * MIB,
        "damage": (),
        **changes,
    }
    return TraceView(**values)  # type: ignore[arg-type]


def with_blocks() -> TraceView:
    """The same, where PyTorch's own history splits what it took from the driver."""
    use = BlockUse(
        process=0,
        framework="torch",
        gpu=0,
        at="peak",
        reserved_nbytes=17 * GIB,
        used_nbytes=15 * GIB,
        sites=(
            site(2, 9 * GIB, 4_096, kind="torch block"),
            site(1, 6 * GIB, 1_480, kind="torch block"),
        ),
    )
    return training(frameworks=(use,))


NESTED = "make_training_step.<locals>.compiled_step.<locals>.<lambda>"
METHOD = "TransformerEncoderLayer._scaled_dot_product_attention_with_dropout_and_mask"


def nested() -> TraceView:
    """Functions in functions and methods with long names, in every place where a view shows one."""
    frames = (
        python(METHOD, f"{HOME}/layers/transformer_encoder_layer.py", 412),
        python(NESTED, f"{HOME}/training/loop.py", 88),
        python("Trainer.fit.<locals>.on_batch", f"{HOME}/trainer.py", 31),
        MAIN,
    )
    return training(stacks=(CallStack(), *(CallStack(frames[each % 3 :]) for each in range(len(STACKS) - 1))))


def empty() -> TraceView:
    """A program that made a context and allocated nothing."""
    nothing: dict[str, object] = dict.fromkeys(
        ("gpus", "allocations", "peak", "leaks", "timeline", "churn", "holes", "failures", "gaps", "marks"),
        (),
    )
    return training(**nothing, failures_in_all=0, host_peak_nbytes=0, events=3)


EVIL = "\x1b]0;evil\x07\x1b[31m\u202egpj\n\r\t\ud800"


def hostile() -> TraceView:
    """Names that try to steer a terminal, and sizes that no GPU has."""
    frames = tuple(
        Frame("python", EVIL + "f" * 500, f"/{EVIL}/" + "d/" * 200 + "x.py", 2**63) for _ in range(300)
    )
    stacks = (
        CallStack(),
        CallStack(frames),
        *(CallStack((Frame("native", EVIL, EVIL, 2**64 - 1),)) for _ in range(6)),
    )
    return training(
        stacks=stacks,
        paths=(EVIL,),
        processes=(process(command=(EVIL, "a" * 4000), python=EVIL, started_wall_ns=2**64 - 1),),
        marks=(Mark(0, 2**63, EVIL * 50), Mark(7, 0, "")),
        gaps=(Gap(9, "unknown", 2**63, None),),
        before=(HeldBefore(0, None, 2**62, EVIL),),
        damage=(EVIL,),
    )
