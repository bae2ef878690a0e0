"""What each capability that the deployments ask for is needed for, and what an observer cannot do with it.

Tried on real processes of another user. The tests start as root and drop what the deployment does not have.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.deploy.test_manifests import container, one, plain
from tests.deploy.tools import DEPLOY
from tests.needs import needs, skip_without
from tests.patience import has_ended
from tests.serve.running import RunningService
from tests.serve.users import UsersMachine
from vram.serve.kubernetes_api import ACCOUNT
from vram.units import GIB
from vram.virtualgpu import VirtualGpu
from vram.virtualgpu.demos import DemoProgram

pytestmark = [
    needs("root", detail="only root can start as several users"),
    needs("setpriv"),
    needs("system-python"),  # others may not be allowed to start ours
    needs("yaml"),
]

OBSERVER, OWNER = 65532, 65534
NEEDED = ("sys_ptrace", "dac_read_search")

TRY = """
import os, sys
pid = int(sys.argv[1])
def works(what):
    try:
        what()
    except OSError:
        return False
    return True
print(*(name for name, what in {
    "list": lambda: os.listdir(f"/proc/{pid}/fd"),
    "files": lambda: os.readlink(f"/proc/{pid}/fd/0"),
    "environment": lambda: open(f"/proc/{pid}/environ", "rb").close(),
    "signal": lambda: os.kill(pid, 0),
    "write-memory": lambda: os.close(os.open(f"/proc/{pid}/mem", os.O_RDWR)),
    "become-root": lambda: os.setuid(0),
}.items() if works(what)))
"""


def as_observer(capabilities: Sequence[str]) -> list[str]:
    """How a command starts that keeps *capabilities* alone, as another user than the processes' owner."""
    kept = ",".join(("-all", *(f"+{each}" for each in capabilities)))
    return [
        *("setpriv", f"--reuid={OBSERVER}", f"--regid={OBSERVER}", "--clear-groups", "--no-new-privs"),
        *(f"--bounding-set={kept}", f"--inh-caps={kept}", f"--ambient-caps={kept}", "--"),
    ]


@contextmanager
def process_of(uid: int) -> Iterator[int]:
    process = subprocess.Popen(
        ["sleep", "1000"], user=uid, group=uid, extra_groups=(), stdin=subprocess.DEVNULL
    )
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def tried(capabilities: Sequence[str], pid: int) -> set[str]:
    command = [*as_observer(capabilities), "/usr/bin/python3", "-c", TRY, str(pid)]
    return set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())


@pytest.mark.parametrize("owner", [OWNER, 0])
def test_both_are_needed_to_see_open_files_and_neither_can_act(owner: int) -> None:
    with process_of(owner) as pid:
        assert tried((), pid) == set()
        assert "files" not in tried(("sys_ptrace",), pid)
        assert "files" not in tried(("dac_read_search",), pid)
        assert tried(NEEDED, pid) == {"list", "files", "environment"}


def test_the_unit_and_the_manifest_ask_for_these() -> None:
    unit = (DEPLOY / "systemd" / "vram-observer.service").read_text()
    for key in ("CapabilityBoundingSet", "AmbientCapabilities"):
        (line,) = re.findall(rf"^{key}=(.*)$", unit, re.MULTILINE)
        assert line.lower().replace("cap_", "").split() == list(NEEDED)
    command = container(plain("observer.yaml"))["command"]
    kept = f"=-all,{','.join(f'+{each}' for each in NEEDED)}"
    assert {each.partition("=")[0] for each in command if each.endswith(kept)} == {
        "--inh-caps",
        "--ambient-caps",
    }


# ---- the observer's container, without a container engine ----

POD_UID = "9f3b1e2c-7a55-4c0d-8f6e-0123456789ab"
NUMBER = "4f" * 32


@contextmanager
def pods_group() -> Iterator[Path]:
    """A control group with the name that containerd gives a container of a pod."""
    with open("/proc/self/mounts", encoding="utf-8") as file:
        mounts = [line.split() for line in file]
    roots = [Path(each[1]) for each in mounts if each[2] == "cgroup2"]
    roots += [Path(each[1]) for each in mounts if each[2] == "cgroup" and "pids" in each[3].split(",")]
    pod = f"kubepods-burstable-pod{POD_UID.replace('-', '_')}.slice"
    for root in roots:
        outer = root / f"vram-test-{os.getpid()}"
        inner = outer / pod / f"cri-containerd-{NUMBER}.scope"
        try:
            inner.mkdir(parents=True)
        except OSError:
            continue
        try:
            yield inner
        finally:
            for each in (inner, inner.parent, outer):
                each.rmdir()
        return
    skip_without("cgroups", "no control group can be made here")


def in_a_container(mounts: dict[str, Path], added: Sequence[str]) -> list[str]:
    """As the runtime starts it: a mount namespace, capabilities dropped, no new privileges."""
    kept = ",".join(("-all", *(f"+{each.lower()}" for each in added)))
    steps = ["mount -t tmpfs none /run"]
    steps += [f"mkdir -p {at} && mount --bind -o ro {folder} {at}" for at, folder in mounts.items()]
    steps += [f'exec setpriv --bounding-set={kept} --inh-caps={kept} --no-new-privs -- "$@"']
    return ["unshare", "--mount", "--propagation", "private", "--", "sh", "-c", " && ".join(steps), "sh"]


@pytest.fixture
def runtime_files(tmp_path: Path) -> Path:
    """What containerd keeps of a container: root's alone."""
    config = tmp_path / "runtime" / NUMBER / "config.json"
    config.parent.mkdir(parents=True)
    annotations = {"container-name": "main", "sandbox-name": "trainer-0", "sandbox-namespace": "ml"}
    said = {f"io.kubernetes.cri.{name}": value for name, value in annotations.items()}
    config.write_text(json.dumps({"annotations": said}))
    config.chmod(0o600)
    return config.parents[1]


@pytest.fixture
def observers_folder(tmp_path: Path, virtual_gpu: VirtualGpu) -> Path:
    """A folder of the observer's; the virtual GPU is the observer's too, as a real one is everybody's."""
    folder = tmp_path / "service"
    folder.mkdir()
    for name in (folder, virtual_gpu.folder, *virtual_gpu.folder.rglob("*")):
        os.chown(name, OBSERVER, OBSERVER, follow_symlinks=False)
    return folder


@needs("unshare", "openssl")
@needs("kubernetes_validate")
def test_the_observers_command_names_other_users_leftovers_and_their_pod(
    virtual_gpu: VirtualGpu, tmp_path: Path, runtime_files: Path, observers_folder: Path
) -> None:
    """The manifest's command, capabilities, mounts and configuration, without a container engine."""
    from tests.deploy.api_server import ApiServer

    manifest = container(plain("observer-events.yaml"))
    enter = manifest["command"][: manifest["command"].index("--") + 1]
    (mount,) = (each for each in manifest["volumeMounts"] if each["name"] == "runtime-files")
    config = tmp_path / "serve.toml"
    config.write_text(one(plain("observer-events.yaml"), "ConfigMap")["data"]["serve.toml"])
    account = tmp_path / "account"
    account.mkdir()
    mounts = {mount["mountPath"]: runtime_files, ACCOUNT.replace("/var/run/", "/run/"): account}
    prefix = in_a_container(mounts, manifest["securityContext"]["capabilities"]["add"])
    with ExitStack() as stack:
        api = stack.enter_context(ApiServer(account))
        group = stack.enter_context(pods_group())
        family = stack.enter_context(DemoProgram(virtual_gpu, "forks.orphan", 2 * GIB))
        parent, child = family.pids["parent"], family.pids["child"]
        (group / "cgroup.procs").write_text(str(child))
        service = stack.enter_context(
            RunningService(
                observers_folder,
                virtual_gpu,
                *("--observe", "--config", str(config)),
                prefix=[*prefix, *enter],
                environment=api.environment,
            )
        )
        require_observer(service.process.pid)
        family.kill("parent")
        (event,) = service.until(lambda: list(api.events.values()))
        assert event["involvedObject"] == {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": "ml",
            "name": "trainer-0",
            "uid": POD_UID,
        }
        assert f"of pid {parent}, which has ended, still held by pid {child} (VR101)" in event["message"]
        (ghost,) = service.get("/api/v1/ghosts")["ghosts"]
        assert (ghost["code"], ghost["pids"]) == ("VR101", [child])


def require_observer(pid: int) -> None:
    """Its user, and of all capabilities the two that read (DAC_READ_SEARCH is 2, SYS_PTRACE is 19)."""
    status = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line
    )
    assert status["Uid"].split() == [str(OBSERVER)] * 4
    assert status["Groups"].split() == []
    assert status["NoNewPrivs"] == "1"
    for name in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
        assert int(status[name], 16) == 1 << 2 | 1 << 19, name


# ---- the service that acts, with the capabilities of its unit and of the actor, and no others ----


class LimitedMachine(UsersMachine):
    """The service starts as root with the capabilities of the deployment alone."""

    capabilities: Sequence[str] = ()

    def _script(self) -> str:
        kept = ",".join(("-all", *(f"+{each.lower()}" for each in self.capabilities)))
        limited = f"exec setpriv --bounding-set={kept} --inh-caps={kept} --no-new-privs -- "
        return super()._script().replace("exec ", limited)


@pytest.fixture
def limited(virtual_gpu: VirtualGpu) -> Iterator[LimitedMachine]:
    unit = (DEPLOY / "systemd" / "vram.service").read_text()
    (line,) = re.findall(r"^CapabilityBoundingSet=(.*)$", unit, re.MULTILINE)
    of_unit = {each.removeprefix("CAP_") for each in line.split()}
    of_actor = container(plain("actor.yaml"))["securityContext"]["capabilities"]["add"]
    assert of_unit == set(of_actor)
    with ExitStack() as stack:
        machine = LimitedMachine(virtual_gpu, stack)
        machine.capabilities = sorted(of_unit)
        yield machine


def is_gone(pidfd: int) -> bool:
    return has_ended(pidfd)


def test_these_are_enough_to_act_by_policy_and_for_a_user(limited: LimitedMachine) -> None:
    """A policy ends one user's leftover; another user frees an own one over the socket, as that user."""
    actor = one(plain("actor.yaml"), "ConfigMap")["data"]["serve.toml"]
    policy = (
        '[[policy]]\nname = "ends"\ndo = "end-leftovers"\nmode = "act"\nafter = "1s"\nreadings = 2\n'
        '[policy.match]\nusers = ["alice"]\n'
    )
    # Beside the socket, which the unit has, and without the cluster.
    here = actor.replace("[socket]\nenabled = false", "").replace("events = true", "events = false")
    service = limited.start(here + policy)
    status = Path(f"/proc/{service.process.pid}/status").read_text()
    (effective,) = re.findall(r"^CapEff:\t(\w+)$", status, re.MULTILINE)
    # DAC_READ_SEARCH is 2, KILL 5, SETGID 6, SETUID 7, SYS_PTRACE 19.
    assert int(effective, 16) == sum(1 << bit for bit in (2, 5, 6, 7, 19))
    children = {}
    for user in ("alice", "bob"):
        family = limited.demo(user, "forks.orphan", 2 * GIB)
        children[user] = os.pidfd_open(family.pids["child"])
        family.kill("parent")
    service.until(lambda: is_gone(children["alice"]))
    service.until(lambda: "outcome" in [line["event"] for line in limited.audit()])
    assert not is_gone(children["bob"])
    freed = limited.serve("bob", "free", "--yes", "--json")
    assert freed.returncode == 0, (freed.stdout, freed.stderr, service.log)
    assert json.loads(freed.stdout)["receipt"]["returned_bytes"] > 2 * GIB
    assert is_gone(children["bob"])
    assert [line["event"] for line in limited.audit("bob")] == ["intend", "outcome"]
    for pidfd in children.values():
        os.close(pidfd)
