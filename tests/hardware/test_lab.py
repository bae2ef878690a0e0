"""The lab on a real GPU: in time, without a trace, and as an H200 showed before."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any

import msgspec
import pytest

from tests.hardware.conftest import Record
from tests.needs import skip_without
from vram.lab.topics import CLAIMS, TOPICS
from vram.model.lab import LabReport

LIMIT_S = 120.0
TRUE, FALSE = "true here", "false here"

# What programs of their own measured on an H200 under driver 580.159.04, before the lab did.
H200 = {
    "kill-nine": FALSE,
    "exit-without-free": FALSE,
    "zombie": FALSE,
    "stopped": TRUE,
    "exception-across-runs": FALSE,
    "reset-needed": FALSE,
    "fork-harmless": FALSE,
    "list-names-the-dead": FALSE,
    "fork-child-closes": TRUE,
    "ipc-survives": TRUE,
    "ipc-counted-twice": FALSE,
    "exported-handle": TRUE,
    "dmabuf": TRUE,
    "free-keeps": FALSE,
    "free-waits": TRUE,
    "free-null-fails": FALSE,
    "pool-keeps": TRUE,
    "pool-keeps-by-default": FALSE,
    "async-free-at-once": FALSE,
    "context-free-of-charge": FALSE,
    "second-context": FALSE,
    "init-costs": TRUE,
    "stream-returns": FALSE,
    "reset-primary": TRUE,
    "reset-not-enough": TRUE,
    "reset-pools": FALSE,
    "reset-shared": FALSE,
    "reset-other-current": FALSE,
    "reset-green": FALSE,
    "reset-pinned": FALSE,
    "fault-free": FALSE,
    "assert-free": FALSE,
    "launch-failed-free": FALSE,
    "fault-only-end": FALSE,
    "fault-reset": FALSE,
    "fault-other-context": FALSE,
    "fault-other-process": FALSE,
    "free-null-never-fails": FALSE,
    "free-reports-kernel": FALSE,
    "parked-leaves-nothing": TRUE,
    "thread-end-frees": FALSE,
    "owner-object": TRUE,
    "exception-in-process": TRUE,
    "old-data-plain": FALSE,
    "old-data-small": TRUE,
    "old-data-pool": TRUE,
    "old-data-across": FALSE,
    "pinned-counts": FALSE,
    "managed-on-allocation": FALSE,
    "managed-returns": FALSE,
    "managed-listed": FALSE,
    "managed-first-touch": FALSE,
    "managed-prefetch": TRUE,
    "managed-pieces": FALSE,
    "managed-outlives": TRUE,
    "managed-prefetch-back": FALSE,
    "managed-slower": FALSE,
    "managed-faults": FALSE,
    "used-includes-reserved": TRUE,
    "list-sums": FALSE,
    "one-byte": FALSE,
}


@pytest.fixture(scope="module")
def ran(real_gpu: bool) -> tuple[LabReport, float]:
    """One run of everything, and how long it took; kept as evidence where a folder is named."""
    if not real_gpu:
        skip_without("real-gpu", "needs --real-gpu")
    folder = os.environ.get("VRAM_EVIDENCE")
    command = [sys.executable, "-m", "vram", "lab", "run", "--json", "--faults"]
    began = time.monotonic()
    ended = subprocess.run(
        [*command, *(["--evidence", folder] if folder else [])], capture_output=True, text=True
    )
    took_s = time.monotonic() - began
    assert ended.returncode in (0, 3), ended.stderr
    return msgspec.json.decode(ended.stdout, type=LabReport), took_s


def test_every_experiment_answers_in_time(ran: tuple[LabReport, float], record: Record) -> None:
    report, took_s = ran
    record(experiments=len(report.results), took_s=round(took_s, 1))
    assert [result.experiment for result in report.results] == list(CLAIMS)
    assert not report.virtual
    assert took_s < LIMIT_S


def test_what_needs_no_framework_can_be_told(ran: tuple[LabReport, float], record: Record) -> None:
    cannot_tell = {
        result.experiment: result.because
        for result in ran[0].results
        if result.verdict == "cannot tell" and result.topic != list(TOPICS)[-1]
    }
    record(cannot_tell=cannot_tell)
    assert cannot_tell == {}


def test_an_h200_shows_what_it_showed(ran: tuple[LabReport, float], record: Record) -> None:
    report, _ = ran
    if "H200" not in report.gpu:
        skip_without("h200", "these verdicts are an H200's")
    told: dict[str, Any] = {result.experiment: result.verdict for result in report.results}
    assert {name: told[name] for name in H200} == H200
