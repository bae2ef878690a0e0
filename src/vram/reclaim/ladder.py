"""The rungs, least harm first, each looked up when it is needed."""

from __future__ import annotations

from importlib import import_module
from typing import cast, get_args

from vram.model.plan import StepKind
from vram.reclaim.rung import Rung

RUNGS = {
    "trim": "vram.reclaim.steps.trim:Trim",
    "park": "vram.reclaim.steps.park:Park",
    "kill": "vram.reclaim.steps.kill:Kill",
    "reset": "vram.reclaim.steps.reset:Reset",
}

ORDER: tuple[StepKind, ...] = get_args(StepKind)

# Seconds that one step may take. A kill waits this long after SIGTERM before it insists; a park
# copies the whole GPU memory of a process (measured: 32 GiB in 17 s).
PATIENCE_S: dict[StepKind, float] = {"trim": 10.0, "park": 600.0, "kill": 10.0, "reset": 120.0}


def rung(kind: StepKind) -> Rung:
    """The rung of that kind."""
    module, _, name = RUNGS[kind].partition(":")
    return cast("Rung", getattr(import_module(module), name)())


def below(highest: StepKind) -> tuple[StepKind, ...]:
    """The rungs up to *highest*, least harm first. A reset is never part of a ladder."""
    return tuple(kind for kind in ORDER[: ORDER.index(highest) + 1] if kind != "reset")
