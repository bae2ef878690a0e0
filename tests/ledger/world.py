"""A survey written by hand: the few words a test needs to describe a machine."""

from __future__ import annotations

from vram.model.files import DeviceFile, DmabufFacts, ElsewhereFacts, ExportFacts, FilesFacts, UnreadableFacts
from vram.model.gpu import ChargeFacts, GpuFacts, MemoryFacts, MigFacts, SystemMemoryUse
from vram.model.observation import HostFacts, Observation, Survey
from vram.model.process import ProcessFacts, ProcessRef
from vram.units import GIB, KIB, MIB

CONTEXT = 518 * MIB
OVERHEAD = 9024 * KIB  # of the first context; 3328 of it are there once for all
RESERVED = 615 * MIB


class World:
    """Builds observations the way the probes would make them."""

    def __init__(self, *, uid: int = 0, initial_pid_namespace: bool = True) -> None:
        self.host = HostFacts(
            name="host", kernel="6.18", user="root", uid=uid, initial_pid_namespace=initial_pid_namespace
        )
        self.observations: list[Observation] = []

    def gpu(
        self, index: int = 0, *, total: int = 100 * GIB, used: int = 0, reserved: int = RESERVED
    ) -> World:
        self._see("nvml.gpu", gpu=index, facts=GpuFacts(uuid=f"GPU-{index}", name="NVIDIA Test", minor=index))
        memory = MemoryFacts(total=total, free=total - used - reserved, used=used, reserved=reserved)
        return self._see("nvml.memory", gpu=index, facts=memory)

    def shared(
        self,
        index: int = 0,
        *,
        total: int = 120 * GIB,
        available: int,
        use: tuple[int, int, int] = (6 * GIB, 2 * GIB, GIB),
    ) -> World:
        """A GPU that has no memory of its own; *use* is what programs, files and the kernel have."""
        self._see("nvml.gpu", gpu=index, facts=GpuFacts(uuid=f"GPU-{index}", name="NVIDIA GB10", minor=index))
        memory = MemoryFacts(
            total=total,
            free=available,
            used=total - available,
            counted_by="kernel",
            system=SystemMemoryUse(None, *use),
        )
        return self._see("nvml.memory", gpu=index, facts=memory)

    def on_node(self, *, used: int, use: tuple[int, int, int], total: int = 96 * GIB) -> World:
        """A GPU whose memory is a node of the machine's: the driver gives totals, with the kernel's pages."""
        facts = GpuFacts(uuid="GPU-0", name="NVIDIA GH200", minor=0, numa_node=1, addressing="ats")
        self._see("nvml.gpu", gpu=0, facts=facts)
        memory = MemoryFacts(
            total=total,
            free=total - used - RESERVED,
            used=used,
            reserved=RESERVED,
            v1_used=used + RESERVED,
            system=SystemMemoryUse(1, *use),
        )
        return self._see("nvml.memory", gpu=0, facts=memory)

    def divided(
        self, *, devices: int | None, index: int = 0, total: int = 100 * GIB, used: int | None = 0
    ) -> World:
        """A GPU under MIG; *used* None: the whole of it is withheld from us."""
        facts = GpuFacts(
            uuid=f"GPU-{index}", name="NVIDIA Test", minor=index, mig_enabled=True, mig_devices=devices
        )
        self._see("nvml.gpu", gpu=index, facts=facts)
        if used is None:
            return self._see("nvml.memory", gpu=index, status="denied", message="withheld")
        memory = MemoryFacts(total=total, free=total - used - RESERVED, used=used, reserved=RESERVED)
        return self._see("nvml.memory", gpu=index, facts=memory)

    def mig(
        self, device: int, instance: int, *, compute: int = 0, total: int = 0, used: int = 0, gpu: int = 0
    ) -> World:
        """One MIG device; without a *total* it does not tell its memory."""
        memory = MemoryFacts(total=total, free=max(0, total - used), used=used, reserved=0) if total else None
        facts = MigFacts(
            index=device,
            uuid=f"MIG-{gpu}-{instance}-{compute}",
            name=f"NVIDIA Test MIG {instance}g",
            gpu_instance=instance,
            compute_instance=compute,
            memory=memory,
        )
        return self._see("nvml.memory", gpu=gpu, facts=facts)

    def charge(
        self,
        pid: int,
        nbytes: int | None,
        *,
        gpu: int = 0,
        lists: tuple[str, ...] = ("compute",),
        instance: int | None = None,
        compute: int | None = None,
        started_at: int | None = None,
        ended: bool = False,
        exiting: bool = False,
    ) -> World:
        """The driver's list names *pid*, which was alive then if it has a *started_at*."""
        facts = ChargeFacts(lists, instance, compute, ended, exiting)
        who = ProcessRef(pid, started_at)
        return self._see("nvml.processes", gpu=gpu, process=who, nbytes=nbytes, facts=facts)

    def process(
        self,
        pid: int,
        *,
        parent: int = 1,
        session: int = 0,
        group: int | None = None,
        state: str = "S",
        uid: int = 0,
        executable: str | None = None,
        exiting: bool = False,
        forked: bool | None = None,
        initialised_cuda: bool | None = None,
        namespace_pids: tuple[int, ...] = (),
    ) -> World:
        facts = ProcessFacts(
            command="python",
            user="root",
            uid=uid,
            state=state,
            exiting=exiting,
            forked=forked,
            initialised_cuda=initialised_cuda,
            parent=parent,
            group=session if group is None else group,
            session=session,
            executable=executable,
            namespace_pids=namespace_pids,
        )
        return self._see("proc.processes", process=ProcessRef(pid, started_at=pid * 10), facts=facts)

    def files(
        self,
        pid: int,
        *,
        minors: tuple[int, ...] = (0,),
        context: bool = True,
        family: int | None = None,
        managed: int = 0,
        mapped: bool = True,
    ) -> World:
        """A context's files, or a mere look at the GPUs; one *family* shares its open file descriptions."""
        files = [DeviceFile(3, "control", "/dev/nvidiactl"), DeviceFile(4, "uvm", "/dev/nvidia-uvm")]
        for minor in minors:
            for fd in range(20 if context else 4):
                shared = None if family is None else family * 100 + fd
                files.append(DeviceFile(100 * minor + 10 + fd, "gpu", f"/dev/nvidia{minor}", minor, shared))
        mappings = (31 if context else 3) if mapped else 0
        return self._see(
            "proc.files", process=ProcessRef(pid), facts=FilesFacts(tuple(files), mappings, managed)
        )

    def cuda(self, pid: int, nbytes: int, *, gpu: int = 0, family: int | None = None, **who: int) -> World:
        """A healthy process: there, charged, with files of its own."""
        self.process(pid, **who)  # type: ignore[arg-type]
        return self.charge(pid, nbytes, gpu=gpu).files(pid, minors=(gpu,), family=family if family else pid)

    def export(
        self,
        pid: int,
        nbytes: int,
        *,
        gpu: int = 0,
        description: int | None = None,
        instance: int | None = None,
    ) -> World:
        facts = ExportFacts(fd=7, description=description, gpu_instance=instance)
        return self._see("driver.exports", gpu=gpu, process=ProcessRef(pid), nbytes=nbytes, facts=facts)

    def dmabuf(self, pid: int, nbytes: int, *, inode: int = 99) -> World:
        facts = DmabufFacts(fd=8, inode=inode, exporter="nv_dmabuf")
        return self._see("proc.dmabuf", process=ProcessRef(pid), nbytes=nbytes, facts=facts)

    def unsized_dmabuf(self, pid: int) -> World:
        facts = DmabufFacts(fd=8, inode=99, exporter="nv_dmabuf")
        return self._see("proc.dmabuf", process=ProcessRef(pid), facts=facts)

    def elsewhere(self, *found: str) -> World:
        """It was looked for memory that no open file shows; *found* is where there may be some."""
        return self._see("proc.elsewhere", facts=ElsewhereFacts(found))  # type: ignore[arg-type]

    def unreadable(self, processes: int) -> World:
        facts = UnreadableFacts(processes, ("alice",))
        return self._see("proc.unreadable", facts=facts, status="denied")

    def read_in_part(self, pid: int) -> World:
        """A process that has more device files open than were read."""
        return self._see("proc.files", status="failed", process=ProcessRef(pid), message="thousands")

    def out_of_time(self) -> World:
        """The files of some processes were not read before the deadline."""
        return self._see("proc.files", status="timeout", message="stopped")

    def unlisted(self, status: str, gpu: int = 0) -> World:
        """A process list that could not be read."""
        return self._see("nvml.processes", gpu=gpu, status=status, message="no list")

    def lost(self, index: int) -> World:
        return self._see("nvml.memory", gpu=index, status="lost", message="GPU is lost")

    def survey(self) -> Survey:
        return Survey(
            program="vram test",
            taken_at="2026-01-01T00:00:00Z",
            host=self.host,
            observations=tuple(self.observations),
            probes=(),
        )

    def _see(self, probe: str, **statement: object) -> World:
        self.observations.append(Observation(probe=probe, **statement))  # type: ignore[arg-type]
        return self
