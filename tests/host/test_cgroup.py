"""A control group's path names the container, pod, job or service."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vram.host.local.workload import membership, workload
from vram.model.process import Workload

ID = "4f1c9d0e7a3b52c86d1f0e9b8a7c6d5e4f3a2b1c0d9e8f7a6b5c4d3e2f1a0b9c"
OUTER = "a0b1c2d3e4f5" * 5 + "0123"
UID = "0b6f5a52-2f0e-4c0e-9e5b-0a1b2c3d4e5f"
UNDERSCORED = UID.replace("-", "_")

PATHS = [
    ("/", Workload()),
    ("/user.slice/user-1000.slice/session-3.scope", Workload(unit="session-3.scope")),
    ("/system.slice/ollama.service", Workload(unit="ollama.service")),
    (
        "/user.slice/user-1000.slice/user@1000.service/app.slice/jupyter.service",
        Workload(unit="jupyter.service"),
    ),
    (f"/docker/{ID}", Workload(container=ID, runtime="docker")),
    (
        f"/system.slice/docker-{ID}.scope",
        Workload(container=ID, runtime="docker", unit=f"docker-{ID}.scope"),
    ),
    (
        f"/machine.slice/libpod-{ID}.scope/container",
        Workload(container=ID, runtime="podman", unit=f"libpod-{ID}.scope"),
    ),
    (f"/libpod_parent/libpod-{ID}", Workload(container=ID, runtime="podman")),
    (
        f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UNDERSCORED}.slice/"
        f"cri-containerd-{ID}.scope",
        Workload(container=ID, runtime="containerd", pod=UID, unit=f"cri-containerd-{ID}.scope"),
    ),
    (
        f"/kubepods.slice/kubepods-pod{UNDERSCORED}.slice/crio-{ID}.scope",
        Workload(container=ID, runtime="crio", pod=UID, unit=f"crio-{ID}.scope"),
    ),
    (f"/kubepods/besteffort/pod{UID}/{ID}", Workload(container=ID, pod=UID)),
    (
        f"/system.slice/containerd.service/kubepods-pod{UNDERSCORED}.slice:cri-containerd:{ID}",
        Workload(container=ID, runtime="containerd", pod=UID, unit="containerd.service"),
    ),
    ("/lxc.payload.ci-runner/init.scope", Workload(container="ci-runner", runtime="lxc", unit="init.scope")),
    ("/slurm/uid_1000/job_42/step_0/task_0", Workload(slurm_job="42", slurm_step="0")),
    ("/slurm_node7/uid_1000/job_42/step_batch", Workload(slurm_job="42", slurm_step="batch")),
    (
        "/system.slice/slurmstepd.scope/job_42/step_extern/user/task_0",
        Workload(slurm_job="42", slurm_step="extern", unit="slurmstepd.scope"),
    ),
    # One node of a cluster can be a container itself: the innermost container and pod count.
    (
        f"/docker/{OUTER}/kubelet/kubepods/burstable/pod{UID}/{ID}",
        Workload(container=ID, pod=UID),
    ),
    (
        f"/system.slice/docker-{OUTER}.scope/kubelet.slice/kubelet-kubepods.slice/"
        f"kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-pod{UNDERSCORED}.slice/"
        f"cri-containerd-{ID}.scope",
        Workload(container=ID, runtime="containerd", pod=UID, unit=f"cri-containerd-{ID}.scope"),
    ),
    (
        f"/system.slice/k3s.service/kubepods/pod{UID}/{ID}",
        Workload(container=ID, pod=UID, unit="k3s.service"),
    ),
    (f"/kubepods/burstable/pod{UID}/{ID}", Workload(container=ID, pod=UID)),
    (f"/kubepods/pod{'0' * 31}a/{ID}", Workload(container=ID, pod="0" * 31 + "a")),
    (
        f"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{UNDERSCORED}.slice/docker-{ID}.scope",
        Workload(container=ID, runtime="docker", pod=UID, unit=f"docker-{ID}.scope"),
    ),
    (
        f"/kubepods.slice/kubepods-pod{UNDERSCORED}.slice/crio-conmon-{ID}.scope",
        Workload(container=ID, runtime="crio", pod=UID, unit=f"crio-conmon-{ID}.scope"),
    ),
    (
        f"/user.slice/user-1000.slice/user@1000.service/user.slice/docker-{ID}.scope",
        Workload(container=ID, runtime="docker", unit=f"docker-{ID}.scope"),
    ),
    (
        f"/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope/container",
        Workload(container=ID, runtime="podman", unit=f"libpod-{ID}.scope"),
    ),
    (
        f"/machine.slice/machine-libpod_pod_{ID}.slice/libpod-{OUTER}.scope",
        Workload(container=OUTER, runtime="podman", unit=f"libpod-{OUTER}.scope"),
    ),
    (f"/default/{ID}", Workload(container=ID, runtime="containerd")),
    (
        f"/system.slice/nerdctl-{ID}.scope",
        Workload(container=ID, runtime="containerd", unit=f"nerdctl-{ID}.scope"),
    ),
    (f"/ecs/0123456789abcdef0123456789abcdef/{ID}", Workload(container=ID, runtime="ecs")),
    ("/lxc/web/system.slice/a.service", Workload(container="web", runtime="lxc", unit="a.service")),
    (
        "/machine.slice/systemd-nspawn@build.service/payload",
        Workload(container="build", runtime="nspawn", unit="systemd-nspawn@build.service"),
    ),
    (
        "/system.slice/node7_slurmstepd.scope/job_42/step_0/user/task_0",
        Workload(slurm_job="42", slurm_step="0", unit="node7_slurmstepd.scope"),
    ),
    (
        f"/system.slice/slurmstepd.scope/job_42/step_0/user/task_0/docker/{ID}",
        Workload(slurm_job="42", slurm_step="0", container=ID, runtime="docker", unit="slurmstepd.scope"),
    ),
    (
        "/user.slice/user-1000.slice/user@1000.service/tmux-spawn-0b6f5a52-2f0e-4c0e-9e5b-0a1b2c3d4e5f.scope",
        Workload(unit=f"tmux-spawn-{UID}.scope"),
    ),
    # Names that merely look alike.
    (f"/srv/default/{ID}", Workload()),
    ("/kubepods/podnobody/x", Workload()),
    ("/docker/not-an-id", Workload()),
    ("/home/job_42", Workload()),
]


@pytest.mark.parametrize(("path", "expected"), PATHS, ids=[path[:60] for path, _ in PATHS])
def test_path_names_what_started_the_process(path: str, expected: Workload) -> None:
    assert workload(path) == expected


def test_version_2_is_one_line() -> None:
    assert membership("0::/system.slice/ollama.service\n") == "/system.slice/ollama.service"


def test_the_line_that_tells_most_is_taken_where_both_versions_are_mounted() -> None:
    text = f"12:cpuset:/\n5:memory:/docker/{ID}\n1:name=systemd:/docker/{ID}\n0::/\n"
    assert membership(text) == f"/docker/{ID}"


def test_a_path_may_hold_colons() -> None:
    assert membership("0::/a:b:c\n") == "/a:b:c"


@given(st.text())
def test_no_text_upsets_it(text: str) -> None:
    assert isinstance(workload(membership(text)), Workload)
