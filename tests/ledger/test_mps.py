"""Clients of MPS stand under the server that opened the GPU for them."""

from __future__ import annotations

from tests.ledger.world import CONTEXT, OVERHEAD, World
from vram.diagnosis.engine import diagnose
from vram.ledger.build import build_ledger
from vram.model.ledger import Ledger
from vram.report.process_tree import who
from vram.units import GIB, MIB

SERVER = "/usr/bin/nvidia-cuda-mps-server"


def shared_gpu(*, uids: tuple[int, ...] = (1000,), charged: bool = True) -> World:
    """A server for every user, pids 10, 11…; clients 100, 101…, one for each user and one of user 7."""
    world = World().gpu(used=(len(uids) + 1) * (GIB + CONTEXT) + len(uids) * 30 * MIB + OVERHEAD)
    for at, uid in enumerate(uids):
        world.process(10 + at, uid=uid, executable=SERVER).files(10 + at, family=10 + at)
        if charged:
            world.charge(10 + at, 30 * MIB)
        world.process(100 + at, uid=uid).charge(100 + at, GIB + CONTEXT, lists=("compute", "mps"))
    world.process(200, uid=7).charge(200, GIB + CONTEXT, lists=("compute", "mps"))
    return world


def servers(ledger: Ledger) -> dict[int, int | None]:
    entries = (entry for entry in ledger.gpus[0].entries if entry.holder)
    return {entry.holder.pid: entry.mps_server for entry in entries if entry.holder}


def test_one_server_serves_everybody() -> None:
    assert servers(build_ledger(shared_gpu().survey())) == {10: None, 100: 10, 200: 10}


def test_of_several_the_one_of_the_same_user_serves() -> None:
    """Whose the third user's client is cannot be told, and is not guessed."""
    ledger = build_ledger(shared_gpu(uids=(1000, 1001)).survey())
    assert servers(ledger) == {10: None, 11: None, 100: 10, 101: 11, 200: None}


def test_a_program_that_calls_itself_the_server_is_none() -> None:
    world = World().gpu(used=4 * GIB)
    world.process(10, executable="/group/mallory/nvidia-cuda-mps-server").charge(10, GIB).files(10)
    world.process(100).charge(100, GIB, lists=("mps",))
    assert servers(build_ledger(world.survey())) == {10: None, 100: None}


def test_clients_are_children_of_their_server_with_their_bytes() -> None:
    (group,) = who(build_ledger(shared_gpu().survey())).groups
    (server,) = group.processes
    assert server.holder.pid == 10
    assert {child.holder.pid: child.holds[0].nbytes for child in server.children} == {
        100: GIB + CONTEXT,
        200: GIB + CONTEXT,
    }
    assert {child.mps_server for child in server.children} == {10}


def test_a_server_that_is_charged_nothing_still_heads_its_clients() -> None:
    (group,) = who(build_ledger(shared_gpu(charged=False).survey())).groups
    assert [node.holder.pid for node in group.processes] == [10]


def test_the_server_is_never_offered_for_ending() -> None:
    findings = diagnose(build_ledger(shared_gpu().survey()))
    commands = [remedy.command for finding in findings for remedy in finding.remedies]
    assert not [command for command in commands if " kill 10" in command]
    assert any(remedy.step == "keep" for finding in findings for remedy in finding.remedies)


def test_ending_a_client_is_said_to_touch_the_others() -> None:
    findings = diagnose(build_ledger(shared_gpu().survey()))
    ends = [
        remedy
        for finding in findings
        if finding.code == "VR206" and finding.pids == (100,)
        for remedy in finding.remedies
        if remedy.step == "end"
    ]
    assert all(remedy.harm == "affects-others" and "MPS" in remedy.text for remedy in ends)
    assert not [r for f in findings if f.pids == (100,) for r in f.remedies if r.step == "park"]


def test_a_server_that_outlives_its_clients_is_told_to_quit_by_its_own_means() -> None:
    world = World().gpu(used=30 * MIB + OVERHEAD)
    world.process(10, uid=1000, executable=SERVER).files(10, family=10).charge(10, 30 * MIB)
    (finding,) = (each for each in diagnose(build_ledger(world.survey())) if each.code == "VR303")
    assert "without listed clients" in finding.title
    assert [remedy.command for remedy in finding.remedies] == ["echo quit | nvidia-cuda-mps-control"]
