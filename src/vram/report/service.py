"""``vram serve status`` as text. What a service answers is foreign: it is bounded and made inert."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from vram.model.forecast import Forecast
from vram.report.escape import inert
from vram.report.forecast import forecast_text
from vram.units import duration, size

_MAX_LENGTH = 200


class PartState(Struct, frozen=True):
    name: str
    status: str
    message: str = ""


class HealthState(Struct, frozen=True, kw_only=True):
    """The parts of the service's own account of its health that are shown."""

    status: str
    version: str
    uptime_s: float
    interval_s: float
    good_age_s: float | None = None
    parts: tuple[PartState, ...] = ()


class PolicyState(Struct, frozen=True, kw_only=True):
    name: str
    do: str
    mode: str
    after_s: float
    most_per_hour: int


class DecisionState(Struct, frozen=True, kw_only=True):
    at: str
    policy: str
    do: str
    verdict: str
    reason: str
    status: str
    message: str = ""
    freed_bytes: int | None = None


class PoliciesState(Struct, frozen=True, kw_only=True):
    policies: tuple[PolicyState, ...] = ()
    decisions: tuple[DecisionState, ...] = ()


class WaiterState(Struct, frozen=True, kw_only=True):
    """A user who waits for room."""

    uid: int
    nbytes: int
    gpus: tuple[int, ...] = ()
    is_served: bool = False


class ServiceStatus(Struct, frozen=True, kw_only=True):
    """What the service answers to ``status``."""

    health: HealthState
    policies: PoliciesState
    waiting: tuple[WaiterState, ...] = ()
    forecasts: tuple[Forecast, ...] = ()


def status(found: ServiceStatus, most_decisions: int) -> str:
    """A screen of plain lines."""
    return "".join(f"{inert(line)[:_MAX_LENGTH]}\n" for line in _lines(found, most_decisions))


def _lines(found: ServiceStatus, most_decisions: int) -> Iterator[str]:
    health = found.health
    age = "nothing was read yet" if health.good_age_s is None else f"last read {health.good_age_s:.1f} s ago"
    yield f"service   {health.status} · {health.version} · up {duration(health.uptime_s)} · {age}"
    for part in health.parts:
        if part.status != "ok":
            yield f"  {part.name}: {part.status}: {part.message}"
    for forecast in found.forecasts:
        yield f"forecast  {forecast_text(forecast, health.good_age_s or 0.0)}"
    for each in found.waiting:
        where = f"GPU {', '.join(map(str, each.gpus))}" if each.gpus else "any GPU"
        has = "has room" if each.is_served else "waits"
        yield f"waiting   uid {each.uid} {has}: {size(each.nbytes)} on {where}"
    policies = found.policies.policies
    yield f"policies  {len(policies) or 'none: nothing is done by itself'}"
    for policy in policies:
        yield (
            f"  {policy.name}: {policy.do}, {policy.mode}, after {duration(policy.after_s)},"
            f" at most {policy.most_per_hour} an hour"
        )
    decisions = found.policies.decisions[:most_decisions]
    if decisions:
        yield "decisions, newest first"
    for decision in decisions:
        yield f"  {decision.at}  {decision.policy}: {_describe_decision(decision)}"


def _describe_decision(decision: DecisionState) -> str:
    freed = f", {size(decision.freed_bytes)} freed" if decision.freed_bytes else ""
    if decision.verdict != "act":
        return f"{decision.verdict}: would {decision.do}: {decision.reason}"
    return f"{decision.do}: {decision.reason}: {decision.status}{freed}"
