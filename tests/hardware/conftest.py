"""What tests on real hardware share: the GPU must be asked for, and figures are kept."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

Record = Callable[..., None]


@pytest.fixture(autouse=True)
def _hardware(real_gpu: bool) -> None:
    if not real_gpu:
        pytest.skip("needs a real GPU: --real-gpu")


@pytest.fixture(scope="session")
def evidence() -> Path | None:
    """The file that figures are appended to, where $VRAM_EVIDENCE names a folder for it."""
    folder = os.environ.get("VRAM_EVIDENCE")
    if not folder:
        return None
    import pynvml

    pynvml.nvmlInit()
    gpu = pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0))
    driver = pynvml.nvmlSystemGetDriverVersion()
    pynvml.nvmlShutdown()
    slug = re.sub(r"[^a-z0-9.]+", "-", f"{gpu} {driver}".lower())
    return Path(folder) / f"{datetime.now(UTC):%Y-%m-%d}-{slug}-giving-back.jsonl"


@pytest.fixture
def record(request: pytest.FixtureRequest, evidence: Path | None) -> Record:
    """Print what was measured, and keep it as a line of evidence."""

    def keep(**figures: Any) -> None:
        line = json.dumps({"test": request.node.name, **figures})
        print(line)
        if evidence is not None:
            with evidence.open("a") as file:
                file.write(line + "\n")

    return keep
