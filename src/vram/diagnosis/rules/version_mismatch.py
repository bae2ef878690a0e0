"""VR501 Versions differ: the driver's kernel module and its libraries do not match.

What it detects
---------------
The loaded kernel module and the driver's user-space library have different versions.

Why it happens
--------------
The driver was upgraded while the old module stayed loaded (unattended upgrades do that), or a
container or LD_LIBRARY_PATH brings libraries of another version. NVML then refuses to work:
"Driver/library version mismatch". Running programs continue; new ones cannot start.

How to confirm
--------------
Compare the module that is loaded with the library on disk:

    cat /proc/driver/nvidia/version
    ldconfig -p | grep libnvidia-ml

Remedies and their risk
-----------------------
- In a container or with LD_LIBRARY_PATH set: make it use the host's libraries. No risk.
- Restart the machine when convenient: the new module is loaded. Everything on it ends.
- To reload the modules without a restart, every process on every GPU has to end first, including
  display and monitoring.

Source
------
NVML's own error text; the remedy follows from how kernel modules are loaded. Not measured here.
"""

from __future__ import annotations

from collections.abc import Iterator

from vram.diagnosis import words
from vram.model.finding import Finding, Remedy
from vram.model.gpu import DriverFacts
from vram.model.ledger import Ledger
from vram.model.observation import NVML_MISMATCH

CODE = "VR501"


def judge(ledger: Ledger) -> Iterator[Finding]:
    versions = _differing(ledger.driver)
    told = [probe.message for probe in ledger.probes if probe.code == NVML_MISMATCH]
    if versions or told:
        yield _finding(ledger, versions, [message for message in told if message])


def _differing(driver: DriverFacts | None) -> tuple[str, str] | None:
    """The kernel's and the library's version where both are known and differ."""
    if driver is None or driver.virtual:
        return None
    module, library = driver.module_version, driver.library_version
    # NVML's own version carries the CUDA release in front: 13.580.159.04 is driver 580.159.04.
    if not module or not library or module == library or library.endswith(f".{module}"):
        return None
    return module, library


def _finding(ledger: Ledger, versions: tuple[str, str] | None, told: list[str]) -> Finding:
    cause = "The driver's kernel module and its library have different versions. New programs cannot start."
    if versions:
        module, library = map(words.shown, versions)
        cause = (
            f"The kernel module has version {module}, the library {library}. New programs may fail to start."
        )
        told = [*told, f"kernel module {module}", f"library {library}"]
    return Finding(
        code=CODE,
        title="The driver's kernel module and its library have different versions",
        nbytes=None,
        cause=cause,
        gpus=tuple(gpu.index for gpu in ledger.gpus),
        evidence=words.evidence(told),
        remedies=_remedies(),
    )


def _remedies() -> tuple[Remedy, ...]:
    return (
        Remedy(
            step="look",
            target="host",
            text="Compare the loaded module with the library that programs find.",
            command="cat /proc/driver/nvidia/version; ldconfig -p | grep libnvidia-ml",
        ),
        Remedy(
            step="service",
            target="host",
            text="Restart the machine when convenient, so that the new module is loaded.",
            harm="affects-others",
        ),
    )
