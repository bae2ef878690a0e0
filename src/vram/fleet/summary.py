"""Nodes made a fleet: duplicates refused, trouble first, sums over all that can be believed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import get_args

from vram.errors import ExitCode
from vram.fleet.judge import rejected
from vram.model.fleet import (
    FleetGpu,
    FleetNode,
    FleetReport,
    FleetShare,
    FleetSums,
    Grouping,
    NodeState,
)

_ORDER = {state: at for at, state in enumerate(get_args(NodeState))}


def fleet_report(
    nodes: Iterable[FleetNode], *, source: str, took_s: float, by: Grouping | None = None
) -> FleetReport:
    """Return the whole fleet: *nodes* in the order of the table, and their sums."""
    honest = without_contradictions(tuple(nodes))
    return FleetReport(
        schema=1,
        taken_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        source=source,
        took_s=round(took_s, 3),
        sums=sums(honest),
        nodes=tuple(sorted(honest, key=rank)),
        by=by,
        shares=fleet_shares(honest) if by else (),
    )


def rank(node: FleetNode) -> tuple[object, ...]:
    """The order of the table: trouble first, then the most memory in question, then by name."""
    left = sum(gpu.leftover_bytes or 0 for gpu in node.gpus)
    unexplained = sum(gpu.unexplained_bytes or 0 for gpu in node.gpus)
    return (_ORDER[node.state], -left, -unexplained, node.code or "", natural(node.name))


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """A key that puts gpu-9 before gpu-10."""
    parts = re.findall(r"[0-9]{1,18}|[^0-9]+|[0-9]+", name)
    return tuple(
        (0, int(part), "") if part.isdecimal() and part.isascii() else (1, 0, part) for part in parts
    )


# ---- nodes that contradict each other ----


def without_contradictions(nodes: Sequence[FleetNode]) -> tuple[FleetNode, ...]:
    """*nodes*, where those that claim to be another node, or to have its GPUs, are rejected.

    Whoever was asked under the name that several claim is believed; otherwise none of them is. Virtual
    GPUs have no UUIDs of their own: they are for trying things out, and no part of a real fleet.
    """
    nodes = _without_virtual(nodes)
    hosts: dict[str, list[FleetNode]] = {}
    gpus: dict[str, list[FleetNode]] = {}
    for node in nodes:
        if node.host is None or node.virtual:
            continue
        hosts.setdefault(node.host.lower(), []).append(node)
        for gpu in node.gpus:
            if gpu.uuid:
                gpus.setdefault(gpu.uuid, []).append(node)
    reasons: dict[str, str] = {}
    for host, claiming in hosts.items():
        reasons |= _reasons(claiming, f"says that it is {host[:60]!r}")
    for uuid, claiming in gpus.items():
        reasons |= {
            name: reason
            for name, reason in _reasons(claiming, f"says that it has {uuid[:60]}").items()
            if name not in reasons
        }
    return tuple(
        rejected(node.name, "duplicate", reasons[node.name]) if node.name in reasons else node
        for node in nodes
    )


def _reasons(claiming: Sequence[FleetNode], claim: str) -> dict[str, str]:
    """Why each of the nodes that make one claim is rejected, by name."""
    if len(claiming) < 2:
        return {}
    owner = [node for node in claiming if node.host and _is_named(node)]
    believed = owner[0].name if len(owner) == 1 else None
    reasons = {}
    for node in claiming:
        if node.name != believed:
            other = next(each.name for each in claiming if each is not node)
            reasons[node.name] = f"it {claim}, as {believed or other} does"
    return reasons


def _is_named(node: FleetNode) -> bool:
    """Whether it was asked under the name that it says it has."""
    return (node.host or "").lower().partition(".")[0] == node.name.lower().partition(".")[0]


def _without_virtual(nodes: Sequence[FleetNode]) -> tuple[FleetNode, ...]:
    if not any(node.host is not None and not node.virtual for node in nodes):
        return tuple(nodes)
    words = "its GPUs are virtual, and those of other nodes are not"
    return tuple(rejected(node.name, "impossible", words) if node.virtual else node for node in nodes)


# ---- sums ----


def sums(nodes: Sequence[FleetNode]) -> FleetSums:
    """Add up every GPU that answered."""
    gpus = [gpu for node in nodes for gpu in node.gpus]
    ages = [gpu.oldest_ghost_s for gpu in gpus if gpu.oldest_ghost_s is not None]
    states = {state: sum(node.state == state for node in nodes) for state in _ORDER}
    return FleetSums(
        nodes=len(nodes),
        gpus=len(gpus),
        total_bytes=_sum(gpus, "total_bytes"),
        held_bytes=_sum(gpus, "held_bytes"),
        leftover_bytes=_sum(gpus, "leftover_bytes"),
        unexplained_bytes=_sum(gpus, "unexplained_bytes"),
        free_bytes=_sum(gpus, "free_bytes"),
        oldest_ghost_s=max(ages, default=None),
        states=dict(states),
    )


def _sum(gpus: Sequence[FleetGpu], field: str) -> int:
    return sum(getattr(gpu, field) or 0 for gpu in gpus)


def fleet_shares(nodes: Sequence[FleetNode]) -> tuple[FleetShare, ...]:
    """What each user, job or pod holds on all nodes together, the largest first."""
    found: dict[str | None, list[FleetShare]] = {}
    for node in nodes:
        for share in node.shares:
            found.setdefault(share.name, []).append(share)
    together = (
        FleetShare(
            name=name,
            held_bytes=sum(share.held_bytes for share in shares),
            leftover_bytes=sum(share.leftover_bytes for share in shares),
            processes=sum(share.processes for share in shares),
            gpus=sum(share.gpus for share in shares),
            nodes=sum(share.nodes for share in shares),
        )
        for name, shares in found.items()
    )
    return tuple(sorted(together, key=lambda share: (-share.held_bytes, share.name or "")))


def completeness(report: FleetReport) -> ExitCode:
    """OK where every node gave a whole answer that can be believed."""
    return ExitCode.PARTIAL if any(node.code is not None for node in report.nodes) else ExitCode.OK
