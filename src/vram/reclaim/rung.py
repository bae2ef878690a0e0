"""What every rung of the ladder offers: four verbs, and a word while the plan is made."""

from __future__ import annotations

from typing import Protocol

from vram.errors import VramError
from vram.host.ports import Host
from vram.model.plan import Step, StepKind


class Unkillable(VramError):
    """A process that no signal ends now: it is said once and not tried again."""


class Rung(Protocol):
    """One kind of step. It never chooses: what it does is written in the step.

    ``prepare`` is asked while the plan is made, before ``check``: it returns the step with
    what only this rung can know beforehand (``via``, ``predicted_bytes``, ``loses``), having
    touched nothing; the step is returned as it is where there is nothing to add.
    ``check`` raises the error that says why the step must not run, having touched nothing.
    ``apply`` acts and returns a sentence; whatever it raises, the target is left running
    and unlocked, or dead on purpose. ``verify`` tells whether the target is in the state
    that the step promised; bytes are measured by the executor.
    """

    kind: StepKind

    def prepare(self, host: Host, step: Step) -> Step: ...
    def check(self, host: Host, step: Step) -> None: ...
    def describe(self, step: Step) -> str: ...
    def apply(self, host: Host, step: Step, deadline_s: float) -> str: ...
    def verify(self, host: Host, step: Step) -> bool: ...
