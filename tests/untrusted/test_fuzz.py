"""Damaged documents are refused with a typed error, or read; never a traceback, never a wrong sum."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from tests.ledger.world import CONTEXT, World
from tests.untrusted.mutations import mutations
from vram.cli.app import main
from vram.errors import ExitCode, VramError
from vram.host.local.workload import ContainerNames
from vram.ledger.build import build_ledger
from vram.model.ledger import known_bytes
from vram.model.observation import ProbeRun
from vram.model.process import Workload
from vram.probes import bundle
from vram.reclaim import plan_file
from vram.units import GIB

READERS = (
    ("why",),
    ("why", "--json"),
    ("why", "7"),
    ("who",),
    ("who", "--by", "user", "--json"),
    ("check", "--leftovers"),
)


def worlds() -> Sequence[World]:
    """Machines that bring most kinds of observations and entries."""
    ghosts = World().gpu(0, used=60 * GIB).gpu(1, used=2 * GIB)
    ghosts.charge(5, 40 * GIB).charge(6, CONTEXT).charge(7, CONTEXT, gpu=1).charge(8, None)
    ghosts.process(6, parent=1).process(7, parent=6).process(9, parent=1).process(8, state="T")
    ghosts.files(6, minors=(0,), context=True, family=1).files(7, minors=(0, 1), context=True, family=1)
    ghosts.files(9, minors=(0,), context=True, family=2)
    ghosts.export(9, 4 * GIB, description=3).dmabuf(7, GIB, inode=2).unreadable(3).lost(2)
    divided = World().divided(devices=2, used=20 * GIB).mig(0, 1, total=40 * GIB, used=10 * GIB)
    divided.mig(1, 2, total=40 * GIB, used=10 * GIB).charge(5, 9 * GIB, instance=1, compute=0)
    divided.process(5)
    return ghosts, divided


def written(world: World) -> bytes:
    survey = msgspec.structs.replace(world.survey(), probes=(ProbeRun("nvml", "ok", 0.01),))
    return bundle.dumps(survey)


def run(*argv: str) -> int:
    """A command in this process; its output is thrown away, an escaping exception is not caught."""
    with (
        contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO())),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        return main(argv)


@pytest.mark.parametrize("number", range(2))
def test_damaged_snapshots(number: int, tmp_path: Path) -> None:
    path = tmp_path / "snapshot.json"
    read = 0
    for at, damaged in enumerate(mutations(written(worlds()[number]), seed=number)):
        path.write_bytes(damaged)
        command = READERS[at % len(READERS)]
        assert run(*command, "--from", str(path)) != ExitCode.INTERNAL, (command, at)
        with contextlib.suppress(VramError):
            for gpu in build_ledger(bundle.read(str(path))).gpus:
                if gpu.total_bytes is not None:
                    assert known_bytes(gpu.entries) == gpu.total_bytes, at
            read += 1
    assert read > 20  # damage that nobody notices would test nothing but the decoder


def test_damaged_plans(tmp_path: Path) -> None:
    plan = plan_file.with_digest("2026-01-01T00:00:00Z", "boot", GIB, (0,), ())
    path = tmp_path / "plan.json"
    plan_file.save(plan, str(path))
    for damaged in mutations(path.read_bytes(), seed=1):
        path.write_bytes(damaged)
        with contextlib.suppress(VramError):
            assert plan_file.load(str(path), "boot").digest == plan.digest


def test_damaged_files_of_container_runtimes(tmp_path: Path) -> None:
    number = "a" * 64
    place = tmp_path / "var/lib/docker/containers" / number
    place.mkdir(parents=True)
    whole = json.dumps({"Name": "/trainer", "State": {"Pid": 7}, "Config": {"Env": ["A=1"]}}).encode()
    for damaged in mutations(whole, seed=2):
        (place / "config.v2.json").write_bytes(damaged)
        container, pod = ContainerNames(str(tmp_path)).of(Workload(runtime="docker", container=number))
        assert pod is None
        assert container is None or len(container) <= 200
