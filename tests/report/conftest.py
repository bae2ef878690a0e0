"""One ledger with a bit of everything, for the tests that look at all of it."""

from __future__ import annotations

import pytest

from tests.report.samples import EXPORT, FINDINGS, LOOSE, ORPHAN, WORKER, make_gpu, make_holder, make_ledger
from vram.model.finding import Finding
from vram.model.gpu import GpuFacts
from vram.model.ledger import GpuLedger, Ledger, Note, OpenOnly


@pytest.fixture
def ledger() -> Ledger:
    """One GPU with a bit of everything, one that is lost."""
    worker = OpenOnly(holder=make_holder(6002, "vllm worker"), inherited_from=6001)
    facts = GpuFacts(uuid="GPU-0", name="NVIDIA H200", virtual=True)
    notes = (Note("moved", "used memory changed by 615.1 MiB while the process lists were read"),)
    busy = make_gpu(ORPHAN, EXPORT, WORKER, LOOSE, facts=facts, open_only=(worker,), notes=notes)
    lost = GpuLedger(
        index=1,
        uuid=None,
        name="NVIDIA H200",
        total_bytes=None,
        entries=(),
        status="lost",
        message="fell off the bus",
    )
    return make_ledger(busy, lost)


@pytest.fixture
def findings() -> tuple[Finding, ...]:
    return FINDINGS
