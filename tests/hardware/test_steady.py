"""PyTorch that generates and that trains, attached to while it works: does it grow, what holds, what churns.

python -m pytest --real-gpu -s tests/hardware/test_steady.py
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.hardware.conftest import Record
from tests.hardware.tracer import programs
from tests.needs import needs
from tests.search_path import search_path
from vram.units import MIB

pytestmark = [pytest.mark.gpu, pytest.mark.shares_gpu, needs("torch")]

VRAM = [sys.executable, "-m", "vram"]
FIRST_SCREEN = 24
# While forward() or the optimizer's step runs, a local variable of theirs is nearer than the model.
PARAMETERS = re.compile("model|layer|weight|bias|param|embedding|'self'")
CASES = [
    (program, state)
    for program in ("generate_program.py", "train_program.py")
    for state in ("steady", "growing")
]


def line_of(program: str, words: str) -> int:
    """The line of *program* that has *words*."""
    source = (programs.HERE / program).read_text().splitlines()
    (found,) = (number for number, line in enumerate(source, 1) if words in line)
    return found


@pytest.fixture(scope="module")
def running() -> Iterator[dict[tuple[str, str], subprocess.Popen[str]]]:
    """All at once: importing PyTorch takes seconds."""
    started = {
        (program, state): subprocess.Popen(
            [sys.executable, str(programs.HERE / program), state],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for program, state in CASES
    }
    yield started
    for process in started.values():
        process.kill()
        process.communicate()


def vram(*words: object) -> str:
    variables = {**os.environ, "PYTHONPATH": search_path(), "COLUMNS": "80", "NO_COLOR": "1"}
    done = subprocess.run(
        [*VRAM, *map(str, words)], env=variables, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def by_line(rows: list[dict[str, Any]], program: str) -> dict[int, dict[str, Any]]:
    """Those with a place in *program*; of several callers the one that allocated most."""
    found: dict[int, dict[str, Any]] = {}
    for row in sorted(rows, key=lambda each: each["made_nbytes"]):
        place = row["row"]["place"]
        if place is not None and place["file"].endswith(program):
            found[place["line"]] = row
    return found


@pytest.mark.parametrize(("program", "state"), CASES)
def test_it_answers(
    program: str,
    state: str,
    running: dict[tuple[str, str], subprocess.Popen[str]],
    tmp_path: Path,
    record: Record,
) -> None:
    process = running[program, state]
    programs.wait_for(process, "ready")
    trace = tmp_path / "attached.vram"
    began = time.monotonic()
    try:
        vram("attach", process.pid, "--framework", "torch", "-o", trace, "--for", "2s")
    except AssertionError:
        process.kill()  # if it has not ended by itself
        pytest.fail(f"the program ended with {process.wait()}: {process.communicate()[1]}")
    attached_s = time.monotonic() - began
    began = time.monotonic()
    # Both at once: each reads the whole history.
    with ThreadPoolExecutor(2) as pool:
        whole = pool.submit(vram, "report", "window", "--json", "--limit", "0", trace)
        short = pool.submit(vram, "report", trace)
        found, screen = json.loads(whole.result()), "\n".join(short.result().splitlines()[:FIRST_SCREEN])
    report_s = time.monotonic() - began
    print(screen)
    (window,) = (each for each in found["windows"] if each["framework"] == "torch")
    (driver,) = (each for each in found["windows"] if each["framework"] is None)
    rows = window["rows"]
    places = by_line(rows, program)

    # What was there before, by name: the parameters, and Adam's state.
    named = {row["name"]: row["base_nbytes"] for row in rows if row["name"]}
    parameters = sum(nbytes for name, nbytes in named.items() if PARAMETERS.search(name))
    record(
        program=program,
        state=state,
        attached_s=round(attached_s, 2),
        report_s=round(report_s, 2),
        base_nbytes=window["base_nbytes"],
        named_nbytes=sum(named.values()),
        parameters_nbytes=parameters,
        highest_nbytes=window["highest_nbytes"],
        trend=window["trend"],
        churn={line: row["made"] for line, row in places.items() if min(row["made"], row["freed"]) >= 16},
        names=sorted(named, key=lambda name: -named[name])[:8],
    )
    assert parameters >= 90 * MIB, named
    assert sum(named.values()) <= window["base_nbytes"]
    assert window["highest_nbytes"] >= window["base_nbytes"] > 0
    assert driver["before_nbytes"] >= window["base_nbytes"]

    # What churns, by line: the KV cache, or the activations.
    busy = line_of(program, "# KV cache" if "generate" in program else "x = layer(x).relu()")
    assert min(places[busy]["made"], places[busy]["freed"]) >= 16, places.keys()
    assert places[busy]["nbytes_per_second"] > 10 * MIB
    assert not places[busy]["growing"]

    # What grows is found, and nothing else is accused.
    growing = {line for line, row in places.items() if row["growing"]}
    planted = line_of(program, "# planted growth")
    assert growing == ({planted} if state == "growing" else set())
    assert not [row for row in rows if row["growing"] and row["row"]["place"] is None]
    if state == "growing":
        assert window["trend"] == "growing"
        assert "Growing: " in screen
        assert "remember" in screen
    else:
        assert "Growing: " not in screen
    assert "Most at the highest moment" in screen
    assert "Allocated and freed again and again" in screen
    assert "peak 0 B" not in screen
