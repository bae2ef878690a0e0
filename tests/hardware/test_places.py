"""Host and PID namespace beside each other on a real GPU, and a divided GPU where there is one.

python -m pytest --real-gpu -s tests/hardware/test_places.py
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.hardware.conftest import Record
from tests.needs import require, skip_without
from tests.places.test_namespaces import AS_ROOT, Room, entries, nbytes
from tests.virtualgpu.conftest import HOLDER
from vram.units import GIB, MIB

pytestmark = pytest.mark.gpu


class Here:
    """This machine's own GPU, in the place of a virtual one."""

    def popen(self, argv: list[str], **options: Any) -> subprocess.Popen[Any]:
        return subprocess.Popen(argv, **options)


def why() -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-m", "vram", "why", "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_host_and_container_agree_on_real_hardware(record: Record) -> None:
    require("root", "unshare")
    command = [sys.executable, str(HOLDER), str(2 * GIB), "0"]
    outsider = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with outsider:
        assert outsider.stdin is not None
        assert outsider.stdout is not None
        outsider.stdout.readline()
        room = Room(Here(), AS_ROOT, 1 * GIB)
        try:
            host, container = why(), room.why()
        finally:
            room.close()
            outsider.stdin.close()
    named = {entry["holder"]["pid"]: entry["nbytes"] for entry in entries(host, "process")}
    hidden, beside = nbytes(container, "hidden"), nbytes(host, "overhead") - nbytes(container, "overhead")
    record(hidden=hidden, named_outside=named[outsider.pid], overhead_outside=beside)
    assert abs(hidden - named[outsider.pid] - beside) <= 16 * MIB
    assert {entry["nbytes"] for entry in entries(container, "process")} <= set(named.values())


def test_a_divided_gpu_balances(record: Record) -> None:
    """Nothing is divided for this: it looks at a GPU that is."""
    divided = [gpu for gpu in why()["gpus"] if gpu["instances"]]
    if not divided:
        skip_without("mig", "no GPU here is divided by MIG")
    for gpu in divided:
        outside = [entry for entry in gpu["entries"] if entry["gpu_instance"] is None]
        record(gpu=gpu["memory"], instances=[each["memory"] for each in gpu["instances"]], outside=outside)
        if gpu["total_bytes"] is not None:
            assert sum(entry["nbytes"] or 0 for entry in gpu["entries"]) == gpu["total_bytes"]
        for each in gpu["instances"]:
            inside = [e["nbytes"] for e in gpu["entries"] if e["gpu_instance"] == each["gpu_instance"]]
            assert sum(inside) == each["total_bytes"]
