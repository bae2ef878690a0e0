"""A machine with several users, as root makes it: real uids, homes, one service, one virtual GPU for all.

The interpreter and the sources may lie where only root can go. So everything runs in a mount namespace where
the closed folders on the way to them are open, and /etc/passwd names the users.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.needs import needs, require
from tests.patience import PATIENCE_S
from tests.serve.running import RunningService
from vram.virtualgpu import VirtualGpu
from vram.virtualgpu.demos import DemoProgram

USERS = {"alice": 4101, "bob": 4102}
ROOT = Path(__file__).parents[2]

needs_root = needs("root", detail="only root can become other users")


class UsersMachine:
    """Starts services and programs as whom a test says; everything ends with it."""

    def __init__(self, gpu: VirtualGpu, stack: ExitStack) -> None:
        require("unshare", "setpriv", "nsenter")
        self.gpu = gpu
        self._stack = stack
        self.folder = Path(tempfile.mkdtemp(prefix="vram-users-", dir="/tmp"))
        stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
        self.folder.chmod(0o755)
        for path in (gpu.folder, *gpu.folder.rglob("*")):
            if not path.is_symlink():
                path.chmod(0o777 if path.is_dir() else 0o666)
        self._make_homes()
        self.service: RunningService | None = None
        self._programs: list[subprocess.Popen[Any]] = []

    def _make_homes(self) -> None:
        lines = Path("/etc/passwd").read_text().splitlines()
        for name, uid in USERS.items():
            home = self.home(name)
            home.mkdir(parents=True)
            home.chmod(0o700)
            os.chown(home, uid, uid)
            lines.append(f"{name}:x:{uid}:{uid}::{home}:/bin/sh")
        (self.folder / "passwd").write_text("\n".join(lines) + "\n")

    def home(self, user: str) -> Path:
        return self.folder / "home" / user

    def start(self, policies: str = "", *words: str, **options: Any) -> RunningService:
        """``vram serve`` as root, with these policies."""
        config = self.folder / "serve.toml"
        config.write_text(policies)
        prefix = ("unshare", "--mount", "sh", "-ec", self._script(), "sh")
        environment = {"XDG_STATE_HOME": str(self.folder / "root-state"), "HOME": "/root"}
        self.service = self._stack.enter_context(
            RunningService(
                self.folder,
                self.gpu,
                *("--config", str(config), "--deadline", "60s"),
                *words,
                prefix=prefix,
                environment=environment,
                **options,
            )
        )
        return self.service

    def set_policies(self, policies: str) -> None:
        """Have the service use these from now on."""
        assert self.service is not None
        (self.folder / "serve.toml").write_text(policies)
        self.service.send(signal.SIGHUP)

    def end_programs(self) -> None:
        """End all that users started, before the machine's own end."""
        for process in self._programs:
            _end(process)

    def _script(self) -> str:
        """Open the closed folders on the way to what every user needs, and nothing else in them."""
        needed = {Path(sys.base_prefix), Path(sys.prefix), ROOT, Path(sys.executable).resolve().parent.parent}
        closed: dict[Path, list[Path]] = {}
        for path in needed:
            shut = next((each for each in reversed(path.parents) if not each.stat().st_mode & 0o001), None)
            if shut is not None:
                closed.setdefault(shut, []).append(path)
        aside = self.folder / "aside"
        lines = [f"mount --bind {self.folder}/passwd /etc/passwd", f"mkdir -p {aside}"]
        for shut, paths in closed.items():
            for at, path in enumerate(paths):
                lines.append(f"mkdir -p {aside}/{at} && mount --bind {path} {aside}/{at}")
            lines.append(f"mount -t tmpfs -o mode=755 none {shut}")
            lines += [f"mkdir -p {path} && mount --bind {aside}/{at} {path}" for at, path in enumerate(paths)]
        return "; ".join([*lines, 'exec "$@"'])

    def enter(self, user: str) -> list[str]:
        """The words before a command of *user*."""
        assert self.service is not None
        mount = f"--mount=/proc/{self.service.process.pid}/ns/mnt"
        if user == "root":
            return ["nsenter", mount, "--"]
        uid = str(USERS[user])
        drop = ("setpriv", "--reuid", uid, "--regid", uid, "--clear-groups")
        return ["nsenter", mount, "--", *drop]

    def environment(self, user: str, **more: str) -> dict[str, str]:
        base = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(self.home(user)) if user in USERS else "/root",
            "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
            "LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH", ""),
            "PYTHON_DISABLE_REMOTE_DEBUG": "1",
        }
        if user == "root":
            base["XDG_STATE_HOME"] = str(self.folder / "root-state")
        return {**self.gpu.environment(base), **more}

    def popen(self, user: str, argv: list[str], **options: Any) -> subprocess.Popen[Any]:
        more: Mapping[str, str] = options.pop("more", {})
        process = subprocess.Popen(
            [*self.enter(user), *argv], env=self.environment(user, **more), cwd="/", **options
        )
        self._programs.append(process)
        self._stack.callback(_end, process)
        return process

    def vram(
        self, user: str, *words: object, prefix: tuple[str, ...] = ()
    ) -> subprocess.CompletedProcess[str]:
        assert self.service is not None
        argv = [*self.enter(user), *prefix, sys.executable, "-m", "vram", *map(str, words)]
        return subprocess.run(
            argv, env=self.environment(user), capture_output=True, text=True, timeout=PATIENCE_S, cwd="/"
        )

    def serve(self, user: str, *words: object, **options: Any) -> subprocess.CompletedProcess[str]:
        """``vram serve WORDS`` as *user*, against the service."""
        assert self.service is not None
        return self.vram(user, "serve", "--socket", self.service.socket, *words, **options)

    def wait(self, user: str, *words: object, **options: Any) -> subprocess.CompletedProcess[str]:
        """``vram wait WORDS`` as *user*, in the queue of the service."""
        assert self.service is not None
        return self.vram(user, "wait", "--socket", self.service.socket, *words, **options)

    def demo(self, user: str, program: str, nbytes: int, **more: str) -> DemoProgram:
        """A demo program of *user*."""
        return self._stack.enter_context(DemoProgram(_Launcher(self, user, more), program, nbytes))

    def audit(self, user: str | None = None) -> list[dict[str, Any]]:
        """What *user* has in the audit log; None: the service."""
        if user is None:
            assert self.service is not None
            path = self.service.state / "audit.jsonl"
        else:
            path = self.home(user) / ".local" / "state" / "vram" / "audit.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


class _Launcher:
    def __init__(self, machine: UsersMachine, user: str, more: Mapping[str, str]) -> None:
        self._machine, self._user, self._more = machine, user, more

    def popen(self, argv: list[str], **options: Any) -> subprocess.Popen[bytes]:
        options.pop("env")
        program = options.pop("executable")
        path = options.pop("cwd") / argv[1]
        home = {"PYTHONHOME": f"{sys.base_prefix}:{sys.base_exec_prefix}", **self._more}
        return self._machine.popen(self._user, [program, str(path), *argv[2:]], more=home, **options)


def _end(process: subprocess.Popen[Any]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
