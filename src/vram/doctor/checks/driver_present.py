"""driver.present  Is there an NVIDIA driver, and does it answer?

What is looked at
-----------------
GPUs on the PCI bus, the kernel's modules, and whether the management library could be asked.

What it means
-------------
Without a driver no command has anything to work on; `vram demo` and `vram virtual` need none.

What to do
----------
- GPUs on the bus and no module: install the driver, or load it (`modprobe nvidia`).
- nouveau is loaded: it keeps the NVIDIA driver out; blacklist it and restart.
- The module is loaded and the library is missing: in a container the runtime has to bring it
  (`docker run --gpus all`), elsewhere the driver's library package is not installed.
- The module is loaded and its device files are missing: driver.nodes says what brings them.
"""

from __future__ import annotations

from vram.diagnosis.remedies import KERNEL_LOG
from vram.doctor.answers import Answer, not_applicable, ok
from vram.doctor.sight import Sight
from vram.model.doctor import Topic, Verb
from vram.units import counted

ID = "driver.present"
TOPIC: Topic = "driver"
VERBS: tuple[Verb, ...] = ("why", "who", "check", "free", "trim", "park", "borrow", "kill", "reset", "deep")
OPTIONAL = False

_NOTHING = "No command has a GPU to look at; `vram demo` shows what they do, without one."


def judge(sight: Sight) -> Answer:
    if sight.driver.driver_version is not None or sight.gpus:
        return _there(sight)
    if sight.no_driver is None:
        return Answer(
            state="broken",
            seen="a driver is installed, and did not answer",
            means="Commands can tell nothing of any GPU until it does.",
            fix="driver.nvml says which call failed.",
        )
    if sight.other_gpus and not sight.premises.driver.nvidia_devices:
        return not_applicable("no NVIDIA GPU: see gpu.others")
    seen, fix, command = _absence(sight)
    return Answer(
        state="missing", seen=seen, details=(sight.no_driver,), means=_NOTHING, fix=fix, command=command
    )


def _there(sight: Sight) -> Answer:
    kind = {True: ", open kernel module", False: ", proprietary kernel module", None: ""}
    cuda = f", CUDA {sight.driver.cuda_version}" if sight.driver.cuda_version else ""
    words = f"driver {sight.driver.driver_version or 'of unknown version'}{cuda}"
    if sight.virtual:
        return ok(f"virtual {words}", "virtual GPUs: what is seen is the model, not hardware")
    return ok(words + kind[sight.premises.driver.open_module])


def _absence(sight: Sight) -> tuple[str, str, str]:
    files, wsl = sight.premises.driver, sight.survey.host.wsl_facts
    if wsl is not None:
        return "no driver under WSL", "See place.wsl: there the driver is the one of Windows.", ""
    if files.module_version:
        return _unreached(sight, f"kernel module {files.module_version} is loaded")
    if "nouveau" in files.modules:
        return (
            "nouveau drives the NVIDIA GPU",
            "Blacklist nouveau, install the NVIDIA driver, restart.",
            "",
        )
    if files.nvidia_devices:
        found = f"{counted(files.nvidia_devices, 'NVIDIA GPU')} on the bus, no driver loaded"
        return found, "Install the NVIDIA driver; if it is installed, load it.", "sudo modprobe nvidia"
    return "no NVIDIA GPU on the PCI bus, and no driver", "Try vram on a virtual GPU.", "vram demo"


def _unreached(sight: Sight, loaded: str) -> tuple[str, str, str]:
    """The driver runs, and what leads to it is not here: libraries, device files, or neither is told."""
    start = "docker run --gpus all …" if sight.premises.container else ""
    if sight.lacks_library:
        fix = "Let the container runtime bring the driver's libraries; outside of one, install them."
        return f"{loaded}, its libraries are missing", fix, start
    if not sight.premises.nodes:
        return f"{loaded}, its device files are missing", "See driver.nodes: it says what brings them.", start
    return f"{loaded}, and does not answer", "Read what the kernel's log says of the driver.", KERNEL_LOG
