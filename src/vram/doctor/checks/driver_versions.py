"""driver.versions  Do the kernel's module and the driver's libraries have the same version?

What is looked at
-----------------
The module that is loaded (/proc/driver/nvidia/version, /sys/module/nvidia/version), the management
library, and the file name of the libcuda that a program here would load.

What it means
-------------
Libraries and module talk in a language of their own for each version. After an upgrade without a
restart, or in a container that brings its own libraries, new programs fail at once ("Driver/library
version mismatch"); those that already run go on. A libcuda from a `compat` folder may be newer.

What to do
----------
- Restart the machine, or end everything on the GPUs and load the module again.
- In a container, or with LD_LIBRARY_PATH: use the host's libraries.
"""

from __future__ import annotations

from vram.diagnosis.driver_words import tell_mismatch
from vram.doctor.answers import NO_DRIVER, Answer, not_applicable, ok
from vram.doctor.sight import Sight
from vram.model.doctor import Topic, Verb

ID = "driver.versions"
TOPIC: Topic = "driver"
VERBS: tuple[Verb, ...] = ("why", "who", "check", "free", "park", "borrow", "reset")
OPTIONAL = False


def judge(sight: Sight) -> Answer:
    versions = _versions(sight)
    said = [each.message for each in sight.survey.observations if tell_mismatch(each.message)]
    if said or len(set(versions.values())) > 1:
        return _differ(sight, versions, [message for message in said if message])
    if sight.virtual:
        return not_applicable("a virtual GPU has no kernel module")
    if not versions:
        return NO_DRIVER
    version = next(iter(versions.values()))
    return ok(f"{', '.join(versions)} agree" if len(versions) > 1 else f"only one is known: {version}")


def _versions(sight: Sight) -> dict[str, str]:
    if sight.virtual:
        return {}
    trial, files = sight.driver_trial, sight.premises.driver
    compat = "/compat" in (trial.path or "")
    known = {
        "kernel module": files.module_version or files.installed_version,
        "NVML": sight.driver.library_version,
        "libcuda": None if compat else trial.library_version,
    }
    return {name: version for name, version in known.items() if version}


def _differ(sight: Sight, versions: dict[str, str], said: list[str]) -> Answer:
    seen = ", ".join(f"{name} {version}" for name, version in versions.items())
    contained = sight.premises.container is not None
    return Answer(
        state="broken",
        seen=seen if len(set(versions.values())) > 1 else "module and libraries have different versions",
        details=(*said, *((f"libcuda is {sight.driver_trial.path}",) if sight.driver_trial.path else ())),
        means="New programs cannot use the GPU; vram sees open files, and neither totals nor lists.",
        fix="Let the container use the host's libraries."
        if contained
        else "Restart the machine when its work allows, so that the module on disk is loaded.",
    )
