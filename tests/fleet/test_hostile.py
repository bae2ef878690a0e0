"""Snapshots made to harm whoever reads them: thousands cost little, and none gets further than a line."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path

import msgspec
import pytest

from tests.fleet.conftest import vram_fleet
from tests.fleet.mutations import mutations
from tests.fleet.snapshots import encoded, haunted, healthy, judged, named, write
from tests.ledger.world import World
from tests.needs import skip_without
from tests.patience import must_end
from vram.fleet.judge import MAX_SNAPSHOT_BYTES, JudgeRequest
from vram.fleet.judges import Judges
from vram.model.fleet import FleetNode
from vram.model.observation import Survey
from vram.report.fleet import fleet
from vram.report.json import encode
from vram.report.layout import RenderOptions
from vram.units import GIB

EACH = 1500


def check(node: FleetNode) -> None:
    """It is a line, or its figures are possible and add up."""
    if node.state == "rejected":
        assert node.code
        assert not node.gpus
    for gpu in node.gpus:
        sizes = (gpu.held_bytes, gpu.free_bytes, gpu.other_bytes)
        if gpu.total_bytes is not None:
            assert sum(size or 0 for size in sizes) == gpu.total_bytes
            assert all(size is not None and 0 <= size <= gpu.total_bytes for size in sizes)
            assert 0 <= (gpu.leftover_bytes or 0) <= gpu.total_bytes
    assert len(encode(node)) < 1 << 20


@pytest.mark.parametrize("survey", [healthy(), haunted()], ids=["healthy", "haunted"])
def test_thousands_of_mutated_snapshots_are_judged_in_bounds(survey: Survey) -> None:
    states: dict[str, int] = {}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for data in mutations(encoded(survey), EACH, seed=15):
        node = judged(data, by="user", now=None)
        check(node)
        states[node.state] = states.get(node.state, 0) + 1
    assert states["rejected"] > EACH // 4
    assert states.get("ok", 0) + states.get("leftovers", 0) > EACH // 50, "some must get past the checks"
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 256 << 10, "KiB"


def crowded() -> Survey:
    """16 GPUs, a chain of 6,000 processes, half of which are charged."""
    world = World()
    for gpu in range(16):
        world.gpu(gpu, used=90 * GIB)
    for pid in range(100, 6100):
        world.process(pid, parent=pid - 1)
    for pid in range(100, 3100):
        world.charge(pid, 1 << 20, gpu=pid % 16)
    return named(world.survey(), "crowded")


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A folder of snapshots that are large, deep, or none at all."""
    write(tmp_path, healthy("good"), crowded())
    (tmp_path / "huge.json").write_bytes(b" " * (MAX_SNAPSHOT_BYTES + 1))
    (tmp_path / "deep.json").write_bytes(b"[" * (20 << 20))
    (tmp_path / "objects.json").write_bytes(b'{"observations":[' + b"{}," * (9 << 20))
    (tmp_path / "digits.json").write_bytes(b"9" * (20 << 20))
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "loop.json").symlink_to("loop.json")
    (tmp_path / "zero.json").symlink_to("/dev/zero")
    (tmp_path / "gone.json").symlink_to("nowhere")
    return tmp_path


def judge_all(folder: Path, judges: Judges) -> dict[str, FleetNode]:
    files = sorted(folder.glob("*.json"))
    return {file.stem: judges.judge(JudgeRequest(name=file.stem, path=str(file), now=None)) for file in files}


def test_files_that_are_no_snapshots_are_lines_and_the_others_are_judged(hostile: Path) -> None:
    with must_end(), Judges(1) as judges:
        nodes = judge_all(hostile, judges)
    good = {name for name, node in nodes.items() if node.state not in ("rejected", "unread")}
    assert good == {"good", "crowded"}
    assert nodes["huge"].code == "too-large"


SECRET = "hunter2-hunter2"


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder that everybody can write to, with one good snapshot, beside a file that is only ours."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    write(folder, healthy("good"))
    for name, text in (("secret", f"root:{SECRET}\n"), ("secret.json", f'{{"schema": "{SECRET}"}}')):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o600)
    return folder


def plant_links(folder: Path) -> None:
    """What somebody who can write to *folder* would put there."""
    (folder / "text.json").symlink_to(folder.parent / "secret")
    (folder / "object.json").symlink_to(folder.parent / "secret.json")
    os.link(folder.parent / "secret", folder / "second-name.json")


def test_a_planted_link_is_not_followed(shared: Path) -> None:
    plant_links(shared)
    run = vram_fleet("--snapshots", shared, "--json")
    assert {name: node["code"] for name, node in run.nodes.items()} == {
        "good": None,
        **dict.fromkeys(("text", "object", "second-name"), "unreachable"),
    }
    assert "is a link of" in run.nodes["text"]["message"]
    assert "another name" in run.nodes["second-name"]["message"]
    assert SECRET not in run.output + run.errors


def test_a_planted_folder_is_not_entered(shared: Path) -> None:
    """The folder itself is named through a link: what lies there is judged by where it lies."""
    plant_links(shared)
    (shared.parent / "alias").symlink_to(shared)
    run = vram_fleet("--snapshots", shared.parent / "alias", "--json")
    assert run.nodes["good"]["state"] == "ok"
    assert run.nodes["text"]["code"] == "unreachable"


def test_files_of_others_are_not_read_from_a_shared_folder(shared: Path) -> None:
    if os.geteuid() != 0:
        skip_without("root", "only root can give files away")
    write(shared, healthy("ours"), healthy("theirs"))
    os.chown(shared / "theirs.json", 65534, 65534)
    nodes = vram_fleet("--snapshots", shared, "--json").nodes
    assert (nodes["ours"]["state"], nodes["theirs"]["code"]) == ("ok", "unreachable")
    os.chown(shared, 65534, 65534)
    shared.chmod(0o755)
    nodes = vram_fleet("--snapshots", shared, "--json").nodes
    assert {node["state"] for node in nodes.values()} == {"ok"}, "the owner of a folder puts files there"


def test_a_link_in_ones_own_folder_is_followed_and_quotes_nothing(shared: Path) -> None:
    plant_links(shared)
    write(shared.parent, healthy("other"))
    (shared / "other.json").symlink_to("../other.json")
    shared.chmod(0o755)
    run = vram_fleet("--snapshots", shared, "--json")
    assert run.nodes["other"]["state"] == "ok"
    assert {run.nodes[name]["code"] for name in ("text", "object", "second-name")} == {"bad-snapshot"}
    assert SECRET not in run.output + run.errors


@pytest.mark.parametrize("field", ["schema", "program", "taken_at", "host", "observations", "probes"])
def test_no_message_quotes_a_snapshot(field: str) -> None:
    """Whatever it has instead of what is expected."""
    whole = msgspec.to_builtins(healthy("good"))
    for value in (SECRET, [SECRET], {SECRET: SECRET}, [{"status": SECRET}], [{"facts": {"type": SECRET}}]):
        node = judged(msgspec.json.encode({**whole, field: value}), now=None)
        assert SECRET not in (node.message or "")


def test_a_judge_that_is_killed_costs_one_node_at_most(tmp_path: Path) -> None:
    write(tmp_path, healthy("gpu-1"))
    asked = JudgeRequest(name="gpu-1", path=str(tmp_path / "gpu-1.json"), now=None)
    with Judges(1) as judges:
        assert judges.judge(asked).state == "ok"
        os.kill(judges._idle[0]._process.pid, signal.SIGKILL)
        assert judges.judge(asked).code == "not-judged"
        assert judges.judge(asked).state == "ok"


def test_names_of_a_node_cannot_steer_a_terminal() -> None:
    survey = msgspec.to_builtins(haunted("evil"))
    for each in survey["observations"]:
        if (each.get("facts") or {}).get("type") == "process":
            each["facts"] |= {"command": "\x1b]0;x\x07", "argv": ["\x1b[2J", "\u202e"], "user": "\r\x1b[1A"}
    from io import StringIO

    from rich.console import Console

    from vram.fleet.collect import fleet_report

    node = judged(msgspec.json.encode(survey), "e\x1b[31mvil", by="user")
    assert node.state == "leftovers"
    for by in (None, "user"):
        report = fleet_report([node], source="recorded", took_s=0.1, by=by)  # type: ignore[arg-type]
        for every_node in (False, True):
            out = StringIO()
            console = Console(file=out, width=80, color_system=None)
            console.print(fleet(report, RenderOptions(80), every_node=every_node))
            assert all(char.isprintable() or char == "\n" for char in out.getvalue())
        assert b"\x1b" not in encode(report)
