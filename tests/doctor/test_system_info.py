"""Hosts that cannot be made here, as trees of files: yama, hidepid, containers, modules, devices."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vram.host.local.system_info import LocalSystemInfo, tracing
from vram.model.doctor import HostFiles

OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (dvs-builder)\n"
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\n"
MOUNT = "22 28 0:21 / {place} rw,nosuid - proc proc rw,{options}\n"
CONTAINER = "4f1c" * 16


class Tree:
    """A root folder with the files of another host."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, path: str, text: str = "") -> Tree:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return self

    def host_files(self, **environment: str) -> HostFiles:
        return LocalSystemInfo(str(self.root), environment).host_files()


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_an_empty_host_is_read_without_complaint(tree: Tree) -> None:
    seen = tree.host_files()
    assert seen.driver.module_version is None
    assert seen.container is None
    assert seen.nodes == ()
    assert seen.confinement.yama is None


class TestDriver:
    @pytest.mark.parametrize(
        ("said", "version", "is_open"), [(OPEN, "580.159.04", True), (CLOSED, "535.183.01", False)]
    )
    def test_the_module(self, tree: Tree, said: str, version: str, is_open: bool) -> None:
        seen = tree.write("proc/driver/nvidia/version", said).host_files().driver
        assert (seen.module_version, seen.open_module) == (version, is_open)

    def test_modules_and_devices(self, tree: Tree) -> None:
        tree.write("sys/module/nvidia/version", "580.159.04\n").write("sys/module/nouveau/x")
        pci = "sys/bus/pci/devices"
        for at, (vendor, kind) in enumerate(
            [("0x10de", "0x030200"), ("0x10de", "0x040300"), ("0x1002", "0x030000")]
        ):
            tree.write(f"{pci}/{at}/vendor", f"{vendor}\n").write(f"{pci}/{at}/class", f"{kind}\n")
        seen = tree.host_files().driver
        assert seen.modules == ("nvidia", "nouveau")
        assert seen.installed_version == "580.159.04"
        assert seen.nvidia_devices == 1, "its sound device is no GPU, and the other vendor's is another's"

    def test_device_files(self, tree: Tree) -> None:
        for name in ("nvidia0", "nvidia12", "nvidiactl", "nvidia-uvm", "nvidia-fake", "nvidia0x", "null"):
            tree.write(f"dev/{name}")
        (tree.root / "dev/nvidia0").chmod(0o640)
        seen = {node.path: node for node in tree.host_files().nodes}
        assert set(seen) == {"/dev/nvidia0", "/dev/nvidia12", "/dev/nvidiactl", "/dev/nvidia-uvm"}
        assert seen["/dev/nvidia0"].mode == 0o640
        assert seen["/dev/nvidiactl"].usable

    def test_the_tool_is_not_looked_for_on_the_path(self, tree: Tree) -> None:
        tree.write("home/bin/nvidia-smi")
        (tree.root / "home/bin/nvidia-smi").chmod(0o755)
        assert tree.host_files(PATH=str(tree.root / "home/bin")).driver.tool is None
        tree.write("usr/bin/nvidia-smi")
        (tree.root / "usr/bin/nvidia-smi").chmod(0o755)
        assert tree.host_files().driver.tool == "/usr/bin/nvidia-smi"


class TestConfinement:
    def test_status(self, tree: Tree) -> None:
        tree.write("proc/self/status", "Name:\tx\nCapEff:\t00000000a80425fb\nSeccomp:\t2\n")
        seen = tree.write("proc/sys/kernel/yama/ptrace_scope", "1\n").host_files().confinement
        assert (seen.capabilities, seen.seccomp, seen.yama) == (0xA80425FB, 2, 1)

    @pytest.mark.parametrize(
        ("users", "first"),
        [("         0          0 4294967295\n", True), ("0 1000 1\n", False), ("0 100000 65536\n", False)],
    )
    def test_user_namespace(self, tree: Tree, users: str, first: bool) -> None:
        assert tree.write("proc/self/uid_map", users).host_files().confinement.first_user_namespace is first

    @pytest.mark.parametrize(
        ("mounts", "hidden"),
        [
            (MOUNT.format(place="/proc", options="hidepid=2,gid=4"), "2"),
            (MOUNT.format(place="/proc", options="hidepid=invisible"), "invisible"),
            (MOUNT.format(place="/proc", options="gid=4,hidepid=0"), None),
            (MOUNT.format(place="/proc", options="relatime"), None),
            (MOUNT.format(place="/chroot/proc", options="hidepid=2"), None),
            ("cut off\n\n", None),
        ],
    )
    def test_hidepid(self, tree: Tree, mounts: str, hidden: str | None) -> None:
        assert tree.write("proc/self/mountinfo", mounts).host_files().confinement.hidepid == hidden

    def test_the_mount_on_top_counts(self, tree: Tree) -> None:
        below = MOUNT.format(place="/proc", options="hidepid=2")
        above = MOUNT.format(place="/proc", options="relatime")
        tree.write("proc/self/mountinfo", below + above)
        assert tree.host_files().confinement.hidepid is None


class TestContainer:
    @pytest.mark.parametrize(
        ("path", "text", "runtime"),
        [
            ("proc/self/cgroup", f"0::/system.slice/docker-{CONTAINER}.scope\n", "docker"),
            ("proc/self/cgroup", f"0::/machine.slice/libpod-{CONTAINER}.scope\n", "podman"),
            (".dockerenv", "", "docker"),
            ("run/.containerenv", "", "podman"),
            (
                "proc/self/mountinfo",
                f"9 8 8:1 /var/lib/docker/containers/{CONTAINER}/hostname /etc/hostname rw - ext4 x rw\n",
                "docker",
            ),
            (
                "proc/self/mountinfo",
                "9 8 0:1 /var/lib/containerd/io.containerd.grpc.v1.cri/x /etc/resolv.conf rw - ext4 x rw\n",
                "containerd",
            ),
            (
                "proc/self/mountinfo",
                "9 8 8:1 /var/lib/kubelet/pods/b2/containers/c/1 /dev/termination-log rw - ext4 x rw\n",
                "kubernetes",
            ),
        ],
    )
    def test_each_sign_is_enough(self, tree: Tree, path: str, text: str, runtime: str) -> None:
        found = tree.write(path, text).host_files().container
        assert found is not None
        assert found.runtime == runtime
        assert found.evidence

    def test_the_control_group_names_it(self, tree: Tree) -> None:
        tree.write("proc/self/cgroup", f"0::/system.slice/docker-{CONTAINER}.scope\n").write(".dockerenv")
        found = tree.host_files().container
        assert found is not None
        assert found.identity == CONTAINER

    def test_a_pod_is_told_by_its_environment(self, tree: Tree) -> None:
        found = tree.host_files(KUBERNETES_SERVICE_HOST="10.0.0.1").container
        assert found is not None
        assert found.pod

    def test_a_host_that_runs_containers_is_in_none(self, tree: Tree) -> None:
        """Its own mounts lie below the same folders."""
        tree.write("run/docker.sock").write("run/containerd/containerd.sock")
        tree.write("proc/self/cgroup", "0::/user.slice/user-1000.slice/session-3.scope\n")
        overlay = "/var/lib/docker/overlay2/ab/merged"
        tree.write("proc/self/mountinfo", f"9 8 0:1 / {overlay} rw - overlay overlay rw\n")
        seen = tree.host_files()
        assert seen.container is None
        assert seen.runtimes == ("docker", "containerd")


def test_cupti_is_found_where_programs_would_load_it(tree: Tree) -> None:
    tree.write("usr/local/cuda/extras/CUPTI/lib64/libcupti.so.2025.3.1")
    link = tree.root / "usr/local/cuda/extras/CUPTI/lib64/libcupti.so.13"
    link.symlink_to("libcupti.so.2025.3.1")
    tree.write("opt/lib/libcupti.so.12")
    seen = LocalSystemInfo(str(tree.root), {"LD_LIBRARY_PATH": f"{tree.root}/opt/lib::"}).cupti()
    names = [os.path.basename(path) for path in seen if path.startswith(str(tree.root))]
    assert names == ["libcupti.so.12", "libcupti.so.2025.3.1"], "a link is the same library once more"


class TestTracing:
    STAT = "{pid} (x) {state} 1 1 1 0 0 0" + " 0" * 12 + " 77" + " 0" * 30

    def process(self, tree: Tree, pid: int, maps: str = "", environ: str = "", state: str = "S") -> None:
        tree.write(f"proc/{pid}/stat", self.STAT.format(pid=pid, state=state))
        tree.write(f"proc/{pid}/maps", maps).write(f"proc/{pid}/environ", environ)

    def test_those_with_a_tool_in_them(self, tree: Tree) -> None:
        line = "7f00-7f01 r-xp 0 08:01 1      /opt/cuda/lib/libcupti.so.2025.3.1\n"
        self.process(tree, 5, maps=line)
        self.process(tree, 6, environ="A=1\0CUDA_INJECTION64_PATH=/opt/nsys/tool.so\0")
        self.process(tree, 7, maps="7f00-7f01 r-xp 0 08:01 1  /usr/lib/libcuda.so.1\n", environ="A=1\0")
        first, second = tracing(f"{tree.root}/proc", (5, 6, 7, 8))
        assert (first.pid, first.library, first.injection) == (5, "/opt/cuda/lib/libcupti.so.2025.3.1", None)
        assert (second.pid, second.library, second.injection) == (6, None, "/opt/nsys/tool.so")

    def test_one_that_is_stuck_in_the_driver_is_not_read(self, tree: Tree) -> None:
        """It may hold the lock that reading its mappings would wait for."""
        self.process(tree, 5, environ="CUDA_INJECTION64_PATH=/x\0", state="D")
        assert tracing(f"{tree.root}/proc", (5,)) == ()
