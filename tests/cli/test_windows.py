"""Windows itself: said plainly, before anything is imported that its Python does not have."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.patience import PATIENCE_S

# Modules of the standard library that exist on POSIX only: to import one is to fail on Windows.
POSIX_ONLY = ("fcntl", "grp", "pwd", "resource", "termios", "tty", "pty", "syslog")

AS_ON_WINDOWS = f"""
import sys

for name in {POSIX_ONLY!r}:
    sys.modules[name] = None
sys.platform = "win32"
"""


def on_windows(program: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run *program* in a Python that says it is Windows', and has none of the modules of POSIX."""
    return subprocess.run(
        [sys.executable, "-c", AS_ON_WINDOWS + program, *words],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


@pytest.mark.parametrize("words", [(), ("why", "--json"), ("free", "20GiB"), ("--version",), ("--help",)])
def test_every_command_says_that_wsl2_is_the_way(words: tuple[str, ...]) -> None:
    done = on_windows("from vram.cli.app import entry; entry()", *words)
    assert (done.returncode, done.stdout) == (22, "")
    assert done.stderr.startswith("vram: vram does not run on Windows itself")
    assert "hint: install WSL2" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_program_gets_the_same_answer_from_the_first_name_that_it_uses() -> None:
    done = on_windows(
        "import vram\n"
        "print(vram.__version__ > '')\n"
        "try:\n"
        "    vram.flush\n"
        "except vram.VramError as error:\n"
        "    print(type(error).__name__, error.exit_code, error.hint)\n"
    )
    assert done.stderr == ""
    assert done.stdout.splitlines()[0] == "True"
    assert done.stdout.splitlines()[1].startswith("WrongSystem 22 install WSL2")


def test_importing_vram_breaks_no_program_there() -> None:
    """Also where the agent is asked for: a variable of the environment must not end the program."""
    done = on_windows("import vram; print('it goes on')", VRAM_AGENT="1")
    assert (done.returncode, done.stdout, done.stderr) == (0, "it goes on\n", "")


def test_linux_is_not_refused() -> None:
    """The same program without the pretence: the difference is the platform alone."""
    program = "from vram.cli.app import entry; entry()"
    done = subprocess.run(
        [sys.executable, "-c", program, "--version"], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert (done.returncode, done.stderr) == (0, "")
