"""driver.nodes  Are the driver's files in /dev there, and may we use them?

What is looked at
-----------------
/dev/nvidiactl, /dev/nvidia-uvm and one /dev/nvidiaN for each GPU: whether they exist, and whether we
may read and write them. Nothing is opened.

What it means
-------------
A GPU without its file is not there for us. Without nvidia-uvm no CUDA program starts. In containers
and Slurm jobs the files of GPUs that were not given to us are missing on purpose.

What to do
----------
- Missing: `nvidia-modprobe -u -c=0` makes them; a container has to be given them.
- Not permitted: join the group that owns them, or have its rule in udev changed.
"""

from __future__ import annotations

from vram.doctor.answers import NO_DRIVER, Answer, not_applicable, ok
from vram.doctor.sight import Sight
from vram.model.doctor import Topic, Verb
from vram.model.surroundings import DeviceNode

ID = "driver.nodes"
TOPIC: Topic = "driver"
VERBS: tuple[Verb, ...] = ("why", "who", "check", "free", "park", "borrow")
OPTIONAL = False

_NEEDED = ("/dev/nvidiactl", "/dev/nvidia-uvm")
_IN_PASSING = ("/dev/nvidia-modeset", "/dev/nvidia-uvm-tools")


def judge(sight: Sight) -> Answer:
    if sight.virtual:
        return not_applicable("a virtual GPU has its own")
    if sight.survey.host.wsl:
        return not_applicable("under WSL the one is /dev/dxg: see place.wsl")
    if sight.premises.driver.module_version is None and not sight.gpus:
        return NO_DRIVER
    there = {node.path for node in sight.premises.nodes}
    missing = [path for path in (*_NEEDED, *_of_gpus(sight)) if path not in there]
    barred = [node for node in sight.premises.nodes if not node.usable and node.path not in _IN_PASSING]
    if barred:
        return _barred(barred)
    if missing:
        return _missing(sight, missing)
    return ok(f"{len(there)} device files, all usable")


def _of_gpus(sight: Sight) -> list[str]:
    return [f"/dev/nvidia{gpu.minor}" for gpu in sight.gpus.values() if gpu.minor is not None]


def _barred(nodes: list[DeviceNode]) -> Answer:
    first = nodes[0]
    opens = first.mode & 0o060 == 0o060 and first.group != "root"
    return Answer(
        state="broken",
        seen=f"{first.path} is closed to us ({first.user}:{first.group}, mode {first.mode:o})",
        details=tuple(f"{node.path}: {node.user}:{node.group}, mode {node.mode:o}" for node in nodes[1:]),
        means="The driver refuses programs of this user; commands see what others may see.",
        fix="Join the group that owns it, and log in again."
        if opens
        else "Have whoever runs the machine open it to you.",
        command=f"sudo usermod -aG {first.group} $USER" if opens else "",
    )


def _missing(sight: Sight, paths: list[str]) -> Answer:
    contained = sight.premises.container is not None
    return Answer(
        state="missing",
        seen=f"{', '.join(paths[:3])} {'is' if len(paths) == 1 else 'are'} not there",
        details=tuple(f"{path} is not there" for path in paths[3:]),
        means="No CUDA program starts here without nvidia-uvm; a GPU without its file cannot be used.",
        fix="Give the container its GPUs." if contained else "Have the driver make its files.",
        command="docker run --gpus all …" if contained else "sudo nvidia-modprobe -u -c=0",
    )
