"""Surveys taken by a program of their own: the loader decides about the driver at its start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TypeVar

import msgspec

from vram.model.observation import Observation, Survey
from vram.virtualgpu import VirtualGpu

PROGRAM = Path(__file__).with_name("take_survey.py")

Some = TypeVar("Some")


def take(gpu: VirtualGpu, *options: str) -> Survey:
    done = gpu.run([sys.executable, str(PROGRAM), *options], stdout=subprocess.PIPE, check=True)
    return msgspec.json.decode(done.stdout, type=Survey)


def facts(survey: Survey, kind: type[Some]) -> list[tuple[Observation, Some]]:
    return [(each, each.facts) for each in survey.observations if isinstance(each.facts, kind)]


def said(survey: Survey, probe: str, *, gpu: int | None = None) -> list[Observation]:
    return [each for each in survey.observations if each.probe == probe and each.gpu == gpu]


def statuses(survey: Survey, gpu: int) -> dict[str, str]:
    return {each.probe: each.status for each in survey.observations if each.gpu == gpu}
