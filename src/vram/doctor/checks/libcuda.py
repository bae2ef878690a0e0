"""driver.cuda  Can a program use CUDA here?

What is looked at
-----------------
libcuda.so.1 is loaded and initialised (`cuInit`) in a process of its own, under a deadline. No context
is made; while that process lives it takes about 3 MiB of each GPU. MPS is not asked to serve it, and
neither CUDA_VISIBLE_DEVICES nor CUDA_INJECTION64_PATH have a say.

What it means
-------------
`vram park`, `unpark` and `borrow` make driver calls; `vram why` proves exported memory by them. Where
CUDA does not start, these do not work, and nobody else's programs do either.

What to do
----------
- The library is missing: in a container ask for it (NVIDIA_DRIVER_CAPABILITIES=compute,utility).
- Error 802: the fabric manager of a machine with NVSwitch does not run.
- Error 803 or 804: libraries that do not belong to the driver; see driver.versions.
- Error 100: every GPU is hidden, taken away, or in the compute mode "prohibited".
- Error 999 or 304: the kernel's log tells more; often a module (nvidia_uvm) is not loaded.
"""

from __future__ import annotations

from vram.diagnosis.remedies import KERNEL_LOG
from vram.doctor.answers import NO_DRIVER, Answer, not_tried, ok
from vram.doctor.sight import Sight
from vram.model.doctor import Topic, Verb
from vram.model.surroundings import DriverTrial
from vram.units import counted

ID = "driver.cuda"
TOPIC: Topic = "driver"
VERBS: tuple[Verb, ...] = ("why", "park", "borrow")
OPTIONAL = False

_MEANS = "vram park, unpark and borrow do not work; vram why cannot prove exported memory."
_UVM = "sudo nvidia-modprobe -u -c=0"
_ERRORS = {
    34: ("this is a stub, for linking only", "Take the folder `stubs` out of LD_LIBRARY_PATH.", ""),
    100: ("no GPU is to be had", "Look at driver.nodes, gpu.mig and gpu.compute-mode.", ""),
    304: ("the operating system refused", "Look at driver.nodes; load nvidia_uvm.", _UVM),
    802: (
        "the system is not ready",
        "Start the fabric manager, which connects the GPUs of this machine.",
        "sudo systemctl start nvidia-fabricmanager",
    ),
    803: ("driver and library do not belong together", "See driver.versions.", ""),
    804: ("this GPU allows no newer library", "Take the folder `compat` out of LD_LIBRARY_PATH.", ""),
    999: ("unknown error", "Read the kernel's log; load nvidia_uvm if it is not.", _UVM),
}


def judge(sight: Sight) -> Answer:
    trial = sight.driver_trial
    if trial.not_tried is not None:
        return not_tried(trial.not_tried)
    if trial.error is not None:
        return _no_library(sight, trial.error)
    if stuck := trial.hung_in or trial.died_in:
        word = "did not answer in time" if trial.hung_in else "ended the process that called it"
        return Answer(
            state="broken",
            seen=f"{stuck} {word}",
            means=_MEANS,
            fix="Read what the kernel's log says of the driver.",
            command=KERNEL_LOG,
        )
    if trial.init_code:
        return _no_start(trial, trial.init_code)
    took = f" in {trial.took_s * 1000:.0f} ms" if trial.took_s is not None else ""
    return ok(f"CUDA starts{took}", *_about(trial))


def _no_library(sight: Sight, error: str) -> Answer:
    if sight.no_driver is not None and not sight.gpus:
        return NO_DRIVER
    contained = sight.premises.container is not None
    return Answer(
        state="missing",
        seen="libcuda.so.1 cannot be loaded",
        details=(error,),
        means=_MEANS,
        fix="Ask the container runtime for it."
        if contained
        else "Install the driver's package for computing.",
        command="docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility …" if contained else "",
    )


def _no_start(trial: DriverTrial, code: int) -> Answer:
    word, fix, command = _ERRORS.get(code, ("", "Read the kernel's log for NVRM and Xid lines.", ""))
    return Answer(
        state="broken",
        seen=f"cuInit answered CUDA error {code}" + (f": {word}" if word else ""),
        details=_about(trial),
        means=_MEANS,
        fix=fix,
        command=command,
    )


def _about(trial: DriverTrial) -> tuple[str, ...]:
    told = (
        f"libcuda is {trial.path}" if trial.path else "",
        f"it speaks CUDA {trial.cuda_version}" if trial.cuda_version else "",
        f"it counts {counted(trial.gpus, 'GPU')}" if trial.gpus is not None else "",
    )
    return tuple(each for each in told if each)
