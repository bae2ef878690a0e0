"""The catalogue: nothing is missing from it, and every page says what a page must."""

from __future__ import annotations

from pathlib import Path

import pytest

from vram.errors import UsageError
from vram.lab import experiments
from vram.lab.catalogue import EXPERIMENTS, chosen, describe, load
from vram.units import GIB

FOLDER = Path(experiments.__file__).parent


def test_every_file_is_in_the_catalogue_once() -> None:
    files = {path.stem for path in FOLDER.glob("*.py")} - {"__init__"}
    assert files == set(EXPERIMENTS)
    assert len(EXPERIMENTS) == len(set(EXPERIMENTS))


def test_there_are_enough() -> None:
    assert len(EXPERIMENTS) >= 30


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_page_has_claim_source_method_and_reading(name: str) -> None:
    told = describe(name)
    assert 10 < len(told.claim) <= 100
    assert not told.claim.endswith(".")
    assert told.source.startswith(("Folklore", "Question", "Questions"))
    assert told.source.endswith(".")
    assert len(told.method) > 20
    assert len(told.reading) > 20
    assert told.takes_bytes <= 3 * GIB
    assert told.deadline_s <= 60


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_lines_for_a_framework_are_python(name: str) -> None:
    """Most machines lack the framework, and would never run them."""
    constants = {key: value for key, value in vars(load(name)).items() if key.isupper()}
    for key in ("START", "MAKE", "WORK", "FAIL", "FREE"):
        compile(constants.get(key, ""), f"{name}.{key}", "exec")


def test_names_may_be_written_with_dashes_and_come_in_order() -> None:
    assert chosen(["zombie", "kill-nine", "KILL_NINE"]) == ("kill_nine", "zombie")
    assert chosen([]) == EXPERIMENTS


def test_an_unknown_name_is_told() -> None:
    with pytest.raises(UsageError) as caught:
        chosen(["zombi"])
    assert caught.value.hint == "did you mean zombie?"
