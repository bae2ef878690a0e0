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

_ID = r"[0-9a-f]{12,64}"
_CONTAINERS = (
    ("docker", re.compile(rf"(?:/docker-({_ID})\.scope|/docker/({_ID}))(?=/|$)")),
    ("containerd", re.compile(rf"(?:/cri-containerd-({_ID})\.scope|:cri-containerd:({_ID}))(?=/|$)")),
    ("podman", re.compile(rf"/libpod-(?:conmon-)?({_ID})(?:\.scope)?(?=/|$)")),
    ("crio", re.compile(rf"/crio-(?:conmon-)?({_ID})(?:\.scope)?(?=/|$)")),
    ("lxc", re.compile(r"/lxc(?:\.payload[./]|/)([^/]+)")),
    # Under the cgroupfs driver Kubernetes names no runtime: the container follows its pod.
    (None, re.compile(rf"/kubepods(?:/[a-z]+)?/pod[^/]+/({_ID})(?=/|$)")),
)
# A static pod is named by 32 digits, any other by a UUID; systemd wants its dashes as underscores.
_POD = re.compile(r"[/-]pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})")
_JOB = re.compile(r"/(?:slurm[^/]*|uid_\d+)/job_(\d+)(?:/step_([^/]+))?")
_UNIT = re.compile(r"/([^/]+\.(?:service|scope))(?=/|$)")


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
    pod, job = _POD.search(path), _JOB.search(path)
    return Workload(
        container=container,
        runtime=runtime,
        pod=pod[1].replace("_", "-") if pod else None,
        slurm_job=job[1] if job else None,
        slurm_step=job[2] if job else None,
        unit=_unit(path),
    )


def _container(path: str) -> tuple[str | None, str | None]:
    for runtime, pattern in _CONTAINERS:
        found = pattern.search(path)
        if found:
            return runtime, next(group for group in found.groups() if group)
    return None, None


def _unit(path: str) -> str | None:
    # The innermost: user@1000.service holds a whole session of services.
    units = _UNIT.findall(path)
    return units[-1] if units else None


def _telling(path: str) -> tuple[int, int]:
    known = workload(path)
    said = (known.container, known.pod, known.slurm_job, known.unit)
    return sum(each is not None for each in said), len(path)
