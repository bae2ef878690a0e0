"""Processes that are never ended, parked or entered, told by their executable's path.

A process chooses its own short name, so "Xorg" proves nothing; the path of its executable
is the kernel's word. A path counts only below a folder that packages install into.
"""

from __future__ import annotations

_INSTALLED = ("/usr/", "/bin/", "/sbin/", "/lib/", "/opt/", "/snap/", "/nix/store/", "/var/lib/rancher/")

_KERNEL_THREADS_PARENT = 2

_NAMES = {
    "a display server or compositor": (
        *("Xorg", "X", "Xwayland", "gnome-shell", "kwin_x11", "kwin_wayland", "mutter", "sway", "weston"),
        *("Hyprland", "gdm-x-session", "gdm-wayland-session", "sddm", "lightdm", "cosmic-comp"),
    ),
    "a service of the NVIDIA driver": (
        *("nvidia-persistenced", "nv-fabricmanager", "nvidia-fabricmanager", "nv-hostengine"),
        *("nvidia-imex", "nvidia-powerd", "nvsm_core", "nvidia-topologyd"),
    ),
    "the MPS service": ("nvidia-cuda-mps-control", "nvidia-cuda-mps-server"),
    "a GPU monitor": ("dcgm-exporter", "nvidia_gpu_exporter", "node_exporter"),
    "a container runtime": (
        *("dockerd", "docker-proxy", "containerd", "containerd-shim", "containerd-shim-runc-v2"),
        *("runc", "crun", "conmon", "crio", "podman", "nvidia-container-runtime", "nvidia-device-plugin"),
    ),
    "a cluster service": ("kubelet", "k3s", "slurmd", "slurmstepd", "slurmctld"),
    "a login service": ("sshd", "sshd-session", "login", "systemd-logind"),
    "the system's own service manager": ("systemd", "init", "dbus-daemon", "dbus-broker"),
}

_ROLES = {name: role for role, names in _NAMES.items() for name in names}


def role(pid: int, parent: int | None, executable: str | None) -> str | None:
    """What part of the system a process is, or None where nothing says that it is one."""
    if pid <= 1:
        return "the first process of the system"
    # Inside a container an ordinary process may be number 2; the kernel's have no executable.
    if _KERNEL_THREADS_PARENT in (pid, parent) and executable is None:
        return "a thread of the kernel"
    return _ROLES.get(_installed_name(executable) or "")


def is_mps_server(executable: str | None) -> bool:
    """The process that opens the GPU in the name of every MPS client."""
    return _installed_name(executable) == "nvidia-cuda-mps-server"


def _installed_name(executable: str | None) -> str | None:
    """The name of the program's file where it lies in a folder that packages install into."""
    # An upgrade replaces the file under a running service, and the kernel then marks the path.
    path = (executable or "").removesuffix(" (deleted)")
    return path.rpartition("/")[2] if path.startswith(_INSTALLED) else None
