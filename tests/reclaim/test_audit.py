"""No log, no action: a full disk, a foreign folder, a link; looking goes on all the while."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ghosts.conftest import held_by, is_charge
from tests.limited_files import NO_BYTECODE
from tests.needs import needs, require, skip_without
from tests.reclaim.conftest import Bench
from vram.errors import AuditUnavailable
from vram.reclaim import audit
from vram.units import GIB

needs_root = needs("root")


def test_what_is_intended_and_what_came_of_it_carry_the_same_token(state: Path):
    token = audit.log_intent({"step": "kill"})
    audit.log_outcome(token, {"status": "done"})
    before, after = map(json.loads, (state / "audit.jsonl").read_text().splitlines())
    assert (before["event"], before["token"], before["step"]) == ("intend", token, "kill")
    assert (after["event"], after["token"], after["status"]) == ("outcome", token, "done")
    assert before["uid"] == os.geteuid()


def test_the_folder_and_the_log_are_ours_alone(state: Path):
    audit.log_intent({})
    assert state.stat().st_mode & 0o777 == 0o700
    assert (state / "audit.jsonl").stat().st_mode & 0o777 == 0o600


def test_a_line_after_a_torn_one_can_be_read(state: Path):
    audit.log_intent({})
    with (state / "audit.jsonl").open("a") as log:
        log.write('{"event": "inte')
    audit.log_intent({"number": 2})
    assert json.loads((state / "audit.jsonl").read_text().splitlines()[-1])["number"] == 2


def test_names_that_were_never_text_can_be_written(state: Path):
    audit.log_intent({"command": "\udcff\ud800"})
    assert json.loads((state / "audit.jsonl").read_text())["event"] == "intend"


def test_many_writers_do_not_mix_their_lines(state: Path):
    code = "from vram.reclaim import audit\nfor _ in range(100): audit.log_intent({'word': 'x' * 3000})"
    writers = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(4)]
    assert [writer.wait() for writer in writers] == [0] * 4
    lines = (state / "audit.jsonl").read_text().splitlines()
    assert len({json.loads(line)["token"] for line in lines}) == 400


def test_a_full_log_is_moved_aside_and_the_oldest_goes(state: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(audit, "MAX_BYTES", 1000)
    for number in range(200):
        audit.log_intent({"number": number})
    names = {path.name for path in state.iterdir()}
    assert names == {"audit.jsonl", *(f"audit.jsonl.{at}" for at in range(1, audit.MAX_FULL_FILES + 1))}
    assert all(path.stat().st_size < 1500 for path in state.iterdir())
    kept = [json.loads(line)["number"] for path in state.iterdir() for line in path.read_text().splitlines()]
    assert sorted(kept) == list(range(200 - len(kept), 200))


def test_writers_that_move_it_aside_at_once_lose_no_line(state: Path):
    code = (
        "from vram.reclaim import audit\naudit.MAX_BYTES = 50_000\n"
        "for _ in range(100): audit.log_intent({'word': 'x' * 900})"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(4)]
    assert [writer.wait() for writer in writers] == [0] * 4
    lines = [line for path in state.iterdir() for line in path.read_text().splitlines()]
    assert len({json.loads(line)["token"] for line in lines}) == 400


def spoiled_by_link(state: Path) -> None:
    state.parent.mkdir()
    (state.parent / "elsewhere").mkdir(mode=0o700)
    state.symlink_to(state.parent / "elsewhere")


def spoiled_by_mode(state: Path) -> None:
    state.mkdir(parents=True)
    state.chmod(0o777)


def spoiled_by_a_file(state: Path) -> None:
    state.parent.mkdir()
    state.touch()


def spoiled_by_a_linked_log(state: Path) -> None:
    state.mkdir(parents=True, mode=0o700)
    (state / "audit.jsonl").symlink_to(state / "other")


def spoiled_by_a_second_name(state: Path) -> None:
    state.mkdir(parents=True, mode=0o700)
    (state / "precious").touch()
    (state / "audit.jsonl").hardlink_to(state / "precious")


def spoiled_by_a_pipe(state: Path) -> None:
    state.mkdir(parents=True, mode=0o700)
    os.mkfifo(state / "audit.jsonl")


def spoiled_by_an_owner(state: Path) -> None:
    require("root", detail="only root can give folders away")
    state.mkdir(parents=True, mode=0o700)
    os.chown(state, 65534, 65534)


SPOILS = [
    *(spoiled_by_link, spoiled_by_mode, spoiled_by_a_file, spoiled_by_a_linked_log),
    *(spoiled_by_a_second_name, spoiled_by_a_pipe, spoiled_by_an_owner),
]


@pytest.mark.fault(28)
@pytest.mark.parametrize("spoil", SPOILS)
def test_a_folder_or_log_that_others_prepared_is_refused(state: Path, spoil):
    spoil(state)
    with pytest.raises(AuditUnavailable):
        audit.log_intent({})


@pytest.mark.fault(21, 28)
@pytest.mark.parametrize("spoil", [spoiled_by_link, spoiled_by_mode, spoiled_by_a_pipe])
def test_nothing_is_done_where_it_cannot_be_written_down(machine: Bench, spoil):
    """Refused, nothing touched, and said by a code of its own; `vram why` does not mind."""
    demo = machine.demo("memory.plain", 1 * GIB)
    spoil(machine.state / "vram")
    done = machine.vram("kill", str(demo.pids["self"]), "--yes")
    assert done.returncode == 17, done.stdout
    assert is_charge(held_by(machine.why(), demo.pids["self"]), 1 * GIB)


@pytest.mark.fault(21)
def test_a_log_that_may_not_grow_keeps_everything_as_it_is(machine: Bench):
    demo = machine.demo("memory.plain", 1 * GIB)
    done = subprocess.run(
        [sys.executable, "-m", "vram", "kill", str(demo.pids["self"]), "--yes"],
        env={**machine.environment(), **NO_BYTECODE},
        # The kernel refuses every byte of every file, as a full disk does.
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 17, done.stderr
    assert "cannot write" in done.stderr
    assert is_charge(held_by(machine.why(), demo.pids["self"]), 1 * GIB)


@pytest.mark.fault(21)
@needs_root
def test_a_full_disk_refuses_actions_and_lets_scans_go_on(machine: Bench):
    require("unshare")
    demo = machine.demo("memory.plain", 1 * GIB)
    machine.state.mkdir()
    fill = (
        f"mount -t tmpfs -o size=16k,mode=700 none {machine.state} && "
        f"cat /dev/zero > {machine.state}/filler 2>/dev/null; "
        f'"$0" -m vram kill {demo.pids["self"]} --yes; echo kill $?; '
        '"$0" -m vram check >/dev/null; echo check $?'
    )
    done = machine.run(["unshare", "--mount", "sh", "-c", fill, sys.executable])
    if "kill" not in done.stdout:
        skip_without("mounts", "no disk can be mounted here for the time of a test")
    assert done.stdout.endswith("kill 17\ncheck 1\n"), done.stdout + done.stderr
    assert is_charge(held_by(machine.why(), demo.pids["self"]), 1 * GIB)
