"""What every rung of the ladder offers: four verbs; and a fifth for who has more to say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from vram.errors import VramError
from vram.host.ports import Host
from vram.model.plan import Step, StepKind


class Unkillable(VramError):
    """A process that no signal ends now: it is said once and not tried again."""


class Unfinished(VramError):
    """The target was touched, and not all was done: no refusal, for those touch nothing."""


class Rung(Protocol):
    """One kind of step. It never chooses: what it does is written in the step.

    ``check`` raises the error that says why the step must not run, having touched nothing; *before*
    are the steps of the same plan that will have been done when its turn comes.
    ``apply`` acts and returns a sentence; whatever it raises, the target is left running
    and unlocked, or dead on purpose. ``verify`` tells whether the target is in the state
    that the step promised; bytes are measured by the executor.
    """

    kind: StepKind

    def check(self, host: Host, step: Step, before: Sequence[Step] = ()) -> None: ...
    def describe(self, step: Step) -> str: ...
    def apply(self, host: Host, step: Step, deadline_s: float) -> str: ...
    def verify(self, host: Host, step: Step) -> bool: ...


@runtime_checkable
class Preparing(Protocol):
    """A rung that adds to a step while the plan is made, before ``check``, having touched nothing.

    What only it can know beforehand: the way it takes (``via``), what comes back, what is lost.
    """

    def prepare(self, host: Host, step: Step) -> Step: ...
