"""Nodes over ssh: the user's own configuration and keys, no questions, no shell surprises in names."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Sequence

from vram.errors import BadInput, UsageError
from vram.files import open_given
from vram.fleet.programs import Programs
from vram.fleet.transport import CommandResult, NodeAddress, NodeFailed
from vram.untrusted import Rejected, read_file, read_stream

_USER = r"(?:[A-Za-z0-9_][A-Za-z0-9._-]{0,63}@)?"
_HOST = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,252})"
_IPV6 = r"[0-9A-Fa-f:]{2,45}(?:%[A-Za-z0-9._-]{1,32})?"
_NAME = re.compile(rf"{_USER}(?:{_HOST}|{_IPV6})", re.ASCII)
_ADDRESS = re.compile(r"[0-9.]+|[0-9A-Fa-f:]*:[0-9A-Fa-f:%A-Za-z0-9._-]*", re.ASCII)
_OPTION = re.compile(r"[A-Za-z][A-Za-z0-9]*[= ].+", re.ASCII | re.DOTALL)
_MAX_HOSTS_BYTES = 4 << 20
_MAX_HOSTS = 100_000
_OWN_DESCRIPTORS = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")
_NOT_FOUND, _SSH_FAILED = 127, 255
_CONFIG_BYTES = 1 << 20


def host_list(text: str) -> tuple[str, ...]:
    """The hosts that *text* names: a,b,c or @FILE with one a line; # begins a comment."""
    file = text[1:] if text.startswith("@") else None
    words = _of_file(file) if file is not None else [word.strip() for word in text.split(",")]
    names = [word for word in words if word]
    for number, name in enumerate(words, 1):
        if name and not _NAME.fullmatch(name):
            # The file may be one that the reader of this message may not read.
            shown = repr(name[:80]) if file is None else f"line {number} of {file}"
            raise UsageError(
                f"{shown} is not a host name",
                hint="letters, digits, '.', '_' and '-', and USER@ before it; ports belong to ssh's config",
            )
    if not names:
        raise UsageError("--hosts names no host", hint="write --hosts a,b,c or --hosts @FILE")
    if len(names) > _MAX_HOSTS:
        raise UsageError(f"--hosts names {len(names):,} hosts; {_MAX_HOSTS:,} are the most")
    return tuple(dict.fromkeys(names))


def _of_file(path: str) -> list[str]:
    try:
        text = _content(path).decode()
    except (Rejected, OSError, ValueError) as error:  # ValueError: a zero byte in the path
        reason = getattr(error, "strerror", None) or str(error)
        if isinstance(error, UnicodeDecodeError):
            reason = f"it is not UTF-8 at byte {error.start}"
        raise BadInput(f"cannot read the hosts in {path}: {reason}", hint="one host a line") from error
    return [line.partition("#")[0].strip() for line in text.splitlines()]


def _content(path: str) -> bytes:
    """Each word in it is looked up as a host, and shown: it must not be another user's file, by a link."""
    if path.startswith(_OWN_DESCRIPTORS):  # as a shell's <(...) is
        return read_file(path, nbytes=_MAX_HOSTS_BYTES, follow=True, pipes=True)
    file = open_given(path)
    try:
        return read_stream(file, nbytes=_MAX_HOSTS_BYTES)
    finally:
        os.close(file)


class SshNodes:
    """Hosts that ssh reaches. *vram* is the command there, as words."""

    source = "ssh"

    def __init__(
        self,
        hosts: Sequence[str],
        *,
        vram: Sequence[str] = ("vram",),
        connect_s: float = 10.0,
        config: str | None = None,
        options: Sequence[str] = (),
    ) -> None:
        ssh = shutil.which("ssh")
        if ssh is None:
            raise UsageError("ssh is not installed here", hint="install OpenSSH's client, or use --snapshots")
        for option in options:
            if not _OPTION.fullmatch(option):
                raise UsageError(f"{option!r} is not an option of ssh", hint="--ssh-option Port=2222")
        self._hosts, self._vram = tuple(hosts), tuple(vram)
        self._ssh = [ssh, *(("-F", config) if config else ()), *(w for each in options for w in ("-o", each))]
        # What comes first counts: the user's own options may change these.
        self._safe = [
            *("-T", "-a", "-x"),
            *("-o", "BatchMode=yes"),
            *("-o", f"ConnectTimeout={max(1, round(connect_s))}"),
            *("-o", "ClearAllForwardings=yes"),
            # A snapshot is text that repeats itself: a thirtieth of it travels.
            *("-o", "Compression=yes"),
        ]
        self._programs = Programs()

    def nodes(self) -> tuple[NodeAddress, ...]:
        return tuple(NodeAddress(_without_user(host), host) for host in self._hosts)

    def located(self, node: NodeAddress, until: float) -> NodeAddress:
        """*node* with the host names that it may have, as ssh's configuration says where it leads."""
        host = _without_user(node.address)
        said = self._programs.run([*self._ssh, "-G", "--", node.address], until=until, nbytes=_CONFIG_BYTES)
        lines = said.output.decode(errors="replace").splitlines()
        target = next((line.partition(" ")[2] for line in lines if line.startswith("hostname ")), host)
        if _ADDRESS.fullmatch(target):  # an address does not say how the host calls itself
            return node
        return node._replace(host_names=(host, target))

    def run(
        self, node: NodeAddress, words: Sequence[str], *, until: float, nbytes: int = 1 << 20
    ) -> CommandResult:
        # ssh hands one string to a shell on the other side: quoted, it is these words and nothing else.
        command = shlex.join((*self._vram, *words))
        argv = [*self._ssh, *self._safe, "--", node.address, command]
        result = self._programs.run(argv, until=until, nbytes=nbytes)
        if result.status == _SSH_FAILED:
            raise NodeFailed("unreachable", result.last_words or "ssh failed")
        if result.status == _NOT_FOUND:
            raise NodeFailed("no-vram", f"{self._vram[0]} is not found there: {result.last_words}")
        return result

    def cancel(self) -> None:
        self._programs.cancel()

    def close(self) -> None:
        self._programs.close()


def _without_user(host: str) -> str:
    return host.rpartition("@")[2]
