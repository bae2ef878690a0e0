"""Who we are: user names, this host, and the PID namespace that we see it from."""

from __future__ import annotations

import os
import pwd

from vram.model.observation import HostFacts

# The kernel numbers its first PID namespace so in every boot (PROC_PID_INIT_INO).
INITIAL_PID_NAMESPACE = 0xEFFFFFFC

_HIDING = (b"hidepid=2", b"hidepid=4", b"hidepid=invisible", b"hidepid=ptraceable")

_names: dict[int, str] = {}


def user_name(uid: int) -> str:
    """The name of *uid*, or its number where nobody knows one (as in many containers)."""
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

    Who has the capability, or is of the mount's group, sees everybody, and so the first process.
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
    from vram.host.local.wsl import virtual_wsl_facts, wsl_facts

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
