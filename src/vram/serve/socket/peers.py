"""Who is at the other end of the socket, as the kernel says; whose share that is; which processes are whose.

Nothing that a client writes about itself is used. A peer in another PID or user namespace may read, and not
act: its pids and uids mean others there than here. All of that is judged when the connection is accepted: who
connects and exits leaves a pid that another process may have by the time of a request.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct

from msgspec import Struct

from vram.errors import NoSuchProcess, NotPermitted
from vram.payloads.procfs import ProcessFolder
from vram.policy.policy import Consent
from vram.serve.socket.become import RunAs

_OPT_INS: dict[Consent, bytes] = {"park": b"VRAM_ALLOW_PARK=idle", "sleep": b"VRAM_ALLOW_SLEEP=idle"}
AGREES = b"VRAM_ALLOW_BEFORE_OOM="
_SO_PEERGROUPS, _SO_PEERPIDFD = 59, 77
_MAX_GROUPS = 256  # Python asks for 1,024 bytes at most
_OVERFLOW_UID = 65534
_MAX_ENVIRONMENT = 2 << 20
_MAX_CGROUPS = 64 << 10

OTHERS = -1
"""The account of all whom the kernel does not name as a user of this machine: each user has one of its own.

A user with subordinate uids is 65,536 users: in containers, and outside by set-uid programs."""
_SUBORDINATE = "/etc/subuid"
_MAX_BYTES = 1 << 20


def account_of(uid: int) -> int:
    """The account of *uid* in our user namespace: itself, or OTHERS where it is subordinate to a user."""
    return OTHERS if uid and any(first <= uid < first + count for first, count in _subordinate()) else uid


def is_privileged(account: int) -> bool:
    """Whether no other account may use up what this one needs: root's, and that of the service."""
    return account in (0, os.geteuid())


def _subordinate() -> list[tuple[int, int]]:
    try:
        with open(_SUBORDINATE, encoding="utf-8", errors="replace") as file:
            lines = file.read(_MAX_BYTES).splitlines()
    except OSError:
        return []
    fields = [line.strip().split(":")[1:] for line in lines]
    return [
        (int(each[0]), int(each[1])) for each in fields if len(each) == 2 and all(map(str.isdecimal, each))
    ]


class Peer(Struct, frozen=True):
    """Who connected. ``pid`` is 0 where it is in a PID namespace that we do not see into.

    ``is_here``: it lived when the connection was accepted, in our PID and user namespaces. ``account`` is
    whose share of the service it uses.
    """

    uid: int
    gid: int
    pid: int
    groups: tuple[int, ...] = ()
    cgroups: str = ""
    is_here: bool = False
    account: int = OTHERS

    @property
    def run_as(self) -> RunAs:
        return RunAs(self.uid, self.gid, self.groups, self.cgroups)


def peer_of(connection: socket.socket) -> Peer:
    """The credentials with which the other end connected."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, gid = struct.unpack("3I", raw)
    is_here, cgroups = _judge(connection, pid)
    account = account_of(uid) if is_here else OTHERS
    return Peer(uid, gid, pid, _groups(connection), cgroups, is_here, account)


def _judge(connection: socket.socket, pid: int) -> tuple[bool, str]:
    """Whether the process that connected is in our namespaces, and its control groups."""
    try:
        pidfd = _pidfd(connection, pid)
        try:
            with ProcessFolder("/proc", pid) as folder:
                is_here, cgroups = _shares_our_namespaces(pid), _membership(folder)
            # If it has not ended by now, its pid meant no other process meanwhile.
            return (is_here, cgroups) if not select.select((pidfd,), (), (), 0)[0] else (False, "")
        finally:
            os.close(pidfd)
    except OSError:
        return False, ""


def _pidfd(connection: socket.socket, pid: int) -> int:
    """Of the process that connected, even if another has its pid now. Raises OSError where it has ended.

    Before Linux 6.5 it is the one that has the pid when the connection is accepted.
    """
    try:
        return connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError as error:
        if error.errno != errno.ENOPROTOOPT:
            raise
    return os.pidfd_open(pid)


def _groups(connection: socket.socket) -> tuple[int, ...]:
    """Its supplementary groups; none where the kernel does not say: fewer rights, never more."""
    try:
        raw = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, 4 * _MAX_GROUPS)
    except OSError:
        return ()
    return tuple(struct.unpack(f"{len(raw) // 4}I", raw))


def require_may_act(peer: Peer) -> None:
    """Raise where nothing may be done in the name of *peer*."""
    if peer.uid == _OVERFLOW_UID:
        raise NotPermitted(
            "the kernel does not name your user here, or it is the user nobody",
            hint="run it as a user of this machine",
        )
    if not peer.is_here:
        raise NotPermitted(
            "your process has ended, or is in another PID or user namespace, whose pids and users differ",
            hint="run it on the host, outside of the container",
        )
    if os.geteuid() not in (0, peer.uid):
        raise NotPermitted(
            "this service runs as another user, and can act only for that one",
            hint="a service that acts for every user runs as root",
        )


def _shares_our_namespaces(pid: int) -> bool:
    """Raises OSError where it has ended, or hides from us."""
    return all(
        os.path.samestat(os.stat(f"/proc/{pid}/ns/{kind}"), os.stat(f"/proc/self/ns/{kind}"))
        for kind in ("pid", "user")
    )


# ---- processes and their owners ----


def identify_own(pid: int, peer: Peer) -> tuple[int, int]:
    """*pid* with its start time. Raises where it is not a process of *peer* alone."""
    try:
        process = ProcessFolder("/proc", pid)
    except OSError as error:
        raise NoSuchProcess(f"there is no process {pid}", hint="`vram who` lists processes") from error
    with process as folder:
        stat = folder.stat()
        owner = _owner(folder)
    if stat is None or stat.has_ended:
        raise NoSuchProcess(f"there is no process {pid}", hint="`vram who` lists those that hold GPU memory")
    if owner is None or owner.uid != peer.uid:
        raise NotPermitted(f"pid {pid} is not yours", hint="only its owner can allow that")
    return pid, stat.started_at


def owner_of(pid: int, started_at: int) -> RunAs | None:
    """Whose process it is; None where it has ended, or where it has the rights of two users at once."""
    try:
        with ProcessFolder("/proc", pid) as folder:
            stat = folder.stat()
            return _owner(folder) if stat is not None and stat.started_at == started_at else None
    except OSError:
        return None


def _owner(folder: ProcessFolder) -> RunAs | None:
    status = folder.status()
    uids, gids = set(_numbers(status.get(b"Uid"))), _numbers(status.get(b"Gid"))
    # A program that runs set-uid has two owners: neither alone may decide about it.
    if len(uids) != 1 or len(set(gids)) != 1:
        return None
    return RunAs(uids.pop(), gids[0], tuple(_numbers(status.get(b"Groups"))), _membership(folder))


def _membership(folder: ProcessFolder) -> str:
    return (folder.read("cgroup", _MAX_CGROUPS) or b"").decode("utf-8", "replace")


def _numbers(field: bytes | None) -> list[int]:
    return [int(word) for word in (field or b"").split() if word.isdigit()]


def opted_in(what: Consent, pid: int, started_at: int) -> bool:
    """Whether its owner started it with VRAM_ALLOW_PARK=idle or VRAM_ALLOW_SLEEP=idle, and so allows it."""
    return _OPT_INS[what] in environment(pid, started_at)


def agreed_to(pid: int, started_at: int) -> frozenset[str]:
    """What its owner started it with in VRAM_ALLOW_BEFORE_OOM: of "trim", "release", "sleep", with commas."""
    said = [each for each in environment(pid, started_at) if each.startswith(AGREES)]
    words = said[0].removeprefix(AGREES).decode("ascii", "replace").split(",") if said else []
    return frozenset(word.strip() for word in words if word.strip())


def environment(pid: int, started_at: int) -> list[bytes]:
    """What it was started with; nothing where that cannot be read, or the pid is another process's now."""
    try:
        with ProcessFolder("/proc", pid) as folder:
            stat = folder.stat()
            if stat is None or stat.started_at != started_at or stat.state == "D":
                return []
            return (folder.read("environ", _MAX_ENVIRONMENT) or b"").split(b"\0")
    except OSError:
        return []
