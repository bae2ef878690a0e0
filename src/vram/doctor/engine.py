"""The examination: every check is asked once, and the gravest answer that counts is the verdict."""

from __future__ import annotations

from collections.abc import Iterable

from vram.doctor.answers import Answer, Check
from vram.doctor.checks import (
    attach_routes,
    cupti,
    device_nodes,
    driver_present,
    driver_versions,
    gpu_bar1,
    gpu_compute_mode,
    gpu_memory_health,
    gpu_mig,
    gpu_mps,
    gpu_others,
    gpu_persistence,
    libcuda,
    nvml,
    parking_calls,
    parking_room,
    permission_pidfd,
    permission_processes,
    permission_ptrace,
    place_container,
    place_namespace,
    place_wsl,
    python_targets,
    vendor_tool,
    vram_jupyter,
    vram_native,
    vram_python,
    vram_records,
)
from vram.doctor.sight import Sight
from vram.model.doctor import CheckResult, Examination, Verdict

CHECKS: tuple[Check, ...] = (
    driver_present,
    driver_versions,
    nvml,
    libcuda,
    device_nodes,
    vendor_tool,
    gpu_memory_health,
    gpu_mig,
    gpu_mps,
    gpu_persistence,
    gpu_compute_mode,
    gpu_bar1,
    gpu_others,
    permission_processes,
    permission_pidfd,
    permission_ptrace,
    place_namespace,
    place_container,
    place_wsl,
    parking_calls,
    parking_room,
    attach_routes,
    python_targets,
    cupti,
    vram_records,
    vram_native,
    vram_python,
    vram_jupyter,
)


def examine(sight: Sight, verb: str | None = None) -> Examination:
    """Ask every check, or only those that bear on *verb*. It never raises."""
    asked = [check for check in CHECKS if verb is None or verb in check.VERBS]
    readings = tuple(_reading(check, sight) for check in asked)
    return Examination(verdict=_verdict(readings, sight), readings=readings)


def _reading(check: Check, sight: Sight) -> CheckResult:
    answer = _answer(check, sight)
    return CheckResult(
        check=check.ID,
        topic=check.TOPIC,
        state=answer.state,
        seen=answer.seen,
        details=answer.details,
        means=answer.means,
        fix=answer.fix,
        command=answer.command,
        verbs=check.VERBS,
        optional=check.OPTIONAL,
    )


def _answer(check: Check, sight: Sight) -> Answer:
    try:
        return check.judge(sight)
    except Exception as error:  # one check that fails must not cost the answers of the others
        seen = f"the check itself failed: {type(error).__name__}: {error}"
        return Answer(state="unknown", seen=seen, fix="This is a bug in vram: please report it.")


def _verdict(readings: Iterable[CheckResult], sight: Sight) -> Verdict:
    states = {reading.state for reading in readings if not reading.optional}
    if sight.no_driver is not None and not sight.gpus and not sight.other_gpus:
        return "no-driver"
    if "broken" in states:
        return "broken"
    return "limited" if states & {"limited", "missing", "unknown"} else "ready"
