"""What started a process, read from its control group's path: container, pod, job, service.

0::/system.slice/docker-4f1c….scope                           Docker under systemd
5:memory:/docker/4f1c…                                        Docker, version 1
…/kubepods-burstable-podX.slice/cri-containerd-4f1c….scope    Kubernetes
/slurm/uid_1000/job_42/step_0/task_0                          Slurm, version 1
/system.slice/slurmstepd.scope/job_42/step_0/user/task_0      Slurm, version 2
/user.slice/user-1000.slice/session-3.scope                   a login
"""

from __future__ import annotations

import re

from vram.model.process import Workload

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
