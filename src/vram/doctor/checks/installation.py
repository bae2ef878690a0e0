"""vram itself: what is installed, and can it write down what it does?"""

from __future__ import annotations

import os

from vram.doctor.check import (
    EVERY_COMMAND,
    NEEDED,
    UNFINISHED,
    CheckAnswer,
    DoctorFacts,
    broken,
    check,
    missing,
    ok,
)
from vram.units import MIB, size

_LITTLE = 1 * MIB
_MEANS = "Without an audit log free, trim, park, borrow, kill and reset refuse to act."


@check("vram.records", ("free", "trim", "park", "borrow", "kill", "reset"))
def check_records(facts: DoctorFacts) -> CheckAnswer:
    """vram.records  Can vram write its audit log?

    What it checks:
    The folder $XDG_STATE_HOME/vram (or ~/.local/state/vram) and the audit log in it: whether only this user
    can write to it, whether others could replace a folder above it, and whether the disk has room. Nothing
    is created or written.

    What it means:
    Without the log `vram free`, `trim`, `park`, `borrow`, `kill` and `reset` refuse to act. Commands that
    only read still work.

    What to do:
    Make it a folder of your own with mode 0700, or set XDG_STATE_HOME to one.
    """
    records = facts.records
    if records.error is not None:
        return broken(
            seen=records.error,
            means=_MEANS,
            fix=f"{records.hint[:1].upper()}{records.hint[1:]}.",
            command="export XDG_STATE_HOME=$(mktemp -d)",
        )
    if records.free_bytes is not None and records.free_bytes < _LITTLE:
        return broken(
            seen=f"the disk of {records.path} is full ({size(records.free_bytes)} left)",
            means=_MEANS,
            fix="Free some space on it, or set XDG_STATE_HOME to a folder on another disk.",
            command=f"df -h {records.path if records.exists else '~'}",
        )
    there = records.path if records.exists else f"{records.path}, created when first needed"
    return ok("the audit log is writable", there)


_COSTS = {
    "libvramscan.so": "reading open files takes longer",
    "libvrambuffer.so": "vram.Buffer cannot export by DLPack",
    "libcuda.so.1": "vram demo and virtual do not work",
    "libnvidia-ml.so.1": "vram demo and virtual do not work",
    "libvramvisitor.so": "trim, attach and why --deep enter Python programs only",
    "libvramtracer.so": "vram run and attach cannot record",
    "libvramreader.so": "vram report cannot read recordings",
    "libvramlines.so": "frames of native code have no lines",
}


@check("vram.native", ("why", "who", "check"), optional=True)
def check_native(facts: DoctorFacts) -> CheckAnswer:
    """vram.native  Do vram's own native libraries load?

    What it checks:
    Each library is loaded once, in a child process.

    What it means:
    libvramscan: without it /proc is scanned in Python, slower, with the same results.
    libvrambuffer: without it `vram.Buffer` cannot export memory by DLPack, and calls the driver from
    Python, which is slower. libcuda and libnvidia-ml of the virtual GPU: without them `vram demo` and
    `vram virtual` do not work. libvramvisitor: without it `vram trim`, `attach` and `why --deep` enter Python
    programs only. libvramtracer: without it `vram run` and `attach` cannot record; libvramreader: `vram
    report` cannot read recordings; libvramlines: frames of native code have no lines.
    The wheel for any machine has none of them: why, ps, who, oom, free, kill, park and serve work.

    What to do:
    Install vram from a wheel for this platform; in a checkout run `python native/build.py`.
    """
    natives = facts.kernel_test.natives
    if not natives:
        return UNFINISHED
    failing = {os.path.basename(path): error for path, error in natives.items() if error}
    if not failing:
        return ok("all native parts load", *(f"loads: {path}" for path in natives))
    get_native = facts.program.get_native
    costs = dict.fromkeys(_COSTS.get(name, "") for name in failing)
    sentence = "; ".join(cost for cost in costs if cost)
    return missing(
        seen=f"cannot be loaded: {', '.join(failing)}",
        details=tuple(f"{name}: {error}" for name, error in failing.items()),
        means=f"{sentence[:1].upper()}{sentence[1:]}.",
        fix=f"{get_native[:1].upper()}{get_native[1:]}.",
    )


@check("vram.python", EVERY_COMMAND)
def check_python(facts: DoctorFacts) -> CheckAnswer:
    """vram.python  Which versions of vram, Python and their packages are these?

    What it checks:
    The versions of vram, of Python, and of the packages that vram imports.

    What it means:
    vram needs Python 3.10 or later, msgspec, nvidia-ml-py and rich. Any nvidia-ml-py since 12.535 works,
    also one that is older or newer than the driver.

    What to do:
    Install the packages with the command that is shown.
    """
    program = facts.program
    absent = [name for name in NEEDED if program.packages.get(name) is None]
    if absent:
        return broken(
            seen=f"not installed: {', '.join(absent)}",
            means="vram cannot read the driver." if "nvidia-ml-py" in absent else "Commands fail.",
            fix="Install the missing packages.",
            command=program.add_base or f"pip install {' '.join(absent)}",
        )
    versions = tuple(f"{name} {program.packages[name]}" for name in NEEDED)
    return ok(f"vram {program.vram} on {program.python}", *versions)


@check("vram.jupyter", ("trim", "deep"), optional=True)
def check_jupyter(facts: DoctorFacts) -> CheckAnswer:
    """vram.jupyter  Is the extra for Jupyter kernels installed?

    What it checks:
    Whether pyzmq can be imported in vram's environment.

    What it means:
    `vram trim` and `vram why --deep` talk to Jupyter kernels with it. Nothing else needs it.

    What to do:
    Install pyzmq into the environment that vram runs in, with the command that is shown.
    """
    version = facts.program.packages.get("pyzmq")
    if version is not None:
        return ok(f"pyzmq {version}")
    return missing(
        seen="pyzmq is not installed",
        means="vram trim and why --deep cannot reach Jupyter kernels.",
        fix="Install the extra if you use notebooks.",
        command=facts.program.add_jupyter,
    )
