"""Starting fast: what is begun before the command line is parsed leaves no trace in other imports."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.cli.conftest import PROGRAM
from tests.needs import skip_without
from vram.cli import prestart


def test_msgspec_comes_without_typing_extensions_and_both_work_afterwards() -> None:
    program = (
        f"import sys; sys.path[:] = {sys.path!r}\n"
        "from vram.cli import prestart\n"
        "assert prestart.begin(['explain', 'VR101'])\n"
        "assert 'msgspec' in sys.modules and 'typing_extensions' not in sys.modules\n"
        "assert sys.modules['datetime'].__file__ and sys.modules['uuid'].__file__, 'they are the real ones'\n"
        "import typing_extensions, msgspec\n"
        "print(typing_extensions.__name__, msgspec.json.decode(b'[1]', type=list[int]))"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True)
    if "No module named 'typing_extensions'" in done.stderr:
        skip_without("test-packages", "typing_extensions is not installed here")
    assert (done.stdout.strip(), done.stderr) == ("typing_extensions [1]", "")


@pytest.mark.parametrize(
    "words",
    [[], ["--help"], ["why", "--help"], ["why", "--from", "x"], ["demo"], ["park"], ["park", "--json"]],
)
def test_nothing_is_started_for_what_reads_no_driver(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prestart, "_driver_reader", lambda: pytest.fail("a reader was started"))
    monkeypatch.setattr(prestart, "_checkpoint_worker", lambda: pytest.fail("a worker was started"))
    monkeypatch.setattr(prestart.gc, "disable", lambda: None)
    prestart.begin(words)


def test_words_that_turn_out_wrong_end_as_usual() -> None:
    done = subprocess.run([*PROGRAM, "why", "--no-such-option"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--no-such-option" in done.stderr
