"""Pods, containers, jobs and notebooks get the names that a plain look can find for them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vram.host.local.processes import LocalProc
from vram.host.local.workload import ContainerNames, named, variables
from vram.model.process import Workload

ID = "4f1c9d0e7a3b52c86d1f0e9b8a7c6d5e4f3a2b1c0d9e8f7a6b5c4d3e2f1a0b9c"
UID = "0b6f5a52-2f0e-4c0e-9e5b-0a1b2c3d4e5f"
STAT = "{pid} (python) S 1 {pid} {pid} 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 1 0 {started} 0 0 0 0 1 1 1"
CRI = {
    "io.kubernetes.cri.sandbox-name": "trainer-0",
    "io.kubernetes.cri.sandbox-namespace": "ml",
    "io.kubernetes.cri.container-name": "worker",
}
CRIO = {
    "io.kubernetes.pod.name": "trainer-0",
    "io.kubernetes.pod.namespace": "ml",
    "io.kubernetes.container.name": "worker",
}


def write(root: Path, path: str, content: Any) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(content if isinstance(content, str) else json.dumps(content))


def process(
    root: Path, pid: int, *, cgroup: str = "/", argv: tuple[str, ...] = ("python",), **environ: str
) -> None:
    """One folder of a tree like /proc."""
    folder = root / str(pid)
    folder.mkdir(parents=True)
    (folder / "stat").write_text(STAT.format(pid=pid, started=100))
    (folder / "status").write_text(f"Name:\tpython\nUid:\t{os.getuid()}\t0\t0\t0\nNSpid:\t{pid}\t7\n")
    (folder / "cgroup").write_text(f"0::{cgroup}\n")
    (folder / "cmdline").write_bytes(b"\0".join(word.encode() for word in argv) + b"\0")
    (folder / "environ").write_bytes(b"\0".join(f"{k}={v}".encode() for k, v in environ.items()) + b"\0")


def workload_of(tmp_path: Path, **about: Any) -> Workload:
    process(tmp_path / "proc", 70, **about)
    found = LocalProc(str(tmp_path / "proc"), str(tmp_path)).facts(70)
    assert found is not None
    return found[1].workload


KUBEPODS = f"/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice"


@pytest.mark.parametrize(
    ("runtime", "scope", "path", "content"),
    [
        ("docker", "docker", f"var/lib/docker/containers/{ID}/config.v2.json", {"Name": "/worker", "ID": ID}),
        (
            "podman",
            "libpod",
            "var/lib/containers/storage/overlay-containers/containers.json",
            [{"id": "other", "names": ["x"]}, {"id": ID, "names": ["worker"], "flags": {}}],
        ),
    ],
)
def test_a_container_is_named_by_its_runtime_s_files(
    tmp_path: Path, runtime: str, scope: str, path: str, content: Any
) -> None:
    write(tmp_path, path, content)
    found = workload_of(tmp_path, cgroup=f"/system.slice/{scope}-{ID}.scope")
    assert (found.runtime, found.container, found.container_name) == (runtime, ID, "worker")


@pytest.mark.parametrize(
    ("scope", "path", "annotations"),
    [
        ("cri-containerd", f"run/containerd/io.containerd.runtime.v2.task/k8s.io/{ID}/config.json", CRI),
        ("cri-containerd", f"run/k3s/containerd/io.containerd.runtime.v2.task/k8s.io/{ID}/config.json", CRI),
        ("crio", f"run/containers/storage/overlay-containers/{ID}/userdata/config.json", CRIO),
    ],
)
def test_a_pod_is_named_by_what_its_runtime_was_told(
    tmp_path: Path, scope: str, path: str, annotations: dict[str, str]
) -> None:
    write(tmp_path, path, {"ociVersion": "1.1.0", "annotations": annotations})
    found = workload_of(tmp_path, cgroup=f"{KUBEPODS}/{scope}-{ID}.scope", HOSTNAME="elsewhere")
    assert (found.pod, found.pod_name, found.container_name) == (UID, "ml/trainer-0", "worker")


def test_without_those_files_a_pod_is_named_by_its_host_name(tmp_path: Path) -> None:
    found = workload_of(tmp_path, cgroup=f"{KUBEPODS}/cri-containerd-{ID}.scope", HOSTNAME="trainer-0")
    assert (found.pod, found.pod_name, found.container_name) == (UID, "trainer-0", None)


def test_inside_a_pod_the_control_group_says_nothing_and_the_environment_speaks(tmp_path: Path) -> None:
    found = workload_of(tmp_path, cgroup="/", HOSTNAME="trainer-0", KUBERNETES_SERVICE_HOST="10.0.0.1")
    assert (found.pod, found.pod_name) == (None, "trainer-0")


def test_a_host_name_outside_of_pods_is_nobody_s_name(tmp_path: Path) -> None:
    assert workload_of(tmp_path, HOSTNAME="node7") == Workload()


def test_a_job_of_which_only_the_environment_speaks_is_no_job_of_the_kernel_s(tmp_path: Path) -> None:
    """What a process says of itself never becomes `scancel`."""
    found = workload_of(tmp_path, SLURM_JOB_ID="42", SLURM_JOB_NAME="train")
    assert (found.slurm_job, found.claimed_job, found.job_name) == (None, "42", "train")


def test_where_the_kernel_knows_the_job_its_word_counts(tmp_path: Path) -> None:
    found = workload_of(tmp_path, cgroup="/slurm/uid_1000/job_42/step_0", SLURM_JOB_ID="7")
    assert (found.slurm_job, found.claimed_job) == ("42", None)


@pytest.mark.parametrize("number", ["", "42; rm -rf /", "4" * 11, "\u0664\u0662"])
def test_a_job_number_is_a_number(tmp_path: Path, number: str) -> None:
    assert workload_of(tmp_path, SLURM_JOB_ID=number).claimed_job is None


KERNEL = ("/usr/bin/python3", "-m", "ipykernel_launcher", "-f", f"/run/user/1000/jupyter/kernel-{UID}.json")


def test_a_kernel_is_named_by_its_notebook(tmp_path: Path) -> None:
    found = workload_of(tmp_path, argv=KERNEL, JPY_SESSION_NAME="/home/alice/train.ipynb")
    assert found.notebook == "/home/alice/train.ipynb"


def test_an_older_server_s_kernel_is_named_by_its_connection_file(tmp_path: Path) -> None:
    assert workload_of(tmp_path, argv=KERNEL).notebook == f"kernel {UID[:8]}"


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("kernel-v2-28141kSC9njpUbH1b.json", "kernel v2-28141kSC9njpUbH1b"),  # VS Code's
        ("kernel-v35f3c1e1d9c0b8a7766554433221100ffeeddccb.json", "kernel v35f3c1e1d9c0b8a77665544"),
        ("kernel-4711.json", "kernel 4711"),  # of jupyter console, by its pid
    ],
)
def test_a_kernel_that_no_server_started_has_a_name_too(tmp_path: Path, file: str, name: str) -> None:
    argv = ("/usr/bin/python3", "-m", "ipykernel_launcher", f"--f=/run/user/1000/jupyter/{file}")
    assert workload_of(tmp_path, argv=argv).notebook == name


def test_a_program_that_a_notebook_started_is_no_kernel(tmp_path: Path) -> None:
    assert workload_of(tmp_path, JPY_SESSION_NAME="/home/alice/train.ipynb").notebook is None


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"Name": 7}', "\x00", '{"Name": ""}', "[" * 100_000], ids=range(7)
)
def test_damaged_files_name_nobody(tmp_path: Path, content: str) -> None:
    write(tmp_path, f"var/lib/docker/containers/{ID}/config.v2.json", content)
    found = workload_of(tmp_path, cgroup=f"/docker/{ID}")
    assert (found.container, found.container_name) == (ID, None)


def test_a_pipe_in_the_place_of_a_file_does_not_hold_us(tmp_path: Path) -> None:
    path = tmp_path / f"var/lib/docker/containers/{ID}/config.v2.json"
    path.parent.mkdir(parents=True)
    os.mkfifo(path)
    assert workload_of(tmp_path, cgroup=f"/docker/{ID}").container_name is None


def test_a_container_s_number_leads_nowhere_else(tmp_path: Path) -> None:
    write(tmp_path, "secret/config.v2.json", {"Name": "secret"})
    origin = Workload(container="../../../secret", runtime="docker")
    assert ContainerNames(str(tmp_path)).of(origin) == (None, None)


@given(st.binary(max_size=400), st.lists(st.text(max_size=40), max_size=5))
def test_whatever_a_process_says_is_short_text(environ: bytes, argv: list[str]) -> None:
    found = named(Workload(pod=UID), environ, tuple(argv), ContainerNames("/nonexistent"))
    for text in (found.pod_name, found.claimed_job, found.job_name, found.notebook):
        assert text is None or len(text) <= 200


@given(st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1, max_size=300))
def test_values_come_through_as_they_are(value: str) -> None:
    said = variables(b"PATH=/bin\0HOSTNAME=" + value.encode() + b"\0LAST=")
    assert said == {b"HOSTNAME": value[:200]}
