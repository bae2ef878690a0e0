"""Whatever signal comes, and when: a command that runs another one ends with it, and says nothing unexpected.

``VRAM_SIGNALS=100`` tries each of them so often.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.signalled import TRIES, Ended, ended_alone, heed_signals, require_plain_end, signalled
from vram.virtualgpu import VirtualGpu

FOREVER = ("--", "sleep", "1000")
WORDS = {
    "run": ("run", "-o", "{trace}", *FOREVER),
    "borrow": ("borrow", "1GiB", *FOREVER),
    "top": ("top",),
}
# msgspec ignores whatever its first import of datetime raises, and then crashes where it needs it.
INTERRUPTED_ONCE = """
import signal, sys
if not hasattr(sys, "was_interrupted"):
    sys.was_interrupted = True
    signal.raise_signal(signal.SIGINT)
from _datetime import *
from _datetime import datetime_CAPI
"""
INTERRUPTED_AND_IGNORED = """
import signal
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    pass
from _datetime import *
from _datetime import datetime_CAPI
"""
# Python 3.11 replaces what is raised here with RuntimeError.
INTERRUPTED_CLASS = """
import signal
class Field:
    def __set_name__(self, owner, name): signal.raise_signal(signal.SIGINT)
class Record:
    field = Field()
"""


@pytest.mark.parametrize("command", WORDS)
def test_a_signal_at_any_moment_ends_all_of_it(virtual_gpu: VirtualGpu, tmp_path: Path, command: str) -> None:
    chance = random.Random(f"25 {command}")
    environment = {**virtual_gpu.environment(), "XDG_STATE_HOME": str(tmp_path), "HOME": str(tmp_path)}
    for number in range(TRIES):
        words = tuple(word.format(trace=tmp_path / f"trace{number}") for word in WORDS[command])
        ended = signalled(words, environment, chance, within_s=1.0)
        # The view of top is closed by a signal as by its key.
        require_plain_end(ended, *((0,) if command == "top" else ()))


@pytest.mark.parametrize("command", ["run", "borrow"])
def test_ctrl_c_counts_even_where_an_import_ignores_it(
    virtual_gpu: VirtualGpu, tmp_path: Path, command: str
) -> None:
    (tmp_path / "datetime.py").write_text(INTERRUPTED_AND_IGNORED)
    launched = tmp_path / "launched"
    words = [*WORDS[command][: -len(FOREVER)], "--", "touch", str(launched)]
    require_interrupted(words, virtual_gpu.environment(), tmp_path)
    assert not launched.exists()


def test_ctrl_c_while_msgspec_is_imported_crashes_nothing(virtual_gpu: VirtualGpu, tmp_path: Path) -> None:
    (tmp_path / "datetime.py").write_text(INTERRUPTED_ONCE)
    environment = {**virtual_gpu.environment(), "PYTHONPATH": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)}
    assert ended_alone(("top",), environment) == Ended(0, 130, b"")


def test_ctrl_c_while_a_class_is_made_is_not_called_a_bug(tmp_path: Path) -> None:
    (tmp_path / "difflib.py").write_text(INTERRUPTED_CLASS)
    require_interrupted(["wyh"], os.environ, tmp_path)


def require_interrupted(words: list[str], environment: Mapping[str, str], modules: Path) -> None:
    """vram finds *modules* before Python's own; one of them interrupts it."""
    done = subprocess.run(
        [sys.executable, "-m", "vram", *words],
        env={**environment, "PYTHONPATH": str(modules), "XDG_STATE_HOME": str(modules)},
        preexec_fn=heed_signals,
        capture_output=True,
    )
    assert (done.returncode, done.stderr) == (130, b"")
