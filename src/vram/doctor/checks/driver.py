"""The NVIDIA driver: is it there, does it answer, may we use it?"""

from __future__ import annotations

from vram.diagnosis.remedies import KERNEL_LOG, SUDO_VRAM
from vram.doctor.check import (
    EVERY_COMMAND,
    NO_DRIVER,
    CheckAnswer,
    DoctorFacts,
    broken,
    check,
    limited,
    missing,
    not_applicable,
    not_tried,
    ok,
)
from vram.doctor.driver_branches import AS_OF, LAST_FOR, SOURCE, Branch, branch_of, month, successor
from vram.model.doctor import DeviceNode, DriverTest, State
from vram.model.observation import NO_NVML_BINDING, NVML_BINDING_TOO_NEW, NVML_MISMATCH, Observation
from vram.units import counted

_NOTHING = "Without a GPU there is nothing to report; `vram demo` shows what vram does on a virtual one."


@check("driver.present", EVERY_COMMAND)
def check_present(facts: DoctorFacts) -> CheckAnswer:
    """driver.present  Is there an NVIDIA driver, and does it answer?

    What it checks:
    GPUs on the PCI bus, the kernel's modules, and whether NVML answers.

    What it means:
    Without a driver commands have nothing to report; `vram demo` and `vram virtual` need none.

    What to do:
    - GPUs on the bus but no module: install the driver, or load it (`modprobe nvidia`).
    - nouveau is loaded and blocks the NVIDIA driver: blacklist it and restart.
    - The module is loaded but the library is missing: in a container the runtime has to add it
      (`docker run --gpus all`), elsewhere install the driver's library package.
    - The module is loaded but its device files are missing: driver.nodes says how to create them.
    """
    if facts.driver.driver_version is not None or facts.gpus:
        return _answer_present(facts)
    if facts.no_driver is None:
        return broken(
            seen="a driver is installed, but did not answer",
            means="Commands can report nothing about any GPU until it does.",
            fix="driver.nvml says which call failed.",
        )
    if facts.other_gpus and not facts.host_files.driver.nvidia_devices:
        return not_applicable("no NVIDIA GPU: see gpu.others")
    seen, fix, command = _explain_absence(facts)
    return missing(seen=seen, details=(facts.no_driver,), means=_NOTHING, fix=fix, command=command)


def _answer_present(facts: DoctorFacts) -> CheckAnswer:
    kind = {True: ", open kernel module", False: ", proprietary kernel module", None: ""}
    cuda = f", CUDA {facts.driver.cuda_version}" if facts.driver.cuda_version else ""
    words = f"driver {facts.driver.driver_version or 'of unknown version'}{cuda}"
    if facts.virtual:
        return ok(f"virtual {words}", "these are virtual GPUs, not hardware")
    return ok(words + kind[facts.host_files.driver.open_module])


def _explain_absence(facts: DoctorFacts) -> tuple[str, str, str]:
    files, wsl = facts.host_files.driver, facts.survey.host.wsl_facts
    if wsl is not None:
        return "no driver under WSL", "See place.wsl: under WSL the driver is Windows' driver.", ""
    if files.module_version:
        return _explain_unreached(facts, f"kernel module {files.module_version} is loaded")
    if "nouveau" in files.modules:
        fix = "Blacklist nouveau, install the NVIDIA driver, and restart."
        return "nouveau drives the NVIDIA GPU", fix, ""
    if files.nvidia_devices:
        found = f"{counted(files.nvidia_devices, 'NVIDIA GPU')} on the bus, but no driver loaded"
        return found, "Install the NVIDIA driver; if it is installed, load it.", "sudo modprobe nvidia"
    return "no NVIDIA GPU on the PCI bus and no driver", "Try vram on a virtual GPU.", "vram demo"


def _explain_unreached(facts: DoctorFacts, loaded: str) -> tuple[str, str, str]:
    """The driver runs, and what leads to it is not here: libraries, device files, or something unknown."""
    start = "docker run --gpus all …" if facts.host_files.container else ""
    if facts.lacks_library:
        fix = "Let the container runtime add the driver's libraries; outside a container, install them."
        return f"{loaded}, but its libraries are missing", fix, start
    if not facts.host_files.nodes:
        fix = "See driver.nodes: it says how to create them."
        return f"{loaded}, but its device files are missing", fix, start
    return f"{loaded}, but does not answer", "Read the driver's messages in the kernel log.", KERNEL_LOG


@check("driver.versions", ("why", "who", "check", "free", "park", "borrow", "reset"))
def check_versions(facts: DoctorFacts) -> CheckAnswer:
    """driver.versions  Do the kernel module and the driver's libraries have the same version?

    What it checks:
    The loaded module (/proc/driver/nvidia/version, /sys/module/nvidia/version), NVML, and the file name of
    the libcuda that a program here would load.

    What it means:
    Libraries and module work only with the same version. After an upgrade without a restart, or in a
    container that brings its own libraries, new programs fail at once ("Driver/library version mismatch");
    running ones continue. A libcuda from a `compat` folder may be newer.

    What to do:
    - Restart the machine, or end everything on the GPUs and load the module again.
    - In a container, or with LD_LIBRARY_PATH: use the host's libraries.
    """
    versions = _collect_versions(facts)
    said = [each.message for each in facts.survey.observations if each.code == NVML_MISMATCH]
    if said or len(set(versions.values())) > 1:
        return _answer_mismatch(facts, versions, [message for message in said if message])
    if facts.virtual:
        return not_applicable("a virtual GPU has no kernel module")
    if not versions:
        return NO_DRIVER
    version = next(iter(versions.values()))
    return ok(
        f"{', '.join(versions)} agree" if len(versions) > 1 else f"only one version is known: {version}"
    )


def _collect_versions(facts: DoctorFacts) -> dict[str, str]:
    if facts.virtual:
        return {}
    test, files = facts.driver_test, facts.host_files.driver
    compat = "/compat" in (test.path or "")
    known = {
        "kernel module": files.module_version or files.installed_version,
        "NVML": facts.driver.library_version,
        "libcuda": None if compat else test.library_version,
    }
    return {name: version for name, version in known.items() if version}


def _answer_mismatch(facts: DoctorFacts, versions: dict[str, str], said: list[str]) -> CheckAnswer:
    seen = ", ".join(f"{name} {version}" for name, version in versions.items())
    contained = facts.host_files.container is not None
    differs = len(set(versions.values())) > 1
    return broken(
        seen=seen if differs else "kernel module and libraries have different versions",
        details=(*said, *((f"libcuda is {facts.driver_test.path}",) if facts.driver_test.path else ())),
        means="New programs cannot use the GPU; vram can read open files, but no totals and no process"
        " lists.",
        fix="Make the container use the host's libraries."
        if contained
        else "Restart the machine when convenient, so that the module on disk is loaded.",
    )


@check("driver.age", (), optional=True)
def check_age(facts: DoctorFacts) -> CheckAnswer:
    """driver.age  Does NVIDIA still maintain this branch of the driver?

    What it checks:
    The first number of the driver's version is its branch. vram knows until when NVIDIA maintains each
    branch of the Linux driver, as published in September 2026. A branch that is newer than that, or not in
    the list, is not judged; neither is Windows' driver under WSL, whose versions are numbered differently.

    What it means:
    An ended branch gets no more fixes, neither for security nor for memory errors. vram works with it. An old
    driver does not hold memory of ended programs: a living process does, and `vram why` names it.

    What to do:
    - Install the long-term support branch, or any branch that is maintained.
    - Branch 580 is the last one for Maxwell, Pascal and Volta GPUs, 470 for Kepler, 390 for Fermi.
    """
    version = facts.driver.driver_version or facts.host_files.driver.module_version
    if facts.virtual:
        return not_applicable("a virtual GPU has no driver that could be old")
    if version is None:
        return NO_DRIVER
    if facts.survey.host.wsl_facts is not None:
        return not_applicable("under WSL the driver is Windows', with other version numbers")
    branch, today = branch_of(version), facts.survey.taken_at
    if branch is None:
        return not_applicable(f"vram does not know the branch of driver {version} (list of {month(AS_OF)})")
    if branch.has_ended(today):
        return _answer_ended(version, branch, successor(today))
    return ok(f"branch {branch.number} is maintained until {month(branch.end)}")


def _answer_ended(version: str, branch: Branch, newer: Branch | None) -> CheckAnswer:
    when = f"{'by' if branch.by else 'in'} {month(branch.end)}"
    target = f"branch {newer.number}, maintained until {month(newer.end)}" if newer else "a maintained branch"
    last = LAST_FOR.get(branch.number)
    return limited(
        seen=f"driver {version}: maintenance of branch {branch.number} ended {when}",
        details=(f"NVIDIA's list: {SOURCE}",),
        means="It gets no more fixes, neither for security nor for memory errors. vram works with it.",
        fix=f"Install {target}." + (f" {last} GPUs have no newer branch than this one." if last else ""),
    )


_GRAVE = ("timeout", "lost", "failed")


@check("driver.nvml", ("why", "who", "check", "free", "trim", "park", "borrow", "reset", "deep"))
def check_nvml(facts: DoctorFacts) -> CheckAnswer:
    """driver.nvml  Does NVML answer for every GPU, and in time?

    What it checks:
    Every call that `vram why` makes, in a child process that can be killed: which failed, hung, or were
    denied.

    What it means:
    A GPU that does not answer is missing in every ledger (the others are not affected), and nothing is
    planned on it. Calls that never return mean a driver fault: other programs hang there too.

    What to do:
    - Read the kernel log for Xid and NVRM lines.
    - A GPU that is lost or needs a reset: `vram reset GPU` says what prevents one.
    - nvidia-ml-py is missing: install it.
    """
    said = [each for each in facts.survey.observations if each.probe.startswith("nvml")]
    troubles = [each for each in said if each.status in (*_GRAVE, "denied")]
    if facts.no_driver is not None and not facts.gpus and not troubles:
        return NO_DRIVER
    if troubles:
        return _answer_trouble(facts, troubles)
    run = next((run for run in facts.survey.probes if run.name == "nvml"), None)
    took = f" in {run.duration_s * 1000:.0f} ms" if run else ""
    return ok(f"NVML answers for {counted(len(facts.gpus), 'GPU')}{took}")


def _answer_trouble(facts: DoctorFacts, troubles: list[Observation]) -> CheckAnswer:
    worst = next((each for each in troubles if each.status in _GRAVE), troubles[0])
    state: State = "broken" if worst.status in _GRAVE else "limited"
    fix, command = _suggest_fix(worst)
    return CheckAnswer(
        state=state,
        seen=_describe(worst),
        details=tuple(_describe(each) for each in troubles if each is not worst),
        means="GPUs that do not answer are missing in every ledger, and nothing is planned on them."
        if facts.gpus
        else "Commands can report nothing about the GPUs.",
        fix=fix,
        command=command,
    )


def _describe(each: Observation) -> str:
    where = "" if each.gpu is None else f"GPU {each.gpu}: "
    return f"{where}{each.status}: {each.message or each.probe}"


def _suggest_fix(worst: Observation) -> tuple[str, str]:
    if worst.code in (NO_NVML_BINDING, NVML_BINDING_TOO_NEW):
        return "Install the package that vram reads the driver with.", "pip install --upgrade nvidia-ml-py"
    if worst.code == NVML_MISMATCH:
        return "Follow driver.versions.", ""
    if worst.status == "lost":
        return "Check what prevents a reset of the GPU.", f"vram reset {worst.gpu}"
    if worst.status == "denied":
        return "Run it as a user with permission to query the driver.", f"{SUDO_VRAM} doctor"
    fix = "Read the driver's messages in the kernel log; usually the machine has to be restarted."
    return fix, KERNEL_LOG


_MEANS = "vram park, unpark and borrow do not work; vram why cannot prove exported memory."
_UVM = "sudo nvidia-modprobe -u -c=0"
_ERRORS = {
    34: ("this is a stub library, for linking only", "Remove the folder `stubs` from LD_LIBRARY_PATH.", ""),
    100: ("no GPU is available", "See driver.nodes, gpu.mig and gpu.compute-mode.", ""),
    304: ("the operating system refused the call", "See driver.nodes; load nvidia_uvm.", _UVM),
    802: (
        "the system is not ready",
        "Start the fabric manager, which connects the GPUs of this machine.",
        "sudo systemctl start nvidia-fabricmanager",
    ),
    803: ("driver and library do not match", "See driver.versions.", ""),
    804: (
        "this GPU does not support a newer library",
        "Remove the folder `compat` from LD_LIBRARY_PATH.",
        "",
    ),
    999: ("unknown error", "Read the kernel log; load nvidia_uvm if it is not loaded.", _UVM),
}


@check("driver.cuda", ("why", "park", "borrow"))
def check_cuda(facts: DoctorFacts) -> CheckAnswer:
    """driver.cuda  Can a program use CUDA here?

    What it checks:
    libcuda.so.1 is loaded and initialised (`cuInit`) in a child process, with a deadline. No context is
    created; while that process runs it uses about 3 MiB of each GPU. It does not use MPS, and ignores
    CUDA_VISIBLE_DEVICES and CUDA_INJECTION64_PATH.

    What it means:
    `vram park`, `unpark` and `borrow` call the driver, and `vram why` uses it to prove exported memory. If
    CUDA does not start, they do not work, and neither do other CUDA programs.

    What to do:
    - The library is missing: in a container set NVIDIA_DRIVER_CAPABILITIES=compute,utility.
    - Error 802: the fabric manager of a machine with NVSwitch is not running.
    - Error 803 or 804: the libraries do not match the driver; see driver.versions.
    - Error 100: every GPU is hidden, removed, or in compute mode "prohibited".
    - Error 999 or 304: read the kernel log; often a module (nvidia_uvm) is not loaded.
    """
    test = facts.driver_test
    if test.not_tried is not None:
        return not_tried(test.not_tried)
    if test.error is not None:
        return _answer_no_library(facts, test.error)
    if stuck := test.hung_in or test.died_in:
        word = "did not answer in time" if test.hung_in else "crashed the process that called it"
        return broken(
            seen=f"{stuck} {word}",
            means=_MEANS,
            fix="Read the driver's messages in the kernel log.",
            command=KERNEL_LOG,
        )
    if test.init_code:
        return _answer_no_start(test, test.init_code)
    took = f" in {test.took_s * 1000:.0f} ms" if test.took_s is not None else ""
    return ok(f"CUDA starts{took}", *_describe_test(test))


def _answer_no_library(facts: DoctorFacts, error: str) -> CheckAnswer:
    if facts.no_driver is not None and not facts.gpus:
        return NO_DRIVER
    contained = facts.host_files.container is not None
    return missing(
        seen="libcuda.so.1 cannot be loaded",
        details=(error,),
        means=_MEANS,
        fix="Make the container runtime add it." if contained else "Install the driver's compute package.",
        command="docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility …" if contained else "",
    )


def _answer_no_start(test: DriverTest, code: int) -> CheckAnswer:
    word, fix, command = _ERRORS.get(code, ("", "Read the kernel log for NVRM and Xid lines.", ""))
    return broken(
        seen=f"cuInit failed with CUDA error {code}" + (f": {word}" if word else ""),
        details=_describe_test(test),
        means=_MEANS,
        fix=fix,
        command=command,
    )


def _describe_test(test: DriverTest) -> tuple[str, ...]:
    words = (
        f"libcuda is {test.path}" if test.path else "",
        f"it supports CUDA {test.cuda_version}" if test.cuda_version else "",
        f"it finds {counted(test.gpus, 'GPU')}" if test.gpus is not None else "",
    )
    return tuple(each for each in words if each)


_NEEDED = ("/dev/nvidiactl", "/dev/nvidia-uvm")
_IN_PASSING = ("/dev/nvidia-modeset", "/dev/nvidia-uvm-tools")


@check("driver.nodes", ("why", "who", "check", "free", "park", "borrow"))
def check_nodes(facts: DoctorFacts) -> CheckAnswer:
    """driver.nodes  Do the driver's files in /dev exist, and do you have access to them?

    What it checks:
    /dev/nvidiactl, /dev/nvidia-uvm and one /dev/nvidiaN for each GPU: whether they exist, and whether this
    user may read and write them. Nothing is opened.

    What it means:
    A GPU without its file cannot be used. Without nvidia-uvm no CUDA program starts. In containers and
    Slurm jobs the files of GPUs that were not assigned are missing on purpose.

    What to do:
    - Missing: `nvidia-modprobe -u -c=0` creates them; start a container with its GPUs.
    - Not permitted: join the group that owns them, or have the udev rule changed.
    """
    if facts.virtual:
        return not_applicable("a virtual GPU has its own")
    if facts.survey.host.wsl:
        return not_applicable("under WSL the device is /dev/dxg: see place.wsl")
    if facts.host_files.driver.module_version is None and not facts.gpus:
        return NO_DRIVER
    there = {node.path for node in facts.host_files.nodes}
    absent = [path for path in (*_NEEDED, *_list_gpu_files(facts)) if path not in there]
    barred = [node for node in facts.host_files.nodes if not node.usable and node.path not in _IN_PASSING]
    if barred:
        return _answer_barred(barred)
    if absent:
        return _answer_missing(facts, absent)
    return ok(f"{len(there)} device files, all usable")


def _list_gpu_files(facts: DoctorFacts) -> list[str]:
    return [f"/dev/nvidia{gpu.minor}" for gpu in facts.gpus.values() if gpu.minor is not None]


def _answer_barred(nodes: list[DeviceNode]) -> CheckAnswer:
    first = nodes[0]
    opens = first.mode & 0o060 == 0o060 and first.group != "root"
    return broken(
        seen=f"no permission to open {first.path} ({first.user}:{first.group}, mode {first.mode:o})",
        details=tuple(f"{node.path}: {node.user}:{node.group}, mode {node.mode:o}" for node in nodes[1:]),
        means="The driver refuses programs of this user.",
        fix="Join the group that owns it, and log in again."
        if opens
        else "Ask the administrator to give you access.",
        command=f"sudo usermod -aG {first.group} $USER" if opens else "",
    )


def _answer_missing(facts: DoctorFacts, paths: list[str]) -> CheckAnswer:
    contained = facts.host_files.container is not None
    return missing(
        seen=f"{', '.join(paths[:3])} {'is' if len(paths) == 1 else 'are'} missing",
        details=tuple(f"{path} is missing" for path in paths[3:]),
        means="Without nvidia-uvm no CUDA program starts; a GPU without its device file cannot be used.",
        fix="Give the container its GPUs." if contained else "Let the driver create its device files.",
        command="docker run --gpus all …" if contained else "sudo nvidia-modprobe -u -c=0",
    )


@check("driver.tool", ("reset",), optional=True)
def check_tool(facts: DoctorFacts) -> CheckAnswer:
    """driver.tool  Is nvidia-smi installed?

    What it checks:
    The system's program folders. PATH is ignored, because `vram reset` runs as root.

    What it means:
    `vram reset` runs it after all checks: it is the only tool that can reset a GPU.

    What to do:
    Install the driver's utilities; in a container set NVIDIA_DRIVER_CAPABILITIES=utility.
    """
    tool = facts.host_files.driver.tool
    if facts.virtual:
        return not_applicable("a virtual GPU has no nvidia-smi")
    if tool:
        return ok("nvidia-smi is installed", f"found at {tool}")
    if not facts.gpus:
        return NO_DRIVER
    return missing(
        seen="nvidia-smi is in none of the system's folders",
        means="vram reset can only say what prevents a reset, not reset a GPU.",
        fix="Install the driver's utilities (nvidia-utils); in a container add the capability `utility`.",
    )
