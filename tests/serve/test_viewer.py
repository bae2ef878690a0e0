"""Who sees what: never more than /proc would show without the service."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.ledger.world import CONTEXT, World
from tests.needs import needs, skip_without
from tests.serve.conftest import StartService
from vram.diagnosis.engine import diagnose
from vram.ledger.build import build_ledger
from vram.model.change import Change
from vram.model.ledger import Entry, Holder, Ledger
from vram.model.process import Job, Workload
from vram.report import json as report
from vram.serve.config import ShowConfig
from vram.serve.viewer import Viewer, aged, hidepid_of, viewer, with_holders
from vram.units import GIB
from vram.virtualgpu import VirtualGpu
from vram.virtualgpu.demos import PROGRAMS

SECRETS = ("secret-command", "/home/secret/exe", "secret-container", "secret-job", "secret-notebook")
UIDS = {"carol": 1000, "dave": 1001, "root": 0}
WORKLOAD = Workload(
    container="0123456789ab",
    container_name="secret-container",
    claimed_job="secret-job",
    job_name="secret-job",
    notebook="secret-notebook",
    slurm_job="77",
)


def shaped(entry: Entry, user: str) -> Entry:
    def named(holder: Holder) -> Holder:
        return replace(
            holder,
            user=user,
            uid=UIDS.get(user),
            command="secret-command",
            executable="/home/secret/exe",
            workload=WORKLOAD,
        )

    return replace(
        entry, holder=entry.holder and named(entry.holder), co_holders=tuple(map(named, entry.co_holders))
    )


def ledger(user: str, *, deleted: bool = False) -> Ledger:
    """A process and a ghost of *user*, full of names that only their owner may know."""
    world = World().gpu(0, used=4 * GIB + 2 * CONTEXT)
    world.cuda(100, 2 * GIB + CONTEXT)
    world.charge(200, 2 * GIB + CONTEXT).process(201).files(201, family=200)
    made = build_ledger(world.survey())
    gpus = tuple(
        replace(gpu, entries=tuple(shaped(entry, user) for entry in gpu.entries)) for gpu in made.gpus
    )
    if deleted:
        gpus = tuple(
            replace(
                gpu,
                entries=tuple(
                    replace(entry, holder=entry.holder and replace(entry.holder, executable_deleted=True))
                    for entry in gpu.entries
                ),
            )
            for gpu in gpus
        )
    return replace(made, gpus=gpus)


def shown(who: Viewer, book: Ledger) -> str:
    return report.why(who.ledger(book), who.findings(book, diagnose(book))).decode()


@pytest.mark.fault(15)
@pytest.mark.parametrize("deleted", [False, True])
@pytest.mark.parametrize(
    ("others", "visible", "user"),
    [
        ("nothing", (), False),
        ("users", (), True),
        ("commands", ("secret-command",), True),
        ("everything", SECRETS, True),
    ],
)
def test_a_reader_over_tcp_sees_what_proc_shows(
    others: str, visible: tuple[str, ...], user: bool, deleted: bool
) -> None:
    text = shown(Viewer(None, frozenset(), others), ledger("carol", deleted=deleted))  # type: ignore[arg-type]
    assert {secret for secret in SECRETS if secret in text} == set(visible)
    assert ("carol" in text) == user
    assert ('"uid": 1000' in text) == user
    assert "VR101" in text, "a ghost is there for everybody"
    assert "0123456789ab" in text, "the id of a container is in everybody's /proc"


@pytest.mark.fault(15)
def test_own_processes_are_shown_whole_and_others_are_not() -> None:
    who = Viewer(1000, frozenset(("carol", "1000")), "nothing")
    assert all(secret in shown(who, ledger("carol")) for secret in SECRETS)
    assert not any(secret in shown(who, ledger("dave")) for secret in SECRETS)
    namesake = Viewer(2000, frozenset(("carol",)), "nothing")
    assert not any(secret in shown(namesake, ledger("carol")) for secret in SECRETS)


def test_findings_of_a_narrow_view_have_the_same_codes_and_remedies() -> None:
    book = ledger("root")
    whole, narrow = diagnose(book), Viewer(None, frozenset(), "nothing").findings(book, ())
    assert [each.code for each in narrow] == [each.code for each in whole]
    assert [[r.command for r in each.remedies] for each in narrow] == [
        [r.command for r in each.remedies] for each in whole
    ]


def test_ages_of_processes_go_on_while_nothing_is_read_anew() -> None:
    book = with_holders(ledger("carol"), lambda each: replace(each, age_s=10.0))
    assert aged(book, 0.5) is book
    ages = {each.age_s for gpu in aged(book, 60.0).gpus for entry in gpu.entries for each in entry.holders}
    assert ages == {70.0}


def test_changes_are_stripped_alike() -> None:
    change = Change(at="", event="started", user="dave", command="secret-command", workload=WORKLOAD)
    seen = Viewer(None, frozenset(), "users").change(change)
    assert (seen.user, seen.command, seen.workload.notebook) == ("dave", None, None)
    assert Viewer(1, frozenset(("dave",)), "nothing").change(change) == change


MOUNT = "22 27 0:21 / /proc rw,nosuid shared:12 - proc proc rw{}"


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ("", "commands"),
        (",hidepid=0", "commands"),
        (",hidepid=off", "commands"),
        (",hidepid=1", "users"),
        (",hidepid=noaccess", "users"),
        (",hidepid=2,gid=4", "nothing"),
        (",hidepid=invisible", "nothing"),
        (",hidepid=4", "nothing"),
        (",hidepid=something-new", "nothing"),
    ],
)
def test_hidepid(options: str, what: str) -> None:
    assert hidepid_of([MOUNT.format(options)], "/proc") == what


def test_the_last_mount_over_proc_counts_and_no_mount_shows_nothing() -> None:
    lines = [MOUNT.format(",hidepid=2"), MOUNT.format("")]
    assert hidepid_of(lines, "/proc") == "commands"
    assert hidepid_of(lines, "/host/proc") == "nothing"
    assert hidepid_of(["22 27 0:21 / /proc rw - tmpfs none rw", "nonsense"], "/proc") == "nothing"


def test_root_and_the_service_itself_see_everything_and_options_decide_for_tcp() -> None:
    assert viewer(0, ShowConfig()).others == "everything"
    assert viewer(os.geteuid(), ShowConfig()).others == "everything"
    assert viewer(None, ShowConfig(commands="always")).others == "everything"
    assert viewer(None, ShowConfig(commands="never")).others in ("users", "nothing")
    assert viewer(65533, ShowConfig(commands="always")).others == "commands"


HOLDS = """
import driver, protocol
driver.context()
driver.alloc(1 << 30)
protocol.ready("allocated")
protocol.wait()
"""


@pytest.mark.fault(15)
@needs("root", detail="only root mounts /proc anew for the time of a test")
def test_with_hidepid_no_command_leaves_the_service(
    start_service: StartService, virtual_gpu: VirtualGpu, tmp_path: Path
) -> None:
    remount = 'mount -t proc -o hidepid=2 proc /proc && exec "$@"'
    if subprocess.run(["unshare", "--mount", "sh", "-c", remount, "sh", "true"], check=False).returncode:
        skip_without("mounts", "nothing may be mounted here")
    argv = [sys.executable, "-c", HOLDS, "secret-command"]
    process = virtual_gpu.popen(argv, cwd=PROGRAMS, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline()
        service = start_service(prefix=("unshare", "--mount", "sh", "-c", remount, "sh"))
        service.until(lambda: service.get("/api/v1/ps")["processes"])
        for path in ("/api/v1/why", "/api/v1/ps?all=1", "/api/v1/changes", "/api/v1/ghosts", "/metrics"):
            body = service.request(path)[1].decode()
            assert "secret-command" not in body
            assert sys.executable not in body
        assert json.loads(service.request("/api/v1/ps")[1])["processes"][0]["pid"] == process.pid
    finally:
        process.communicate()


def test_how_a_process_was_launched_is_its_users_business() -> None:
    job = Job(by="torchrun", key="1001.torchrun.1", is_orphan=True)
    held = with_holders(ledger("dave"), lambda holder: replace(holder, job=job))
    for reader, seen in ((1000, {None}), (1001, {job}), (None, {None})):
        shown = Viewer(reader, frozenset(), "commands").ledger(held)
        assert {each.job for gpu in shown.gpus for entry in gpu.entries for each in entry.holders} == seen
