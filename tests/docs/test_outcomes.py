"""How the outcomes of an experiment are read from its code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from statements.outcomes import outcomes

from vram.lab.claim import NEAR, CannotTell, Conclusion, judge, mostly
from vram.lab.experiment import Experiment
from vram.lab.topics import CLAIMS
from vram.units import MIB

BOTH = {True, False}


def by_size(experiment: Experiment) -> Conclusion:
    return judge(experiment.used("freed"), experiment.nbytes, "still used")


def by_comparison(experiment: Experiment) -> Conclusion:
    before = experiment.read_device("before")
    kept = experiment.used("after", since=before)
    return Conclusion(kept > NEAR, "")


def by_answer(experiment: Experiment) -> Conclusion:
    mapped = experiment.worker().call("host_mapped", 0)
    return Conclusion(mapped, "")


def by_branch(experiment: Experiment) -> Conclusion:
    if experiment.worker().call("free_code", 0) == 0:
        return Conclusion(True, "")
    return Conclusion(False, "")


def by_failure(experiment: Experiment) -> Conclusion:
    try:
        experiment.worker().call("alloc", MIB)
    except CannotTell:
        return Conclusion(True, "")
    return Conclusion(False, "")


def by_another(experiment: Experiment) -> Conclusion:
    return passed_on(experiment, experiment.used("freed"))[0]


def passed_on(experiment: Experiment, kept: int) -> tuple[Conclusion, int]:
    answer = judge(kept, experiment.nbytes, "still used")
    return Conclusion(answer.holds, ""), kept


def by_list(experiment: Experiment) -> Conclusion:
    listed = {1} & set(experiment.read_device("now").charges)
    share = mostly(experiment.used("now"), MIB)
    return Conclusion(False if listed else share, "")


def always_false(experiment: Experiment) -> Conclusion:
    experiment.read_device("now")
    return Conclusion(False, f"{experiment.used('freed')}")


def only_true(experiment: Experiment) -> Conclusion:
    if experiment.used("freed") > NEAR:
        raise CannotTell("it stayed")
    return Conclusion(True, "")


def true_or_unknown(experiment: Experiment) -> Conclusion:
    return Conclusion(True if experiment.used("freed") > NEAR else None, "")


def of_constants(experiment: Experiment) -> Conclusion:
    experiment.read_device("now")
    return judge(64 * MIB, experiment.nbytes, "still used")


def of_the_machine(experiment: Experiment) -> Conclusion:
    if experiment.on_wsl:
        return Conclusion(True, "")
    return Conclusion(False, "")


def of_the_machine_in_one(experiment: Experiment) -> Conclusion:
    return Conclusion(True if experiment.on_wsl else False, "")  # noqa: SIM210


def of_constants_by_another(experiment: Experiment) -> Conclusion:
    return passed_on(experiment, 64 * MIB)[0]


@pytest.mark.parametrize(
    ("measure", "found"),
    [
        *(
            (each, BOTH)
            for each in (by_size, by_comparison, by_answer, by_branch, by_failure, by_list, by_another)
        ),
        (always_false, set()),
        (only_true, set()),
        (true_or_unknown, {True}),
        *((each, set()) for each in (of_constants, of_the_machine, of_the_machine_in_one)),
        (of_constants_by_another, set()),
    ],
)
def test_outcomes_are_those_that_a_measurement_can_lead_to(
    measure: Callable[..., Any], found: set[bool]
) -> None:
    assert outcomes(measure) == found


def test_every_experiment_can_come_out_either_way() -> None:
    assert {name for name, claim in CLAIMS.items() if outcomes(claim.measure) != BOTH} == set()
