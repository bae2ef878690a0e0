"""Programs in containers, made of namespaces by hand: another root, network, pids; no path of the host.

Root makes one. Its root is a tmpfs with /usr of the host, a Python in /opt/python, programs in /app and the
virtual driver in /driver; the virtual GPU's own folder lies where the host has it, as /dev/nvidia0 would.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.needs import require, skip_without
from tests.patience import until, until_readable
from vram.virtualgpu.demos import PROGRAMS

HERE = Path(__file__).parent
REACH = HERE.parent / "reach"
DRIVER = PROGRAMS.parent / "lib"
PYTHON = "/opt/python/bin/python3"
# What a program in the container finds under /app, by names that no file of the host has.
APP = {
    "train.py": REACH / "subject.py",
    "driver.py": PROGRAMS / "driver.py",
    "sandbox.py": REACH / "sandbox.py",
    "loop.py": HERE / "loop.py",
    "states.py": REACH / "target_program.py",
    "as_others.py": HERE / "as_others.py",
}
ENVIRONMENT = {
    "LD_LIBRARY_PATH": "/driver:/opt/python/lib",
    "PATH": "/usr/bin:/bin",
    "PYTHONPATH": "/app",
    "HOME": "/nonexistent",
}

# Every namespace but that of users and of time.
NAMESPACES = (
    "--mount",
    "--pid",
    "--net",
    "--ipc",
    "--uts",
    "--fork",
    "--kill-child",
    "--propagation",
    "private",
)

_ENTER = """\
set -e
new=$1 python=$2 gpu=$3 options=$4; shift 4
mount -t tmpfs -o mode=755 tmpfs $new
cd $new
mkdir -p usr opt/python app driver proc tmp dev etc .old
case $options in *no-shm*) ;; *) mount -t tmpfs tmpfs dev;; esac
mkdir -p -m 1777 dev/shm .$gpu
ln -s usr/bin bin; ln -s usr/lib lib; ln -s usr/lib64 lib64; ln -s usr/sbin sbin
mount --rbind /usr usr; mount --rbind $python opt/python; mount --rbind $gpu .$gpu
chmod 1777 tmp
while [ "$1" != -- ]; do case $1 in
    *=/driver) mount --rbind ${1%%=*} .${1#*=};;
    *) mkdir -p "$(dirname .${1#*=})"; : >.${1#*=}; mount --rbind ${1%%=*} .${1#*=};;
esac; shift; done; shift
mount -t proc proc proc
case $options in *no-tmp*) rmdir tmp;; esac
case $options in *noexec-tmp*) mount -t tmpfs -o noexec tmpfs tmp;; esac
case $options in *read-only*) mount -o remount,ro,bind $new 2>/dev/null || mount -o remount,ro $new;; esac
case $options in *chroot*) exec chroot . "$@";; esac
cd $new; pivot_root . .old
cd /; umount -l /.old
case $options in *no-proc*) umount -l /proc;; esac
exec "$@"
"""


class Container:
    """One running program in a container, which answers lines with lines as subject.py does."""

    def __init__(self, process: subprocess.Popen[bytes], program: str) -> None:
        self.process, self._program = process, program
        self.pid = 0

    def start(self) -> Container:
        inside = self.hear().get("ready")
        until(lambda: self._find(inside))
        return self

    def _find(self, inside: int | None) -> bool:
        """Its pid here: of a descendant that calls itself *inside*, or runs the program."""
        waiting, seen = [self.process.pid], []
        while waiting:
            pid = waiting.pop()
            seen.append(pid)
            with suppress(OSError):
                for task in os.listdir(f"/proc/{pid}/task"):
                    waiting += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
        for pid in seen[1:]:
            with suppress(OSError):
                lines = Path(f"/proc/{pid}/status").read_text().splitlines()
                numbers = next(line for line in lines if line.startswith("NSpid")).split()[1:]
                runs = os.readlink(f"/proc/{pid}/exe") == self._program
                if runs if inside is None else int(numbers[-1]) == inside:
                    self.pid = pid
        return bool(self.pid)

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        until_readable(self.process.stdout, lambda: "it does not answer: it is stopped, or hangs")
        line = self.process.stdout.readline()
        assert line, f"it has ended: {self.process.wait()}"
        heard: dict[str, Any] = json.loads(line)
        return heard

    def ask(self) -> dict[str, Any]:
        """Show that it goes on working."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()
        return self.hear()

    def files(self) -> list[str]:
        """What lies in the folders of the container that it may write to, and what of ours it has open."""
        root = Path(f"/proc/{self.pid}/root")
        found = [str(each) for name in ("tmp", "etc", "") for each in (root / name).glob("*vram*")]
        for each in Path(f"/proc/{self.pid}/fd").iterdir():
            with suppress(OSError):
                link = os.readlink(each)
                found += [link] if "vram-visitor" in link or "libvramtracer" in link else []
        return found

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


def require_namespaces() -> None:
    require("root", "unshare")
    if subprocess.run(["unshare", *NAMESPACES, "true"], capture_output=True).returncode:
        skip_without("namespaces", "no such namespace may be made here")


@contextmanager
def container(
    gpu: Mapping[str, str],
    folder: Path,
    argv: Sequence[str],
    *,
    options: str = "",
    namespaces: Sequence[str] = NAMESPACES,
    before: Sequence[str] = (),
    files: Mapping[str, Path] = {},
    runtime: str = "unshare",
    program: str | None = None,
) -> Iterator[Container]:
    """Run *argv* in a container of these namespaces, or one that *runtime* makes: bwrap or runc.

    *options*: read-only, no-tmp, no-shm, noexec-tmp, no-proc, chroot. *before*: words of a program that
    starts the container's, such as setpriv. *files* are added, by their paths. *argv* becomes *program*.
    """
    require_namespaces()
    where = gpu["VRAM_VIRTUAL_GPU"]
    shown = {"/opt/python": sys.base_prefix, where: where, "/driver": str(DRIVER)}
    shown |= {f"/app/{name}": str(path) for name, path in APP.items()}
    shown |= {name: str(path) for name, path in files.items()}
    environment = {**ENVIRONMENT, "VRAM_VIRTUAL_GPU": where}
    words = ["env", "-i", *(f"{name}={value}" for name, value in environment.items()), *before, *argv]
    if runtime == "unshare":
        root = folder / "root"
        root.mkdir()
        # The first two have a place of their own in the script.
        files_shown = [f"{path}={name}" for name, path in list(shown.items())[2:]]
        setup = [str(root), sys.base_prefix, where, options or "-", *files_shown, "--"]
        command = ["unshare", *namespaces, "sh", "-c", _ENTER, "sh", *setup, *words]
    elif runtime == "bwrap":
        command = [*_bubblewrap(shown), *words]
    else:
        command = _bundle(folder, shown, words)
    made = Container(
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE), program or argv[0]
    )
    try:
        yield made.start()
    finally:
        made.close()
        if runtime == "runc":
            subprocess.run(["runc", "delete", "--force", name_of(folder)], capture_output=True)


def _bubblewrap(shown: Mapping[str, str]) -> list[str]:
    """Its own /dev, /proc and /tmp, and every namespace."""
    require("bwrap")
    words = ["bwrap", "--unshare-all", "--die-with-parent", "--ro-bind", "/usr", "/usr"]
    for name in ("bin", "lib", "lib64", "sbin"):
        words += ["--symlink", f"usr/{name}", f"/{name}"]
    words += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/dev/shm", "--tmpfs", "/tmp"]
    for name, path in shown.items():
        words += ["--bind", path, name]
    return words


# What Docker, Podman and containerd set unless told otherwise; Debian has it with Podman's packages.
SECCOMP = Path("/usr/share/containers/seccomp.json")
_CAPABILITIES = ("CAP_KILL", "CAP_SETUID", "CAP_SETGID", "CAP_NET_BIND_SERVICE", "CAP_CHOWN", "CAP_FOWNER")


def _bundle(folder: Path, shown: Mapping[str, str], words: Sequence[str]) -> list[str]:
    """The words that run a bundle, a read-only root with a tmpfs at /tmp, under the usual filters."""
    require("runc")
    made = subprocess.run(["runc", "spec"], cwd=folder, capture_output=True)
    assert not made.returncode, made.stderr
    root = folder / "rootfs"
    for name in ("usr", *(each.lstrip("/") for each in shown)):
        (root / name).mkdir(parents=True, exist_ok=True)
    for name in ("bin", "lib", "lib64", "sbin"):
        (root / name).symlink_to(f"usr/{name}")
    config = json.loads((folder / "config.json").read_text())
    config["process"] |= {"terminal": False, "args": list(words), "env": ["PATH=/usr/bin"]}
    config["process"]["noNewPrivileges"] = False
    for kind in config["process"]["capabilities"]:
        config["process"]["capabilities"][kind] = list(_CAPABILITIES)
    binds = {"/usr": "/usr", **shown}
    config["mounts"] += [
        {"destination": name, "source": path, "type": "bind", "options": ["rbind", "rw"]}
        for name, path in binds.items()
        if not name.startswith("/app/")
    ]
    config["mounts"].append({"destination": "/tmp", "source": "tmpfs", "type": "tmpfs"})
    for name in (each for each in shown if each.startswith("/app/")):
        (root / name.lstrip("/")).rmdir()
        shutil.copy(shown[name], root / name.lstrip("/"))
    if SECCOMP.exists():
        config["linux"]["seccomp"] = _usual_filters()
    config["linux"].pop("resources", None)
    (folder / "config.json").write_text(json.dumps(config))
    return ["runc", "run", "--bundle", str(folder), name_of(folder)]


def name_of(folder: Path) -> str:
    return f"vram-{os.getpid()}-{folder.name}"


def _usual_filters() -> dict[str, Any]:
    """Podman's file as the runtimes' specification has it, for a container with our few capabilities."""
    found = json.loads(SECCOMP.read_text())
    rules = []
    for each in found["syscalls"]:
        only, never = each.get("includes", {}), each.get("excludes", {})
        wanted = set(only.get("caps", ())) <= set(_CAPABILITIES)
        if not wanted or set(never.get("caps", ())) & set(_CAPABILITIES):
            continue
        if "amd64" not in only.get("arches", ["amd64"]):
            continue
        words = ("names", "action", "args", "errnoRet")
        rules.append({key: each[key] for key in words if each.get(key) is not None})
    return {
        "defaultAction": found["defaultAction"],
        "architectures": ["SCMP_ARCH_X86_64"],
        "syscalls": rules,
    }
