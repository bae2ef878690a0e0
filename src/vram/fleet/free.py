"""``vram fleet free``: each node's own service plans, and runs its plan if that is still the one shown.

Nothing is decided here but which nodes are asked: those whose snapshot was believed and has leftovers. The
service on the node plans with the node's own eyes, authorises by the user who asks there, and refuses a
digest that is not the one of its plan at that moment.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

from msgspec.structs import replace

from vram import untrusted
from vram.errors import ExitCode
from vram.fleet.collect import CollectOptions, in_threads
from vram.fleet.transport import CommandResult, NodeAddress, NodeFailed, Transport
from vram.model.fleet import FleetFree, FleetFreeReport, FleetReport
from vram.model.plan import Step
from vram.report.json_reports import ReclaimReport
from vram.units import size

PLAN = ("serve", "free", "--dry-run", "--json")
RUN = ("serve", "free", "--yes", "--json", "--digest")
_MAX_ANSWER = 8 << 20
_MAX_STEPS = 20
_MAX_BYTES = 1 << 52
_DIGEST = re.compile(r"[0-9a-f]{8,128}", re.ASCII)
# SIGTERM, ten seconds of grace, SIGKILL, and the device read again; for several processes.
_RUN_S = 90.0
_START_IT = "start the service there: `systemctl start vram`, or `vram serve`"
_MAY_HAVE_RUN = "whether its plan ran is in the audit log of its service"


class FleetPlanner:
    """Plans and runs for the nodes of *source*; ``done`` has what is known so far.

    *socket* is the path of the services' socket on the nodes; None: where it usually is.
    """

    def __init__(self, source: Transport, options: CollectOptions, socket: str | None = None) -> None:
        self._source, self._options = source, options
        self._socket = (f"--socket={socket}",) if socket else ()
        self._addresses: dict[str, NodeAddress] = {}
        self._totals: dict[str, int] = {}
        self._until = 0.0
        self.done: dict[str, FleetFree] = {}

    def plan(self, fleet: FleetReport) -> FleetFreeReport:
        """Ask every node with leftovers, and every node that was named, what it would do."""
        self._addresses = {node.name: node for node in self._source.nodes()}
        self._totals = {node.name: sum(gpu.total_bytes or 0 for gpu in node.gpus) for node in fleet.nodes}
        named = self._options.names
        asked, lines = [], []
        for node in fleet.nodes:
            if node.state in ("rejected", "unread"):
                lines.append(FleetFree(name=node.name, state="unread", message=node.message))
            elif node.state == "leftovers" or node.name in named:
                asked.append(self._addresses[node.name])
        self._until = time.monotonic() + self._options.fleet_s
        plans = in_threads(self._plan_node, asked, self._options.parallel, self._source.cancel)
        return FleetFreeReport(schema=1, executed=False, returned_bytes=None, nodes=(*plans, *lines))

    def run(self, plans: FleetFreeReport) -> FleetFreeReport:
        """Have each node run the plan that it was shown with."""
        self.done = {node.name: node for node in plans.nodes if node.state != "planned"}
        asked = [self._addresses[node.name] for node in plans.nodes if node.state == "planned"]
        wanted = {node.name: node for node in plans.nodes}
        self._until = time.monotonic() + self._options.fleet_s + _RUN_S

        def run_one(address: NodeAddress) -> FleetFree:
            self.done[address.name] = self._run_node(address, wanted[address.name])
            return self.done[address.name]

        in_threads(run_one, asked, self._options.parallel, self._source.cancel)
        return self.report(plans)

    def report(self, plans: FleetFreeReport) -> FleetFreeReport:
        """What is known of each node by now; of those that were interrupted, that it is unknown."""
        unknown = {
            node.name: replace(node, state="unread", message=f"interrupted: {_MAY_HAVE_RUN}")
            for node in plans.nodes
        }
        nodes = tuple((unknown | self.done)[node.name] for node in plans.nodes)
        returned = sum(node.returned_bytes or 0 for node in nodes)
        return FleetFreeReport(schema=1, executed=True, returned_bytes=returned, nodes=nodes)

    def _plan_node(self, node: NodeAddress) -> FleetFree:
        try:
            until = min(time.monotonic() + self._options.node_s, self._until)
            answer = self._ask(node, PLAN, until)
        except NodeFailed as error:
            return FleetFree(name=node.name, state="unread", message=error.message)
        if isinstance(answer, FleetFree):
            return answer
        plan = answer.plan
        if not _DIGEST.fullmatch(plan.digest):
            return FleetFree(name=node.name, state="refused", message="its plan has no digest")
        known = [step.predicted_bytes for step in plan.steps if step.predicted_bytes is not None]
        return FleetFree(
            name=node.name,
            state="planned" if plan.steps else "nothing",
            digest=plan.digest,
            steps=_describe_steps(plan.steps),
            promised_bytes=_possible(sum(known)) if known else None,
            message=_skipped(answer),
        )

    def _run_node(self, node: NodeAddress, plan: FleetFree) -> FleetFree:
        assert plan.digest is not None
        bare = replace(plan, message=None, hint=None)
        try:
            until = min(time.monotonic() + self._options.node_s + _RUN_S, self._until)
            answer = self._ask(node, (*RUN, plan.digest), until)
        except NodeFailed as error:
            return replace(bare, state="unread", message=f"{error.message}; {_MAY_HAVE_RUN}")
        if isinstance(answer, FleetFree):
            return replace(bare, state="refused", message=answer.message, hint=answer.hint)
        receipt = answer.receipt
        if receipt is None or receipt.digest != plan.digest:
            return replace(bare, state="refused", message="it ran nothing, or another plan")
        failed = [each for each in receipt.outcomes if each.status not in ("done", "not-needed")]
        words = "; ".join(filter(None, (each.message for each in failed[:3])))[:500]
        returned = _possible(receipt.returned_bytes)
        if returned is not None and returned > self._totals[node.name]:
            return replace(bare, state="refused", message="it says that it freed more than it has")
        whole = not failed and not answer.left
        return replace(
            bare, state="freed" if whole else "partly", returned_bytes=returned, message=words or None
        )

    def _ask(self, node: NodeAddress, words: Sequence[str], until: float) -> ReclaimReport | FleetFree:
        """The service's answer; a line where there is none, or where it refused."""
        result = self._source.run(node, (*words, *self._socket), until=until, nbytes=_MAX_ANSWER)
        try:
            return untrusted.decode(result.output, ReclaimReport)
        except untrusted.Rejected as error:
            if result.status:
                return _refusal(node, result)
            return FleetFree(name=node.name, state="refused", message=f"its answer is no plan: {error}")


def _refusal(node: NodeAddress, result: CommandResult) -> FleetFree:
    """What vram said there on standard error: a sentence, and a hint below it."""
    said = [line.strip() for line in result.errors.decode(errors="replace").splitlines() if line.strip()]
    hints = [line.removeprefix("hint: ") for line in said if line.startswith("hint: ")]
    sentences = [line.removeprefix("vram: ") for line in said if not line.startswith("hint: ")]
    message = sentences[-1] if sentences else f"exit status {result.status}"
    return FleetFree(
        name=node.name, state="refused", message=message[:500], hint=(hints[-1] if hints else _START_IT)[:300]
    )


def _describe_steps(steps: Sequence[Step]) -> tuple[str, ...]:
    lines = []
    for step in steps[:_MAX_STEPS]:
        amount = "" if step.predicted_bytes is None else f" {size(step.predicted_bytes)}"
        who = ", ".join(f"GPU {gpu}" for gpu in step.gpus[:8])
        if step.target is not None:
            user = f" · {step.target.user}" if step.target.user else ""
            who = f"pid {step.target.process.pid}{user} · {step.target.command}"
        lines.append(f"{step.kind}{amount}: {who[:200]}")
    if len(steps) > _MAX_STEPS:
        lines.append(f"and {len(steps) - _MAX_STEPS} steps more")
    return tuple(lines)


def _skipped(answer: ReclaimReport) -> str | None:
    left = [each for each in answer.skipped if each.leftover]
    if not left:
        return None
    return f"{size(_possible(sum(each.nbytes for each in left)) or 0)} stays: {left[0].why[:200]}"


def _possible(nbytes: int | None) -> int | None:
    return nbytes if nbytes is not None and abs(nbytes) < _MAX_BYTES else None


def exit_code(report: FleetFreeReport) -> ExitCode:
    """OK where everything that was planned is freed; HELD where plans were only made."""
    states = {node.state for node in report.nodes}
    if states & {"refused", "unread", "partly"}:
        return ExitCode.PARTIAL
    return ExitCode.HELD if "planned" in states else ExitCode.OK
