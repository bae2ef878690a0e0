"""Launchers killed on real hardware: what they started is named, and one command frees its memory.

python -m pytest --real-gpu -s tests/hardware/test_orphans.py
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.hardware.conftest import Record
from tests.needs import needs, skip_without
from tests.patience import until, until_gone
from tests.reclaim.conftest import Bench
from vram.units import GIB

HERE = Path(__file__).parent / "launched"
RANK, WORKERS = str(HERE / "rank.py"), str(HERE / "workers.py")

pytestmark = [pytest.mark.gpu, needs("torch")]

LAUNCHERS = {
    "torchrun": ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", RANK),
    "accelerate": (
        *("-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes=2", "--num_machines=1"),
        *("--mixed_precision=no", "--dynamo_backend=no", RANK),
    ),
    "spawn": (WORKERS, "spawn"),
    "forkserver": (WORKERS, "forkserver"),
}


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    place = Bench(dict(os.environ), tmp_path / "state", real=True)
    yield place
    place.close()


@pytest.fixture(params=LAUNCHERS)
def launched(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[int, list[int]]]:
    """A launcher and its two workers, which hold memory; whatever is left ends with the test."""
    if request.param == "accelerate" and find_spec("accelerate") is None:
        skip_without("torch", "no accelerate")
    folder = tmp_path / "ranks"
    folder.mkdir()
    argv = [sys.executable, *LAUNCHERS[request.param], str(folder)]
    with (tmp_path / "output").open("w") as output:
        head = subprocess.Popen(argv, stdout=output, stderr=subprocess.STDOUT)

    def started() -> bool:
        assert head.poll() is None, (tmp_path / "output").read_text()
        return len(list(folder.glob("*.pid"))) == 2

    try:
        until(started, saw=(tmp_path / "output").read_text)
        yield head.pid, sorted(int(each.read_text()) for each in folder.glob("*.pid"))
    finally:
        pids = [int(each.read_text()) for each in folder.glob("*.pid")]
        for each in folder.iterdir():
            each.unlink()
        folder.rmdir()
        head.kill()
        head.wait()
        for pid in pids:
            until_gone(pid)


def states(bench: Bench, pids: list[int]) -> set[str]:
    rows = bench.ask("ps")["processes"]
    return {row["state"] for row in rows if row["pid"] in pids}


def test_a_job_whose_launcher_was_killed_is_named_and_freed(
    bench: Bench, launched: tuple[int, list[int]], record: Record, request: pytest.FixtureRequest
) -> None:
    head, workers = launched
    assert states(bench, workers) <= {"ok", "idle"}
    assert f"launcher pid {head}" in bench.vram("why", str(workers[0])).stdout

    pidfd = os.pidfd_open(head)
    killed = time.monotonic()
    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOWAIT)
    os.close(pidfd)

    def finding() -> dict[str, object] | None:
        answer = bench.ask("why")
        return next((each for each in answer["findings"] if each["code"] == "VR208"), None)

    found = until(finding)
    named_s = time.monotonic() - killed
    assert sorted(found["pids"]) == workers
    assert states(bench, workers) == {"orphan"}
    assert bench.vram("check", "--leftovers").returncode == 0
    assert bench.vram("check", "--leftovers", "--orphans").returncode == 1
    assert bench.vram("free", "--yes").returncode == 0
    assert states(bench, workers) == {"orphan"}  # plain free leaves them alone

    began = time.monotonic()
    answer = bench.ask("free", "--orphans", "--yes")
    took_s = time.monotonic() - began
    receipt = answer["receipt"]
    record(
        launcher=request.node.callspec.id,
        named_after_s=round(named_s, 3),
        freed_gib=round(receipt["returned_bytes"] / GIB, 2),
        command_s=round(took_s, 3),
        message=[each["message"] for each in receipt["outcomes"]],
    )
    # A fork server holds nothing, and ends with the workers that it forked.
    targets = {step["target"]["process"]["pid"] for step in answer["plan"]["steps"]}
    assert targets >= set(workers)
    assert len(targets) <= 3
    assert receipt["returned_bytes"] >= 4 * GIB
    assert named_s < 10


def test_a_whole_job_ends_with_its_launcher(bench: Bench, launched: tuple[int, list[int]]) -> None:
    head, workers = launched
    answer = bench.ask("kill", "--job", str(workers[1]), "--yes")
    targets = [step["target"]["process"]["pid"] for step in answer["plan"]["steps"]]
    assert targets[0] == head
    assert set(targets[1:]) >= set(workers)
    assert len(targets) <= 4
    assert answer["receipt"]["returned_bytes"] >= 4 * GIB
    for pid in workers:
        until_gone(pid)
