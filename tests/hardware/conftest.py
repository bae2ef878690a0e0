"""What tests on real hardware share: the GPU must be asked for, and figures are kept."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from tests.hardware import prestart
from tests.needs import needs

HERE = Path(__file__).parent
Record = Callable[..., None]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The GPU is the first thing that these tests need: before frameworks are asked for, or fixtures made."""
    missing = needs("real-gpu", there=bool(config.getoption("--real-gpu")), detail="needs --real-gpu")
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(missing, append=False)


@pytest.fixture(scope="session", autouse=True)
def _prestarted(real_gpu: bool) -> Iterator[None]:
    if real_gpu:
        for module in prestart.WAITING:
            prestart.prestart(module)
    yield
    prestart.close()


# What `import vram` does, in four files that share a budget: a hanging one must not eat the others' time.
GUARD_FILES = ("test_owner.py", "test_leaks.py", "test_scopes.py", "test_contexts.py")
GUARD_S = 300.0
_guard_spent_s = [0.0]


@pytest.fixture(autouse=True)
def _within_the_budget(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.path.name not in GUARD_FILES:
        yield
        return
    if _guard_spent_s[0] > GUARD_S:
        pytest.fail(f"the tests of {', '.join(GUARD_FILES)} have taken {_guard_spent_s[0]:.0f} s together")
    began = time.monotonic()
    yield
    _guard_spent_s[0] += time.monotonic() - began


HOST_FILES = ("test_doctor.py", "test_lab.py", "test_places.py")


@pytest.fixture(scope="session")
def evidence() -> str | None:
    """How the files begin that figures are appended to, where $VRAM_EVIDENCE names a folder for them."""
    folder = os.environ.get("VRAM_EVIDENCE")
    if not folder:
        return None
    import pynvml

    pynvml.nvmlInit()
    gpu = pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0))
    driver = pynvml.nvmlSystemGetDriverVersion()
    pynvml.nvmlShutdown()
    slug = re.sub(r"[^a-z0-9.]+", "-", f"{gpu} {driver}".lower())
    return f"{folder}/{datetime.now(timezone.utc):%Y-%m-%d}-{slug}"


def _without_names(line: str) -> str:
    """Where this machine's files lie and which card it has is nobody's business."""
    line = line.replace(sys.executable, "python").replace(f"{tempfile.gettempdir()}/", "")
    return re.sub(r"GPU-[0-9a-f]{8}[0-9a-f-]{28}", "GPU-…", line)


@pytest.fixture
def record(request: pytest.FixtureRequest, evidence: str | None) -> Record:
    """Print what was measured, and keep it as a line of evidence."""
    name = request.path.name
    topics = dict.fromkeys(GUARD_FILES, "import-vram") | dict.fromkeys(HOST_FILES, "host")
    topic = (
        topics
        | {
            "test_tracer.py": "tracer",
            "test_steady.py": "tracer",
            "test_native_leaks.py": "native",
            "test_native_visits.py": "native",
            "test_serve.py": "serve",
            "test_rights.py": "serve",
        }
    ).get(name, "giving-back")

    def keep(**figures: Any) -> None:
        line = _without_names(json.dumps({"test": request.node.name, **figures}))
        print(line)
        if evidence is not None:
            with Path(f"{evidence}-{topic}.jsonl").open("a") as file:
                file.write(line + "\n")

    return keep
