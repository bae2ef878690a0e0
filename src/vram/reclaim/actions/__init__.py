"""The actions that free memory, least harm first: release, trim, park, kill, reset. One module each.

A plan names an action by its kind; its module is imported when it is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Protocol, cast, get_args

from vram.errors import UsageError, VramError
from vram.host.ports import Host
from vram.model.plan import Step, StepKind, Target

ACTIONS: dict[StepKind, str] = {
    "release": "vram.reclaim.actions.release:Release",
    "trim": "vram.reclaim.actions.trim:Trim",
    "park": "vram.reclaim.actions.park:Park",
    "kill": "vram.reclaim.actions.kill:Kill",
    "reset": "vram.reclaim.actions.reset:Reset",
}

ORDER: tuple[StepKind, ...] = get_args(StepKind)
HARMLESS_FIRST: tuple[StepKind, ...] = ("kill", "release", "trim", "park")
"""The order where no process was named: what is killed then only holds memory of dead ones."""
GENTLE: tuple[StepKind, ...] = ("release", "trim")
"""Those after which a process still runs: more may be done to it where they were not enough."""

# Seconds that one step may take. A kill waits this long after SIGTERM before it sends SIGKILL; a park
# copies the whole GPU memory of a process (measured: 32 GiB in 17 s), and so does a server that sleeps.
TIMEOUT_S: dict[StepKind, float] = {
    "release": 60.0,
    "trim": 10.0,
    "park": 600.0,
    "kill": 10.0,
    "reset": 120.0,
}


class Unkillable(VramError):
    """A process that no signal ends now: this is reported once and not tried again."""


class Unfinished(VramError):
    """The target was touched, and not everything was done. Not a refusal: those touch nothing."""


class Action(Protocol):
    """What can be done to one target. It never chooses: what it does is written in the step.

    Who the target is, is compared by the caller: when the plan is made, and for every step before the
    first one runs. ``apply`` compares once more, through the pidfd that it acts on.
    """

    kind: StepKind

    def check(self, host: Host, step: Step, before: Sequence[Step] = ()) -> Step:
        """Return *step* with what only this action knows (``via``, ``predicted_bytes``); touches nothing.

        *before* are the steps of the same plan that will have been done when its turn comes. Raises the
        error that says why the step must not run.
        """
        ...

    def apply(self, host: Host, step: Step, timeout_s: float) -> str:
        """Do it, and return what was done as a sentence.

        Whatever it raises, the target is left running and unlocked, or dead on purpose.
        """
        ...

    def verify(self, host: Host, step: Step) -> bool:
        """Whether the target is in the state that the step promised. Bytes are measured by the executor."""
        ...


def target_of(step: Step) -> Target:
    """The process that *step* acts on. Raises where it has none."""
    if step.target is None:
        raise UsageError(f"a {step.kind} needs a process")
    return step.target


def action(kind: StepKind) -> Action:
    """The action of that kind."""
    module, _, name = ACTIONS[kind].partition(":")
    return cast("Action", getattr(import_module(module), name)())


def up_to(most_harmful: StepKind) -> tuple[StepKind, ...]:
    """The actions up to *most_harmful*, least harm first. A reset is never part of a plan for memory."""
    return tuple(kind for kind in ORDER[: ORDER.index(most_harmful) + 1] if kind != "reset")
