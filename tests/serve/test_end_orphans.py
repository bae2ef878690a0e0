"""end-orphans at work: real jobs whose launcher was killed, ended whole or not at all."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.needs import needs
from tests.patience import PATIENCE_S
from tests.serve.jobs import SpawnedJob
from tests.serve.running import RunningService
from tests.serve.spawner import ALLOCATE, REST, WORK
from tests.serve.test_policies import StartPolicies, audit, decided, decisions, serving
from vram.units import GIB
from vram.virtualgpu import VirtualGpu

__all__ = ["serving"]

ME = pwd.getpwuid(os.geteuid()).pw_name
StartJob = Callable[..., SpawnedJob]


def table(*more: str, notify: str = "", mode: str = "act", users: str = ME) -> str:
    keys = {"mode": f'"{mode}"', "after": '"1s"', "idle": '"1s"', "notice": '"1s"' if notify else '"0s"'}
    keys |= {"readings": "2", "grace": '"5s"', "most-per-hour": "50"}
    keys |= dict(each.split(" = ", 1) for each in more)
    lines = "".join(f"{key} = {value}\n" for key, value in keys.items())
    told = f"[policy.notify]\n{notify}\n" if notify else ""
    match = f'[policy.match]\nusers = ["{users}"]\n'
    return f'[[policy]]\nname = "orphans"\ndo = "end-orphans"\n{lines}{match}{told}'


@pytest.fixture
def job(virtual_gpu: VirtualGpu, stack: ExitStack) -> StartJob:
    return lambda *mib: SpawnedJob(virtual_gpu, stack, *mib)


@pytest.fixture
def mail(tmp_path: Path) -> str:
    """How to tell people: a program that notes what it is given, with the time."""
    script = tmp_path / "mail"
    script.write_text(f'#!/bin/sh\n{{ cut -d" " -f1 /proc/uptime; cat; }} >> {tmp_path}/mailed\n')
    script.chmod(0o755)
    return f'mail = ["{script}"]\nmail-to = "operator"'


def acts(service: RunningService) -> list[tuple[str, str, str]]:
    return [(each["do"], each["verdict"], each["status"]) for each in reversed(decisions(service))]


def test_a_job_is_ended_whole_after_its_owner_was_told_and_its_neighbours_never_notice(
    serving: StartPolicies, job: StartJob, mail: str, tmp_path: Path
):
    healthy, orphaned = job(1024, 1024), job(2048, 1024)
    service = serving(table('after = "2s"', 'notice = "2s"', notify=mail))
    service.readings(2)
    began = time.monotonic()
    orphaned.orphan()
    service.until(lambda: (tmp_path / "mailed").exists())
    assert (time.monotonic() - began >= 1.9, orphaned.living) == (True, orphaned.pids)
    orphaned.until_ended()
    assert time.monotonic() - began >= 3.9
    service.until(lambda: acts(service) == [("announce", "act", "done"), ("end", "act", "done")])
    ended = decisions(service)[0]
    assert sorted(each["pid"] for each in ended["targets"]) == sorted(orphaned.pids)
    assert (ended["code"], ended["freed_bytes"] >= 3 * GIB, ended["held_s"] >= 4.0) == ("VR208", True, True)
    message = (tmp_path / "mailed").read_text()
    assert f"vram kill --job {ended['targets'][0]['pid']}" in message
    assert "ended in 2 s" in message
    service.readings(3)
    assert (healthy.living, message.count("Subject:")) == (healthy.pids, 1)
    events = [(line["event"], line.get("action")) for line in audit(service)]
    told, ending = [("intend", "policy"), ("outcome", None)], [("intend", "policy"), *[("intend", None)] * 2]
    assert events == [*told, *ending, *[("outcome", None)] * 3]
    assert service.metrics()["vram_policy_decisions_total", "announce", "act"] == 1
    assert service.metrics()["vram_policy_decisions_total", "end", "act"] == 1


def test_the_part_of_a_job_that_would_start_others_again_is_ended_with_them(
    serving: StartPolicies, job: StartJob
):
    orphaned = job(-1024)
    orphaned.orphan()
    service = serving(table())
    orphaned.until_ended()
    (done,) = decided(service, "done")
    assert [each["pid"] for each in done["targets"]] == orphaned.pids[:1]


@pytest.mark.fault(17)
def test_dry_run_says_what_would_be_done_tells_nobody_and_touches_nothing(
    serving: StartPolicies, job: StartJob, mail: str, tmp_path: Path
):
    service = serving(table(notify=mail, mode="dry-run"))
    orphaned = job(1024, 1024)
    orphaned.orphan()
    (found,) = decided(service, "done")
    assert (found["do"], found["verdict"], found["message"]) == ("end", "dry-run", "only planned")
    assert (len(found["digest"]), "its owner would be told 1 s before" in found["reason"]) == (64, True)
    service.readings(4)
    assert (orphaned.living, len(decisions(service))) == (orphaned.pids, 1)
    assert not (tmp_path / "mailed").exists()
    assert [line["event"] for line in audit(service)] == ["decided"]


def test_a_job_of_which_one_thread_works_is_left_alone_until_it_rests(serving: StartPolicies, job: StartJob):
    service = serving(table())
    orphaned = job(1024, 1024)
    orphaned.send(1, WORK)
    orphaned.orphan()
    service.readings(10)
    assert (orphaned.living, decisions(service)) == (orphaned.pids, [])
    orphaned.send(1, REST)
    orphaned.until_ended()
    (done,) = decided(service, "done")
    assert done["held_s"] > 2.0


def test_a_job_whose_gpu_works_is_left_alone(serving: StartPolicies, job: StartJob, virtual_gpu: VirtualGpu):
    orphaned = job(1024, 1024)
    orphaned.orphan()
    virtual_gpu.set(utilization=40)  # for those that start from now on
    service = serving(table())
    service.until(lambda: _is_found(service))
    service.readings(6)
    assert (orphaned.living, decisions(service)) == (orphaned.pids, [])
    service.close()
    virtual_gpu.set(utilization=0)
    serving(table())
    orphaned.until_ended()


def test_one_who_joins_starts_the_delay_again_and_is_ended_with_the_others(
    serving: StartPolicies, job: StartJob
):
    service = serving(table('after = "6s"'))
    orphaned = job(1024, 1024, 0)
    orphaned.orphan()
    service.until(lambda: _is_found(service))
    began = time.monotonic()
    orphaned.send(2, ALLOCATE)
    orphaned.until_ended()
    (done,) = decided(service, "done")
    assert sorted(each["pid"] for each in done["targets"]) == sorted(orphaned.pids)
    assert time.monotonic() - began >= 5.9
    assert len(decisions(service)) == 1


def _is_found(service: RunningService) -> bool:
    """Whether the service has read the orphans; whose they are it does not say over TCP."""
    return service.metrics()["vram_findings", "VR208", "problem"] == 1


def test_a_job_whose_owner_could_not_be_told_is_left_alone(
    serving: StartPolicies, job: StartJob, tmp_path: Path
):
    service = serving(table(notify='mail = ["/bin/false"]\nmail-to = "operator"'))
    orphaned = job(1024)
    orphaned.orphan()
    (failed,) = decided(service, "failed")
    assert (failed["do"], failed["message"]) == ("announce", "mail to operator: exit code 1")
    service.readings(6)
    assert (orphaned.living, len(decisions(service))) == (orphaned.pids, 1)


@needs("root", detail="the jobs must be root's")
@pytest.mark.fault(16)
def test_a_job_of_roots_is_left_alone_where_the_policy_does_not_name_root(
    serving: StartPolicies, job: StartJob
):
    service = serving(table("all = true", users="*"))
    orphaned = job(1024, 1024)
    orphaned.orphan()
    service.until(lambda: _is_found(service))
    service.readings(8)
    assert (orphaned.living, decisions(service), audit(service)) == (orphaned.pids, [], [])


def test_the_check_of_a_configuration_names_the_job(
    serving: StartPolicies, job: StartJob, virtual_gpu: VirtualGpu, tmp_path: Path
):
    orphaned = job(1024, 1024)
    orphaned.orphan()
    (tmp_path / "serve.toml").write_text(table('idle = "30min"'))
    words = ("serve", "--check-config", "--config", str(tmp_path / "serve.toml"), "--deadline", "60s")
    done = subprocess.run(
        [sys.executable, "-m", "vram", *words],
        env=virtual_gpu.environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout
    assert "30 min of them idle, owners not told before" in said
    assert all(f"pid {pid} of {ME}" in said for pid in orphaned.pids)
