"""Each check speaks where it should, and is silent on a host that differs only in the point."""

from __future__ import annotations

import errno
import shlex
from importlib import import_module

import pytest
from msgspec.structs import replace

from tests.doctor.hosts import (
    ALL_CAPABILITIES,
    GPU,
    HOST,
    NODES,
    SOUND,
    USER,
    VERSION,
    absent,
    charge,
    confined,
    facts,
    observations,
    survey,
    with_gpu,
    with_host_files,
)
from vram.cli.arguments import Parser
from vram.doctor.check import AttachTarget, CheckAnswer, DoctorFacts
from vram.doctor.checks import CHECKS
from vram.model.doctor import (
    AttachTest,
    Container,
    DriverFiles,
    DriverTest,
    KernelTest,
    Mps,
    Tracing,
)
from vram.model.gpu import DriverFacts, MemoryFacts
from vram.model.observation import (
    NO_INTEROP,
    NO_POWERSHELL,
    NVML_NO_LIBRARY,
    HostFacts,
    Observation,
    ProbeRun,
)
from vram.model.parking import ProcessLimits
from vram.model.windows import WslFacts
from vram.units import GIB

DOCKER = Container(runtime="docker", identity="4f1c" * 16, evidence="/.dockerenv is there")
COMPAT = replace(SOUND.driver_test, path="/usr/local/cuda/compat/libcuda.so.590.1", library_version="590.1")
MODESET = replace(NODES[0], path="/dev/nvidia-modeset", usable=False)
NEW_PYTHON = AttachTarget(pid=5, user="ana", nbytes=1, available=("remote-exec",))
SHARED = Observation(
    probe="nvml.memory", gpu=0, facts=MemoryFacts(GIB, GIB // 2, GIB // 2, counted_by="kernel")
)
RADEON = replace(GPU, vendor="amd", name="Radeon", driver="amdgpu", persistence=None, mig_enabled=None)
INSIDE = replace(HOST, initial_pid_namespace=False, pid_namespace=4026532000)


def judged(check: str, seen: DoctorFacts) -> CheckAnswer:
    return next(each for each in CHECKS if check == each.id).judge(seen)


@pytest.mark.parametrize("check", [each.id for each in CHECKS])
def test_a_sound_host_gives_no_cause_for_complaint(check: str) -> None:
    answer = judged(check, SOUND)
    assert answer.state in ("ok", "not-applicable"), answer
    assert not answer.fix


def aged(version: str, today: str = "2026-11-16", *, wsl: bool = False) -> DoctorFacts:
    """A sound host with a driver of *version*, on the day *today*."""
    host = replace(HOST, wsl_facts=WslFacts(version=2)) if wsl else HOST
    seen = survey(seen=observations(driver=DriverFacts(version)), host=host)
    return facts(survey=replace(seen, taken_at=f"{today}T12:00:00Z"))


def files(**changes: object) -> DriverFiles:
    return replace(SOUND.host_files.driver, module_version=None, modules=(), **changes)


def on(host: HostFacts, *more: Observation) -> DoctorFacts:
    return facts(survey=survey(*more, host=host))


def wsl(**facts: object) -> DoctorFacts:
    found = WslFacts(**{"version": 2, "gpu_device": True, "libraries": "/usr/lib/wsl/lib", **facts})  # type: ignore[arg-type]
    return on(replace(HOST, wsl=True, wsl_facts=found))


def nvml(status: str, message: str, gpu: int | None = 0) -> DoctorFacts:
    return facts(survey=survey(Observation(probe="nvml.memory", gpu=gpu, status=status, message=message)))  # type: ignore[arg-type]


COMPLAINTS: list[tuple[str, DoctorFacts, str, str, str]] = [
    # the check, the host, its state, what it saw, how it is fixed (a part of each)
    (
        "driver.present",
        facts(survey=absent(), host_files=replace(SOUND.host_files, driver=files(nvidia_devices=2))),
        "missing",
        "2 NVIDIA GPUs on the bus, but no driver loaded",
        "modprobe nvidia",
    ),
    (
        "driver.present",
        facts(
            survey=absent(),
            host_files=replace(
                SOUND.host_files, driver=replace(files(nvidia_devices=1), modules=("nouveau",))
            ),
        ),
        "missing",
        "nouveau drives",
        "Blacklist nouveau",
    ),
    (
        "driver.present",
        facts(survey=absent(NVML_NO_LIBRARY), host_files=replace(SOUND.host_files, container=DOCKER)),
        "missing",
        "its libraries are missing",
        "docker run --gpus all",
    ),
    (
        "driver.present",
        facts(survey=absent(), host_files=replace(SOUND.host_files, container=DOCKER, nodes=())),
        "missing",
        "its device files are missing",
        "docker run --gpus all",
    ),
    (
        "driver.present",
        facts(survey=absent()),
        "missing",
        "is loaded, but does not answer",
        "kernel log",
    ),
    (
        "driver.present",
        facts(survey=absent(), host_files=replace(SOUND.host_files, driver=files(nvidia_devices=0))),
        "missing",
        "no NVIDIA GPU on the PCI bus",
        "vram demo",
    ),
    (
        "driver.versions",
        with_host_files(driver=replace(SOUND.host_files.driver, module_version="575.51.02")),
        "broken",
        f"kernel module 575.51.02, NVML {VERSION}",
        "Restart the machine",
    ),
    (
        "driver.versions",
        facts(
            driver_test=replace(SOUND.driver_test, library_version="570.10.01"),
            host_files=replace(SOUND.host_files, container=DOCKER),
        ),
        "broken",
        "libcuda 570.10.01",
        "Make the container use the host's libraries",
    ),
    ("driver.age", aged("535.288.01"), "limited", "branch 535 ended in June 2026", "branch 580, maintained"),
    ("driver.age", aged("575.57.08"), "limited", "branch 575 ended by August 2025", "branch 580, maintained"),
    ("driver.age", aged("470.256.02"), "limited", "ended in July 2024", "Kepler GPUs have no newer branch"),
    (
        "driver.age",
        aged("580.1", "2028-07-01"),
        "limited",
        "ended in June 2028",
        "Install a maintained branch",
    ),
    ("driver.nvml", nvml("lost", "the GPU is lost"), "broken", "GPU 0: lost", "vram reset 0"),
    ("driver.nvml", nvml("timeout", "x did not answer"), "broken", "timeout", "dmesg"),
    ("driver.nvml", nvml("denied", "no permission"), "limited", "denied", 'sudo "$(command -v vram)" doctor'),
    (
        "driver.nvml",
        facts(
            survey=survey(
                Observation(
                    probe="nvml.init",
                    status="failed",
                    code="no-nvml-binding",
                    message="the Python package nvidia-ml-py is not installed",
                ),
                seen=(),
            )
        ),
        "broken",
        "nvidia-ml-py",
        "pip install",
    ),
    (
        "driver.cuda",
        facts(
            driver_test=DriverTest(error="cannot open"),
            host_files=replace(SOUND.host_files, container=DOCKER),
        ),
        "missing",
        "libcuda.so.1 cannot be loaded",
        "NVIDIA_DRIVER_CAPABILITIES=compute,utility",
    ),
    ("driver.cuda", facts(driver_test=DriverTest(died_in="cuInit")), "broken", "crashed the process", "log"),
    ("driver.cuda", facts(driver_test=DriverTest(not_tried="no room")), "unknown", "no room", "ulimit -u"),
    (
        "permissions.pidfd",
        facts(kernel_test=KernelTest(not_tried="no room")),
        "unknown",
        "no room",
        "ulimit",
    ),
    ("driver.cuda", facts(driver_test=DriverTest(init_code=34)), "broken", "stub", "stubs"),
    ("driver.cuda", facts(driver_test=DriverTest(init_code=803)), "broken", "error 803", "driver.versions"),
    ("driver.cuda", facts(driver_test=DriverTest(init_code=719)), "broken", "error 719", "kernel log"),
    (
        "driver.nodes",
        with_host_files(nodes=(replace(NODES[0], usable=False, mode=0o660, group="video"), *NODES[1:])),
        "broken",
        "no permission to open /dev/nvidia0 (root:video, mode 660)",
        "usermod -aG video",
    ),
    (
        "driver.nodes",
        with_host_files(nodes=(replace(NODES[0], usable=False, mode=0o600), *NODES[1:])),
        "broken",
        "root:root, mode 600",
        "the administrator",
    ),
    (
        "driver.nodes",
        with_host_files(nodes=NODES[:2]),
        "missing",
        "/dev/nvidia-uvm is missing",
        "modprobe -u",
    ),
    ("driver.nodes", with_host_files(nodes=(), container=DOCKER), "missing", "are missing", "--gpus all"),
    (
        "driver.tool",
        with_host_files(driver=replace(SOUND.host_files.driver, tool=None)),
        "missing",
        "nvidia-smi",
        "nvidia-utils",
    ),
    ("gpu.mig", with_gpu(gpus=8, mig_enabled=True), "limited", "8 GPUs of 8", "-mig 0"),
    ("gpu.mps", with_host_files(mps=Mps("/mps", 77, True)), "limited", "MPS daemon 77", "echo quit"),
    ("gpu.mps", on(HOST, charge(5, GIB, "mps")), "limited", "MPS serves 1 client", "clients are done"),
    ("gpu.persistence", with_gpu(gpus=3, persistence=False), "limited", "GPUs 0, 1 and 2", "persistenced"),
    ("gpu.compute-mode", with_gpu(compute_mode="prohibited"), "limited", "prohibited", "-c DEFAULT"),
    (
        "gpu.memory-health",
        with_gpu(retired_pending=True),
        "limited",
        "is pending until a reset",
        "vram reset 0",
    ),
    (
        "gpu.recovery",
        with_gpu(recovery_action="gpu-reset"),
        "limited",
        "GPU 0: reset the GPU",
        "vram reset 0",
    ),
    ("gpu.recovery", with_gpu(recovery_action="node-reboot"), "limited", "restart the machine", "dmesg"),
    ("gpu.own-memory", with_gpu(virtualization="vgpu"), "limited", "a vGPU", "administrator"),
    ("gpu.own-memory", with_gpu(virtualization="host-vgpu"), "limited", "serves vGPUs", "administrator"),
    ("gpu.own-memory", on(HOST, SHARED), "limited", "the total is the system's", "vram trim"),
    ("gpu.bar1", with_gpu(bar1_used=250 * GIB), "limited", "250.0 GiB of 256.0 GiB", "vram who --gpu 0"),
    (
        "gpu.others",
        on(
            HOST,
            Observation(probe="drm.gpu", gpu=1, facts=RADEON),
            Observation(probe="drm.memory", gpu=1, status="failed", message="mem_info_vram_total is absurd"),
        ),
        "limited",
        "does not report the memory of GPU 1",
        "newer kernel",
    ),
    (
        "permissions.processes",
        confined(unreadable=213),
        "limited",
        "ana cannot read the open files of 213 processes",
        'sudo "$(command -v vram)" doctor',
    ),
    ("permissions.processes", confined(hidepid="2"), "limited", "hidepid=2 hides other users", "sudo"),
    (
        "permissions.processes",
        confined(host=HOST, unreadable=9),
        "limited",
        "root cannot read the open files of 9 processes",
        "CAP_SYS_PTRACE",
    ),
    (
        "permissions.processes",
        confined(host=HOST, unreadable=63, capabilities=ALL_CAPABILITIES, first_user_namespace=False),
        "limited",
        "root cannot read the open files of 63 processes",
        "only in a user namespace",
    ),
    (
        "permissions.pidfd",
        facts(kernel_test=replace(SOUND.kernel_test, pidfd_getfd=errno.ENOSYS)),
        "limited",
        "pidfd_getfd (ENOSYS)",
        "It needs Linux 5.6; this is 6.8.0",
    ),
    (
        "permissions.pidfd",
        facts(
            kernel_test=replace(SOUND.kernel_test, pidfd_open=errno.EPERM),
            host_files=replace(
                SOUND.host_files, confinement=replace(SOUND.host_files.confinement, seccomp=2)
            ),
        ),
        "broken",
        "pidfd_open (EPERM)",
        "seccomp",
    ),
    ("permissions.ptrace", confined(yama=1), "limited", "only a parent may attach", 'vram)" trim PID'),
    ("permissions.ptrace", confined(yama=2), "limited", "only root may attach", 'vram)" trim PID'),
    (
        "permissions.ptrace",
        confined(host=HOST, yama=3, capabilities=(1 << 41) - 1),
        "limited",
        "nobody may attach",
        "vram.agent()",
    ),
    (
        "permissions.ptrace",
        facts(
            kernel_test=replace(SOUND.kernel_test, ptrace=errno.EPERM),
            host_files=replace(SOUND.host_files, container=DOCKER),
        ),
        "limited",
        "even to our own child process (EPERM)",
        "--cap-add SYS_PTRACE",
    ),
    ("reaching.routes", facts(attach_test=None), "unknown", "did not finish", "again"),
    (
        "reaching.routes",
        facts(attach_test=AttachTest(version="3.12", routes={"at work": 1.0}, errors={"at rest": "no"})),
        "limited",
        "cannot attach to a Python at rest",
        "vram.agent()",
    ),
    (
        "place.namespace",
        facts(survey=survey(host=INSIDE), host_files=replace(SOUND.host_files, container=DOCKER)),
        "limited",
        "a separate PID namespace (4026532000)",
        "--pid=host",
    ),
    (
        "place.namespace",
        on(INSIDE, charge(99, GIB, alive=False)),
        "limited",
        "the driver lists 1 pid unknown here",
        "Run it on the host",
    ),
    (
        "place.container",
        facts(survey=absent(), host_files=replace(SOUND.host_files, container=DOCKER)),
        "missing",
        "in a docker container 4f1c4f1c4f1c, which has no GPU",
        "docker run --gpus all",
    ),
    (
        "place.container",
        facts(
            survey=absent(),
            host_files=replace(SOUND.host_files, container=Container(runtime="podman", evidence="mark")),
        ),
        "missing",
        "in a podman container",
        "podman run --device nvidia.com/gpu=all",
    ),
    ("place.wsl", wsl(version=1, gpu_device=False), "missing", "WSL 1", "--set-version"),
    ("place.wsl", wsl(gpu_device=False), "missing", "without /dev/dxg", "wsl.exe --update"),
    ("place.wsl", wsl(libraries=None, container=True), "missing", "libraries", "--gpus all"),
    ("place.wsl", wsl(), "limited", "Windows' own programs are not reported", "[interop]"),
    (
        "place.wsl",
        facts(
            survey=replace(wsl(interop=True).survey, probes=(ProbeRun("windows", "timeout", 4.0, "late"),))
        ),
        "limited",
        "Windows' own programs are not reported",
        "--deadline 20s",
    ),
    (
        "place.wsl",
        facts(survey=replace(wsl(interop=True).survey, probes=(ProbeRun("windows", "failed", 0.5, "?"),))),
        "limited",
        "Windows' own programs are not reported",
        "winmgmt /resyncperf",
    ),
    *(
        (
            "place.wsl",
            facts(
                survey=replace(
                    wsl(interop=True).survey, probes=(ProbeRun("windows", status, 0.1, code, code),)
                )
            ),
            "limited",
            "Windows' own programs are not reported",
            fix,
        )
        for status, code, fix in (
            ("unsupported", NO_POWERSHELL, "[automount]"),
            ("unsupported", NO_INTEROP, "[interop]"),
            ("denied", "powershell-denied", "may start powershell.exe"),
        )
    ),
    (
        "place.wsl",
        wsl(interop=True, container=True),
        "limited",
        "Windows' own programs are not reported",
        "distribution",
    ),
    (
        "place.wsl",
        facts(survey=replace(wsl(interop=True).survey, probes=(ProbeRun("windows", "ok", 0.7),))),
        "limited",
        "Windows reported its counters in 0.7 s",
        "--deep",
    ),
    ("parking.calls", wsl(interop=True), "missing", "not under WSL", "Trim"),
    ("reaching.python", facts(targets=None), "unknown", "does not return", "server"),
    (
        "parking.calls",
        facts(
            survey=survey(seen=observations(driver=DriverFacts("565.57.01"))),
            driver_test=replace(SOUND.driver_test, lacks=("cuCheckpointProcessLock",)),
        ),
        "missing",
        "driver 565.57.01 cannot park: cuCheckpointProcessLock is missing",
        "570 or later",
    ),
    ("parking.calls", with_host_files(machine="aarch64"), "missing", "cannot park", "595 or later"),
    (
        "parking.room",
        on(HOST, charge(5, 40 * GIB), charge(5, 30 * GIB), charge(6, 20 * GIB)),
        "limited",
        "pid 5 has 70.0 GiB on the GPU",
        "vram trim 5",
    ),
    (
        "parking.room",
        facts(
            survey=survey(charge(5, 3 * GIB)),
            room=ProcessLimits(memory_left=4 * GIB, memory_limited_by="/job_42", memory_total=128 * GIB),
        ),
        "limited",
        "(limited by /job_42)",
        "Raise the memory limit",
    ),
    ("parking.room", facts(room=ProcessLimits()), "unknown", "does not show", "Mount /proc"),
    (
        "reaching.python",
        facts(
            targets=(
                AttachTarget(pid=5, user="ana", nbytes=GIB, unavailable={"agent": "no", "ptrace": "yama"}),
            )
        ),
        "limited",
        "Python pid 5 cannot be trimmed",
        "vram.agent()",
    ),
    (
        "reaching.python",
        facts(
            targets=(
                AttachTarget(pid=5, user="ana", nbytes=None, available=("agent",)),
                AttachTarget(pid=6, user="ana", nbytes=None, unavailable={"jupyter": "no"}, is_kernel=True),
            ),
            program=replace(SOUND.program, packages={}),
        ),
        "limited",
        "Python pid 6 cannot be trimmed",
        "pip install 'pyzmq>=22'",
    ),
    ("reaching.native", facts(attach_test=None), "unknown", "did not finish", "again"),
    (
        "reaching.native",
        facts(attach_test=AttachTest(version="3.12", native_error="no permission")),
        "limited",
        "cannot enter a program without Python",
        "permissions.ptrace",
    ),
    (
        "reaching.native",
        facts(
            targets=(
                AttachTarget(
                    pid=5, user="ana", nbytes=GIB, unavailable={"native": "static"}, is_python=False
                ),
            )
        ),
        "limited",
        "pid 5 cannot be trimmed",
        "cudaMemPoolTrimTo",
    ),
    ("reaching.cupti", facts(cupti=None), "unknown", "does not return", "LD_LIBRARY_PATH"),
    ("reaching.cupti", facts(cupti=()), "missing", "no libcupti", "nvidia-cuda-cupti"),
    ("reaching.cupti", with_host_files(injection="/opt/x.so"), "limited", "/opt/x.so", "unset"),
    (
        "reaching.cupti",
        facts(tracing=(Tracing(5, "/x/libcupti.so.13", "/opt/x.so"),)),
        "limited",
        "1 process on the GPUs",
        "Let that tool finish",
    ),
    (
        "vram.records",
        facts(records=replace(SOUND.records, free_bytes=0)),
        "broken",
        "is full (0 B left)",
        "Free some space",
    ),
    (
        "vram.native",
        facts(kernel_test=replace(SOUND.kernel_test, natives={"/lib/libvrambuffer.so": "not found"})),
        "missing",
        "libvrambuffer.so",
        "native/build.py",
    ),
    (
        "vram.python",
        facts(program=replace(SOUND.program, packages={"msgspec": "1", "rich": "1"})),
        "broken",
        "not installed: nvidia-ml-py",
        "pip install nvidia-ml-py",
    ),
    (
        "vram.jupyter",
        facts(program=replace(SOUND.program, packages={})),
        "missing",
        "pyzmq",
        "pip install 'pyzmq>=22'",
    ),
]


@pytest.mark.parametrize(
    ("check", "host", "state", "seen", "fix"),
    COMPLAINTS,
    ids=[f"{check}-{at}" for at, (check, *_) in enumerate(COMPLAINTS)],
)
def test_what_is_wrong_is_said_with_its_meaning_and_its_fix(
    check: str, host: DoctorFacts, state: str, seen: str, fix: str
) -> None:
    answer = judged(check, host)
    assert answer.state == state, answer
    assert seen in answer.seen
    assert fix in f"{answer.fix} {answer.command}"
    assert answer.means.endswith(".") or answer.state == "unknown", "the meaning is a sentence"
    assert answer.fix.endswith("."), "so is the fix"


def test_what_it_suggests_can_be_pasted() -> None:
    """Of our own commands: their words are known, and parse."""
    suggested = {judged(check, host).command for check, host, *_ in COMPLAINTS}
    ours = [shlex.split(command) for command in suggested if command.startswith("vram ")]
    assert ours
    for _, name, *words in ours:
        parser = Parser(prog=f"vram {name}")
        import_module(f"vram.cli.commands.{name}").add_arguments(parser)
        parser.parse_args(words)


def test_every_check_that_can_complain_is_shown_complaining() -> None:
    assert {each.id for each in CHECKS} == {check for check, *_ in COMPLAINTS}


@pytest.mark.parametrize(
    ("check", "host"),
    [
        # Close cases, in which there is nothing to complain of.
        ("driver.versions", facts(driver_test=COMPAT)),
        ("driver.versions", facts(driver_test=replace(SOUND.driver_test, library_version=None))),
        ("driver.age", aged("535.288.01", "2026-06-30")),
        ("driver.age", aged("580.159.04", "2028-06-30")),
        ("driver.age", aged("620.10")),
        ("driver.age", aged("535.288.01", wsl=True)),
        ("driver.age", aged("a driver without numbers")),
        ("driver.nodes", with_host_files(nodes=(*NODES, MODESET))),
        ("gpu.mps", with_host_files(mps=Mps("/mps", None, True))),
        ("gpu.recovery", with_gpu(recovery_action="none")),
        ("gpu.recovery", with_gpu(recovery_action=None)),
        ("gpu.own-memory", with_gpu(virtualization="passthrough")),
        ("gpu.bar1", with_gpu(bar1_total=None, bar1_used=None)),
        ("gpu.persistence", with_gpu(persistence=None)),
        ("permissions.processes", confined()),
        ("permissions.processes", facts(survey=confined(unreadable=1).survey)),
        ("permissions.ptrace", confined(host=HOST, yama=2, capabilities=1 << 19)),
        ("permissions.ptrace", confined(yama=0)),
        ("place.namespace", on(HOST, charge(99, GIB, alive=False))),
        ("place.container", with_host_files(container=DOCKER)),
        ("place.container", with_host_files(runtimes=("docker", "containerd"))),
        ("parking.calls", facts(survey=survey(seen=observations(driver=DriverFacts("610.1"))))),
        ("parking.room", on(HOST, charge(5, 50 * GIB))),
        ("parking.room", on(HOST, charge(5, 500 * GIB, alive=False))),
        ("reaching.cupti", facts(tracing=(Tracing(5, "/x/libcupti.so.13", None),))),
        ("reaching.python", facts(targets=(NEW_PYTHON,))),
    ],
)
def test_close_cases_are_well(check: str, host: DoctorFacts) -> None:
    assert judged(check, host).state in ("ok", "not-applicable"), judged(check, host)


def test_gpus_of_other_vendors_are_no_nvidia_gpus() -> None:
    """Their settings are not judged as NVIDIA's; a host with only them is no host without a driver."""
    found = Observation(probe="drm.gpu", gpu=0, facts=RADEON)
    host = facts(
        survey=replace(absent(), observations=(*absent().observations, found)),
        host_files=replace(SOUND.host_files, driver=files(nvidia_devices=0)),
    )
    assert judged("gpu.others", host).seen == "GPU 0: AMD"
    assert judged("gpu.persistence", host).state == "not-applicable"
    assert judged("driver.present", host).state == "not-applicable"


@pytest.mark.parametrize("check", [each.id for each in CHECKS])
@pytest.mark.parametrize("host", [facts(survey=absent(host=USER)), facts(survey=survey(seen=()))])
def test_no_check_trips_over_a_host_of_which_little_is_known(check: str, host: DoctorFacts) -> None:
    assert judged(check, host).seen
