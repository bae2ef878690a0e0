"""Where Slurm keeps a control group for every job, the kernel's word tells whose a process is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import jsonschema
import pytest

from tests.needs import skip_without
from tests.slurm.cluster import Left, Running
from tests.slurm.conftest import Site
from tests.slurm.test_epilog import DAEMON, NOBODY, by_hand
from vram.report.schema import generate
from vram.virtualgpu.demos import PROGRAMS

FREEZER = Path("/sys/fs/cgroup/freezer")
GPU = ("--gres=gpu:1",)


class Groups:
    """Control groups that a test makes, removed with it."""

    def __init__(self) -> None:
        self._made: list[Path] = []

    def put(self, pid: int, path: str) -> None:
        """Move *pid* into the group *path*, as a privileged program may."""
        folder = FREEZER / path.lstrip("/")
        missing = [
            each for each in (folder, *folder.parents) if FREEZER in each.parents and not each.exists()
        ]
        folder.mkdir(parents=True, exist_ok=True)
        self._made += missing
        (folder / "cgroup.procs").write_text(str(pid))

    def close(self) -> None:
        for folder in sorted(self._made, key=lambda each: -len(each.parts)):
            with suppress(OSError):
                folder.rmdir()


@pytest.fixture
def groups() -> Iterator[Groups]:
    made = Groups()
    yield made
    made.close()


def test_slurm_itself_ends_what_a_job_left_and_the_epilog_confirms_it(cgroup_site: Site) -> None:
    done = cgroup_site.srun(*cgroup_site.program("daemon", 64), options=GPU)
    left = Left(**json.loads(done.stdout))
    cgroup_site.wait(int(left.job))
    assert not left.living()
    result = cgroup_site.result(left.job)
    assert (result["verdict"], result["exit_code"]) == ("clean", 0)
    assert cgroup_site.state() == "idle"


def test_a_process_is_of_the_job_whose_control_group_it_is_in(
    cgroup_site: Site, groups: Groups, beside: list[Running]
) -> None:
    """Whatever its environment and its user are; and of no other job, whatever its environment says."""
    site, works = cgroup_site, cgroup_site.program("works", 64)
    job, other = site.first_job + 9_000, site.first_job + 9_001
    place = f"/slurm_{site.node}/uid_{NOBODY}/job_{job}/step_0"
    names = ("left", "subuid", "other job", "login", "foreign uid", "forged", "no group")
    environments = {"other job": str(job), "login": str(job), "forged": str(job)}
    users = {"subuid": 5, "foreign uid": DAEMON}
    found: dict[str, Running] = {}
    for name in names:
        claims = {"SLURM_JOB_ID": environments[name]} if name in environments else {}
        beside.append(site.background(*works, command="env", user=users.get(name, NOBODY), **claims))
        found[name] = beside[-1]
    groups.put(found["left"].pids[0], place)
    groups.put(found["subuid"].pids[0], f"{place}/task_0")
    groups.put(found["other job"].pids[0], f"/slurm_{site.node}/uid_{NOBODY}/job_{other}/step_0")
    groups.put(found["login"].pids[0], f"/user.slice/user-{NOBODY}.slice/session-3.scope")
    groups.put(found["foreign uid"].pids[0], f"/slurm_{site.node}/uid_{DAEMON}/job_{job}/step_0")
    groups.put(found["forged"].pids[0], f"/user.slice/user@{NOBODY}.service/slurm/job_{job}")
    variables = site.hook_environment(job, NOBODY, "0")
    done = by_hand(site, "epilog", variables, "--json", "--unknown-counts")
    result = json.loads(done.stdout)
    assert {each["pid"]: each["by"] for each in result["ended"]} == {
        found["left"].pids[0]: "cgroup",
        found["subuid"].pids[0]: "cgroup",
    }
    jsonschema.validate(result, generate("slurm"))
    alive = {name for name, each in found.items() if each.living()}
    assert alive == set(names) - {"left", "subuid"}
    # The job's user has processes there that no job accounts for: whose they are, nobody can tell.
    assert (result["verdict"], done.returncode) == ("unknown", 3)
    whose = {each["pid"]: each["whose"] for each in result["held"]}
    assert whose[found["other job"].pids[0]] == "unknown"
    assert whose[found["login"].pids[0]] == whose[found["no group"].pids[0]] == "user"
    assert found["foreign uid"].pids[0] not in whose


def test_a_running_jobs_group_is_not_touched(cgroup_site: Site, beside: list[Running]) -> None:
    """Another job of the same user on the same GPU, with a daemon that claims to be of the ended one."""
    site = cgroup_site
    job = site.first_job + 9_100
    stays = f"SLURM_JOB_ID={job} {' '.join(site.program('daemon', 64))}; exec sleep 1000"
    beside.append(site.background("sh", "-c", stays, options=GPU))
    (daemon,) = beside
    done = by_hand(site, "epilog", site.hook_environment(job, NOBODY, daemon.gpus or "0"), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ended"] == []
    assert daemon.living()


def test_the_environment_counts_for_nothing_where_the_site_says_so(
    cgroup_site: Site, beside: list[Running]
) -> None:
    site = cgroup_site
    job = site.first_job + 9_200
    beside.append(site.background(*site.program("works", 64), command="env", SLURM_JOB_ID=str(job)))
    (claims,) = beside
    variables = site.hook_environment(job, NOBODY, "0")
    assert by_hand(site, "epilog", variables, "--cgroup-only").returncode == 0
    assert claims.living()
    done = by_hand(site, "epilog", variables, "--json")
    assert [each["by"] for each in json.loads(done.stdout)["ended"]] == ["environment"]
    assert not claims.living()


def test_of_a_job_of_root_only_the_control_group_tells(cgroup_site: Site, beside: list[Running]) -> None:
    """Every daemon of the system is root's."""
    site = cgroup_site
    job = site.first_job + 9_300
    beside.append(site.background(*site.program("works", 64), command="env", user=0, SLURM_JOB_ID=str(job)))
    done = by_hand(site, "epilog", site.hook_environment(job, 0, "0"), "--json")
    assert json.loads(done.stdout)["ended"] == []
    assert beside[0].living()


def test_slurmd_runs_the_health_check(cgroup_site: Site) -> None:
    """Once when it starts, before it takes jobs; without a job and nearly without an environment."""
    (found,) = [each for each in cgroup_site.events("None", "health") if each["event"] == "result"]
    assert (found["verdict"], found["exit_code"], found["gpus"]) == ("clean", 0, [0, 1])


@pytest.mark.fault(4)
def test_a_process_that_waits_in_the_kernel_is_said_once_and_the_memory_counts(
    cgroup_site: Site, groups: Groups
) -> None:
    """State D: SIGTERM and SIGKILL once, a sentence, and exit code 1 well before the deadline."""
    site = cgroup_site
    if not os.path.exists("/dev/fuse"):
        skip_without("fuse", "there is no /dev/fuse")
    job = site.first_job + 9_400
    stuck = subprocess.Popen(
        ["unshare", "--mount", sys.executable, str(STUCK), sys.executable, "-c", HOLDER],
        env=site.gpu.environment(),
        cwd=PROGRAMS,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert stuck.stdout is not None
    try:
        lines = {stuck.stdout.readline().strip() for _ in range(2)}
        if b"waits" not in lines:
            skip_without("fuse", "FUSE may not be mounted here")
        pid = int((lines - {b"waits"}).pop())
        groups.put(pid, f"/slurm_{site.node}/uid_{NOBODY}/job_{job}/step_0")
        done = by_hand(site, "epilog", site.hook_environment(job, NOBODY, "0"), "--json", "--grace", "0.1s")
        result = json.loads(done.stdout)
        assert (done.returncode, result["verdict"]) == (1, "held")
        assert [(each["pid"], each["status"]) for each in result["ended"]] == [(pid, "unkillable")]
        assert "state D" in result["held"][0]["note"]
        assert result["took_s"] < 100
    finally:
        stuck.communicate()


STUCK = Path(__file__).parents[1] / "reclaim" / "stuck.py"
HOLDER = """
import driver, os, sys
driver.context()
driver.alloc(1 << 26)
print("waits", flush=True)
os.stat(sys.argv[1])
"""
