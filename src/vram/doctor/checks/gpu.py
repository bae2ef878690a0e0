"""The GPUs: their memory's health, their modes, and who may use them."""

from __future__ import annotations

from vram.doctor.check import (
    NO_DRIVER,
    Check,
    CheckAnswer,
    check,
    not_applicable,
    ok,
)
from vram.doctor.facts import DoctorFacts, gpu_names
from vram.model.gpu import ChargeFacts, GpuFacts
from vram.units import counted, size

CHECKS: list[Check] = []


@check(CHECKS, "gpu.memory-health", ("why", "check", "reset"))
def check_memory_health(facts: DoctorFacts) -> CheckAnswer:
    """gpu.memory-health  Is the GPUs' memory sound: ECC, remapped rows, retired pages?

    What is looked at
    -----------------
    ECC and its uncorrected errors since boot, rows that wait for their remapping or could not be
    remapped, pages that wait for their retirement.

    What it means
    -------------
    A pending repair takes effect at the next reset. A remapping that failed means that the GPU is to be
    replaced. Uncorrected errors have ended the programs that met them.

    What to do
    ----------
    - Pending: let the work on that GPU end, then `vram reset GPU`.
    - Failed: take the GPU out of service.
    """
    if not facts.gpus:
        return NO_DRIVER
    failed = [index for index, gpu in facts.gpus.items() if gpu.remap_failed]
    waiting = [index for index, gpu in facts.gpus.items() if gpu.remap_pending or gpu.retired_pending]
    wrong = [index for index, gpu in facts.gpus.items() if gpu.ecc_uncorrected]
    details = tuple(_counts(index, gpu) for index, gpu in facts.gpus.items())
    if failed:
        return CheckAnswer(
            state="broken",
            seen=f"{gpu_names(failed)}: faulty memory could not be remapped",
            details=details,
            means="Programs that come upon the faulty place are ended by the driver.",
            fix="Take the GPU out of service and have it replaced.",
            command=f"nvidia-smi -q -d ROW_REMAPPER,PAGE_RETIREMENT -i {failed[0]}",
        )
    if waiting or wrong:
        return _waiting(facts, waiting, wrong, details)
    known = {gpu.ecc_enabled for gpu in facts.gpus.values()}
    ecc = "ECC on" if known == {True} else "ECC off" if known == {False} else "ECC mixed or unknown"
    return ok(f"{ecc}, no repair waits", *details)


def _waiting(
    facts: DoctorFacts, waiting: list[int], wrong: list[int], details: tuple[str, ...]
) -> CheckAnswer:
    which = waiting or wrong
    errors = sum(gpu.ecc_uncorrected or 0 for gpu in facts.gpus.values())
    return CheckAnswer(
        state="limited",
        seen=f"{gpu_names(which)}: a repair of faulty memory waits for a reset"
        if waiting
        else f"{gpu_names(which)}: {errors} uncorrected ECC errors since boot",
        details=details,
        means="The memory works on; programs that met the fault were ended.",
        fix="Let the work there end, then reset the GPU." if waiting else "Watch it; a reset clears it.",
        command=f"vram reset {which[0]}",
    )


def _counts(index: int, gpu: GpuFacts) -> str:
    figures = {
        "uncorrected ECC errors": gpu.ecc_uncorrected,
        "rows remapped after correctable": gpu.remapped_correctable,
        "after uncorrectable errors": gpu.remapped_uncorrectable,
    }
    said = ", ".join(f"{'unknown' if count is None else count} {name}" for name, count in figures.items())
    return f"GPU {index}: {said}"


@check(CHECKS, "gpu.mig", ("park", "borrow"))
def check_mig(facts: DoctorFacts) -> CheckAnswer:
    """gpu.mig  Is a GPU divided into instances (MIG)?

    What is looked at
    -----------------
    The MIG mode of every GPU, and how many instances it has.

    What it means
    -------------
    The driver cannot park processes on a GPU that is divided, so `vram park` and `borrow` refuse there.
    Without root the whole GPU lists nobody; vram asks its instances. A GPU that has MIG on and no
    instance yet is of no use: CUDA finds nothing on it.

    What to do
    ----------
    Nothing, if the division is wanted. It can be ended when nobody is on the GPU; that needs root, and
    takes every instance away. Where there is none, make one.
    """
    if not facts.gpus:
        return NO_DRIVER
    divided = [index for index, gpu in facts.gpus.items() if gpu.mig_enabled]
    if not divided:
        return ok("MIG off")
    bare = [index for index in divided if facts.gpus[index].mig_devices == 0]
    return _without_instance(bare) if bare else _divided(divided, len(facts.gpus))


def _divided(divided: list[int], gpus: int) -> CheckAnswer:
    return CheckAnswer(
        state="limited",
        seen=f"MIG divides {gpu_names(divided)} of {gpus}",
        means="vram park and borrow refuse there: the driver cannot park on an instance.",
        fix="Leave it if it is wanted; with nobody on the GPU it can be ended.",
        command=f"sudo nvidia-smi -i {divided[0]} -mig 0",
    )


def _without_instance(bare: list[int]) -> CheckAnswer:
    return CheckAnswer(
        state="limited",
        seen=f"MIG is on at {gpu_names(bare)}, without an instance",
        means="CUDA finds nothing to run on there.",
        fix="Make an instance, of a profile that this lists, or end MIG with -mig 0.",
        command=f"sudo nvidia-smi mig -i {bare[0]} -lgip",
    )


@check(CHECKS, "gpu.mps", ("park", "borrow", "who"))
def check_mps(facts: DoctorFacts) -> CheckAnswer:
    """gpu.mps  Do programs share a GPU through MPS?

    What is looked at
    -----------------
    The folder of the MPS daemon ($CUDA_MPS_PIPE_DIRECTORY, or /tmp/nvidia-mps), whether its daemon lives,
    and whether the driver lists clients.

    What it means
    -------------
    Clients of MPS cannot be parked. A part of what they use is charged to the server, which is never ended:
    all clients would fail with it.

    What to do
    ----------
    Nothing, if it is wanted. Whoever runs the machine can end it when its clients are done.
    """
    mps = facts.host_files.mps
    if not facts.gpus and mps.control_pid is None:
        return NO_DRIVER
    clients = {each.process.pid for each in facts.charges if _is_client(each.facts) and each.process}
    if not clients and mps.control_pid is None:
        return ok("no MPS", *((f"{mps.folder} is left of an MPS that has ended",) if mps.has_pipe else ()))
    daemon = f"MPS daemon {mps.control_pid}" if mps.control_pid else "MPS"
    return CheckAnswer(
        state="limited",
        seen=f"{daemon} serves {counted(len(clients), 'client')}",
        details=(f"its folder is {mps.folder}", *(f"pid {pid} is a client" for pid in sorted(clients))),
        means="Its clients cannot be parked, and a part of their memory is charged to the server.",
        fix="Leave it if it is wanted; it ends when its clients are done.",
        command="echo quit | nvidia-cuda-mps-control",
    )


def _is_client(facts: object) -> bool:
    return isinstance(facts, ChargeFacts) and "mps" in facts.lists


@check(CHECKS, "gpu.persistence", ("why", "who", "check"), optional=True)
def check_persistence(facts: DoctorFacts) -> CheckAnswer:
    """gpu.persistence  Does the driver keep the GPUs ready while nobody uses them?

    What is looked at
    -----------------
    The persistence mode of every GPU.

    What it means
    -------------
    Without it a GPU that nobody has open is shut down, and set up again for the next program: the first
    answer of `vram why`, and the start of every program, takes up to some seconds longer.

    What to do
    ----------
    Run nvidia-persistenced, as the driver's packages do. On WSL2 and virtual machines it may not be
    settable.
    """
    if not facts.gpus:
        return NO_DRIVER
    off = [index for index, gpu in facts.gpus.items() if gpu.persistence is False]
    if not off:
        known = any(gpu.persistence for gpu in facts.gpus.values())
        return ok("persistence on") if known else not_applicable("the driver does not tell")
    return CheckAnswer(
        state="limited",
        seen=f"persistence off on {gpu_names(off)}",
        means="An idle GPU has to wake up first: answers and programs start some seconds later.",
        fix="Let the persistence daemon keep it ready.",
        command="sudo systemctl enable --now nvidia-persistenced",
    )


@check(CHECKS, "gpu.compute-mode", ("borrow",))
def check_compute_mode(facts: DoctorFacts) -> CheckAnswer:
    """gpu.compute-mode  Who may make a context?

    What is looked at
    -----------------
    The compute mode of every GPU.

    What it means
    -------------
    "prohibited": nobody. "exclusive-process": one process at a time, however much memory is free; the
    command of `vram borrow` is refused while another process has a context there.

    What to do
    ----------
    Nothing, if a scheduler set it. Root can change it; running programs keep what they have.
    """
    if not facts.gpus:
        return NO_DRIVER
    closed = [index for index, gpu in facts.gpus.items() if gpu.compute_mode == "prohibited"]
    exclusive = [index for index, gpu in facts.gpus.items() if gpu.compute_mode == "exclusive-process"]
    if not closed and not exclusive:
        return ok("compute mode default")
    which, mode = (closed, "prohibited") if closed else (exclusive, "exclusive-process")
    return CheckAnswer(
        state="limited",
        seen=f"{gpu_names(which)}: compute mode {mode}",
        means="No program can make a context there."
        if closed
        else "A second program is refused while a first one has a context, whatever memory is free.",
        fix="Leave it if a scheduler set it; root can change it.",
        command=f"sudo nvidia-smi -i {which[0]} -c DEFAULT",
    )


_NEARLY = 0.9


@check(CHECKS, "gpu.bar1", ("why",))
def check_bar1(facts: DoctorFacts) -> CheckAnswer:
    """gpu.bar1  Is there room in the window through which the processor sees GPU memory (BAR1)?

    What is looked at
    -----------------
    How much of each GPU's BAR1 is in use.

    What it means
    -------------
    Mappings for peers, RDMA and displays need it. Where it is used up, programs fail with errors that
    look like a lack of memory, while memory is free.

    What to do
    ----------
    See who holds the GPU, and end what is not needed. Larger windows come with "Resizable BAR" or "Above
    4G decoding" in the firmware's settings.
    """
    if not facts.gpus:
        return NO_DRIVER
    shares = {
        index: gpu.bar1_used / gpu.bar1_total
        for index, gpu in facts.gpus.items()
        if gpu.bar1_total and gpu.bar1_used is not None
    }
    if not shares:
        return not_applicable("the driver does not tell of BAR1")
    worst = max(shares, key=lambda index: shares[index])
    gpu = facts.gpus[worst]
    figures = f"{size(gpu.bar1_used or 0)} of {size(gpu.bar1_total or 0)}"
    if shares[worst] < _NEARLY:
        return ok(f"BAR1 {shares[worst]:.0%} used", f"GPU {worst}: {figures}")
    return CheckAnswer(
        state="limited",
        seen=f"GPU {worst}: {figures} of BAR1 are used",
        means="New mappings for peers or RDMA may fail, although memory is free.",
        fix="See who holds this GPU, and end what is not needed.",
        command=f"vram who --gpu {worst}",
    )


@check(CHECKS, "gpu.others", ("why", "who", "check"), optional=True)
def check_others(facts: DoctorFacts) -> CheckAnswer:
    """gpu.others  Are there GPUs of AMD or Intel, and does the kernel tell of their memory?

    What is looked at
    -----------------
    The GPUs that amdgpu, xe and i915 drive, and whether their figures in sysfs could be read.

    What it means
    -------------
    `vram why`, `who` and `check` count them in, from what the kernel reports. Parking, trimming and resetting
    work on NVIDIA's only.

    What to do
    ----------
    Nothing, as a rule. Newer kernels tell more of what each process uses.
    """
    if not facts.other_gpus:
        return not_applicable("no GPU of AMD or Intel")
    details = tuple(f"GPU {index}: {_named(gpu)}" for index, gpu in facts.other_gpus.items())
    silent = [
        each
        for each in facts.survey.observations
        if each.probe == "drm.memory" and each.status != "ok" and each.gpu is not None
    ]
    if not silent:
        return ok(f"{gpu_names(list(facts.other_gpus))}: {_vendors(facts)}", *details)
    return CheckAnswer(
        state="limited",
        seen=f"the kernel does not tell the memory of {gpu_names([each.gpu or 0 for each in silent])}",
        details=(*details, *(each.message for each in silent if each.message)),
        means="vram why can name who uses it, and cannot balance its bytes.",
        fix="For xe, a newer kernel with the dmem controller (CONFIG_CGROUP_DMEM); i915 tells it in none.",
    )


def _named(gpu: GpuFacts) -> str:
    version = f" {gpu.driver_version}" if gpu.driver_version else ""
    return f"{gpu.name} ({gpu.driver}{version})"


def _vendors(facts: DoctorFacts) -> str:
    names = {"amd": "AMD", "intel": "Intel"}
    found = dict.fromkeys(names.get(gpu.vendor, gpu.vendor) for gpu in facts.other_gpus.values())
    return " and ".join(found)
