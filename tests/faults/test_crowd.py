"""Row 14: 10,000 processes on 16 GPUs: everything after the reading of the machine, within a second."""

from __future__ import annotations

import pytest

from tests.cpu_time import least_cpu_s
from tests.ledger.crowds import CROWDS
from vram.diagnosis.engine import diagnose
from vram.ledger.build import build_ledger
from vram.model.ledger import known_bytes

PROCESSES, GPUS = 10_000, 16


@pytest.mark.fault(14)
@pytest.mark.parametrize("kind", ["sharing"])
def test_ten_thousand_processes_are_judged_within_a_second(kind: str) -> None:
    seen = CROWDS[kind](PROCESSES, GPUS)
    ledger = build_ledger(seen)
    assert all(known_bytes(gpu.entries) == gpu.total_bytes for gpu in ledger.gpus)
    assert least_cpu_s(lambda: diagnose(build_ledger(seen)), 1.0) < 1.0
