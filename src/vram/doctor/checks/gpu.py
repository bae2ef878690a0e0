"""The GPUs: their memory's health, their modes, and who may use them."""

from __future__ import annotations

from vram.diagnosis.words import RECOVERY_ADVICE
from vram.doctor.check import (
    NO_DRIVER,
    CheckAnswer,
    DoctorFacts,
    broken,
    check,
    gpu_names,
    limited,
    not_applicable,
    ok,
)
from vram.model.gpu import ChargeFacts, GpuFacts, MemoryFacts
from vram.units import counted, size


@check("gpu.memory-health", ("why", "check", "reset"), needs_gpu=True)
def check_memory_health(facts: DoctorFacts) -> CheckAnswer:
    """gpu.memory-health  Is the GPUs' memory healthy: ECC, remapped rows, retired pages?

    What it checks:
    ECC and its uncorrected errors since boot, rows whose remapping is pending or failed, pages whose
    retirement is pending.

    What it means:
    A pending repair takes effect at the next reset. If a remapping failed, the GPU has to be replaced.
    Programs that hit an uncorrected error were killed.

    What to do:
    - Pending: let the work on that GPU finish, then `vram reset GPU`.
    - Failed: take the GPU out of service.
    """
    failed = [index for index, gpu in facts.gpus.items() if gpu.remap_failed]
    waiting = [index for index, gpu in facts.gpus.items() if gpu.remap_pending or gpu.retired_pending]
    wrong = [index for index, gpu in facts.gpus.items() if gpu.ecc_uncorrected]
    details = tuple(_count_repairs(index, gpu) for index, gpu in facts.gpus.items())
    if failed:
        return broken(
            seen=f"{gpu_names(failed)}: faulty memory could not be remapped",
            details=details,
            means="The driver kills programs that touch the faulty memory.",
            fix="Take the GPU out of service and have it replaced.",
            command=f"nvidia-smi -q -d ROW_REMAPPER,PAGE_RETIREMENT -i {failed[0]}",
        )
    if waiting or wrong:
        return _answer_waiting(facts, waiting, wrong, details)
    known = {gpu.ecc_enabled for gpu in facts.gpus.values()}
    ecc = "ECC on" if known == {True} else "ECC off" if known == {False} else "ECC mixed or unknown"
    return ok(f"{ecc}, no repair pending", *details)


def _answer_waiting(
    facts: DoctorFacts, waiting: list[int], wrong: list[int], details: tuple[str, ...]
) -> CheckAnswer:
    which = waiting or wrong
    errors = sum(gpu.ecc_uncorrected or 0 for gpu in facts.gpus.values())
    return limited(
        seen=f"{gpu_names(which)}: a repair of faulty memory is pending until a reset"
        if waiting
        else f"{gpu_names(which)}: {errors} uncorrected ECC errors since boot",
        details=details,
        means="The memory keeps working; programs that touched the fault were killed.",
        fix="Let the work on it finish, then reset the GPU."
        if waiting
        else "Watch the count; a reset clears it.",
        command=f"vram reset {which[0]}",
    )


def _count_repairs(index: int, gpu: GpuFacts) -> str:
    figures = {
        "uncorrected ECC errors": gpu.ecc_uncorrected,
        "rows remapped after correctable": gpu.remapped_correctable,
        "after uncorrectable errors": gpu.remapped_uncorrectable,
    }
    said = ", ".join(f"{'unknown' if count is None else count} {name}" for name, count in figures.items())
    return f"GPU {index}: {said}"


@check("gpu.recovery", ("why", "check", "reset"), needs_gpu=True)
def check_recovery(facts: DoctorFacts) -> CheckAnswer:
    """gpu.recovery  Does the driver advise to reset a GPU, or to restart the machine?

    What it checks:
    The driver's recovery action of every GPU (NVML field 230), which it sets after a fault.

    What it means:
    Until what it advises has been done, programs on that GPU may fail, or run slower.

    What to do:
    - Reset: let the work on that GPU finish, then `vram reset GPU`.
    - Restart: let the work on the machine finish, then restart it.
    - End what its NVLink peers do: end the programs that exchange data with it.
    """
    advised = {index: gpu.recovery_action for index, gpu in facts.gpus.items() if gpu.recovery_action}
    needed = {index: action for index, action in advised.items() if action in RECOVERY_ADVICE}
    if not needed:
        return ok("the driver advises nothing") if advised else not_applicable("the driver does not say")
    index, action = next(iter(needed.items()))
    resets = action in ("gpu-reset", "drain-and-reset", "bus-reset")
    return limited(
        seen=f"the driver advises for {gpu_names(list(needed))}: {RECOVERY_ADVICE[action]}",
        details=tuple(f"GPU {each}: {RECOVERY_ADVICE[word]}" for each, word in needed.items()),
        means="Until then programs there may fail, or run slower.",
        fix="Let the work on it finish, then do it.",
        command=f"vram reset {index}" if resets else "sudo dmesg --ctime | grep -iE 'xid|nvrm'",
    )


@check("gpu.own-memory", ("park", "borrow"), needs_gpu=True)
def check_own_memory(facts: DoctorFacts) -> CheckAnswer:
    """gpu.own-memory  Is the memory of each GPU its own, and all of it visible?

    What it checks:
    Whether the driver refuses totals because a GPU uses the system's memory (GB10, Jetson), and whether it
    is a vGPU of a virtual machine, or serves such.

    What it means:
    Without memory of its own: the total is the system's, and `vram park` and `borrow` refuse, for they would
    free nothing. A vGPU: the total is its profile's, and other virtual machines are not visible. A GPU that
    serves vGPUs: memory of virtual machines is in no process list.

    What to do:
    Nothing: so the machine is built.
    """
    shared = {
        each.gpu
        for each in facts.survey.observations
        if isinstance(each.facts, MemoryFacts) and each.facts.counted_by == "kernel" and each.gpu is not None
    }
    if shared:
        return limited(
            seen=f"{gpu_names(sorted(shared))}: no memory of its own, the total is the system's",
            means="vram park and borrow refuse there: they would free nothing.",
            fix="Use `vram trim` or `vram release` instead.",
        )
    words = {"vgpu": "a vGPU, the total is its profile's", "host-vgpu": "it serves vGPUs of virtual machines"}
    virtual = {index: gpu.virtualization for index, gpu in facts.gpus.items() if gpu.virtualization in words}
    if virtual:
        mode = next(iter(virtual.values()))
        return limited(
            seen=f"{gpu_names(list(virtual))}: {words[mode or '']}",
            means="Memory of other virtual machines is in no process list here.",
            fix="Ask the administrator of the host who else uses the GPU.",
        )
    return ok("memory of their own")


@check("gpu.mig", ("park", "borrow"), needs_gpu=True)
def check_mig(facts: DoctorFacts) -> CheckAnswer:
    """gpu.mig  Is a GPU divided into instances (MIG)?

    What it checks:
    The MIG mode of every GPU, and how many instances it has.

    What it means:
    The driver cannot park processes on a GPU that is divided, so `vram park` and `borrow` refuse there.
    Without root the driver lists no process for the whole GPU; vram reads its instances instead. A GPU with
    MIG on and no instance cannot be used: CUDA finds no device on it.

    What to do:
    Nothing, if MIG is wanted. It can be turned off while no process uses the GPU; that needs root, and
    destroys all instances. If there is no instance, create one.
    """
    divided = [index for index, gpu in facts.gpus.items() if gpu.mig_enabled]
    if not divided:
        return ok("MIG off")
    bare = [index for index in divided if facts.gpus[index].mig_devices == 0]
    return _answer_without_instance(bare) if bare else _answer_divided(divided, len(facts.gpus))


def _answer_divided(divided: list[int], gpus: int) -> CheckAnswer:
    return limited(
        seen=f"MIG is on for {gpu_names(divided)} of {gpus}",
        means="vram park and borrow refuse there: the driver cannot park processes on an instance.",
        fix="Leave it if it is wanted; MIG can be turned off while no process uses the GPU.",
        command=f"sudo nvidia-smi -i {divided[0]} -mig 0",
    )


def _answer_without_instance(bare: list[int]) -> CheckAnswer:
    return limited(
        seen=f"MIG is on for {gpu_names(bare)}, without an instance",
        means="CUDA programs find no device there.",
        fix="Create an instance from a profile that this lists, or turn MIG off with -mig 0.",
        command=f"sudo nvidia-smi mig -i {bare[0]} -lgip",
    )


@check("gpu.mps", ("park", "borrow", "who"))
def check_mps(facts: DoctorFacts) -> CheckAnswer:
    """gpu.mps  Do programs share a GPU through MPS?

    What it checks:
    The folder of the MPS daemon ($CUDA_MPS_PIPE_DIRECTORY, or /tmp/nvidia-mps), whether the daemon is
    running, and whether the driver lists clients.

    What it means:
    MPS clients cannot be parked. Part of what they use is charged to the server, which vram never kills:
    all clients would fail with it.

    What to do:
    Nothing, if it is wanted. The administrator can stop it when its clients are done.
    """
    mps = facts.host_files.mps
    if not facts.gpus and mps.control_pid is None:
        return NO_DRIVER
    clients = {each.process.pid for each in facts.charges if _is_client(each.facts) and each.process}
    if not clients and mps.control_pid is None:
        left = (f"{mps.folder} is left over from an MPS daemon that has exited",) if mps.has_pipe else ()
        return ok("no MPS", *left)
    daemon = f"MPS daemon {mps.control_pid}" if mps.control_pid else "MPS"
    return limited(
        seen=f"{daemon} serves {counted(len(clients), 'client')}",
        details=(f"its pipe folder is {mps.folder}", *(f"pid {pid} is a client" for pid in sorted(clients))),
        means="Its clients cannot be parked, and part of their memory is charged to the server.",
        fix="Leave it if it is wanted; `quit` makes it exit when its clients are done.",
        command="echo quit | nvidia-cuda-mps-control",
    )


def _is_client(facts: object) -> bool:
    return isinstance(facts, ChargeFacts) and "mps" in facts.lists


@check("gpu.persistence", ("why", "who", "check"), optional=True, needs_gpu=True)
def check_persistence(facts: DoctorFacts) -> CheckAnswer:
    """gpu.persistence  Does the driver keep the GPUs initialised while no process uses them?

    What it checks:
    The persistence mode of every GPU.

    What it means:
    Without it a GPU that no process has open is shut down and initialised again for the next program: the
    first `vram why`, and the start of every program, can take some seconds longer.

    What to do:
    Run nvidia-persistenced, as the driver's packages do. On WSL2 and virtual machines it may not be
    possible.
    """
    off = [index for index, gpu in facts.gpus.items() if gpu.persistence is False]
    if not off:
        known = any(gpu.persistence for gpu in facts.gpus.values())
        return ok("persistence on") if known else not_applicable("the driver does not report it")
    return limited(
        seen=f"persistence off on {gpu_names(off)}",
        means="An idle GPU has to initialise first: commands and programs start some seconds later.",
        fix="Let the persistence daemon keep the GPU initialised.",
        command="sudo systemctl enable --now nvidia-persistenced",
    )


@check("gpu.compute-mode", ("borrow",), needs_gpu=True)
def check_compute_mode(facts: DoctorFacts) -> CheckAnswer:
    """gpu.compute-mode  How many processes may create a context?

    What it checks:
    The compute mode of every GPU.

    What it means:
    "prohibited": none. "exclusive-process": one at a time, even if memory is free; the command run by
    `vram borrow` fails while another process has a context there.

    What to do:
    Nothing, if a scheduler set it. Root can change it; running programs keep what they have.
    """
    closed = [index for index, gpu in facts.gpus.items() if gpu.compute_mode == "prohibited"]
    exclusive = [index for index, gpu in facts.gpus.items() if gpu.compute_mode == "exclusive-process"]
    if not closed and not exclusive:
        return ok("compute mode default")
    which, mode = (closed, "prohibited") if closed else (exclusive, "exclusive-process")
    return limited(
        seen=f"{gpu_names(which)}: compute mode {mode}",
        means="No program can create a context there."
        if closed
        else "While one program has a context, any other is refused, even if memory is free.",
        fix="Leave it if a scheduler set it; root can change it.",
        command=f"sudo nvidia-smi -i {which[0]} -c DEFAULT",
    )


_NEARLY = 0.9


@check("gpu.bar1", ("why",), needs_gpu=True)
def check_bar1(facts: DoctorFacts) -> CheckAnswer:
    """gpu.bar1  Is there room in BAR1, the window through which the CPU accesses GPU memory?

    What it checks:
    How much of each GPU's BAR1 is in use.

    What it means:
    Mappings for peers, RDMA and displays need it. When it is full, programs fail with "out of memory"
    although memory is free.

    What to do:
    Check who holds the GPU, and kill what is not needed. "Resizable BAR" or "Above 4G decoding" in the
    firmware's settings makes the window larger.
    """
    shares = {
        index: gpu.bar1_used / gpu.bar1_total
        for index, gpu in facts.gpus.items()
        if gpu.bar1_total and gpu.bar1_used is not None
    }
    if not shares:
        return not_applicable("the driver does not report BAR1")
    worst = max(shares, key=lambda index: shares[index])
    gpu = facts.gpus[worst]
    figures = f"{size(gpu.bar1_used or 0)} of {size(gpu.bar1_total or 0)}"
    if shares[worst] < _NEARLY:
        return ok(f"BAR1 {shares[worst]:.0%} used", f"GPU {worst}: {figures}")
    return limited(
        seen=f"GPU {worst}: {figures} of BAR1 is used",
        means="New peer or RDMA mappings may fail, although memory is free.",
        fix="Check who holds this GPU, and kill what is not needed.",
        command=f"vram who --gpu {worst}",
    )


@check("gpu.others", ("why", "who", "check"), optional=True)
def check_others(facts: DoctorFacts) -> CheckAnswer:
    """gpu.others  Are there AMD or Intel GPUs, and does the kernel report their memory?

    What it checks:
    The GPUs of amdgpu, xe and i915, and whether their figures in sysfs could be read.

    What it means:
    `vram why`, `who` and `check` include them, from the kernel's figures. Parking and resetting work on
    NVIDIA GPUs only; trimming also with PyTorch for ROCm.

    What to do:
    Usually nothing. Newer kernels report more about each process.
    """
    if not facts.other_gpus:
        return not_applicable("no AMD or Intel GPU")
    details = tuple(f"GPU {index}: {_describe(gpu)}" for index, gpu in facts.other_gpus.items())
    silent = [
        each
        for each in facts.survey.observations
        if each.probe == "drm.memory" and each.status != "ok" and each.gpu is not None
    ]
    if not silent:
        return ok(f"{gpu_names(list(facts.other_gpus))}: {_list_vendors(facts)}", *details)
    return limited(
        seen=f"the kernel does not report the memory of {gpu_names([each.gpu or 0 for each in silent])}",
        details=(*details, *(each.message for each in silent if each.message)),
        means="vram why can name its users, but not account for all of its memory.",
        fix="For xe, use a newer kernel with the dmem controller (CONFIG_CGROUP_DMEM); i915 never"
        " reports it.",
    )


def _describe(gpu: GpuFacts) -> str:
    version = f" {gpu.driver_version}" if gpu.driver_version else ""
    return f"{gpu.name} ({gpu.driver}{version})"


def _list_vendors(facts: DoctorFacts) -> str:
    names = {"amd": "AMD", "intel": "Intel"}
    found = dict.fromkeys(names.get(gpu.vendor, gpu.vendor) for gpu in facts.other_gpus.values())
    return " and ".join(found)
