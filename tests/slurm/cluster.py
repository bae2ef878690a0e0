"""A real Slurm cluster of one node for tests: munged, slurmctld and slurmd from the system's packages.

    with Cluster.start(gpus=2, proctrack="linuxproc") as cluster:
        job = cluster.sbatch("#!/bin/sh\nsleep 1", "--gres=gpu:1")
        cluster.wait(job)

Everything is its own: folder, ports, munge key and socket, job ids. Jobs run on a virtual GPU. Whatever a
job leaves behind ends with the cluster (supervisor.py).
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import pytest

import vram
from vram.virtualgpu import VirtualGpu
from vram.virtualgpu.demos import PROGRAMS

HERE = Path(__file__).parent
SOURCES = Path(vram.__file__).parents[1]
DAEMONS = ("munged", "slurmctld", "slurmd")
CLIENTS = ("sbatch", "srun", "scontrol", "squeue", "sinfo", "scancel", "salloc")
SYSTEM_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
LIBRARIES = ("msgspec", "pynvml", "rich", "markdown_it", "mdurl", "pygments")
PATIENCE_S = 60.0
# Below it lies what other users must be able to read: the interpreter, the sources, the virtual GPU.
SHARED = "/mnt"

Proctrack = Literal["cgroup", "linuxproc", "pgid"]
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED")


def why_not() -> str | None:
    """Why no cluster can be started here; None where one can."""
    missing = [name for name in (*DAEMONS, *CLIENTS) if shutil.which(name, path=SYSTEM_PATH) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    if os.geteuid() != 0:
        return "only root can start jobs of other users"
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode:
        return "no mount namespace can be made here"
    return None


def why_no_cgroups() -> str | None:
    """Why Slurm's own control groups cannot be used here; None where they can."""
    if os.path.isdir("/sys/fs/cgroup/freezer") and os.access("/sys/fs/cgroup/freezer", os.W_OK):
        return None
    return "no freezer hierarchy of control groups (version 1) is mounted and writable"


class Cluster:
    """One node that runs jobs; its name is ``node``. Use it with ``with``, or close it."""

    def __init__(self, folder: Path, gpu: VirtualGpu, proctrack: Proctrack) -> None:
        self.folder, self.gpu, self.proctrack = folder, gpu, proctrack
        self.ports = _free_ports(2)
        self.node = f"n{self.ports[1]}"
        # Clusters of one machine share the control groups that are named by job.
        self.first_job = random.SystemRandom().randrange(1, 6_000) * 10_000
        self._close = ExitStack()

    @classmethod
    def start(
        cls,
        *,
        gpus: int = 2,
        proctrack: Proctrack = "linuxproc",
        conf: Mapping[str, str] | None = None,
        gres: str | None = None,
        node_gres: str | None = None,
        **settings: Any,
    ) -> Cluster:
        """Start the daemons and wait until the node takes jobs. *conf* adds lines to slurm.conf."""
        folder = Path(tempfile.mkdtemp(prefix="vram-slurm-", dir="/tmp"))
        folder.chmod(0o755)
        made = cls(folder, VirtualGpu.create(gpus=gpus, **settings), proctrack)
        try:
            made._share_gpu()
            made._write(gpus, dict(conf or {}), gres, node_gres)
            made._launch()
        except BaseException:
            made.close()
            raise
        return made

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._close.close()
        self.gpu.close()
        _remove_cgroups(range(self.first_job, self.first_job + 10_000))
        shutil.rmtree(self.folder, ignore_errors=True)

    # ---- setting up ----

    def _share_gpu(self) -> None:
        """Let every user open the virtual GPU, as /dev/nvidia* is open to everybody."""
        for path in (self.gpu.folder, *self.gpu.folder.rglob("*")):
            if not path.is_symlink():
                path.chmod(0o1777 if path.is_dir() else 0o666)

    def _write(self, gpus: int, conf: dict[str, str], gres: str | None, node_gres: str | None) -> None:
        for name in ("state", "spool", "munge", "log", "hooks", "out"):
            (self.folder / name).mkdir(mode=0o755)
        (self.folder / "out").chmod(0o1777)
        key = self.folder / "munge" / "key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))
        devices = self.folder / "dev"
        devices.mkdir()
        for at in range(gpus):
            # Slurm wants a device, and asks nothing else of it; the number in its name is the GPU's.
            os.mknod(devices / f"nvidia{at}", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        gres_lines = gres if gres is not None else f"Name=gpu File={devices}/nvidia[0-{gpus - 1}]\n"
        (self.folder / "gres.conf").write_text(gres_lines)
        (self.folder / "cgroup.conf").write_text(
            "CgroupPlugin=cgroup/v1\nCgroupMountpoint=/sys/fs/cgroup\n" if self.proctrack == "cgroup" else ""
        )
        lines = self._conf(node_gres or f"gpu:{gpus}") | conf
        text = "".join(f"{key}={value}\n" for key, value in lines.items() if value)
        self.conf.write_text(
            text + f"NodeName={self.node} NodeHostname={_host()} NodeAddr=127.0.0.1 Port={self.ports[1]}"
            f" CPUs=64 RealMemory=4000 Gres={node_gres or f'gpu:{gpus}'} State=UNKNOWN\n"
            f"PartitionName=all Nodes={self.node} Default=YES MaxTime=INFINITE State=UP\n"
        )

    @property
    def conf(self) -> Path:
        return self.folder / "slurm.conf"

    def _conf(self, node_gres: str) -> dict[str, str]:
        kinds = dict.fromkeys(word.partition(":")[0] for word in node_gres.split(","))
        return {
            "ClusterName": "vram",
            "SlurmctldHost": f"{_host()}(127.0.0.1)",
            "SlurmUser": "root",
            "SlurmdUser": "root",
            "AuthType": "auth/munge",
            "AuthInfo": f"socket={self.folder}/munge/socket",
            "CredType": "cred/munge",
            "SlurmctldPort": str(self.ports[0]),
            "SlurmdPort": str(self.ports[1]),
            "StateSaveLocation": f"{self.folder}/state",
            "SlurmdSpoolDir": f"{self.folder}/spool",
            "SlurmctldPidFile": f"{self.folder}/slurmctld.pid",
            "SlurmdPidFile": f"{self.folder}/slurmd.pid",
            "SlurmctldLogFile": f"{self.folder}/log/slurmctld",
            "SlurmdLogFile": f"{self.folder}/log/slurmd",
            "SlurmdDebug": "debug",
            "ProctrackType": f"proctrack/{self.proctrack}",
            "TaskPlugin": "task/none",
            "SelectType": "select/cons_tres",
            "SelectTypeParameters": "CR_CPU",
            "GresTypes": ",".join(kinds),
            "SlurmdParameters": "config_overrides",
            "SchedulerParameters": "batch_sched_delay=1,sched_min_interval=1",
            "JobAcctGatherType": "jobacct_gather/none",
            "MpiDefault": "none",
            "ReturnToService": "2",
            "KillWait": "1",
            "FirstJobId": str(self.first_job),
        }

    def _launch(self) -> None:
        munge = self.folder / "munge"
        daemons = [
            [
                *("/usr/sbin/munged", "--foreground", "--force", f"--key-file={munge}/key"),
                *(f"--socket={munge}/socket", f"--pid-file={munge}/pid", f"--log-file={munge}/log"),
                *(f"--seed-file={munge}/seed", "--num-threads=2"),
            ],
            ["/usr/sbin/slurmctld", "-D", "-c", "-f", str(self.conf)],
            ["/usr/sbin/slurmd", "-D", "-f", str(self.conf), "-N", self.node],
        ]
        (self.folder / "daemons.json").write_text(json.dumps(daemons))
        # A service has neither our environment nor our working directory.
        process = subprocess.Popen(
            [
                *("unshare", "--mount", sys.executable, str(HERE / "supervisor.py"), str(self.folder)),
                ",".join(f"{source}={target}" for target, source in self.mounts.items()),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={"PATH": SYSTEM_PATH, "SLURM_CONF": str(self.conf)},
            start_new_session=True,
        )
        self._close.callback(_end, process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n"
        self.until(lambda: "idle" in self.state(), "the node takes jobs")

    @property
    def mounts(self) -> dict[str, str]:
        """What other users find, and where."""
        places = {
            "python": sys.base_prefix,
            "src": str(SOURCES),
            "programs": str(PROGRAMS),
            "tests": str(HERE),
        }
        places |= {f"site{at}": path for at, path in enumerate(_libraries())}
        return {f"{SHARED}/{name}": path for name, path in places.items()}

    # ---- environments ----

    @property
    def python(self) -> str:
        """An interpreter that every user may run, inside jobs."""
        return f"{SHARED}/python/bin/python{sys.version_info.major}.{sys.version_info.minor}"

    @property
    def gpu_environment(self) -> dict[str, str]:
        """What a program inside the cluster needs to find its virtual GPU, and vram."""
        found = self.gpu.environment({})
        inside = str(SOURCES), f"{SHARED}/src"
        return {key: value.replace(*inside) for key, value in found.items()} | {
            "PYTHONHOME": f"{SHARED}/python",
            "PYTHONPATH": ":".join(path for path in self.mounts if not path.endswith(("python", "tests"))),
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    # ---- commands ----

    def run(self, *words: str, user: int = 0, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command of Slurm as *user*, and return what it printed."""
        env = {"PATH": SYSTEM_PATH, "SLURM_CONF": str(self.conf), **options.pop("env", {})}
        identity = {"user": user, "group": user, "extra_groups": []} if user else {}
        return subprocess.run(
            words, env=env, cwd="/", capture_output=True, text=True, timeout=PATIENCE_S, **identity, **options
        )

    def sbatch(
        self, script: str, *words: str, user: int = 65534, env: Mapping[str, str] | None = None
    ) -> int:
        """Submit *script* as *user* and return the job's id; it finds the virtual GPU."""
        done = self.run(
            *("sbatch", "--parsable", f"--output={self.folder}/out/%j", *words),
            user=user,
            input=script,
            env={**self.gpu_environment, **(env or {})},
        )
        assert done.returncode == 0, done.stderr
        return int(done.stdout.partition(";")[0])

    def job(self, job: int) -> dict[str, str]:
        """What slurmctld knows of *job*."""
        done = self.run("scontrol", "show", "job", "-o", str(job))
        return dict(word.partition("=")[::2] for word in done.stdout.split() if "=" in word)

    def wait(self, job: int) -> str:
        """Wait until *job* has ended and its epilog too; return its state."""
        self.until(lambda: self.job(job).get("JobState", "COMPLETED") in ENDED, f"job {job} ends")
        self.until(lambda: not self.run("squeue", "-h", "-j", str(job)).stdout.strip(), f"job {job} is gone")
        return self.job(job).get("JobState", "?")

    def state(self) -> str:
        """The node's state in Slurm's words, as "idle", "drain" or "mixed+drain"."""
        done = self.run("scontrol", "show", "node", "-o", self.node)
        words = dict(word.partition("=")[::2] for word in done.stdout.split() if "=" in word)
        return words.get("State", "").lower()

    def reason(self) -> str:
        """Why the node was drained; empty where it was not."""
        return self.run("sinfo", "-h", "-n", self.node, "-o", "%E").stdout.strip().removeprefix("none")

    def resume(self) -> None:
        """Take the node back into service."""
        self.run("scontrol", "update", f"NodeName={self.node}", "State=RESUME")
        self.until(lambda: "drain" not in self.state(), "the node is back")

    def output(self, job: int) -> str:
        """What *job* printed."""
        path = self.folder / "out" / str(job)
        return path.read_text() if path.exists() else ""

    def log(self, name: str = "slurmd") -> str:
        path = self.folder / "log" / name
        return path.read_text(errors="replace") if path.exists() else ""

    def until(self, holds: Any, what: str, patience_s: float = PATIENCE_S) -> None:
        """Wait until *holds* says so; Slurm tells nobody, so it is asked again and again."""
        deadline = time.monotonic() + patience_s
        while not holds():
            if time.monotonic() > deadline:
                tail = {name: self.log(name)[-3000:] for name in ("slurmctld", "slurmd")}
                pytest.fail(f"waited {patience_s:g} s until {what}: {self.state()} {self.reason()} {tail}")
            time.sleep(0.05)


def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    process.wait(PATIENCE_S)


def _host() -> str:
    return socket.gethostname().partition(".")[0]


def _free_ports(count: int) -> list[int]:
    """Ports that the kernel chose; held together, so that they differ."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


def _libraries() -> list[str]:
    specs = {name: importlib.util.find_spec(name) for name in LIBRARIES}
    return sorted(
        {
            str(Path(spec.origin).parents[0 if name == "pynvml" else 1])
            for name, spec in specs.items()
            if spec and spec.origin
        }
    )


def _remove_cgroups(jobs: range) -> None:
    """What Slurm leaves of its control groups when its daemons are killed."""
    for folder in Path("/sys/fs/cgroup").glob("*/slurm*/uid_*/job_*"):
        if int(folder.name.removeprefix("job_")) in jobs:
            for path in (
                *sorted((each for each in folder.rglob("*") if each.is_dir()), reverse=True),
                folder,
            ):
                try:
                    path.rmdir()
                except OSError:
                    break
