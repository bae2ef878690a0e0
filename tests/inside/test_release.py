"""A look keeps nothing from being freed: a job that is near its limit must not fail because of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.inside.conftest import PROGRAMS
from tests.patience import PATIENCE_S
from tests.search_path import search_path


@pytest.mark.fault(36)
def test_arrays_that_are_released_meanwhile_are_free_at_once_and_nobody_is_blamed_for_them() -> None:
    environment = {**os.environ, "PYTHONPATH": f"{search_path()}:{PROGRAMS}"}
    done = subprocess.run(
        [sys.executable, str(PROGRAMS / "releasing.py")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    freed, told = json.loads(done.stdout)
    assert freed == [True] * 11
    # Of those that were made meanwhile some may be told, by their own name.
    told = {name: count for name, count in told.items() if not name.startswith("releasing.py: others[")}
    assert told == {
        "freed during the search": 8,
        "'batch' in work() of thread 'steps'": 1,
        "releasing.py: kept[0]": 1,
        "releasing.py: parameter": 1,
        "releasing.py: parameter.grad": 1,
    }
