"""Who we are: user names, this host, and the PID namespace that we see it from."""

from __future__ import annotations

import os
import pwd

from vram.model.observation import HostFacts

# The kernel numbers its first PID namespace so in every boot (PROC_PID_INIT_INO).
INITIAL_PID_NAMESPACE = 0xEFFFFFFC

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
        wsl=wsl is not None,
        virtual=virtual is not None,
        wsl_facts=wsl,
    )
