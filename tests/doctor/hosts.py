"""Hosts made by hand: a sound one, and whatever is changed about it."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from vram.doctor.check import DoctorFacts, Program, Records
from vram.model.doctor import (
    AttachTest,
    Confinement,
    DeviceNode,
    DriverFiles,
    DriverTest,
    HostFiles,
    KernelTest,
)
from vram.model.files import UnreadableFacts
from vram.model.gpu import ChargeFacts, DriverFacts, GpuFacts, MemoryFacts
from vram.model.observation import HostFacts, Observation, ProbeRun, Survey
from vram.model.parking import ProcessLimits
from vram.model.process import ProcessRef
from vram.units import GIB

VERSION = "580.159.04"
ALL_CAPABILITIES = (1 << 41) - 1
HOST = HostFacts(name="gpu-box", kernel="6.8.0", user="root", uid=0, pid_namespace=0xEFFFFFFC)
USER = replace(HOST, user="ana", uid=1000)
GPU = GpuFacts(
    uuid="GPU-0",
    name="NVIDIA H200",
    minor=0,
    persistence=True,
    compute_mode="default",
    mig_enabled=False,
    ecc_enabled=True,
    ecc_uncorrected=0,
    bar1_total=256 * GIB,
    bar1_used=GIB,
    remap_pending=False,
    remap_failed=False,
)
NODES = tuple(
    DeviceNode(f"/dev/{name}", 0o666, "root", "root", True) for name in ("nvidia0", "nvidiactl", "nvidia-uvm")
)


def observations(
    gpu: GpuFacts = GPU, driver: DriverFacts | None = None, gpus: int = 1
) -> tuple[Observation, ...]:
    facts = driver or DriverFacts(VERSION, VERSION, VERSION, "13.0")
    return (
        Observation(probe="nvml.init"),
        Observation(probe="nvml.driver", facts=facts),
        *(Observation(probe="nvml.gpu", gpu=index, facts=gpu) for index in range(gpus)),
        *(
            Observation(probe="nvml.memory", gpu=index, facts=MemoryFacts(140 * GIB, 140 * GIB, 0))
            for index in range(gpus)
        ),
    )


def survey(*more: Observation, host: HostFacts = HOST, seen: tuple[Observation, ...] | None = None) -> Survey:
    return Survey(
        program="vram test",
        taken_at="2026-01-01T00:00:00Z",
        host=host,
        observations=(*(observations() if seen is None else seen), *more),
        probes=(ProbeRun("nvml", "ok", 0.012),),
    )


def absent(code: str = "nvml-9", host: HostFacts = HOST) -> Survey:
    """What is seen where no driver answers."""
    return survey(
        Observation(probe="nvml.init", status="unsupported", code=code, message="no driver"),
        Observation(probe="nvml.driver", facts=DriverFacts()),
        host=host,
        seen=(),
    )


SOUND = DoctorFacts(
    survey=survey(),
    host_files=HostFiles(
        driver=DriverFiles(
            nvidia_devices=1,
            module_version=VERSION,
            installed_version=VERSION,
            open_module=True,
            modules=("nvidia", "nvidia_uvm"),
            tool="/usr/bin/nvidia-smi",
        ),
        nodes=NODES,
        confinement=Confinement(capabilities=ALL_CAPABILITIES, seccomp=0),
        machine="x86_64",
    ),
    driver_test=DriverTest(
        path=f"/usr/lib/libcuda.so.{VERSION}",
        library_version=VERSION,
        cuda_version="13.0",
        init_code=0,
        gpus=1,
        took_s=0.2,
    ),
    kernel_test=KernelTest(
        pidfd_open=0,
        pidfd_getfd=0,
        kcmp=0,
        ptrace=0,
        natives={"/lib/libvramscan.so": None},
    ),
    cupti=("/usr/local/cuda/lib64/libcupti.so.13",),
    attach_test=AttachTest(
        version="3.13", routes={"at work": 0.3, "at rest": 0.4, "waiting for a lock": 0.3}
    ),
    records=Records(path="/home/user/.local/state/vram", exists=True, free_bytes=GIB),
    program=Program(
        vram="1",
        python="CPython 3.13.1",
        packages={"msgspec": "0.19", "nvidia-ml-py": "13", "rich": "14", "pyzmq": "27"},
        add_base="pip install nvidia-ml-py",
        add_jupyter="pip install 'pyzmq>=22'",
        get_native="run `python native/build.py`",
    ),
    room=ProcessLimits(memory_left=64 * GIB, memory_total=128 * GIB),
)


def facts(**changes: Any) -> DoctorFacts:
    return replace(SOUND, **changes)


def with_gpu(gpus: int = 1, **changes: Any) -> DoctorFacts:
    """A sound host whose GPUs differ in *changes*."""
    return facts(survey=survey(seen=observations(replace(GPU, **changes), gpus=gpus)))


def with_host_files(**changes: Any) -> DoctorFacts:
    return facts(host_files=replace(SOUND.host_files, **changes))


def confined(host: HostFacts = USER, unreadable: int = 0, **changes: Any) -> DoctorFacts:
    """Seen by somebody without any capability."""
    seen = (
        Observation(probe="files", status="denied", facts=UnreadableFacts(unreadable, ("root",))),
    ) * bool(unreadable)
    bounds = Confinement(**{"capabilities": 0, "seccomp": 0, **changes})
    return facts(survey=survey(*seen, host=host), host_files=replace(SOUND.host_files, confinement=bounds))


def charge(pid: int, nbytes: int | None, *lists: str, alive: bool = True) -> Observation:
    return Observation(
        probe="nvml.processes",
        gpu=0,
        process=ProcessRef(pid, 1234 if alive else None),
        nbytes=nbytes,
        facts=ChargeFacts(lists or ("compute",)),
    )
