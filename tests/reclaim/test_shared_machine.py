"""``vram free --yes`` on a shared machine: every leftover byte comes back, and nobody else is touched."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import vram
from tests.needs import needs, require
from tests.patience import PATIENCE_S
from vram.units import GIB, MIB
from vram.virtualgpu import VirtualGpu
from vram.virtualgpu.demos import PROGRAMS, DemoProgram

HERE = Path(__file__).parent
SOURCES = Path(vram.__file__).parents[1]
NOBODY = 65534
BUILT = ("msgspec", "pynvml", "rich", "markdown_it", "mdurl", "pygments")

needs_root = needs("root", detail="only root can become another user")


def as_ourselves(folder: Path, gpus: int, *words: str, real: bool) -> list[str]:
    path = f"PYTHONPATH={SOURCES}:{PROGRAMS}:{os.environ.get('PYTHONPATH', '')}"
    machine = [] if real else [sys.executable, "-m", "vram", "virtual", "--gpus", str(gpus), "--"]
    return [
        *("env", path, f"XDG_STATE_HOME={folder}", *machine),
        *(sys.executable, str(HERE / "shared_machine.py"), *words),
    ]


def as_nobody(folder: Path, gpus: int, *words: str, real: bool) -> list[str]:
    """As an ordinary user, who may not enter the folders of the interpreter and of these sources."""
    machine = "" if real else f"$PYTHON -m vram virtual --gpus {gpus} -- "
    return as_another_user(f"{machine}$PYTHON /mnt/tests/shared_machine.py {' '.join(words)}")


def as_another_user(command: str, **environment: str) -> list[str]:
    """Words that run *command* as nobody: what it needs is mounted where that user may go."""
    require("unshare", "setpriv")
    specs = {name: importlib.util.find_spec(name) for name in BUILT}
    libraries = {
        Path(spec.origin).parents[0 if name == "pynvml" else 1]
        for name, spec in specs.items()
        if spec and spec.origin
    }
    places = {"python": Path(sys.base_prefix), "src": SOURCES, "programs": PROGRAMS, "tests": HERE}
    places |= {f"site{at}": path for at, path in enumerate(sorted(libraries))}
    mounts = "".join(
        f"mkdir /mnt/{name} && mount --bind {path} /mnt/{name} && " for name, path in places.items()
    )
    path = ":".join(f"/mnt/{name}" for name in places if name not in ("python", "tests"))
    settings = {
        "PATH": "/usr/bin:/bin",
        "HOME": "/mnt/home",
        "TMPDIR": "/tmp",
        "LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH", ""),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHOME": "/mnt/python",
        "PYTHONPATH": path,
        "PYTHON": f"/mnt/python/bin/python{sys.version_info.major}.{sys.version_info.minor}",
        **environment,
    }
    # That user may not go where the interpreter would look for its own library.
    settings["LD_LIBRARY_PATH"] += ":/mnt/python/lib"
    given = " ".join(f"{name}={value}" for name, value in settings.items())
    prepare = (
        f"mount -t tmpfs -o mode=755 none /mnt && {mounts}"
        "mkdir /mnt/home && chown 65534:65534 /mnt/home && cd / && "
        f'exec setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups env -i {given} sh -c "$1"'
    )
    return ["unshare", "--mount", "sh", "-c", prepare, "sh", command]


PEOPLE = {"ourselves": as_ourselves, "an ordinary user": as_nobody}
EVERYBODY = [pytest.param(who, marks=needs_root if who != "ourselves" else ()) for who in PEOPLE]


def play(who: str, style: str, gpus: int, folder: Path, *words: str, real: bool = False) -> dict[str, Any]:
    """Act it out; return what ``vram WORDS`` did to everybody."""
    argv = PEOPLE[who](folder, gpus, style, str(gpus), *words, real=real)
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def require_only_leftovers_gone(told: dict[str, Any], slack: int = 16 * MIB) -> None:
    """On several GPUs there is an exported handle, too: who holds it is ended only by name."""
    exported = len(told["left_of_that"]) > 1
    assert sum(told["held_by_the_dead"]) > 18 * GIB
    assert (told["ghosts_alive"], told["stopped_alive"]) == (exported, True), told["stdout"]
    assert sum(told["left_of_that"]) - exported * GIB < slack, told
    assert all(told["servers_answer"])
    assert told["server_workers_alive"] == 2 * len(told["servers_answer"])
    assert (told["code"], told["stderr"]) == (int(exported), ""), told["stdout"]


@pytest.mark.parametrize("who", EVERYBODY)
@pytest.mark.parametrize(("gpus", "style"), [(1, "batch"), (1, "jobs"), (8, "jobs")])
def test_every_byte_of_dead_trainers_comes_back_and_nobody_else_is_touched(
    who: str, style: str, gpus: int, tmp_path: Path
):
    require_only_leftovers_gone(play(who, style, gpus, tmp_path, "free", "--yes"))


@pytest.mark.parametrize("style", ["batch", "jobs"])
def test_a_size_is_reached_by_the_smallest_plan_on_one_gpu(style: str, tmp_path: Path):
    told = play("ourselves", style, 8, tmp_path, "free", "--more", "6GiB", "--gpu", "0", "--yes", "--json")
    answer = json.loads(told["stdout"])
    assert told["code"] == 0
    assert answer["plan"]["gpus"] == [0]
    assert {step["kind"] for step in answer["plan"]["steps"]} == {"kill"}
    assert all(told["servers_answer"])
    assert told["stopped_alive"]
    # Of 6.5 and 7.5 GiB on GPU 0 the holders of one are ended; the last GPU's are not needed.
    assert told["ghosts_alive"] > 4


@pytest.mark.parametrize("style", ["batch", "jobs"])
def test_more_than_the_leftovers_parks_nobody_and_touches_nobody(style: str, tmp_path: Path):
    told = play("ourselves", style, 1, tmp_path, "free", "--more", "60GiB", "--yes")
    assert told["code"] == 19
    assert "without harming" in told["stderr"]
    assert told["ghosts_alive"] == 7


@needs_root
def test_another_users_leftovers_are_named_with_the_command_that_root_would_use(virtual_gpu: VirtualGpu):
    """Its files may not be read; its session may."""
    demo = DemoProgram(virtual_gpu, "forks.orphan", GIB)
    try:
        child = demo.pids["child"]
        demo.kill("parent")
        environment = virtual_gpu.environment()
        opened = Path(environment["VRAM_VIRTUAL_GPU"])
        for path in (opened, *opened.rglob("*")):
            path.chmod(0o777 if path.is_dir() else 0o666)
        named = {name: value for name, value in environment.items() if name.startswith("VRAM_")}
        libraries = "/mnt/src/vram/virtualgpu/lib"  # the folder's own links lead where that user may not go
        argv = as_another_user("$PYTHON -m vram free --yes --json", LD_LIBRARY_PATH=libraries, **named)
        done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_S)
        answer = json.loads(done.stdout)
        assert (done.returncode, answer["plan"]["steps"]) == (1, []), done.stderr
        (left,) = answer["skipped"]
        assert (left["pid"], left["leftover"]) == (child, True)
        assert left["command"] == 'sudo "$(command -v vram)" free'
    finally:
        demo.close()


ROUNDS = int(os.environ.get("VRAM_SOAK_ROUNDS", "6"))
"""How often vram is run among jobs that come and die; a soak sets it to thousands."""


@pytest.mark.fault(10, 11)
def test_who_begins_to_work_while_vram_looks_is_never_ended(tmp_path: Path):
    path = f"PYTHONPATH={SOURCES}:{PROGRAMS}"
    command = ["env", path, f"XDG_STATE_HOME={tmp_path}", sys.executable, "-m", "vram", "virtual", "--"]
    seed = os.environ.get("VRAM_SOAK_SEED", "1")
    argv = [*command, sys.executable, str(HERE / "churn.py"), str(ROUNDS), seed]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_S * (1 + ROUNDS))
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["rounds"], told["healthy_died"]) == (ROUNDS, 0)
    assert told["ghosts"] > ROUNDS // 3
    assert told["freed"] == told["ghosts"]
    assert told["healthy_started"] > ROUNDS // 3
