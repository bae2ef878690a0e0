"""A machine with a virtual GPU: its programs report to the test, are killed by it and end with it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from string import Template
from tempfile import mkdtemp
from typing import Any

import pytest

import vram
from tests.needs import skip_without
from tests.patience import PATIENCE_S, has_ended, until_ended, until_readable
from vram.accounting import Account
from vram.payloads.procfs import read_stat
from vram.virtualgpu import VirtualGpu

LAUNCHERS = Path(__file__).with_name("launchers")
OWN_NAMESPACES = () if os.geteuid() == 0 else ("--user", "--map-root-user")
CONTAINER = ("unshare", *OWN_NAMESPACES, "--pid", "--fork", "--mount-proc")


class Reported:
    """A process that has reported; nothing else has its pid while ``pidfd`` is open."""

    def __init__(self, name: str, connection: socket.socket) -> None:
        self.name = name
        self._connection = connection
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        self.pid: int = struct.unpack("3i", credentials)[0]
        self.pidfd = os.pidfd_open(self.pid)

    @property
    def parent(self) -> int:
        stat = read_stat(self.pid)
        assert stat is not None, f"{self.name} has ended"
        return stat.parent

    def send(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, number)

    def tell(self) -> None:
        """Let a program that waits for a word go on."""
        self._connection.sendall(b".")

    def kill(self) -> None:
        """End it; its children have another parent when this returns."""
        self.send(signal.SIGKILL)
        until_ended(self.pidfd)

    @property
    def lives(self) -> bool:
        return not has_ended(self.pidfd)

    def close(self) -> None:
        self._connection.close()
        os.close(self.pidfd)


class JobsMachine:
    """Processes by the names under which they report."""

    def __init__(self, gpu: VirtualGpu) -> None:
        # The path of a socket must be short.
        self.folder = Path(mkdtemp(prefix="vram-jobs-", dir="/tmp"))
        self.folder.chmod(0o755)
        shutil.copytree(LAUNCHERS, self.folder / "launchers", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(os.path.realpath("/bin/sh"), self.folder / "tini")
        self.environment = {
            **gpu.environment(),
            "XDG_STATE_HOME": str(self.folder / "state"),
            # From Python 3.14 on a way leads into every program; no test here needs it.
            "PYTHON_DISABLE_REMOTE_DEBUG": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        self.address = str(self.folder / "socket")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.address)
        self._listener.listen(1000)
        os.chmod(self.address, 0o777)
        self._there: dict[str, Reported] = {}
        self._started: list[subprocess.Popen[bytes]] = []

    def text(self, text: str) -> str:
        """*text* with $python, $here for the launchers' folder, $socket, $worker, $tini and $container."""
        here = self.folder / "launchers"
        return Template(text).safe_substitute(
            python=sys.executable,
            here=here,
            socket=self.address,
            worker=f"{here}/worker.py {self.address}",
            tini=f"{sys.executable} {here}/adopter.py {self.folder}/tini",
            container=" ".join(CONTAINER),
        )

    def command(self, text: str) -> list[str]:
        """The words of *text*, in which "~" stands for a space."""
        return [word.replace("~", " ") for word in self.text(text).split()]

    def start(self, command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        """Start a program in a session of its own, with a pipe as its standard input."""
        environment = {**self.environment, **options.pop("env", {})}
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, start_new_session=True, **options
        )
        self._started.append(process)
        return process

    def wait_for(self, *names: str) -> None:
        """Come back when all of *names* have reported."""
        while missing := set(names) - set(self._there):
            until_readable(self._listener, lambda: f"no report of {missing}")
            connection, _ = self._listener.accept()
            connection.settimeout(PATIENCE_S)
            name = connection.makefile().readline().strip()
            assert name not in self._there, f"two are called {name}"
            self._there[name] = Reported(name, connection)

    def __getitem__(self, name: str) -> Reported:
        return self._there[name]

    def rename(self, name: str, other: str) -> None:
        """Let the next one report under *name*."""
        self._there[other] = self._there.pop(name)

    def names(self) -> dict[int, str]:
        """Whoever has reported, by pid."""
        return {each.pid: name for name, each in self._there.items()}

    def kill_above(self, name: str, steps: Sequence[int] = (1,)) -> None:
        """End processes that do not report: so many steps above one that does, its parent first.

        All of them are stopped before the first is killed: none sees the end of another.
        """
        above, pid = [], self[name].pid
        for step in range(1, max(steps) + 1):
            stat = read_stat(pid)
            assert stat is not None, f"{name} has ended"
            pid = stat.parent
            if step in steps:
                above.append(os.pidfd_open(pid))
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pidfd in above:
                signal.pidfd_send_signal(pidfd, number)
        for pidfd in above:
            until_ended(pidfd)
            os.close(pidfd)

    def states(self, account: Account) -> dict[str, str]:
        """The state of each named process that holds memory; "healthy" stands for ok and idle."""
        names = self.names()
        return {
            names[row.pid]: "healthy" if row.state in ("ok", "idle") else row.state
            for row in account.processes
            if row.pid in names
        }

    def orphan_findings(self, account: Account) -> list[list[str]]:
        """The names that each finding of the rule is about."""
        names = self.names()
        found = [finding for finding in account.findings if finding.code == "VR208"]
        assert all(finding.severity == "problem" for finding in found)
        return sorted(sorted(names.get(pid, f"pid {pid}") for pid in finding.pids) for finding in found)

    def vram(self, *words: object, prefix: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*prefix, sys.executable, "-m", "vram", *map(str, words)],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )

    def ask(self, *words: object, prefix: Sequence[str] = ()) -> dict[str, Any]:
        """A command with --json, which must work."""
        done = self.vram(*words, "--json", "--deadline", "60s", prefix=prefix)
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def end(self, *names: str) -> None:
        """End *names*, and forget them."""
        ended = [self._there.pop(name) for name in names]
        for each in ended:
            each.send(signal.SIGKILL)
        for each in ended:
            until_ended(each.pidfd)
            each.close()

    def close(self) -> None:
        self._listener.close()
        self.end(*self._there)
        for process in self._started:
            assert process.stdin is not None
            with suppress(BrokenPipeError):
                process.stdin.close()
            process.kill()
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture
def machine(virtual_gpu: VirtualGpu, monkeypatch: pytest.MonkeyPatch) -> Iterator[JobsMachine]:
    made = JobsMachine(virtual_gpu)
    # For readings by this very process.
    for name in ("LD_LIBRARY_PATH", "VRAM_VIRTUAL_GPU", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, made.environment[name])
    yield made
    made.close()


def read() -> Account:
    """This machine, as `vram why` reads it."""
    return vram.account(deadline_s=PATIENCE_S)


def require_container() -> None:
    if not shutil.which("unshare") or subprocess.run([*CONTAINER, "true"], capture_output=True).returncode:
        skip_without("namespaces", "no new PID namespace may be made here")
