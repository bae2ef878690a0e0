"""driver.nvml  Does the management library answer for every GPU, and in time?

What is looked at
-----------------
Every call that `vram why` makes, in a process that can be ended: which failed, hung, or were denied.

What it means
-------------
A GPU that does not answer is missing from every ledger (the others are there), and nothing is planned
on it. Calls that never return mean a driver in trouble: other programs hang there as well.

What to do
----------
- Read the kernel's log for Xid and NVRM lines.
- A lost GPU, or one that asks for it: `vram reset GPU` names what is in the way of a reset.
- Under Python without nvidia-ml-py: install it.
"""

from __future__ import annotations

from vram.diagnosis.driver_words import tell_mismatch
from vram.diagnosis.remedies import KERNEL_LOG, SUDO_VRAM
from vram.doctor.answers import NO_DRIVER, Answer, ok
from vram.doctor.sight import Sight
from vram.model.doctor import State, Topic, Verb
from vram.model.observation import Observation
from vram.units import counted

ID = "driver.nvml"
TOPIC: Topic = "driver"
VERBS: tuple[Verb, ...] = ("why", "who", "check", "free", "trim", "park", "borrow", "reset", "deep")
OPTIONAL = False

_GRAVE = ("timeout", "lost", "failed")


def judge(sight: Sight) -> Answer:
    told = [each for each in sight.survey.observations if each.probe.startswith("nvml")]
    troubles = [each for each in told if each.status in (*_GRAVE, "denied")]
    if sight.no_driver is not None and not sight.gpus and not troubles:
        return NO_DRIVER
    if troubles:
        return _trouble(sight, troubles)
    run = next((run for run in sight.survey.probes if run.name == "nvml"), None)
    took = f" in {run.duration_s * 1000:.0f} ms" if run else ""
    return ok(f"NVML answers for {counted(len(sight.gpus), 'GPU')}{took}")


def _trouble(sight: Sight, troubles: list[Observation]) -> Answer:
    worst = next((each for each in troubles if each.status in _GRAVE), troubles[0])
    state: State = "broken" if worst.status in _GRAVE else "limited"
    fix, command = _way_out(worst)
    return Answer(
        state=state,
        seen=_said(worst),
        details=tuple(_said(each) for each in troubles if each is not worst),
        means="What does not answer is missing from every ledger; nothing is planned on it."
        if sight.gpus
        else "No command can tell anything of the GPUs.",
        fix=fix,
        command=command,
    )


def _said(each: Observation) -> str:
    where = "" if each.gpu is None else f"GPU {each.gpu}: "
    return f"{where}{each.status}: {each.message or each.probe}"


def _way_out(worst: Observation) -> tuple[str, str]:
    message = worst.message or ""
    if "nvidia-ml-py" in message:
        return "Install what vram reads the driver with.", "pip install --upgrade nvidia-ml-py"
    if tell_mismatch(message):
        return "Do what driver.versions says.", ""
    if worst.status == "lost":
        return "See what keeps the GPU from being reset.", f"vram reset {worst.gpu}"
    if worst.status == "denied":
        return "Let somebody run it who may ask the driver.", f"{SUDO_VRAM} doctor"
    return "Read what the kernel's log says of the driver; as a rule the machine has to restart.", KERNEL_LOG
