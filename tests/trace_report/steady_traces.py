"""Traces made by hand of programs that go on: a PyTorch that serves, a C program, one with an early peak."""

from __future__ import annotations

from msgspec.structs import replace

from tests.trace_report.training_traces import (
    EVIL,
    HOME,
    MAIN,
    SECOND,
    empty,
    process,
    python,
    site,
    training,
)
from vram.model.trace import CallStack, GpuUse, HeldArrays, HeldBefore, TraceView, Window, WindowPlace
from vram.units import GIB, MIB

SERVE = python("serve", f"{HOME}/serve.py", 41)
STACKS = (
    CallStack(),
    CallStack((python("Model.attend", f"{HOME}/model.py", 88), SERVE, MAIN)),
    CallStack((python("Cache.append", f"{HOME}/cache.py", 20), SERVE, MAIN)),
    CallStack((python("Log.remember", f"{HOME}/log.py", 14), SERVE, MAIN)),
)


def place(stack: int, nbytes: int, count: int, **changes: object) -> WindowPlace:
    """Of *nbytes* in *count* allocations at the highest moment, which stayed unless *changes* say so."""
    kind = changes.pop("kind", "torch block")
    values = {
        "base_count": count,
        "base_nbytes": nbytes,
        "end_count": count,
        "end_nbytes": nbytes,
        "made": 0,
        "made_nbytes": 0,
        "freed": 0,
        "median_life_ns": None,
        "growing": False,
        **changes,
    }
    return WindowPlace(site=site(stack, nbytes, count, kind=kind), **values)  # type: ignore[arg-type]


def churn(stack: int, nbytes: int, count: int, made: int, **changes: object) -> WindowPlace:
    """Allocated and freed *made* times; *count* of them were live at the highest moment, none at the ends."""
    ends = dict.fromkeys(("base_count", "base_nbytes", "end_count", "end_nbytes"), 0)
    values = {
        **ends,
        "made": made,
        "made_nbytes": made * (nbytes // max(1, count)),
        "freed": made,
        "median_life_ns": 800_000,
        **changes,
    }
    return place(stack, nbytes, count, **values)


def window(places: tuple[WindowPlace, ...], **changes: object) -> Window:
    highest = sum(each.site.nbytes for each in places)
    base = sum(each.base_nbytes for each in places)
    values = {
        "process": 0,
        "gpu": 0,
        "framework": "torch",
        "begin_ns": 20_000_000,
        "end_ns": 2 * SECOND,
        "before_nbytes": None,
        "base_nbytes": base,
        "highest_nbytes": highest,
        "highest_ns": SECOND,
        "end_nbytes": sum(each.end_nbytes for each in places),
        "lowest": (base,) * 4,
        "trend": "growing" if any(each.growing for each in places) else "steady",
        "places": places,
        **changes,
    }
    return Window(**values)  # type: ignore[arg-type]


def driver_window(places: tuple[WindowPlace, ...] = (), **changes: object) -> Window:
    return window(
        places, **{"process": None, "framework": None, "begin_ns": 0, "before_nbytes": 9 * GIB, **changes}
    )


WEIGHTS = place(0, 6 * GIB, 64, name="__main__: model.layers[0…31].weight")
EMBEDDING = place(0, GIB, 1, name="__main__: model.embedding")
ACTIVATIONS = churn(1, 512 * MIB, 32, 64_000)
KV_CACHE = churn(2, 1536 * MIB, 64, 6_400)
GROWING = place(3, 96 * MIB, 48, base_count=0, base_nbytes=0, made=48, made_nbytes=96 * MIB, growing=True)


def attached(**changes: object) -> TraceView:
    """Nothing was asked of the driver while it was recorded."""
    values: dict[str, object] = {
        "paths": ("serve.vram",),
        "processes": (
            process(command=("python", "serve.py"), attached=True, end="detached", last_ns=2 * SECOND),
        ),
        "stacks": STACKS,
        "duration_ns": 2 * SECOND,
        "events": 0,
        "gpus": (
            GpuUse(
                gpu=0,
                peak_nbytes=0,
                peak_ns=0,
                end_nbytes=0,
                allocated_nbytes=0,
                allocations=0,
                frees=0,
                total_nbytes=139 * GIB,
            ),
        ),
        "before": (HeldBefore(0, 0, 9 * GIB, "the driver, its context included"),),
        "windows": (driver_window(),),
        **changes,
    }
    return replace(empty(), **values)


def serving(*, growing: bool = True) -> TraceView:
    """A PyTorch that generates: weights, a cache that comes and goes, and a log that keeps tensors."""
    places = (WEIGHTS, KV_CACHE, EMBEDDING, ACTIVATIONS, *((GROWING,) if growing else ()))
    held = tuple(
        HeldArrays(
            process=0,
            gpu=0,
            framework="PyTorch",
            name=each.name,
            count=each.base_count,
            nbytes=each.base_nbytes,
        )
        for each in (WEIGHTS, EMBEDDING)
    )
    return attached(windows=(driver_window(), window(places)), held=held)


def native_steady() -> TraceView:
    """A C program that allocates and frees: what it had before has no lines."""
    stacks = (CallStack(), CallStack((python("step", f"{HOME}/solver.py", 7), MAIN)))
    places = (churn(1, 5 * MIB, 2, 900, kind="device"),)
    return attached(stacks=stacks, events=1800, windows=(driver_window(places),))


def numba_steady() -> TraceView:
    """The same with arrays that have names."""
    held = HeldArrays(process=0, gpu=0, framework="Numba", name="__main__: grid", count=2, nbytes=GIB)
    return replace(native_steady(), held=(held,))


def early_peak() -> TraceView:
    """A run whose loading was its peak, and whose second half is steady."""
    weights = place(1, 6 * GIB, 148, kind="device")
    batches = churn(6, 448 * MIB, 4, 32_000, kind="stream-ordered")
    since = driver_window(
        (weights, batches),
        begin_ns=32 * SECOND,
        end_ns=64 * SECOND,
        before_nbytes=None,
        highest_ns=40 * SECOND,
    )
    view = training()
    gpus = tuple(replace(use, peak_ns=2 * SECOND) for use in view.gpus)
    return replace(view, gpus=gpus, windows=(since,))


def hostile_names() -> TraceView:
    view = serving()
    places = tuple(replace(each, name=EVIL * 30 if each.name else "") for each in view.windows[1].places)
    held = tuple(replace(each, name=EVIL * 30, framework=EVIL, process=7) for each in view.held)
    return replace(view, windows=(view.windows[0], replace(view.windows[1], places=places)), held=held)
