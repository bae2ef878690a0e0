"""Traces made by hand at the limits: a large one, one whose texts and figures are hostile, an empty one."""

from __future__ import annotations

import random

from tests.trace_report.page_traces import WORK, gpu_use, native_frame, process, saw_tooth, scattered
from tests.trace_report.training_traces import SECOND, python
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
    TraceView,
)
from vram.units import GIB, MIB


def large(stacks: int = 500, depth: int = 20, points: int = 2000, gpus: int = 1) -> TraceView:
    """As many places as a large program has; a tenth of the frames are native."""
    chance = random.Random(stacks)
    packages = ("torch", "transformers", "xformers", "cupy", "numpy", "accelerate")

    def frame(level: int, branch: int) -> Frame:
        if level > depth * 0.9:
            return native_frame(f"cudnn::ops::kernel_{branch % 17}", f"libcudnn_ops{branch % 3}.so.9", branch)
        file = f"/opt/venv/lib/python3.12/site-packages/{packages[branch % 6]}/layers/part_{branch % 40}.py"
        return python(
            f"Layer{branch % 90}.forward_{level}", file if level > 3 else f"{WORK}/train.py", level * 7
        )

    paths = []
    for number in range(stacks):
        outermost_first = [frame(level, number * level // depth // 2) for level in range(depth)]
        paths.append(
            CallStack((python("leaf", f"{WORK}/place_{number}.py", number), *reversed(outermost_first)))
        )
    sites = [
        Site(
            stack=at,
            kind="device",
            gpu=at % gpus,
            process=0,
            count=chance.randrange(1, 40_000),
            nbytes=int(chance.paretovariate(0.9) * MIB),
        )
        for at in range(stacks)
    ]
    timeline = [
        point for gpu in range(gpus) for point in saw_tooth(gpu, 600 * SECOND, points, 66 * GIB, 9 * GIB)
    ]
    leaks = tuple(
        LeakSite(
            site=site,
            verdict=("in use at exit", "growing", "leaked")[at % 3],
            first_ns=SECOND,
            last_ns=9 * SECOND,
            freed=at,
            largest=MIB,
        )
        for at, site in enumerate(sites[:: max(1, stacks // 100)])
    )
    uses = tuple(gpu_use(gpu, timeline, sites) for gpu in range(gpus))
    return TraceView(
        paths=("large.vram",),
        processes=(process(events=10_000_000, last_ns=600 * SECOND),),
        stacks=tuple(paths),
        duration_ns=600 * SECOND,
        events=10_000_000,
        gpus=uses,
        allocations=tuple(sites),
        peak=tuple(sites[::2]),
        leaks=leaks,
        timeline=tuple(timeline),
        churn=tuple(ChurnSite(site=site, median_life_ns=20_000, per_second=50.0) for site in sites[1::3]),
        holes=tuple(scattered(gpu, uses[gpu].peak_ns, stacks, 2000) for gpu in range(gpus)),
        failures=(),
        failures_in_all=0,
        gaps=(),
        marks=tuple(Mark(0, at * SECOND, f"step {at}") for at in range(0, 600, 20)),
        before=(),
        host_peak_nbytes=0,
    )


HOSTILE = (
    "</script><script>window.owned = 1</script>",
    "<img src=x onerror='window.owned = 2'>",
    "<!--<script>",
    "--!><svg/onload=window.owned=3>",
    "{{script}}{{data}}",
    "'\"`;window.owned=4;//${window.owned=5}",
    "\u202e\u2066gnp.exe\u2069\u2028\u2029",
    "\x00\x07\x1b[2J\x9b31m\x7f\r\n\t",
    "\udc80\udcff broken \ud800",
    "\\u003c/script\\u003e",
    "javascript:window.owned=6",
    "&lt;img src=x onerror=window.owned=7&gt;",
    "A" * 100_000,
    "𝕌𝕟𝕚𝕔𝕠𝕕𝕖 שלום 漢字",
    "__proto__",
    "constructor",
    "",
)


def hostile() -> TraceView:
    """Every text that a program can choose, chosen to break the page; figures that no GPU has."""
    stacks = tuple(
        CallStack((Frame("python", text, f"/srv/{text}.py", 1), Frame("native", text, text, 2**64 - 1)))
        for text in HOSTILE
    )
    sites = tuple(
        Site(
            stack=at,
            kind="device",
            gpu=None if at % 3 == 0 else 0,
            process=0,
            count=2**63,
            nbytes=(at + 1) * GIB,
        )
        for at in range(len(stacks))
    )
    leaks = tuple(
        LeakSite(site=site, verdict="leaked", first_ns=0, last_ns=2**63, freed=0, largest=2**64 - 1)
        for site in sites
    )
    deep = CallStack(tuple(python(f"recursion_{at}", "/srv/deep.py", at) for at in range(5_000)))
    everywhere = " ".join(HOSTILE[:-1])
    return TraceView(
        paths=(everywhere,),
        processes=(process(command=HOSTILE, executable=everywhere, python=everywhere, end="cut"),),
        stacks=(*stacks, deep, CallStack()),
        duration_ns=2**63,
        events=2**64 - 1,
        gpus=(
            GpuUse(
                gpu=None,
                peak_nbytes=2**64 - 1,
                peak_ns=0,
                end_nbytes=0,
                allocated_nbytes=2**70,
                allocations=2**63,
                frees=0,
            ),
            GpuUse(
                gpu=0,
                peak_nbytes=GIB,
                peak_ns=2**63,
                end_nbytes=1,
                allocated_nbytes=1,
                allocations=1,
                frees=0,
            ),
        ),
        allocations=sites,
        peak=(
            *sites,
            Site(stack=len(stacks), kind="array", gpu=0, process=9, count=1, nbytes=GIB),
            Site(stack=len(stacks) + 1, kind="module", gpu=0, process=0, count=1, nbytes=MIB),
            Site(stack=10**9, kind="device", gpu=0, process=0, count=1, nbytes=MIB),
        ),
        leaks=leaks,
        timeline=(
            TimelinePoint(2**63, 0, 0, GIB, 7),
            TimelinePoint(0, 0, 2**64 - 1, 0, 0),
            TimelinePoint(5, None, 1, 1, 1),
        ),
        churn=tuple(ChurnSite(site=site, median_life_ns=0, per_second=1e300) for site in sites),
        holes=(
            Holes(
                gpu=0,
                process=0,
                at_ns=0,
                live_nbytes=2**64,
                spanned_nbytes=0,
                holes=2**40,
                hole_nbytes=0,
                largest_hole=0,
                blocks=((2**64 - 1, 2**64 - 1, 10**9), (0, 0, 0), (0, 5, 0)),
            ),
        ),
        failures=tuple(FailedAllocation(0, 5, "device", None, 2**64 - 1, 2, at) for at in range(len(stacks))),
        failures_in_all=2**40,
        gaps=(Gap(0, "unknown", 2**63, 0), Gap(0, "unknown", 0, None)),
        marks=tuple(Mark(0, at, text) for at, text in enumerate(HOSTILE)),
        before=(HeldBefore(0, None, 2**64 - 1, everywhere),),
        host_peak_nbytes=2**64 - 1,
        frameworks=(
            BlockUse(
                process=0,
                framework=everywhere,
                gpu=0,
                at="peak",
                reserved_nbytes=0,
                used_nbytes=2**64 - 1,
                sites=sites,
                note=everywhere,
            ),
        ),
        damage=(everywhere,),
    )


def empty() -> TraceView:
    """A process that made a context and allocated nothing."""
    return TraceView(
        paths=("empty.vram",),
        processes=(process(events=1),),
        stacks=(),
        duration_ns=0,
        events=1,
        gpus=(),
        allocations=(),
        peak=(),
        leaks=(),
        timeline=(),
        churn=(),
        holes=(),
        failures=(),
        failures_in_all=0,
        gaps=(),
        marks=(),
        before=(),
        host_peak_nbytes=0,
    )
