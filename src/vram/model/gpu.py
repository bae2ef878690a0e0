"""What: a GPU, its memory and the state that bears on it, as the driver tells."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from vram.model.cgroups import CgroupLimit

Vendor = Literal["nvidia", "amd", "intel"]


class DriverFacts(Struct, frozen=True, tag="driver"):
    """Versions on both sides of the driver: they must match, and sometimes do not."""

    driver_version: str | None = None
    library_version: str | None = None
    module_version: str | None = None
    cuda_version: str | None = None
    virtual: bool = False


class GpuFacts(Struct, frozen=True, tag="gpu"):
    """One GPU's name and the settings and faults that explain its memory.

    ``uuid`` is the driver's own name for it, or, where that gives none, ``PCI-`` and its
    address. ``nodes`` are the numbers of its DRM device files.
    """

    uuid: str
    name: str
    minor: int | None = None
    bus_id: str | None = None
    virtual: bool = False
    persistence: bool | None = None
    compute_mode: str | None = None
    mig_enabled: bool | None = None
    mig_pending: bool | None = None
    """The mode that MIG will be in after the next reset."""
    mig_devices: int | None = None
    """How many MIG devices were found; None where that is unknown."""
    ecc_enabled: bool | None = None
    ecc_uncorrected: int | None = None
    bar1_total: int | None = None
    bar1_used: int | None = None
    remapped_correctable: int | None = None
    remapped_uncorrectable: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    retired_pending: bool | None = None
    utilization: int | None = None
    recovery_action: str | None = None
    """What the driver itself advises: "none", "gpu-reset", "node-reboot"..."""
    vendor: Vendor = "nvidia"
    driver: str = "nvidia"
    driver_version: str | None = None
    integrated: bool = False
    nodes: tuple[int, ...] = ()
    numa_node: int | None = None
    """The machine's node of memory that is this GPU's, asked of GPUs without a BAR1 window."""
    virtualization: str | None = None
    """Of a virtual machine's: "passthrough" or "vgpu" inside of one, "host-vgpu" where it serves them."""
    addressing: str | None = None
    """How it reaches the machine's memory, asked of the same ones: "none", "hmm" or "ats"."""


class SystemMemoryUse(Struct, frozen=True):
    """What shares a GPU's memory with it, as the kernel counts: in all of the machine's memory, or in a node.

    ``programs`` is memory of programs on the processor, ``files`` cached files, which give way to others,
    ``kernel`` the kernel's own. What the GPU's driver takes is in none of them.
    """

    node: int | None
    programs: int
    files: int
    kernel: int

    @property
    def nbytes(self) -> int:
        return self.programs + self.files + self.kernel


class MemoryFacts(Struct, frozen=True, tag="memory"):
    """One reading of a GPU's memory.

    Version 1 of the driver's call counts what the driver reserves as used, version 2
    does not; where only version 1 answers, ``reserved`` is None. ``counted_by`` the kernel: the driver
    refuses totals, for the GPU has no memory of its own; the total is the machine's, and ``free`` what is
    available there. ``system`` is what shares the memory with the GPU, where anything does.

    ``limit`` is that of the control group that we are in. Where it is the total, the driver answers for the
    group alone (version 615 and later), and ``device_total`` is the GPU's, where that is known.
    """

    total: int
    free: int
    used: int
    reserved: int | None = None
    v1_used: int | None = None
    moved_bytes: int = 0
    """How far ``used`` moved while the process lists were read, after all retries."""
    counted_by: Literal["driver", "kernel"] = "driver"
    system: SystemMemoryUse | None = None
    limit: CgroupLimit | None = None
    device_total: int | None = None


class ChargeFacts(Struct, frozen=True, omit_defaults=True, tag="charge"):
    """The driver's process list names a pid. The bytes are the observation's own."""

    lists: tuple[str, ...]
    """Which lists name it: "compute", "graphics", "mps"."""
    gpu_instance: int | None = None
    compute_instance: int | None = None
    ended: bool = False
    """Whether it ended while it was read: the pid is free, and a second reading does not list it."""
    exiting: bool = False
    """Whether it was exiting already when it was listed."""


class MigFacts(Struct, frozen=True, omit_defaults=True, tag="mig"):
    """One MIG device: a compute instance, in a GPU instance of a divided GPU.

    ``memory`` is the GPU instance's. Compute instances of the same one share it, and each
    of them is told the same figures.
    """

    index: int
    uuid: str
    name: str
    gpu_instance: int
    compute_instance: int
    memory: MemoryFacts | None = None
