"""What started a process: container, pod, job, service, notebook.

Its control group's path tells which, and often by number only:

    0::/system.slice/docker-4f1c….scope                           Docker under systemd
    5:memory:/docker/4f1c…                                        Docker, version 1
    …/kubepods-burstable-podX.slice/cri-containerd-4f1c….scope    Kubernetes
    /slurm/uid_1000/job_42/step_0/task_0                          Slurm, version 1
    /system.slice/slurmstepd.scope/job_42/step_0/user/task_0      Slurm, version 2
    /user.slice/user-1000.slice/session-3.scope                   a login

Names come from the process's own environment and from files that container runtimes leave on
the disk. Runtimes themselves are never asked: a daemon's socket is as good as root, and one
that hangs would hang us. What a process says of itself is shown as its word, and never enters
a command.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from vram.model.process import Workload
from vram.payloads.procfs import ProcessFolder, Stat, text

# Left to re to compile, and only where a plain word is found first: most paths need none of them.
_ID = r"[0-9a-f]{12,64}"
_CONTAINERS = (
    ("docker", "docker", rf"(?:/docker-({_ID})\.scope|/docker/({_ID}))(?=/|$)"),
    ("containerd", "cri-containerd", rf"(?:/cri-containerd-({_ID})\.scope|:cri-containerd:({_ID}))(?=/|$)"),
    ("containerd", "nerdctl", rf"/nerdctl-({_ID})\.scope(?=/|$)"),
    # Without systemd, containerd puts a container below the name of its own namespace.
    ("containerd", "/default/", rf"^/default/({_ID})(?=/|$)"),
    ("podman", "libpod", rf"/libpod-(?:conmon-)?({_ID})(?:\.scope)?(?=/|$)"),
    ("crio", "crio", rf"/crio-(?:conmon-)?({_ID})(?:\.scope)?(?=/|$)"),
    ("lxc", "lxc", r"/lxc(?:\.payload[./]|/)([^/]+)"),
    (
        "nspawn",
        "machine.slice",
        r"/machine\.slice/(?:systemd-nspawn@([^/]+)\.service|machine-([^/]+)\.scope)",
    ),
    ("ecs", "/ecs", rf"/ecs/[^/]+/({_ID})(?=/|$)"),
    # Under the cgroupfs driver Kubernetes names no runtime: the container follows its pod.
    (None, "kubepods", rf"/kubepods(?:/[a-z]+)?/pod[^/]+/({_ID})(?=/|$)"),
)
# A static pod is named by 32 digits, any other by a UUID; systemd wants its dashes as underscores.
_POD = r"[/-]pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})"
_JOB = r"/(?:[^/]*slurm[^/]*|uid_\d+)/job_(\d+)(?:/step_([^/]+))?"
_UNITS = (".service", ".scope")
_MAX_FILE = 4 << 20
_MAX_LENGTH = 200
_WANTED = frozenset(
    (b"HOSTNAME", b"KUBERNETES_SERVICE_HOST", b"SLURM_JOB_ID", b"SLURM_JOB_NAME", b"JPY_SESSION_NAME")
)
# A server gives its kernels a UUID, whose beginning is enough; VS Code and jupyter console do not.
_KERNEL_FILE = r"kernel-(?:([0-9a-f]{8})-[0-9a-f-]{27}|([\w-]{1,24})[\w-]*)\.json"
_CONTAINERD = ("run/containerd", "run/k3s/containerd")
_NAMESPACES = ("k8s.io", "moby", "default")

Shape = TypeVar("Shape")


def membership(text: str) -> str | None:
    """The one path of /proc/PID/cgroup that tells the most.

    Version 2 has the line "0::"; where both versions are mounted that one can be bare "/",
    and a controller of version 1 knows better.
    """
    paths = [line.split(":", 2)[2] for line in text.splitlines() if line.count(":") >= 2]
    return max(paths, key=_telling, default=None)


def workload(path: str | None) -> Workload:
    """Name what *path* belongs to; fields stay None where it says nothing."""
    if not path:
        return Workload()
    runtime, container = _container(path)
    pods = re.findall(_POD, path) if "pod" in path else []
    job = re.search(_JOB, path) if "/job_" in path else None
    return Workload(
        container=container,
        runtime=runtime,
        pod=pods[-1].replace("_", "-") if pods else None,
        slurm_job=job[1] if job else None,
        slurm_step=job[2] if job else None,
        unit=_unit(path),
    )


def _container(path: str) -> tuple[str | None, str | None]:
    """The innermost: a cluster can live inside a container itself (kind, Docker in Docker)."""
    best: tuple[int, str | None, str | None] = (-1, None, None)
    for runtime, word, pattern in _CONTAINERS:
        for found in re.finditer(pattern, path) if word in path else ():
            if found.start() > best[0]:
                best = (found.start(), runtime, next(group for group in found.groups() if group))
    return best[1], best[2]


def _unit(path: str) -> str | None:
    # The innermost: user@1000.service holds a whole session of services.
    units = [part for part in path.split("/")[1:] if part.endswith(_UNITS) and part not in _UNITS]
    return units[-1] if units else None


def _telling(path: str) -> tuple[int, int]:
    known = workload(path)
    said = (known.container, known.pod, known.slurm_job, known.unit)
    return sum(each is not None for each in said), len(path)


# ---- names, where the control group knows only a number ----


def variables(environ: bytes, wanted: frozenset[bytes] = _WANTED) -> dict[bytes, str]:
    """The few variables that name something, of all that a process was started with."""
    found = {}
    for line in environ.split(b"\0"):
        key, _, value = line.partition(b"=")
        if key in wanted and value:
            found[key] = value.decode("utf-8", "backslashreplace")[:_MAX_LENGTH]
    return found


def named(origin: Workload, environ: bytes, argv: tuple[str, ...], names: ContainerNames) -> Workload:
    """*origin* with every name that can be found for it."""
    said = variables(environ)
    container, pod = names.of(origin) if origin.container else (None, None)
    in_pod = origin.pod is not None or b"KUBERNETES_SERVICE_HOST" in said
    return replace(
        origin,
        container_name=container,
        pod_name=pod or (_host_name(said.get(b"HOSTNAME")) if in_pod else None),
        claimed_job=None if origin.slurm_job else _digits(said.get(b"SLURM_JOB_ID")),
        job_name=said.get(b"SLURM_JOB_NAME"),
        notebook=_notebook(said, argv),
    )


def _host_name(text: str | None) -> str | None:
    """A process's own word has no namespace: one with a "/" is the runtime's, and can be relied on."""
    return text if text and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.-]*", text) else None


def _digits(text: str | None) -> str | None:
    return text if text and text.isascii() and text.isdigit() and len(text) <= 10 else None


def _notebook(said: dict[bytes, str], argv: tuple[str, ...]) -> str | None:
    """The notebook of a Jupyter kernel; where no variable says it, the name of its connection file."""
    if not any("ipykernel" in word for word in argv[:4]):
        return None
    if b"JPY_SESSION_NAME" in said:
        return said[b"JPY_SESSION_NAME"]
    found = next((match for word in argv if (match := re.search(_KERNEL_FILE, word, re.ASCII))), None)
    return f"kernel {found[1] or found[2]}" if found else None


class _Config(msgspec.Struct):
    """What Docker writes about a container of its own."""

    Name: str = ""


class _Runtime(msgspec.Struct):
    """What a runtime was given for a container: the annotations name its pod."""

    annotations: dict[str, str] = {}


class _Stored(msgspec.Struct):
    """One line of Podman's list."""

    id: str
    names: list[str] = []


class ContainerNames:
    """Looks names up in what runtimes keep below *root*; what may not be read is not known."""

    def __init__(self, root: str = "/") -> None:
        self._root = root
        self._known: dict[tuple[str | None, str], tuple[str | None, str | None]] = {}

    def of(self, origin: Workload) -> tuple[str | None, str | None]:
        """The names of a container and of its pod."""
        number = origin.container or ""
        if not re.fullmatch(_ID, number):
            return None, None
        key = (origin.runtime, number)
        if key not in self._known:
            self._known[key] = self._look(origin.runtime, number)
        return self._known[key]

    def _look(self, runtime: str | None, number: str) -> tuple[str | None, str | None]:
        if runtime == "docker":
            found = self._read(f"var/lib/docker/containers/{number}/config.v2.json", _Config)
            return (_short(found.Name.lstrip("/")) if found else None), None
        if runtime == "podman":
            return self._podman(number), None
        for path in _runtime_files(number):
            if config := self._read(path, _Runtime):
                return _from_annotations(config.annotations)
        return None, None

    def _podman(self, number: str) -> str | None:
        kept = "containers/storage/overlay-containers/containers.json"
        home = os.path.expanduser("~").lstrip("/")
        for path in (f"var/lib/{kept}", f"{home}/.local/share/{kept}"):
            for each in self._read(path, list[_Stored]) or []:
                if each.id == number and each.names:
                    return _short(each.names[0])
        return None

    def _read(self, path: str, kind: type[Shape]) -> Shape | None:
        from vram import untrusted  # most processes have no container whose files would be read

        try:
            return untrusted.decode(
                untrusted.read_file(os.path.join(self._root, path), nbytes=_MAX_FILE, follow=True), kind
            )
        except untrusted.Rejected:
            return None


def _runtime_files(number: str) -> Iterator[str]:
    for place in _CONTAINERD:
        for namespace in _NAMESPACES:
            yield f"{place}/io.containerd.runtime.v2.task/{namespace}/{number}/config.json"
    yield f"run/containers/storage/overlay-containers/{number}/userdata/config.json"  # CRI-O


def _from_annotations(annotations: dict[str, str]) -> tuple[str | None, str | None]:
    container = annotations.get("io.kubernetes.cri.container-name") or annotations.get(
        "io.kubernetes.container.name"
    )
    pod = annotations.get("io.kubernetes.cri.sandbox-name") or annotations.get("io.kubernetes.pod.name")
    space = annotations.get("io.kubernetes.cri.sandbox-namespace") or annotations.get(
        "io.kubernetes.pod.namespace"
    )
    return _short(container), _short(f"{space}/{pod}" if pod and space else pod)


def _short(text: str | None) -> str | None:
    return text[:_MAX_LENGTH] if text else None


# ---- which Slurm jobs run on this node: every step has a slurmstepd, whose title names its job ----
#
#     slurmstepd: [42.batch]     slurmstepd: [42.0]     slurmstepd: [42.extern]
#
# Slurm is not asked: /proc has it, and a slurmctld that does not answer cannot hold us up. Only processes of
# root count, and of the user who runs us: a title is easily forged.

_STEP_DAEMON = "slurmstepd"
_STEP_TITLE = r"slurmstepd: \[(?:StepId=)?([0-9]{1,10})(?:\+[0-9]+)?\."
# With control groups of version 2 one of these only keeps Slurm's scope alive.
_KEEPS_SCOPE = "infinity"
_MAX_TITLE = 4096
UNKNOWN = "?"


class RunningSteps(Struct, frozen=True):
    """The jobs with a step here, the processes below each step, and steps whose job is not known (yet).

    Processes below an unnamed step run for a job too, which is called "?". ``users`` are the users of each
    job's processes, root left out.
    """

    jobs: frozenset[str]
    below: dict[int, str]
    unnamed: tuple[int, ...] = ()
    users: dict[str, frozenset[int]] = {}


def running_steps(root: str = "/proc") -> RunningSteps:
    """Read which jobs run here, and every process that descends from one of their steps."""
    parents: dict[int, int] = {}
    steps: dict[int, str] = {}
    unnamed: list[int] = []
    trusted = {0, os.geteuid()}
    for folder, stat in processes(root):
        parents[folder.pid] = stat.parent
        if stat.kernel_thread or not _is_step(folder, stat) or uid_in(folder.status()) not in trusted:
            continue
        words = text(folder.read("cmdline", _MAX_TITLE) or b"").split("\0")
        if found := re.match(_STEP_TITLE, words[0]):
            steps[folder.pid] = found[1]
        elif _KEEPS_SCOPE not in words[1:2] and not stat.has_ended:
            unnamed.append(folder.pid)
            steps[folder.pid] = UNKNOWN
    below = _below(parents, steps)
    return RunningSteps(frozenset(steps.values()) - {UNKNOWN}, below, tuple(unnamed), _users(root, below))


def processes(root: str) -> Iterator[tuple[ProcessFolder, Stat]]:
    """Every process there is, and what every user may read of it."""
    for name in os.listdir(root):
        if name.isdigit():
            with suppress(OSError), ProcessFolder(root, int(name)) as folder:
                stat = folder.stat()
                if stat:
                    yield folder, stat


def _is_step(folder: ProcessFolder, stat: Stat) -> bool:
    if stat.name == _STEP_DAEMON:
        return True
    program = (folder.link("exe") or b"").removesuffix(b" (deleted)")
    return program.rpartition(b"/")[2] == _STEP_DAEMON.encode()


def uid_in(status: dict[bytes, bytes]) -> int | None:
    words = status.get(b"Uid", b"").split()
    return int(words[0]) if words and words[0].isdigit() else None


def _users(root: str, below: dict[int, str]) -> dict[str, frozenset[int]]:
    found: dict[str, set[int]] = {}
    for pid, job in below.items():
        with suppress(OSError), ProcessFolder(root, pid) as folder:
            uid = uid_in(folder.status())
            if uid:
                found.setdefault(job, set()).add(uid)
    return {job: frozenset(uids) for job, uids in found.items()}


def _below(parents: dict[int, int], steps: dict[int, str]) -> dict[int, str]:
    """The job of every process that descends from a step."""
    found = dict(steps)
    for pid in parents:
        way = []
        at = pid
        while at in parents and at not in found and at not in way:
            way.append(at)
            at = parents[at]
        if at in found:
            found |= dict.fromkeys(way, found[at])
    return found
