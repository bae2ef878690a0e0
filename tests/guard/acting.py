"""Runs the program of ten leaks, and says what each of them must show."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.patience import PATIENCE_S
from tests.search_path import search_path

ROOT = Path(__file__).parents[2]

# What a person reads about each way. Where it is empty, no Python object keeps the memory.
NAMES = {
    "a_global": "leaks.py: CACHE['x']",
    "a_cycle": "a cycle through a a_cycle.<locals>.Node: gc.collect() frees it",
    "a_traceback": "local 'out' in frame of kept exception (sys.last_value)",
    "a_closure": ".callback: kept (leaks.py: CALLBACKS[0])",
    "a_hook": "closure of hook on MODEL[4]: kept",
    "a_thread": "local 'batch' in load() of thread 'loader'",
    "a_generator": "local 'batch' in suspended generator batches() (leaks.py: CACHE['batches'])",
    "an_output": "module builtins: _",
    "a_native_cache": "",
    "outside_frameworks": "",
}
FLUSHED_AWAY = {"a_cycle", "a_traceback", "a_native_cache"}


def act_out(framework: str, nbytes: int, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Every way with what was told about it."""
    variables = dict(os.environ if environment is None else environment)
    variables["PYTHONPATH"] = search_path(ROOT)
    done = subprocess.run(
        [sys.executable, "-m", "tests.guard.leaks", framework, str(nbytes)],
        cwd=ROOT,
        env=variables,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {each["way"]: each for each in told}


def check(told: Mapping[str, Any], nbytes: int, *, slack: int = 0) -> None:
    """Each way leaked, was found by name, and came back: by the flush, or when its holder released it."""
    assert set(told) == set(NAMES)
    for way, name in NAMES.items():
        seen = told[way]
        assert seen["leaked"] >= nbytes - slack, seen
        if name:
            assert len(seen["names"]) == 1, seen
            assert seen["names"][0].endswith(name), seen
        else:
            assert seen["names"] == [], seen
        if way in FLUSHED_AWAY:
            assert seen["flushed"] <= slack, seen
            assert seen["still_alive"] == [], seen
        else:
            assert seen["flushed"] >= nbytes - slack, seen
            assert seen["still_alive"] == seen["names"], seen
        assert seen["released"] <= slack, seen
        assert seen["left"] == 0, seen
    beside = told["outside_frameworks"]["beside"]
    assert nbytes - slack <= beside <= nbytes + slack, told["outside_frameworks"]
