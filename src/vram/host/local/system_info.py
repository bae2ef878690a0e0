"""The machine around the GPUs: read from files below *root*, or tried on processes of our own."""

from __future__ import annotations

import grp
import json
import os
import platform
import re
import stat
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from glob import glob
from typing import Any, TypeVar

import msgspec

from vram.children import Child, driver_environment, spawn, start_program
from vram.host.local.identity import read_text, user_name
from vram.host.local.workload import membership, workload
from vram.host.ports import VendorAnswer
from vram.model.doctor import (
    Confinement,
    Container,
    DeviceNode,
    DriverFiles,
    DriverTest,
    HostFiles,
    KernelTest,
    Mps,
    Tracing,
)
from vram.payloads import command
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
            runtimes=tuple(name for name, socket in _SOCKETS if os.path.exists(f"{root}/{socket}")),
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
        folder = self._environment.get("CUDA_MPS_PIPE_DIRECTORY") or _MPS_FOLDER
        place = self._root + folder
        number = read_text(f"{place}/nvidia-cuda-mps-control.pid", 32).strip()
        alive = number.isdigit() and os.path.isdir(f"{self._root}/proc/{number}")
        return Mps(folder, int(number) if alive else None, os.path.exists(f"{place}/control"))


# ---- the driver as files show it: modules, devices on the bus, nodes in /dev, the vendor's tool ----


def driver_files(root: str) -> DriverFiles:
    said = read_text(f"{root}/proc/driver/nvidia/version")
    version = _MODULE.search(said)
    places = (f"{folder}/nvidia-smi" for folder in FOLDERS)
    return DriverFiles(
        nvidia_devices=_nvidia_devices(f"{root}/sys/bus/pci/devices"),
        module_version=version[1] if version else None,
        installed_version=read_text(f"{root}/sys/module/nvidia/version").strip() or None,
        open_module="Open Kernel Module" in said if version else None,
        modules=tuple(name for name in _MODULES if os.path.isdir(f"{root}/sys/module/{name}")),
        tool=next((place for place in places if os.access(root + place, os.X_OK)), None),
    )


def device_nodes(root: str) -> tuple[DeviceNode, ...]:
    try:
        names = sorted(name for name in os.listdir(f"{root}/dev") if _NODES.fullmatch(name))
    except OSError:
        return ()
    found = []
    for path in (f"/dev/{name}" for name in names):
        with suppress(OSError):
            about = os.stat(root + path)
            mode, user, group = stat.S_IMODE(about.st_mode), user_name(about.st_uid), str(about.st_gid)
            with suppress(KeyError, OSError):
                group = grp.getgrgid(about.st_gid).gr_name
            usable = os.access(root + path, os.R_OK | os.W_OK, effective_ids=True)
            found.append(DeviceNode(path, mode, user, group, usable))
    return tuple(found)


def _nvidia_devices(folder: str) -> int:
    try:
        devices = os.listdir(folder)
    except OSError:
        return 0
    return sum(
        read_text(f"{folder}/{device}/vendor").strip() == _NVIDIA
        and read_text(f"{folder}/{device}/class").startswith(_DISPLAYS)
        for device in devices
    )


# ---- what the kernel lets us do here, and the container that we are in, if any ----


def confinement(root: str) -> Confinement:
    status = dict(
        line.split(":", 1) for line in read_text(f"{root}/proc/self/status").splitlines() if ":" in line
    )
    return Confinement(
        capabilities=_number(status.get("CapEff"), 16),
        seccomp=_number(status.get("Seccomp"), 10),
        yama=_number(read_text(f"{root}/proc/sys/kernel/yama/ptrace_scope"), 10),
        hidepid=_hidepid(read_text(f"{root}/proc/self/mountinfo")),
        first_user_namespace=read_text(f"{root}/proc/self/uid_map").split() in ([], _ALL_USERS),
    )


def _hidepid(mounts: str) -> str | None:
    """The option of the /proc that is on top; None where it hides no process."""
    options = [line.split()[-1] for line in mounts.splitlines() if line.split()[4:5] == ["/proc"]]
    found = re.search(r"(?:^|,)hidepid=(\w+)", options[-1]) if options else None
    return None if found is None or found[1] in ("0", "off") else found[1]


def container(root: str, environment: Mapping[str, str]) -> Container | None:
    """The runtime by the first sign that names one; pods are known by any of them."""
    load = workload(membership(read_text(f"{root}/proc/self/cgroup")))
    in_pod = "KUBERNETES_SERVICE_HOST" in environment
    signs = (
        (load.runtime, f"vram's cgroup names container {load.container}") if load.container else None,
        *((name, f"/{mark} exists") for name, mark in _MARKS if os.path.exists(f"{root}/{mark}")),
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


def _mounts(root: str) -> list[tuple[str, str]]:
    """Files that a runtime mounts over our own, known by where they come from."""
    lines = [line.split() for line in read_text(f"{root}/proc/self/mountinfo").splitlines()]
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


# ---- calls that may hang or be forbidden, tried by processes of their own, under a deadline ----


_GRACE_S = 0.2

Test = TypeVar("Test", DriverTest, KernelTest)


class LocalSelfTests:
    """Both trials, running from now on beside whatever else is done."""

    def __init__(self, libraries: Sequence[str]) -> None:
        self._driver = _start("cuda")
        self._kernel = _start("kernel", *libraries)

    def driver(self, deadline_s: float) -> DriverTest:
        return _collect(self._driver, deadline_s, DriverTest)

    def kernel(self, deadline_s: float) -> KernelTest:
        return _collect(self._kernel, deadline_s, KernelTest)


def _start(*arguments: str) -> Child | None:
    try:
        return spawn(command("self_tests", *arguments), driver_environment())
    except OSError:  # no processes or no memory left: nothing is known then
        return None


def _collect(child: Child | None, deadline_s: float, kind: type[Test]) -> Test:
    if child is None:
        return kind(not_tried="no process could be started for it")
    fields: dict[str, Any] = {}
    stopped = "died_in"
    try:
        for line in child.lines(time.monotonic() + deadline_s):
            fields |= json.loads(line)
    except TimeoutError:
        stopped = "hung_in"
    finally:
        child.hang_up()
        child.end(_GRACE_S)
    last = fields.pop("calling", "its start")
    return msgspec.convert(fields | {stopped: last}, kind)


# ---- nvidia-smi, where only it may act: found in the system's own folders, never by the caller's PATH ----


# This runs as root: a PATH that another user prepared must not choose the program.
FOLDERS = ("/usr/bin", "/usr/local/bin", "/bin", "/usr/sbin", "/opt/bin", "/usr/lib/wsl/lib")
_MAX_OUTPUT_LENGTH = 1 << 20
_SAFE = {"PATH": ":".join(FOLDERS), "LC_ALL": "C"}


class LocalVendor:
    """Runs the vendor's tool under a deadline."""

    def reset_command(self, gpu: int) -> tuple[str, ...]:
        places = (f"{folder}/nvidia-smi" for folder in FOLDERS)
        tool = next((place for place in places if os.access(place, os.X_OK)), "nvidia-smi")
        return (tool, "--gpu-reset", "-i", str(gpu))

    def run(self, command: Sequence[str], deadline_s: float) -> VendorAnswer:
        from subprocess import DEVNULL, STDOUT

        from vram.untrusted import Rejected, receive

        until = time.monotonic() + deadline_s
        late = VendorAnswer(None, f"it did not finish within {deadline_s:g} s")
        try:
            tool = start_program(command, env=_SAFE, stdin=DEVNULL, stderr=STDOUT)
        except OSError as error:
            return VendorAnswer(None, f"cannot run {command[0]}: {error.strerror}")
        try:
            said = receive(tool.pipe, nbytes=_MAX_OUTPUT_LENGTH, until=until, end=None)
            if not tool.wait(until - time.monotonic()):
                return late
        except Rejected as error:
            damaged = VendorAnswer(None, f"its output cannot be parsed: {error}")
            return late if error.code == "late" else damaged
        finally:
            tool.end(_GRACE_S)
            tool.hang_up()
        return VendorAnswer(tool.exit_code, said.decode(errors="backslashreplace").strip())
