"""The machine around the GPUs: read from files below *root*, or tried on processes of our own."""

from __future__ import annotations

import grp
import os
import platform
import re
import stat
import sys
from collections.abc import Iterable, Mapping, Sequence
from glob import glob

from vram.host.local.identity import user_name
from vram.host.local.self_tests import LocalSelfTests
from vram.host.local.vendor import FOLDERS
from vram.host.local.workload import membership, workload
from vram.model.doctor import Confinement, Container, DeviceNode, DriverFiles, HostFiles, Mps, Tracing
from vram.payloads.procfs import ProcessFolder

_MPS_FOLDER = "/tmp/nvidia-mps"
_MODULE = re.compile(r"Kernel Module(?: for \S+)?\s+(\d+(?:\.\d+)+)")
_MODULES = ("nvidia", "nvidia_uvm", "nvidia_modeset", "nvidia_drm", "nouveau")
_NODES = re.compile(r"nvidia(?:\d{1,4}|ctl|-uvm|-uvm-tools|-modeset)|dxg")
_NVIDIA = "0x10de"
_DISPLAYS = "0x03"  # PCI class: VGA, 3D and other display controllers
_MARKS = (("docker", ".dockerenv"), ("podman", "run/.containerenv"))
# What runtimes bind into every container: its host name, its resolver, its termination log.
_MOUNTED = (
    ("docker", r"/docker/(?:volumes|containers)/"),
    ("podman", r"/containers/storage/overlay-containers/"),
    ("containerd", r"/io\.containerd\.|/containerd/"),
    ("crio", r"/crio/"),
    ("kubernetes", r"/kubelet/pods/"),
)
_SOCKETS = (
    ("docker", "run/docker.sock"),
    ("containerd", "run/containerd/containerd.sock"),
    ("podman", "run/podman/podman.sock"),
    ("crio", "run/crio/crio.sock"),
    ("kubelet", "var/lib/kubelet/device-plugins/kubelet.sock"),
)
# The first user namespace maps every number to itself; the kernel shows that as one line.
_ALL_USERS = ["0", "0", "4294967295"]
_LIBRARY = "libcupti.so*"
_MAPPED = re.compile(rb"\S*/libcupti\.so[\w.]*")
_INJECTION = b"CUDA_INJECTION64_PATH="
_MAX_MAPS_NBYTES = 64 << 20


class LocalSystemInfo:
    """Looks below *root*; *environment* is our own unless said otherwise."""

    def __init__(self, root: str = "", environment: Mapping[str, str] | None = None) -> None:
        self._root = root
        self._environment = os.environ if environment is None else environment

    def host_files(self) -> HostFiles:
        root, environment = self._root, self._environment
        return HostFiles(
            driver=driver_files(root),
            nodes=device_nodes(root),
            confinement=confinement(root),
            container=container(root, environment),
            runtimes=runtimes(root),
            mps=self._mps(),
            injection=environment.get("CUDA_INJECTION64_PATH") or None,
            machine=platform.machine(),
        )

    def cupti(self) -> tuple[str, ...]:
        return cupti_places(self._root, self._environment)

    def tracing(self, pids: Iterable[int]) -> tuple[Tracing, ...]:
        return tracing(f"{self._root}/proc", pids)

    def start_self_tests(self, libraries: Sequence[str]) -> LocalSelfTests:
        return LocalSelfTests(libraries)

    def _mps(self) -> Mps:
        said = self._environment.get("CUDA_MPS_PIPE_DIRECTORY")
        folder = said or _MPS_FOLDER
        place = self._root + folder
        number = read(f"{place}/nvidia-cuda-mps-control.pid", 32).strip()
        alive = number.isdigit() and os.path.isdir(f"{self._root}/proc/{number}")
        return Mps(folder, int(number) if alive else None, os.path.exists(f"{place}/control"))


# ---- the driver as files show it: modules, devices on the bus, nodes in /dev, the vendor's tool ----


def driver_files(root: str) -> DriverFiles:
    said = read(f"{root}/proc/driver/nvidia/version")
    version = _MODULE.search(said)
    places = (f"{folder}/nvidia-smi" for folder in FOLDERS)
    return DriverFiles(
        nvidia_devices=_nvidia_devices(f"{root}/sys/bus/pci/devices"),
        module_version=version[1] if version else None,
        installed_version=read(f"{root}/sys/module/nvidia/version").strip() or None,
        open_module="Open Kernel Module" in said if version else None,
        modules=tuple(name for name in _MODULES if os.path.isdir(f"{root}/sys/module/{name}")),
        tool=next((place for place in places if os.access(root + place, os.X_OK)), None),
    )


def device_nodes(root: str) -> tuple[DeviceNode, ...]:
    try:
        names = sorted(name for name in os.listdir(f"{root}/dev") if _NODES.fullmatch(name))
    except OSError:
        return ()
    found = (_node(root, f"/dev/{name}") for name in names)
    return tuple(node for node in found if node is not None)


def _node(root: str, path: str) -> DeviceNode | None:
    try:
        about = os.stat(root + path)
    except OSError:
        return None
    usable = os.access(root + path, os.R_OK | os.W_OK, effective_ids=True)
    return DeviceNode(
        path, stat.S_IMODE(about.st_mode), user_name(about.st_uid), _group_name(about.st_gid), usable
    )


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except (KeyError, OSError):
        return str(gid)


def _nvidia_devices(folder: str) -> int:
    try:
        devices = os.listdir(folder)
    except OSError:
        return 0
    return sum(
        read(f"{folder}/{device}/vendor").strip() == _NVIDIA
        and read(f"{folder}/{device}/class").startswith(_DISPLAYS)
        for device in devices
    )


def read(path: str, limit: int = 1 << 20) -> str:
    """The file's text; empty where it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(limit)
    except OSError:
        return ""


# ---- what the kernel lets us do here, and the container that we are in, if any ----


def confinement(root: str) -> Confinement:
    status = dict(line.split(":", 1) for line in read(f"{root}/proc/self/status").splitlines() if ":" in line)
    return Confinement(
        capabilities=_number(status.get("CapEff"), 16),
        seccomp=_number(status.get("Seccomp"), 10),
        yama=_number(read(f"{root}/proc/sys/kernel/yama/ptrace_scope"), 10),
        hidepid=_hidepid(read(f"{root}/proc/self/mountinfo")),
        first_user_namespace=read(f"{root}/proc/self/uid_map").split() in ([], _ALL_USERS),
    )


def _hidepid(mounts: str) -> str | None:
    """The option of the /proc that is on top; None where it hides nobody."""
    options = [line.split()[-1] for line in mounts.splitlines() if line.split()[4:5] == ["/proc"]]
    found = re.search(r"(?:^|,)hidepid=(\w+)", options[-1]) if options else None
    return None if found is None or found[1] in ("0", "off") else found[1]


def container(root: str, environment: Mapping[str, str]) -> Container | None:
    """The runtime by the first sign that names one; pods are known by any of them."""
    load = workload(membership(read(f"{root}/proc/self/cgroup")))
    in_pod = "KUBERNETES_SERVICE_HOST" in environment
    signs = (
        (load.runtime, f"vram's cgroup names container {load.container}") if load.container else None,
        *_marks(root),
        *_mounts(root),
        (environment["container"], "the variable `container` is set")
        if environment.get("container")
        else None,
        (None, "KUBERNETES_SERVICE_HOST is set") if in_pod else None,
    )
    found = next((sign for sign in signs if sign is not None), None)
    if found is None:
        return None
    runtime, evidence = found
    pod = load.pod or ("unknown" if in_pod else None)
    return Container(runtime=runtime, identity=load.container, pod=pod, evidence=evidence)


def _marks(root: str) -> list[tuple[str, str]]:
    return [(name, f"/{mark} exists") for name, mark in _MARKS if os.path.exists(f"{root}/{mark}")]


def _mounts(root: str) -> list[tuple[str, str]]:
    """Files that a runtime mounts over our own, known by where they come from."""
    lines = [line.split() for line in read(f"{root}/proc/self/mountinfo").splitlines()]
    over = [
        words[3]
        for words in lines
        if words[4:5] in (["/etc/hostname"], ["/etc/resolv.conf"], ["/dev/termination-log"])
    ]
    return [
        (name, f"{source} is mounted here")
        for name, pattern in _MOUNTED
        for source in over
        if re.search(pattern, source)
    ]


def runtimes(root: str) -> tuple[str, ...]:
    return tuple(name for name, socket in _SOCKETS if os.path.exists(f"{root}/{socket}"))


def _number(text: str | None, base: int) -> int | None:
    try:
        return int((text or "").strip(), base)
    except ValueError:
        return None


# ---- CUPTI, which tools for tracing load into programs: where it lies, and who has it already ----


def cupti_places(root: str, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Every libcupti that a program started here could load, by the end of its links."""
    toolkit = environment.get("CUDA_HOME") or f"{root}/usr/local/cuda"
    searched = [path for path in environment.get("LD_LIBRARY_PATH", "").split(":") if path]
    wheels = [f"{path}/nvidia/*/lib" for path in sys.path if path.endswith("-packages")]
    system = [f"{root}/usr/lib/*-linux-gnu", f"{root}/usr/lib64", f"{root}/usr/lib/wsl/lib"]
    folders = [*searched, f"{toolkit}/extras/CUPTI/lib64", f"{toolkit}/lib64", *wheels, *system]
    found = (os.path.realpath(path) for folder in folders for path in glob(f"{folder}/{_LIBRARY}"))
    return tuple(dict.fromkeys(found))


def tracing(proc_root: str, pids: Iterable[int]) -> tuple[Tracing, ...]:
    """Those of *pids* into which a tracer has been loaded; one that may not be read is left out."""
    return tuple(each for pid in pids if (each := _look(proc_root, pid)) is not None)


def _look(proc_root: str, pid: int) -> Tracing | None:
    try:
        with ProcessFolder(proc_root, pid) as folder:
            stat = folder.stat()
            # One that is stuck in the driver may hold its memory lock for good: reading would hang too.
            if stat is None or stat.state == "D":
                return None
            mapped = _MAPPED.search(folder.read("maps", _MAX_MAPS_NBYTES) or b"")
            words = (folder.read("environ") or b"").split(b"\0")
    except OSError:
        return None
    injection = next((word.removeprefix(_INJECTION) for word in words if word.startswith(_INJECTION)), b"")
    if not mapped and not injection:
        return None
    return Tracing(pid, os.fsdecode(mapped[0]) if mapped else None, os.fsdecode(injection) or None)
