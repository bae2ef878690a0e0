"""What the kernel lets us do here, and the container that we are in, if any."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from vram.host.local.cgroup import membership, workload
from vram.host.local.driver_files import read
from vram.model.surroundings import Confinement, Container

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
        (load.runtime, f"our control group names container {load.container}") if load.container else None,
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
    return [(name, f"/{mark} is there") for name, mark in _MARKS if os.path.exists(f"{root}/{mark}")]


def _mounts(root: str) -> list[tuple[str, str]]:
    """Files that a runtime mounts over our own, told by where they come from."""
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
