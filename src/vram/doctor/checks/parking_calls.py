"""parking.calls  Can the driver move a process's memory to the host and back?

What is looked at
-----------------
The driver's version, and whether libcuda has the five calls for it and starts. They are tried on
nobody: that is done by `vram park`, after its own preflight.

What it means
-------------
Driver 570 and later park, on ARM 595 and later. Memory that processes share by IPC needs 610 and a start
under `cuda-checkpoint --launch-job`. Managed memory, MIG and MPS are refused by every driver so far.

What to do
----------
Install a newer driver. Until then `vram trim` and `vram kill` are what there is.
"""

from __future__ import annotations

from vram.doctor.answers import NO_DRIVER, Answer, ok
from vram.doctor.sight import Sight
from vram.model.doctor import Topic, Verb
from vram.reclaim.preflight import CHECKPOINT_SINCE, ON_ARM_SINCE

ID = "parking.calls"
TOPIC: Topic = "parking"
VERBS: tuple[Verb, ...] = ("park", "borrow", "free")
OPTIONAL = False

_IPC_SINCE = 610
_MEANS = "vram park and borrow refuse; vram free never parks."


def judge(sight: Sight) -> Answer:
    version = sight.driver.driver_version
    if version is None:
        return NO_DRIVER
    if sight.survey.host.wsl:
        return Answer(
            state="missing",
            seen="not under WSL: there the driver in the kernel is the one of Windows",
            means=_MEANS,
            fix="Trim or end processes instead; nothing here can change it.",
        )
    since = ON_ARM_SINCE if sight.premises.machine == "aarch64" else CHECKPOINT_SINCE
    major = int(version.split(".")[0]) if version.split(".")[0].isdigit() else 0
    trial = sight.driver_trial
    if major < since or trial.lacks:
        return Answer(
            state="missing",
            seen=f"driver {version} cannot park" + (f": {trial.lacks[0]} is missing" if trial.lacks else ""),
            details=tuple(f"libcuda has no {name}" for name in trial.lacks),
            means=_MEANS,
            fix=f"Install a driver of version {since} or later.",
        )
    if trial.init_code != 0:
        return Answer(
            state="missing",
            seen="libcuda cannot be asked",
            means=_MEANS,
            fix="Do what driver.cuda says.",
        )
    shared = "" if major >= _IPC_SINCE else f"; memory shared by IPC from {_IPC_SINCE} on"
    return ok(f"driver {major} parks{shared}", "the calls are there, and were tried on nobody")
