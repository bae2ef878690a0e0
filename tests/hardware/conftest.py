"""What tests on real hardware share: the GPU must be asked for, and figures are kept."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import pytest

Record = Callable[..., None]


@pytest.fixture(autouse=True)
def _hardware(real_gpu: bool) -> None:
    if not real_gpu:
        pytest.skip("needs a real GPU: --real-gpu")


@pytest.fixture
def record(request: pytest.FixtureRequest) -> Record:
    """Print what was measured, and append it to the file that $VRAM_EVIDENCE names."""

    def keep(**figures: Any) -> None:
        line = json.dumps({"test": request.node.name, **figures})
        print(line)
        path = os.environ.get("VRAM_EVIDENCE")
        if path:
            with open(path, "a") as file:
                file.write(line + "\n")

    return keep
