"""Words for what a trace has, for the terminal's views and for the page.

The terminal speaks of the allocations in a table, the page of one place or process: where that makes the
words differ, they stand below each other here.
"""

from __future__ import annotations

from typing import get_args

from vram.model.trace import EndReason, GapReason, Verdict

VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
"""The worst first."""

VERDICT_REASONS: dict[Verdict, str] = {
    "leaked": "Their context was destroyed or reset while the program went on, and they had not been freed.",
    "growing": "The same place allocated again and again, to the end of the recording, and freed less.",
    "in use at exit": "They were live when the recording ended, and the place did not go on allocating:"
    " usually weights, buffers and caches that are meant to stay.",
}
PAGE_VERDICT_REASONS: dict[Verdict, str] = {
    "leaked": "Its context was destroyed or reset while the program went on, and nobody had freed it.",
    "growing": "The same place allocated again and again, to the end of the recording, and kept it.",
    "in use at exit": "Never freed, but neither of the above: weights, buffers and caches that are loaded "
    "once look like this. It is only a leak if the program should have been done with it.",
}

GAP_REASONS: dict[GapReason, str] = {
    "another subscriber": "another profiler used CUPTI",
    "cupti shut down": "the program shut CUPTI down",
    "detached": "the recorder was detached",
    "unknown": "for a reason that the file does not name",
}
PAGE_GAP_REASONS = GAP_REASONS | {"unknown": "the reason is unknown"}

# Endings that are as they should be are not mentioned.
EARLY_ENDS: dict[EndReason, str] = {
    "detached": "recording was stopped by `vram attach --stop`",
    "disk full": "recording stopped early: no space was left for the file",
    "write error": "recording stopped early: the file could not be written",
    "no cupti": "recording stopped early: CUPTI could not be used",
    "cut": "the recording has no end: the process was killed, or still runs",
}
PAGE_EARLY_ENDS: dict[EndReason, str] = {
    "disk full": "stopped recording because no space was left for its file",
    "write error": "stopped recording because its file could not be written",
    "no cupti": "could not be recorded: CUPTI did not work there",
    "cut": "was killed or still runs: its trace has no end",
}

FRAMEWORK_NAMES = {"torch": "PyTorch", "cupy": "CuPy", "jax": "JAX", "other": "another framework"}
PAGE_FRAMEWORK_NAMES = FRAMEWORK_NAMES | {"other": "other frameworks"}


def framework_name(name: str) -> str:
    return FRAMEWORK_NAMES.get(name, name)


def gpu_name(gpu: int | None) -> str:
    return "unknown GPU" if gpu is None else f"GPU {gpu}"
