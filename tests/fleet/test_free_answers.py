"""`vram fleet free` and what services answer: everything but the plan that was shown is a line."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from tests.fleet.snapshots import haunted, healthy, judged
from vram.errors import ExitCode
from vram.fleet.collect import CollectOptions, fleet_report
from vram.fleet.free import FleetPlanner, exit_code
from vram.fleet.transport import CommandResult, NodeAddress, NodeFailed
from vram.model.fleet import FleetFreeReport, FleetNode
from vram.model.plan import Outcome, Plan, Receipt, Step, Target
from vram.model.process import ProcessRef
from vram.report.json_reports import ReclaimReport
from vram.units import GIB

DIGEST = "ab" * 32
TARGET = Target(process=ProcessRef(201, 5), uid=0, user="root", command="python", executable="/bin/python")
STEP = Step(
    kind="kill",
    target=TARGET,
    gpus=(0,),
    predicted_bytes=4 * GIB,
    loses="nothing",
    reversible=False,
    reason="its owner is dead",
)


class ScriptedNodes:
    """A transport whose one node answers what the test says: first for the plan, then for the run."""

    source = "scripted"

    def __init__(self, *answers: CommandResult | NodeFailed) -> None:
        self._answers = list(answers)
        self.asked: list[Sequence[str]] = []

    def nodes(self) -> tuple[NodeAddress, ...]:
        return (NodeAddress("gpu-2", "gpu-2"),)

    def run(self, node: NodeAddress, words: Sequence[str], *, until: float, nbytes: int = 0) -> CommandResult:
        self.asked.append(words)
        answer = self._answers.pop(0)
        if isinstance(answer, NodeFailed):
            raise answer
        return answer

    def cancel(self) -> None: ...

    def close(self) -> None: ...


def plan(digest: str = DIGEST, steps: tuple[Step, ...] = (STEP,)) -> Plan:
    return Plan(made_at="", boot_id="", goal_bytes=None, gpus=(0,), steps=steps, digest=digest)


def answer(receipt: Receipt | None = None, made: Plan | None = None, status: int = 0) -> CommandResult:
    report = ReclaimReport(executed=receipt is not None, plan=made or plan(), skipped=(), receipt=receipt)
    return CommandResult(status, msgspec.json.encode(report))


def receipt(digest: str = DIGEST, returned: int = 4 * GIB) -> Receipt:
    done = Outcome(step=STEP, status="done", used_before=returned, used_after=0, took_s=0.1)
    return Receipt(
        digest=digest, goal_bytes=None, promised_bytes=4 * GIB, returned_bytes=returned, outcomes=(done,)
    )


def freed(*answers: CommandResult | NodeFailed) -> tuple[FleetFreeReport, ScriptedNodes]:
    source = ScriptedNodes(*answers)
    planner = FleetPlanner(source, CollectOptions())
    found: list[FleetNode] = [judged(haunted(), "gpu-2"), judged(healthy("gpu-1"), "gpu-1")]
    plans = planner.plan(fleet_report(found, source="scripted", took_s=0.0))
    if any(node.state == "planned" for node in plans.nodes):
        return planner.run(plans), source
    return plans, source


def test_the_plan_that_was_shown_is_run_by_its_digest() -> None:
    done, source = freed(answer(), answer(receipt()))
    assert [(node.state, node.returned_bytes) for node in done.nodes] == [("freed", 4 * GIB)]
    assert source.asked[1][-1] == DIGEST
    assert exit_code(done) == ExitCode.OK


REFUSAL = CommandResult(26, b"", b"vram: no vram service answers here\n  hint: start one with `vram serve`\n")


@pytest.mark.parametrize(
    ("answers", "state"),
    [
        ([REFUSAL], "refused"),
        ([NodeFailed("no-answer", "no answer within the deadline")], "unread"),
        ([CommandResult(0, b"{}")], "refused"),
        ([CommandResult(0, b"[" * 100_000)], "refused"),
        ([CommandResult(0, b"")], "refused"),
        ([answer(made=plan(digest="; rm -rf /"))], "refused"),
        ([answer(made=plan(digest="$(id)" * 4))], "refused"),
        ([answer(made=plan(steps=()))], "nothing"),
        ([answer(), answer(None)], "refused"),
        ([answer(), answer(receipt(digest="cd" * 32))], "refused"),
        ([answer(), answer(receipt(returned=1 << 50))], "refused"),
        ([answer(), CommandResult(15, b"", b"vram: the plan is now another one\n")], "refused"),
        ([answer(), NodeFailed("unreachable", "it is gone")], "unread"),
    ],
    ids=str,
)
def test_anything_else_is_a_line(answers: list[CommandResult | NodeFailed], state: str) -> None:
    done, source = freed(*answers)
    assert [node.state for node in done.nodes] == [state]
    assert not any(node.returned_bytes for node in done.nodes)
    assert len(source.asked) == len(answers)
    assert exit_code(done) == (ExitCode.OK if state == "nothing" else ExitCode.PARTIAL)


def test_a_missing_service_says_how_to_start_it() -> None:
    done, _ = freed(REFUSAL)
    assert done.nodes[0].message == "no vram service answers here"
    assert done.nodes[0].hint == "start one with `vram serve`"


@pytest.mark.parametrize("lie", [b"x", b"{}"])
def test_a_node_that_is_not_believed_is_never_asked(lie: bytes) -> None:
    source = ScriptedNodes()
    planner = FleetPlanner(source, CollectOptions(names=("gpu-2",)))
    plans = planner.plan(fleet_report([judged(lie, "gpu-2")], source="scripted", took_s=0.0))
    assert source.asked == []
    assert [node.state for node in plans.nodes] == ["unread"]
