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
import pwd
import random
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import vram
from tests.patience import PATIENCE_S, until, until_readable
from vram.virtualgpu import VirtualGpu
from vram.virtualgpu.demos import PROGRAMS

HERE = Path(__file__).parent
SOURCES = Path(vram.__file__).parents[1]
DAEMONS = ("munged", "slurmctld", "slurmd")
CLIENTS = ("sbatch", "srun", "scontrol", "squeue", "sinfo", "scancel", "salloc")
SYSTEM_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
LIBRARIES = ("msgspec", "pynvml", "rich", "markdown_it", "mdurl", "pygments")
# Below it lies what other users must be able to read: the interpreter, the sources, the virtual GPU.
SHARED = "/mnt"

Proctrack = Literal["cgroup", "linuxproc", "pgid"]
HOOKS = {"Prolog": "prolog", "Epilog": "epilog", "HealthCheckProgram": "health"}
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


class Left:
    """What a job said of the processes that it leaves behind."""

    def __init__(self, pids: list[int], job: str | None, gpus: str | None) -> None:
        self.pids, self.job, self.gpus = pids, job or "0", gpus
        self._pidfds = {}
        for pid in pids:
            with suppress(ProcessLookupError):
                self._pidfds[pid] = os.pidfd_open(pid)

    def living(self) -> list[int]:
        """Those that have not ended."""
        poll = select.poll()  # select() takes no descriptor above 1,023
        for pidfd in self._pidfds.values():
            poll.register(pidfd, select.POLLIN)
        ended = {pidfd for pidfd, _ in poll.poll(0)}
        return [pid for pid, pidfd in self._pidfds.items() if pidfd not in ended]

    def signal(self, number: int) -> None:
        for pidfd in self._pidfds.values():
            signal.pidfd_send_signal(pidfd, number)


class Running(Left):
    """A job, or a process beside all jobs, that goes on until it is closed."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        self._process = process
        until_readable(process.stdout)
        super().__init__(**json.loads(process.stdout.readline()))

    def close(self) -> None:
        for pid in self.living():
            signal.pidfd_send_signal(self._pidfds[pid], signal.SIGKILL)
        self._process.kill()
        self._process.wait()


class Cluster:
    """One node that runs jobs; its name is ``node``. Use it with ``with``, or close it."""

    def __init__(self, folder: Path, gpu: VirtualGpu, proctrack: Proctrack) -> None:
        self.folder, self.gpu, self.proctrack = folder, gpu, proctrack
        self.ports = _free_ports(2)
        self.node = f"n{self.ports[1]}"
        # No job of one cluster can be taken for one of another on the same machine.
        self.first_job = random.SystemRandom().randrange(1, 6_000) * 10_000
        self._close = ExitStack()

    @classmethod
    def start(
        cls,
        *,
        gpus: int = 2,
        proctrack: Proctrack = "linuxproc",
        conf: Mapping[str, str] | None = None,
        gres: str = "",
        node_gres: str = "",
        hooks: Sequence[str] = (),
        **settings: Any,
    ) -> Cluster:
        """Start the daemons and wait until the node takes jobs. *conf* adds lines to slurm.conf.

        *hooks* are those of Prolog, Epilog and HealthCheckProgram that run vram; see :meth:`options`.
        """
        folder = Path(tempfile.mkdtemp(prefix="vram-slurm-", dir="/tmp"))
        folder.chmod(0o755)
        made = cls(folder, VirtualGpu.create(gpus=gpus, **settings), proctrack)
        try:
            made._share_gpu()
            made._write(gpus, dict(conf or {}), gres, node_gres, hooks)
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
        _remove_cgroups(self.node)
        shutil.rmtree(self.folder, ignore_errors=True)

    # ---- setting up ----

    def _share_gpu(self) -> None:
        """Let every user open the virtual GPU, as /dev/nvidia* is open to everybody."""
        for path in (self.gpu.folder / "lib").iterdir():
            library = path.resolve()  # perhaps in a folder that other users may not enter
            path.unlink()
            shutil.copy(library, path)
        for path in (self.gpu.folder, *self.gpu.folder.rglob("*")):
            path.chmod(0o1777 if path.is_dir() else 0o777)

    def _write(
        self, gpus: int, conf: dict[str, str], gres: str, node_gres: str, hooks: Sequence[str]
    ) -> None:
        for name in ("state", "spool", "munge", "log", "hooks", "out", "home"):
            (self.folder / name).mkdir(mode=0o755)
        (self.folder / "out").chmod(0o1777)
        (self.folder / "home").chmod(0o700)
        key = self.folder / "munge" / "key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))
        devices = self.folder / "dev"
        devices.mkdir()
        for at in range(gpus):
            # Slurm wants a device, and asks nothing else of it; the number in its name is the GPU's.
            os.mknod(devices / f"nvidia{at}", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        numbers = f"[0-{gpus - 1}]" if gpus > 1 else "0"
        (self.folder / "gres.conf").write_text(f"Name=gpu File={devices}/nvidia{numbers}\n{gres}\n")
        (self.folder / "cgroup.conf").write_text(
            "CgroupPlugin=cgroup/v1\nCgroupMountpoint=/sys/fs/cgroup\n" if self.proctrack == "cgroup" else ""
        )
        lines = self._conf(node_gres or f"gpu:{gpus}") | {key: self._hook(key) for key in hooks} | conf
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
        self.supervisor = process.pid
        self._close.callback(_end, process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n"
        self.until(lambda: "idle" in self.state(), "the node takes jobs")

    def _hook(self, key: str) -> str:
        """A script as a site would write it; what the virtual GPU needs comes before."""
        name = HOOKS[key]
        path = self.folder / "hooks" / name
        exports = "".join(f"export {key}={value}\n" for key, value in self.gpu_environment.items())
        path.write_text(
            f"#!/bin/sh\n{exports}export SLURM_CONF={self.conf}\n"
            # A machine that runs many tests at once may be slower than any node.
            f"exec {self.python} -m vram slurm {name} --log {self.folder}/log/vram --deadline {PATIENCE_S:g}s"
            f" $(/bin/cat {path}.options) >>{self.folder}/log/{name} 2>&1\n"
        )
        path.chmod(0o755)
        self.options(name)
        return str(path)

    def options(self, hook: str, *words: str) -> None:
        """Further words for the next calls of *hook*."""
        (self.folder / "hooks" / f"{hook}.options").write_text(" ".join(words))

    def hook_environment(self, job: int, uid: int, gpus: str, **more: str) -> dict[str, str]:
        """What slurmd tells a hook about a job, for calling one by hand."""
        return {
            "SLURM_JOB_ID": str(job),
            "SLURM_JOB_UID": str(uid),
            "SLURM_JOB_GPUS": gpus,
            "SLURMD_NODENAME": self.node,
            **more,
        }

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
        # Last: root's home, where hooks keep their state although nobody tells them HOME.
        home = pwd.getpwuid(0).pw_dir
        return {f"{SHARED}/{name}": path for name, path in places.items()} | {home: str(self.folder / "home")}

    # ---- environments ----

    @property
    def python(self) -> str:
        """An interpreter that every user may run, inside jobs."""
        return f"{SHARED}/python/bin/python{sys.version_info.major}.{sys.version_info.minor}"

    @property
    def gpu_environment(self) -> dict[str, str]:
        """What a program of the cluster needs to find its virtual GPU, and vram."""
        found = self.gpu.environment({})
        del found["LD_PRELOAD"]  # for programs of CUDA's runtime; the commands of Slurm would complain of it
        inside = str(SOURCES), f"{SHARED}/src"
        unsearched = f"{SHARED}/python", f"{SHARED}/tests"
        return {key: value.replace(*inside) for key, value in found.items()} | {
            "PYTHONHOME": f"{SHARED}/python",
            "PYTHONPATH": ":".join(
                path for path in self.mounts if path.startswith(SHARED) and path not in unsearched
            ),
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

    def srun(
        self, *words: str, options: Sequence[str] = (), user: int = 65534
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as a job of its own, and wait for its end; the epilog may still run."""
        return self.run("srun", "--chdir=/tmp", *options, *words, user=user, env=self.gpu_environment)

    def leave(
        self, kind: str, mib: int = 256, count: int = 1, *, options: Sequence[str], user: int = 65534
    ) -> Left:
        """Run a job that leaves something behind, and wait until its epilog is over."""
        done = self.srun(*self.program(kind, mib, count), options=options, user=user)
        assert done.returncode == 0, done.stderr
        left = Left(**json.loads(done.stdout))
        self.wait(int(left.job))
        return left

    def program(self, kind: str, mib: int = 256, count: int = 1) -> list[str]:
        """The words that run leave.py inside the cluster."""
        return [self.python, f"{SHARED}/tests/leave.py", kind, str(mib), str(count)]

    def background(
        self, *words: str, options: Sequence[str] = (), user: int = 65534, command: str = "srun", **env: str
    ) -> Running:
        """Start a job that goes on beside, or with another *command* a process outside; *words* print the
        line of leave.py."""
        process = subprocess.Popen(
            [
                # Where /mnt is what jobs see.
                *("nsenter", f"--mount=/proc/{self.supervisor}/ns/mnt", "--wd=/tmp"),
                *("setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--pdeathsig=KILL"),
                *(command, *options, *words),
            ],
            env={"PATH": SYSTEM_PATH, "SLURM_CONF": str(self.conf), **self.gpu_environment, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        return Running(process)

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

    def until(self, holds: Callable[[], object], what: str) -> None:
        """Wait until *holds* says so; Slurm tells nobody, so it is asked again and again."""

        def saw() -> str:
            tail = {name: self.log(name)[-3000:] for name in ("slurmctld", "slurmd")}
            return f"not that {what}, but {self.state()} {self.reason()} {tail}"

        until(holds, saw, max_pause_s=0.1)


def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    process.wait(PATIENCE_S)


def _host() -> str:
    return socket.gethostname().partition(".")[0]


def _free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, and that the kernel gives to no connection until they are used."""
    given_away = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    held: list[socket.socket] = []
    while len(held) < count:
        with suppress(OSError):
            port = random.SystemRandom().randrange(min(10_000, given_away // 2), given_away)
            held.append(socket.create_server(("127.0.0.1", port)))
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


def _remove_cgroups(node: str) -> None:
    """What Slurm leaves of its control groups when its daemons are killed."""
    for top in Path("/sys/fs/cgroup").glob(f"*/slurm_{node}"):
        below = sorted((each for each in top.rglob("*") if each.is_dir()), reverse=True)
        for path in (*below, top):
            with suppress(OSError):
                path.rmdir()
