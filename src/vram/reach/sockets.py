"""The sockets that a process listens on, from /proc, and a connection to one of them and to no other's.

A socket belongs to the process that has its inode open; the tables of its network namespace say where it
listens. No port is guessed, and only this machine's own addresses are connected to. The path of a Unix socket
is resolved in a child that can be abandoned: a folder on the way may be on a file system that never answers.
In another network namespace, as a container has, a child of ours makes the socket and hands it over: no
namespace is entered by vram itself.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import socket
import struct
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import Literal

from msgspec import Struct

from vram.children import interpreter, start
from vram.errors import VramError
from vram.reach.target_root import open_entry

SocketFamily = Literal["tcp", "tcp6", "unix"]

_LISTEN = "0A"  # TCP_LISTEN
_ACCEPTS = 0x10000  # __SO_ACCEPTCON, in the flags of /proc/net/unix
_STREAM = "0001"
_MAX_TABLE_NBYTES = 64 << 20
_UCRED = struct.Struct("3i")
_ERRNO = struct.Struct("i")
_ENDING_S = 0.2
_CLONE = {"net": 0x40000000, "user": 0x10000000}
_NS_GET_USERNS = 0xB701  # of ioctl


class Listener(Struct, frozen=True):
    """A listening socket of *pid*: an address and a port, or the path of a Unix socket (``@``: abstract)."""

    pid: int
    inode: int
    family: SocketFamily
    address: str
    port: int = 0

    @property
    def connects_to(self) -> str:
        """The address that reaches it from here: loopback where it listens on every address."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.address, self.address)

    @property
    def name(self) -> str:
        if self.family == "unix":
            return self.address
        host = f"[{self.connects_to}]" if ":" in self.connects_to else self.connects_to
        return f"{host}:{self.port}"


class NotConnected(VramError):
    """Nothing was sent: the connection was not accepted, or it is no longer certain whose socket it is."""


def listeners(pid: int) -> tuple[Listener, ...]:
    """What *pid* listens on. Raises OSError where that may not be read."""
    inodes = _inodes(pid)
    return tuple(each for each in _listening(pid) if each.inode in inodes) if inodes else ()


def same_network(pid: int) -> bool:
    """Whether *pid* is in our network namespace: elsewhere its addresses are not those that we reach."""
    return os.stat(f"/proc/{pid}/ns/net").st_ino == os.stat("/proc/self/ns/net").st_ino


def connect(listener: Listener, until: float, pids: Collection[int]) -> socket.socket:
    """Connect to *listener*, which one of *pids*, the server's own processes, must hold.

    The tables are read after the connection is made: a socket that listened before and listens still took it,
    unless another shares its port. Raises NotConnected, and then nothing was sent.
    """
    try:
        connection = _open_connection(listener, until)
        try:
            _require_owner(listener, connection, pids)
        except BaseException:
            connection.close()
            raise
    except OSError as error:
        raise NotConnected(f"{listener.name} cannot be connected to: {error.strerror or error}") from error
    return connection


def _open_connection(listener: Listener, until: float) -> socket.socket:
    is_path = listener.family == "unix" and not listener.address.startswith("@")
    if is_path or not same_network(listener.pid):
        words = (listener.family, listener.connects_to, str(listener.port))
        return _from_child(listener.pid, words, until)
    return _connect(listener.family, listener.connects_to, listener.port, until - time.monotonic())


def _connect(family: str, address: str, port: int, timeout_s: float) -> socket.socket:
    """Connect to an abstract name or to an address of the network namespace that we are in."""
    kind = {"unix": socket.AF_UNIX, "tcp": socket.AF_INET, "tcp6": socket.AF_INET6}[family]
    connection = socket.socket(kind, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        connection.settimeout(max(0.001, timeout_s))
        if family == "unix":
            connection.connect(b"\0" + os.fsencode(address)[1:])
        else:
            connection.connect((address, port))
    except BaseException:
        connection.close()
        raise
    return connection


def listen_beside(pid: int, until: float) -> tuple[socket.socket, str]:
    """A socket that *pid* can connect to wherever it lives, and its abstract name, which is random.

    It listens in the network namespace of *pid*. Such names have no file and no permissions: everybody there
    may connect, so both sides must find out who the other one is. Raises NotConnected.
    """
    name = f"vram-{os.urandom(16).hex()}"
    try:
        listener = _listen(name) if same_network(pid) else _from_child(pid, ("listen", name, "0"), until)
    except OSError as error:
        raise NotConnected(
            f"no socket can be made in the network of pid {pid}: {error.strerror or error}"
        ) from error
    return listener, name


def _listen(name: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listener.bind(b"\0" + name.encode())
        listener.listen(8)
    except BaseException:
        listener.close()
        raise
    return listener


def _require_owner(listener: Listener, connection: socket.socket, pids: Collection[int]) -> None:
    if listener.family == "unix":
        # Of the process that called listen(2).
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
        if _UCRED.unpack(raw)[0] not in pids:
            raise NotConnected(f"{listener.name} is another process's socket")
    found = [each for each in _listening(listener.pid) if each.family == listener.family]
    own = {inode for pid in pids for inode in _inodes_or_none(pid)}
    if not any(each.inode == listener.inode for each in found) or listener.inode not in own:
        raise NotConnected(f"{listener.name} no longer belongs to pid {listener.pid}")
    if listener.family == "unix":
        return
    wild = ("0.0.0.0", "::")
    for each in found:
        overlaps = each.address == listener.address or each.address in wild or listener.address in wild
        if each.port == listener.port and overlaps and each.inode not in own:
            raise NotConnected(f"{listener.name} is shared with another process (SO_REUSEPORT)")


def _inodes_or_none(pid: int) -> set[int]:
    with suppress(OSError):
        return _inodes(pid)
    return set()


def _inodes(pid: int) -> set[int]:
    """The inodes of the sockets that *pid* has open."""
    found = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        with suppress(OSError, ValueError):  # closed since
            kind, _, rest = os.readlink(f"/proc/{pid}/fd/{name}").partition(":[")
            if kind == "socket":
                found.add(int(rest[:-1]))
    return found


def _listening(pid: int) -> Iterator[Listener]:
    """Every listening socket of the network namespace of *pid*, as if it were that process's."""
    for family in ("tcp", "tcp6"):
        for line in _table(pid, family):
            fields = line.split()
            if len(fields) > 9 and fields[3] == _LISTEN:
                address, _, port = fields[1].partition(":")
                with suppress(ValueError, OSError):
                    yield Listener(pid, int(fields[9]), family, _address(address), int(port, 16))
    for line in _table(pid, "unix"):
        fields = line.split(None, 7)
        with suppress(ValueError):
            listens = len(fields) == 8 and int(fields[3], 16) & _ACCEPTS and fields[4] == _STREAM
            # vram's own agent is bound through a descriptor: no name leads there, and it speaks no HTTP.
            if listens and not fields[7].startswith("/proc/self/"):
                yield Listener(pid, int(fields[6]), "unix", fields[7].rstrip("\n"))


def _table(pid: int, name: str) -> list[str]:
    try:
        with open(f"/proc/{pid}/net/{name}", "rb") as file:
            return file.read(_MAX_TABLE_NBYTES).decode("utf-8", "surrogateescape").splitlines()[1:]
    except FileNotFoundError:  # a kernel without IPv6; or the process has ended
        return []


def _address(digits: str) -> str:
    """The address that the kernel prints word by word, each in the machine's byte order."""
    raw = bytes.fromhex(digits)
    if sys.byteorder == "little":
        raw = b"".join(raw[at : at + 4][::-1] for at in range(0, len(raw), 4))
    return socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, raw)


# ---- sockets that a child makes: where a path may hang, and in another network namespace ----


def _from_child(pid: int, words: tuple[str, str, str], until: float) -> socket.socket:
    """The socket that a child makes for *pid* and hands over. Raises NotConnected where it is late."""
    left_s = max(0.001, until - time.monotonic())
    child = start(
        lambda pipe: _hand_over(pipe, pid, *words, left_s),
        interpreter("vram.reach.sockets", str(pid), *words, str(left_s)),
        link="packets",
    )
    try:
        poll = select.poll()
        poll.register(child.pipe, select.POLLIN)
        if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
            raise NotConnected(
                f"{words[1]} cannot be connected to: it is busy, or on a file system that does not answer"
            )
        with socket.socket(fileno=os.dup(child.pipe)) as link:
            said, descriptors, _, _ = socket.recv_fds(link, _ERRNO.size, 1, socket.MSG_CMSG_CLOEXEC)
    finally:
        child.hang_up()
        child.end(_ENDING_S)
    if descriptors:
        return socket.socket(fileno=descriptors[0])
    (number,) = _ERRNO.unpack(said) if len(said) == _ERRNO.size else (0,)
    raise OSError(number, os.strerror(number) if number else "the process that connects was killed")


def _hand_over(pipe: int, pid: int, kind: str, address: str, port: str, left_s: float) -> None:
    """In the child: send the socket, or the number of the error."""
    with socket.socket(fileno=pipe) as link:
        try:
            made = _make(pid, kind, address, int(port), left_s)
        except OSError as error:
            link.send(_ERRNO.pack(error.errno or errno.ETIMEDOUT))
        else:
            socket.send_fds(link, [_ERRNO.pack(0)], [made.fileno()])


def _make(pid: int, kind: str, address: str, port: int, left_s: float) -> socket.socket:
    if kind == "unix" and not address.startswith("@"):
        connection = socket.socket(socket.AF_UNIX)
        _connect_to_path(connection, pid, address)
        return connection
    _enter_network(pid)
    return _listen(address) if kind == "listen" else _connect(kind, address, port, left_s)


def _enter_network(pid: int) -> None:
    """In the child: go to the network namespace of *pid*, if need be through the user's that owns it."""
    if same_network(pid):
        return
    network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _enter(network, "net")
    except PermissionError:
        # Ours, where an ordinary user made the container; its programs may live in a further one.
        owner = fcntl.ioctl(network, _NS_GET_USERNS)
        if os.fstat(owner).st_ino == os.stat("/proc/self/ns/user").st_ino:
            raise
        _enter(owner, "user")
        _enter(network, "net")


def _enter(namespace: int, name: str) -> None:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, _CLONE[name]):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _connect_to_path(connection: socket.socket, pid: int, path: str) -> None:
    """A Unix socket is where its owner sees it: a container has another file system."""
    # Through a descriptor: no link leads elsewhere, and a path that we made longer may be too long.
    opened = open_entry(pid, path)
    try:
        connection.connect(f"/proc/self/fd/{opened}")
    finally:
        os.close(opened)


def main() -> None:
    """The child where a fork is not safe; descriptor 3 leads to its parent."""
    pid, kind, address, port, left_s = sys.argv[1:]
    _hand_over(3, int(pid), kind, address, port, float(left_s))
