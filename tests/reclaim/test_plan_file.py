"""Saved plans: run later by their digest; foreign, edited and stale ones are refused, nothing touched."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.ghosts.conftest import held_by, is_charge
from tests.needs import needs, skip_without
from tests.reclaim.conftest import Bench
from vram.model.plan import PLAN_SCHEMA
from vram.units import GIB
from vram.virtualgpu.demos import DemoProgram

needs_root = needs("root", detail="only root can give files away")


class Saved:
    """A plan in a file, and the ghost that it is for."""

    def __init__(self, machine: Bench, path: Path) -> None:
        self.machine, self.path = machine, path
        self.demo: DemoProgram = machine.demo("signals.stopped", 1 * GIB)
        self.holder = self.demo.pids["worker"]
        machine.ask("free", "--finding", "VR201", "--dry-run", "--save", str(path))

    def edit(self, change: Callable[[dict[str, Any]], object]) -> None:
        plan = json.loads(self.path.read_bytes())
        change(plan)
        self.path.write_text(json.dumps(plan))

    def run(self) -> tuple[int, str]:
        done = self.machine.vram("free", "--plan", str(self.path), "--yes")
        return done.returncode, done.stderr

    def is_untouched(self) -> bool:
        held = held_by(self.machine.why(), self.holder)
        return is_charge(held, 1 * GIB) and not self.machine.audit()


@pytest.fixture
def saved(machine: Bench, tmp_path: Path) -> Saved:
    return Saved(machine, tmp_path / "plan.json")


def test_a_saved_plan_runs_as_it_was_shown(saved: Saved):
    digest = json.loads(saved.path.read_bytes())["digest"]
    answer = saved.machine.ask("free", "--plan", str(saved.path), "--yes")
    assert answer["receipt"]["digest"] == digest
    assert answer["receipt"]["outcomes"][0]["status"] == "done"
    assert saved.path.stat().st_mode & 0o777 == 0o600


def test_it_is_only_shown_without_yes(saved: Saved):
    done = saved.machine.vram("free", "--plan", str(saved.path))
    assert done.returncode == 1
    assert f"pid {saved.holder}" in done.stdout
    assert saved.is_untouched()


def test_an_edited_plan_is_refused(saved: Saved):
    saved.edit(lambda plan: plan["steps"][0]["target"]["process"].update(pid=1))
    code, says = saved.run()
    assert (code, "was changed after it was written" in says) == (16, True)
    assert saved.is_untouched()


def test_a_plan_of_another_boot_is_refused(saved: Saved):
    """Its digest fits: pids and start times just mean nothing here."""
    from msgspec import convert, to_builtins

    from vram.model.plan import Plan
    from vram.reclaim.plan_file import digest_of

    def move(plan: dict[str, Any]) -> None:
        plan["boot_id"] = "another"
        plan["digest"] = digest_of(convert(plan, Plan))
        assert to_builtins(convert(plan, Plan))["boot_id"] == "another"

    saved.edit(move)
    code, says = saved.run()
    assert (code, "written on another machine" in says) == (15, True)
    assert saved.is_untouched()


def test_a_plan_whose_target_ended_is_refused(saved: Saved):
    saved.demo.kill("worker")
    code, says = saved.run()
    assert (code, "no longer holds anything here" in says) == (15, True)
    assert not saved.machine.audit()


def test_a_plan_whose_target_works_again_is_refused(saved: Saved):
    """It was planned to end because it was stopped; it was continued since."""
    pidfd = os.pidfd_open(saved.holder)
    signal.pidfd_send_signal(pidfd, signal.SIGCONT)
    os.close(pidfd)
    code, says = saved.run()
    assert (code, "VR201 no longer names" in says) == (15, True)
    assert saved.is_untouched()


@needs_root
def test_somebody_elses_plan_is_refused(saved: Saved):
    os.chown(saved.path, 65534, 65534)
    code, says = saved.run()
    assert (code, "another user owns it" in says) == (16, True)
    assert saved.is_untouched()


def test_a_plan_that_others_may_change_is_refused(saved: Saved):
    saved.path.chmod(0o666)
    assert saved.run()[0] == 16
    assert saved.is_untouched()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"\xff\xfe",
        b'{"schema": 1, "digest": "\xff"}',
        b"[1, 2]",
        b'{"schema": 99}',
        b"{" * 100_000,
        b" " * (5 << 20),
    ],
    ids=["empty", "no plan", "no text", "bad UTF-8 in a string", "a list", "half", "deep", "huge"],
)
def test_what_is_no_plan_is_refused(saved: Saved, content: bytes):
    saved.path.write_bytes(content)
    assert saved.run()[0] == 16
    assert saved.is_untouched()


def test_a_newer_plan_is_refused(saved: Saved):
    saved.edit(lambda plan: plan.update(schema=PLAN_SCHEMA + 1))
    code, says = saved.run()
    assert (code, "another version of vram" in says) == (16, True)


def test_a_pipe_or_a_folder_is_no_plan(saved: Saved, tmp_path: Path):
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo, 0o600)
    for path in (fifo, tmp_path, tmp_path / "missing"):
        assert saved.machine.vram("free", "--plan", str(path), "--yes").returncode == 16


@needs_root
def test_a_full_disk_leaves_no_half_a_plan(saved: Saved, tmp_path: Path):
    """An empty file would stand in the way of the next try, and be taken for a plan."""
    disk = tmp_path / "disk"
    disk.mkdir()
    script = (
        'mount -t tmpfs -o size=4k none "$0" && { head -c 4096 /dev/zero > "$0/full"; '
        '"$@"; code=$?; ls "$0"; exit $code; }'
    )
    words = ("free", "--finding", "VR201", "--dry-run", "--save", str(disk / "plan.json"))
    prefix = ("unshare", "--mount", "sh", "-c", script, str(disk))
    if saved.machine.run([*prefix, "true"]).stdout != "full\n":
        skip_without("mounts", "no small disk can be made here")
    done = saved.machine.vram(*words, prefix=prefix)
    assert (done.returncode, done.stdout) == (16, "full\n")
    assert done.stderr.startswith(f"vram: cannot write {disk}/plan.json: No space left on device")


def test_no_file_is_overwritten_by_a_plan(saved: Saved):
    before = saved.path.read_bytes()
    done = saved.machine.vram("free", "--finding", "VR201", "--dry-run", "--save", str(saved.path))
    assert done.returncode == 16
    assert saved.path.read_bytes() == before
