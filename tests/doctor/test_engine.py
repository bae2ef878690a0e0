"""What the readings come to, and that no check can spoil the others' answers."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace

from tests.doctor.hosts import SOUND, absent, confined, facts, with_gpu
from vram.cli import manual
from vram.doctor.check import DoctorFacts
from vram.doctor.checks import CHECKS, examine
from vram.errors import UsageError
from vram.model.doctor import DriverTest

SECTIONS = ["What it checks", "What it means", "What to do"]


@pytest.mark.parametrize(
    ("host", "verdict"),
    [
        (SOUND, "ready"),
        (facts(attach_test=None), "ready"),
        (facts(cupti=()), "ready"),
        (with_gpu(mig_enabled=True), "limited"),
        (confined(unreadable=3), "limited"),
        (facts(driver_test=DriverTest(init_code=802)), "broken"),
        (facts(survey=absent()), "no-driver"),
    ],
)
def test_the_gravest_reading_that_counts_is_the_verdict(host: DoctorFacts, verdict: str) -> None:
    assert examine(host).verdict == verdict


def test_one_command_is_judged_by_what_bears_on_it() -> None:
    divided = with_gpu(mig_enabled=True)
    assert examine(divided, "park").verdict == "limited"
    assert examine(divided, "trim").verdict == "ready"


def test_a_check_that_fails_costs_its_own_answer_only() -> None:
    """A driver version that no driver has must not take the screen away."""
    impossible = replace(
        SOUND.host_files, confinement=replace(SOUND.host_files.confinement, yama=0, capabilities=-1)
    )
    broken = facts(host_files=replace(impossible, container=object()))  # type: ignore[arg-type]
    found = {result.check: result for result in examine(broken).results}
    assert found["place.container"].state == "unknown"
    assert "the check itself failed" in found["place.container"].seen
    assert found["driver.nvml"].state == "ok"
    assert examine(broken).verdict == "limited", "what is not known is not well"


def test_ids_are_unique_and_name_their_topic() -> None:
    ids = [check.id for check in CHECKS]
    assert len(set(ids)) == len(ids)
    assert all(check.id.startswith(f"{check.topic}.") for check in CHECKS)


@pytest.mark.parametrize("check", manual.checks())
def test_every_check_has_a_page_with_the_same_sections(check: str) -> None:
    page = manual.page(check.upper())
    assert page.startswith(f"{check}  ")
    assert re.findall(r"^(.+)\n-{3,}$", page, re.MULTILINE) == SECTIONS
    assert dict(manual.summaries(manual.checks()))[check].endswith("?")


def test_an_unknown_check_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="no such check"):
        manual.page("gpu.colour")
