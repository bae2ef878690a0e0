"""Who we are: user names, this host, and the PID namespace that we see it from."""

from __future__ import annotations

import os
import pwd

from vram.model.observation import HostFacts
from vram.model.windows import WslFacts
from vram.payloads.libcuda import WSL_FOLDER

# The kernel numbers its first PID namespace so in every boot (PROC_PID_INIT_INO).
INITIAL_PID_NAMESPACE = 0xEFFFFFFC

_HIDING = (b"hidepid=2", b"hidepid=4", b"hidepid=invisible", b"hidepid=ptraceable")

_names: dict[int, str] = {}


def read_text(path: str, limit: int = 1 << 20) -> str:
    """The text of a file of the system; empty where it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(limit)
    except OSError:
        return ""


def user_name(uid: int) -> str:
    """The name of *uid*, or its number where the system knows none (as in many containers)."""
    if uid not in _names:
        try:
            _names[uid] = pwd.getpwuid(uid).pw_name
        except (KeyError, OSError):
            _names[uid] = str(uid)
    return _names[uid]


def namespace_inode(proc: str) -> int | None:
    """The PID namespace of the process whose folder is *proc*."""
    try:
        return os.stat(f"{proc}/ns/pid").st_ino
    except OSError:
        return None


def hides_processes(proc_root: str = "/proc") -> bool:
    """Whether *proc_root* was mounted with hidepid, for us: what others run is then not there at all.

    A user with the capability, or of the mount's group, sees all processes, and so the first one.
    """
    if os.path.isdir(f"{proc_root}/1"):
        return False
    try:
        with open(f"{proc_root}/self/mounts", "rb") as file:
            mounts = [line.split(b" ") for line in file.read().split(b"\n")]
    except OSError:
        return False
    here = [each for each in mounts if len(each) > 3 and each[1] == os.fsencode(proc_root)]
    options = here[-1][3].split(b",") if here else []
    # 1 shows that they are there, and nothing about them; 4 shows what we may trace.
    return any(each in _HIDING for each in options)


def host_facts(proc_root: str, *, virtual: str | None) -> HostFacts:
    """This host; *virtual* is the folder of the virtual GPU that we run under, if any."""

    system = os.uname()
    wsl = virtual_wsl_facts(virtual) if virtual else wsl_facts(system.release, proc_root)
    namespace = namespace_inode(f"{proc_root}/self")
    return HostFacts(
        name=system.nodename,
        kernel=system.release,
        user=user_name(os.geteuid()),
        uid=os.geteuid(),
        initial_pid_namespace=namespace in (None, INITIAL_PID_NAMESPACE),
        pid_namespace=namespace,
        hides_processes=hides_processes(proc_root),
        wsl=wsl is not None,
        virtual=virtual is not None,
        wsl_facts=wsl,
    )


# ---- is this Linux under Windows, which one, and how much of it do we see? ----


_INTEROP = ("WSLInterop", "WSLInterop-late")  # the second is what systemd's binfmt leaves in place
_CONTAINER_MARKS = (".dockerenv", "run/.containerenv")


def wsl_facts(release: str, proc_root: str = "/proc", root: str = "/") -> WslFacts | None:
    """What this is, or None where it is not under Windows.

    *release* is the kernel's; a kernel that was built by its user may leave Microsoft out of
    it, and then /dev/dxg or /proc/version tells.
    """
    device = os.path.exists(os.path.join(root, "dev/dxg"))
    words = f"{release} {read_text(f'{proc_root}/version')}".lower()
    if not device and "microsoft" not in words:
        return None
    libraries = os.path.join(root, WSL_FOLDER.lstrip("/"))
    # Version 1 is no kernel at all; it answers as 4.4.0-…-Microsoft, and never had a GPU.
    is_first = not device and release.startswith("4.4.") and "wsl2" not in release.lower()
    handlers = (read_text(f"{proc_root}/sys/fs/binfmt_misc/{name}") for name in _INTEROP)
    return WslFacts(
        version=1 if is_first else 2,
        gpu_device=device,
        libraries=WSL_FOLDER if os.path.isdir(libraries) else None,
        interop=any(handler.startswith("enabled") for handler in handlers),
        container=any(os.path.exists(os.path.join(root, mark)) for mark in _CONTAINER_MARKS),
    )


def virtual_wsl_facts(folder: str) -> WslFacts | None:
    """The same for a virtual GPU, which is one under Windows where its folder says so."""
    if not os.path.exists(os.path.join(folder, "dev", "dxg")):
        return None
    return WslFacts(version=2, gpu_device=True, libraries=os.path.join(folder, "lib"), interop=True)
