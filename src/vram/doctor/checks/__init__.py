"""The examination: every check is asked once, and the gravest answer that counts is the verdict."""

from __future__ import annotations

from collections.abc import Iterable
from typing import get_args

from vram.doctor.check import DEFINED, Check, CheckAnswer, DoctorFacts, unknown
from vram.doctor.checks import driver, gpu, installation, place, reaching
from vram.model.doctor import CheckResult, Examination, Topic, Verdict

__all__ = ["driver", "gpu", "installation", "place", "reaching"]

CHECKS: tuple[Check, ...] = tuple(
    each for topic in get_args(Topic) for each in DEFINED if each.topic == topic
)
"""In the order in which they are asked."""


def examine(facts: DoctorFacts, verb: str | None = None) -> Examination:
    """Ask every check, or only those that bear on *verb*. It never raises."""
    asked = [check for check in CHECKS if verb is None or verb in check.verbs]
    results = tuple(_result(check, facts) for check in asked)
    return Examination(verdict=_verdict(results, facts), results=results)


def _result(check: Check, facts: DoctorFacts) -> CheckResult:
    answer = _answer(check, facts)
    return CheckResult(
        check=check.id,
        topic=check.topic,
        state=answer.state,
        seen=answer.seen,
        details=answer.details,
        means=answer.means,
        fix=answer.fix,
        command=answer.command,
        verbs=check.verbs,
        optional=check.optional,
    )


def _answer(check: Check, facts: DoctorFacts) -> CheckAnswer:
    try:
        return check.judge(facts)
    except Exception as error:  # one check that fails must not cost the answers of the others
        seen = f"the check itself failed: {type(error).__name__}: {error}"
        return unknown(seen=seen, fix="This is a bug in vram: please report it.")


def _verdict(results: Iterable[CheckResult], facts: DoctorFacts) -> Verdict:
    states = {result.state for result in results if not result.optional}
    if facts.no_driver is not None and not facts.gpus and not facts.other_gpus:
        return "no-driver"
    if "broken" in states:
        return "broken"
    return "limited" if states & {"limited", "missing", "unknown"} else "ready"
