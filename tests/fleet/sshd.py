"""Real SSH servers on loopback, one a node: own keys, ports of the kernel's choice, ~/.ssh untouched."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

SSHD = shutil.which("sshd", path=os.environ.get("PATH", "") + ":/usr/sbin")
SSH = shutil.which("ssh")


class SshCluster:
    """Nodes by name, each with its own environment and its own ``vram``; ``config`` is for ssh -F."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "ssh_config"
        self._hosts: list[str] = []
        self._known: list[str] = []
        self._servers: list[_Server] = []
        self._sockets: list[socket.socket] = []
        self.gate = Gate(folder / "gate")
        for key in ("host_key", "user_key", "stranger_key"):
            make_key(folder / key)
        shutil.copy(folder / "user_key.pub", folder / "authorized_keys")
        if os.geteuid() == 0:
            os.makedirs("/run/sshd", mode=0o755, exist_ok=True)  # as Debian's own unit does

    def close(self) -> None:
        self.gate.open()
        while self._servers:
            self._servers.pop().close()
        for each in self._sockets:
            each.close()

    def node(self, name: str, script: str, environment: Mapping[str, str], *, key: str = "user_key") -> None:
        """A node whose ``vram`` is *script*."""
        place = self.folder / name
        place.mkdir()
        write_script(place / "vram", script)
        shown = {**environment, "PATH": f"{place}:/usr/bin:/bin"}
        # SetEnv is one line, whose first value of a name counts.
        variables = " ".join(f'"{key}={value}"' for key, value in shown.items())
        (place / "sshd_config").write_text(
            f"HostKey {self.folder}/host_key\nAuthorizedKeysFile {self.folder}/authorized_keys\n"
            "StrictModes no\nUsePAM no\nPasswordAuthentication no\nPidFile none\nPermitRootLogin yes\n"
            f"KbdInteractiveAuthentication no\nPrintMotd no\nPrintLastLog no\nSetEnv {variables}\n"
        )
        server = _Server(place / "sshd_config")
        self._servers.append(server)
        self._add(name, server.port, key)

    def refusing(self, name: str) -> None:
        """A port that nobody listens on, and that nobody else gets meanwhile."""
        bound = self._bound()
        self._add(name, bound.getsockname()[1], "user_key")

    def silent(self, name: str) -> None:
        """A server that takes the connection and says nothing."""
        bound = self._bound()
        bound.listen()
        self._add(name, bound.getsockname()[1], "user_key")

    def _bound(self) -> socket.socket:
        bound = socket.socket()
        bound.bind(("127.0.0.1", 0))
        self._sockets.append(bound)
        return bound

    def _add(self, name: str, port: int, key: str) -> None:
        self._hosts.append(
            f"Host {name}\n  HostName 127.0.0.1\n  Port {port}\n  IdentityFile {self.folder}/{key}\n"
        )
        public = " ".join((self.folder / "host_key.pub").read_text().split()[:2])
        self._known.append(f"[127.0.0.1]:{port} {public}")
        (self.folder / "known_hosts").write_text("".join(f"{line}\n" for line in self._known))
        everybody = (
            f"Host *\n  IdentitiesOnly yes\n  IdentityAgent none\n  StrictHostKeyChecking yes\n"
            f"  UserKnownHostsFile {self.folder}/known_hosts\n  GlobalKnownHostsFile /dev/null\n"
        )
        self.config.write_text("".join(self._hosts) + everybody)


class Gate:
    """A pipe that programs wait at: what hangs in a test ends with it, wherever it runs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path)

    def open(self) -> None:
        """Let everybody through who waits for a writer."""
        with suppress(OSError):  # nobody waits
            os.close(os.open(self.path, os.O_WRONLY | os.O_NONBLOCK))


class _Server:
    """Starts an sshd for each connection, as inetd does: the port is ours, so nobody can take it first."""

    def __init__(self, config: Path) -> None:
        self._config = config
        self._listening = socket.socket()
        self._listening.bind(("127.0.0.1", 0))
        self._listening.listen(64)
        self.port = self._listening.getsockname()[1]
        self._children: list[subprocess.Popen[bytes]] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        log = open(self._config.with_name("log"), "ab")  # noqa: SIM115 - closed at the end of the thread
        with log, suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                with connection:
                    argv = [str(SSHD), "-i", "-e", "-f", str(self._config)]
                    self._children.append(
                        subprocess.Popen(
                            argv, stdin=connection, stdout=connection, stderr=log, start_new_session=True
                        )
                    )

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listening.close()
        for child in self._children:
            child.kill()
            child.wait()


def make_key(path: Path) -> None:
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", str(path)]
    subprocess.run(argv, check=True)


def write_script(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def real_vram() -> str:
    """The line of a script that runs the vram under test."""
    return f'exec {sys.executable} -m vram "$@"'
