"""Processes that are never ended, parked or attached to, known by the program that root installed.

A process chooses its own short name, so "Xorg" proves nothing. The path of its executable is the kernel's
word, and counts below a folder that packages install into; that root installed the file there, and no user
mounted it over another, was read together with the path.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vram.model.ledger import Holder
    from vram.model.process import ProcessFacts

_INSTALLED = ("/usr/", "/bin/", "/sbin/", "/lib/", "/opt/", "/snap/", "/nix/store/", "/var/lib/rancher/")

_KERNEL_THREADS_PARENT = 2

_DISPLAY = "a display server or compositor"
_LOGIN = "a login service"

_NAMES = {
    _DISPLAY: (
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
    _LOGIN: ("sshd", "sshd-session", "login", "systemd-logind", "elogind", "seatd"),
    "the system's service manager": ("systemd", "init", "dbus-daemon", "dbus-broker"),
}

_SWITCHES_USER = ("su", "sudo", "runuser", "doas")

_ROLES = {name: role for role, names in _NAMES.items() for name in names}


def role(pid: int, process: ProcessFacts | Holder) -> str | None:
    """What part of the system *process* is, or None where nothing says that it is one."""
    if pid <= 1:
        return "the first process of the system"
    if _is_kernel_thread(pid, process):
        return "a kernel thread"
    return None if process.executable_trusted is False else _ROLES.get(_installed_name(process.executable))


def is_display(process: ProcessFacts | Holder) -> bool:
    """Whether *process* draws the screen: it ends with the graphical session, and not by a signal."""
    return _ROLES.get(_installed_name(process.executable)) == _DISPLAY


def is_login(process: ProcessFacts | Holder) -> bool:
    """Whether users begin to work below *process*, which is root's: sshd, login, su."""
    name = _installed_name(process.executable)
    return _ROLES.get(name) == _LOGIN or name in _SWITCHES_USER


def is_mps_server(process: ProcessFacts | Holder) -> bool:
    """The process that opens the GPU in the name of every MPS client."""
    is_named_so = _installed_name(process.executable) == "nvidia-cuda-mps-server"
    return is_named_so and process.executable_trusted is not False


def has_a_role(executable: str | None) -> bool:
    """Whether a program of that path would be a part of the system, if root installed it."""
    return _installed_name(executable) in _ROLES


def _is_kernel_thread(pid: int, process: ProcessFacts | Holder) -> bool:
    if process.kernel_thread is not None:
        return process.kernel_thread
    # An older snapshot does not tell. In a container an ordinary process may be number 2; the kernel's
    # have no executable.
    return _KERNEL_THREADS_PARENT in (pid, process.parent) and process.executable is None


def _installed_name(executable: str | None) -> str:
    """The name of the program's file where it lies in a folder that packages install into."""
    # An upgrade replaces the file under a running service, and the kernel then marks the path.
    path = (executable or "").removesuffix(" (deleted)")
    return path.rpartition("/")[2] if path.startswith(_INSTALLED) else ""
