"""Old names of commands: they do what their new form does, and are listed nowhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import PROGRAM, Run
from tests.patience import PATIENCE_S
from vram.cli.app import ALIASES, COMMANDS
from vram.virtualgpu import VirtualGpu
from vram.virtualgpu.demos import DemoProgram

NEW = {
    "flush": "vram trim",
    "parked": "vram park",
    "detach": "vram attach --stop",
    "fit": "vram report fit",
}


def test_every_alias_stands_for_a_command() -> None:
    assert {old: f"vram {' '.join(words)}" for old, words in ALIASES.items()} == NEW
    assert not set(ALIASES) & set(COMMANDS)


@pytest.mark.parametrize(("old", "new"), NEW.items())
@pytest.mark.parametrize("form", ["--help", "help"])
def test_help_of_an_old_name_names_the_new_form(vram: Run, old: str, new: str, form: str) -> None:
    answer = vram(*((old, "--help") if form == "--help" else ("help", old)))
    assert answer.code == 0
    assert f"`vram {old}` is the old name of `{new}`." in answer.out


def test_serve_wait_is_wait_and_listed_nowhere(vram: Run) -> None:
    assert "usage: vram wait " in vram("serve", "wait", "--help").out
    assert "\n    wait " not in vram("serve", "--help").out
    assert "\n    status " in vram("serve", "--help").out
    words = ("20GiB", "--socket", "/no/such.sock")
    assert vram("serve", "wait", *words) == vram("wait", *words)
    assert vram("wait", *words).code == 26


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (("flush", "--json"), ("trim", "--json")),
        (("parked", "--json"), ("park", "--json")),
        (("detach", "4194303"), ("attach", "4194303", "--stop")),
        (("fit", "no-such.vram"), ("report", "fit", "no-such.vram")),
    ],
    ids=lambda words: " ".join(words),
)
def test_an_old_name_answers_as_its_new_form(
    virtual_gpu: VirtualGpu, tmp_path: Path, old: tuple[str, ...], new: tuple[str, ...]
) -> None:
    """Run as programs: what starts before the words are parsed knows the old names, too."""
    variables = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}

    def answer(words: tuple[str, ...]) -> tuple[int, str, str]:
        done = virtual_gpu.run(
            [*PROGRAM, *words], env=variables, capture_output=True, text=True, timeout=PATIENCE_S
        )
        return done.returncode, done.stdout, done.stderr

    before, now = answer(old), answer(new)
    if old[0] == "parked":  # each says when it was read
        assert json.loads(before[1]).pop("taken_at") <= json.loads(now[1]).pop("taken_at")
        assert (before[0], json.loads(before[1])["parked"]) == (now[0], json.loads(now[1])["parked"])
    else:
        assert before == now
    assert before[0] != 2


def test_parked_never_parks(virtual_gpu: VirtualGpu, tmp_path: Path) -> None:
    """A pid after the old name, which took none, is refused and not parked."""
    with DemoProgram(virtual_gpu, "memory.plain", 1 << 30) as program:
        done = virtual_gpu.run(
            [*PROGRAM, "parked", str(program.pids["self"])],
            env={**os.environ, "XDG_STATE_HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
    assert (done.returncode, done.stdout) == (2, "")
    assert "`vram parked` takes no pid" in done.stderr


@pytest.mark.parametrize("option", ["--tree", "--anyway"])
def test_options_of_parking_need_a_pid(vram: Run, option: str) -> None:
    answer = vram("park", option)
    assert answer.code == 2
    assert f"hint: vram park {option} PID" in answer.err


@pytest.mark.parametrize(
    "words", [("-o", "x.vram"), ("--for", "5s"), ("--native",), ("--framework", "torch")]
)
def test_stop_records_nothing(vram: Run, words: tuple[str, ...]) -> None:
    answer = vram("attach", "4194303", "--stop", *words)
    assert answer.code == 2
    assert "hint: vram attach 4194303 --stop" in answer.err


def test_an_old_name_starts_no_slower_imports() -> None:
    """The name is looked up before anything of the command is imported."""
    program = (
        f"import sys; sys.path[:] = {sys.path!r}\nfrom vram.cli.app import without_alias\n"
        "print(without_alias(['flush', '1']), [each for each in sys.modules if 'commands' in each])"
    )
    done = subprocess.run([sys.executable, "-S", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "['trim', '1'] []\n"
