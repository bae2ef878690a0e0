"""The front door: the right command, clear complaints, exit codes that scripts can trust."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import vram as package
from tests.cli.conftest import PROGRAM, Run
from vram.cli.app import ALIASES, COMMANDS

NOBODY = str(2**22 - 1)

# What `vram why --json` must not pay for. (typing_extensions and inspect come in through
# msgspec wherever they are installed, if nobody keeps them out.)
HEAVY = {"rich", "pathlib", "inspect", "dataclasses", "subprocess", "typing_extensions", "shutil", "asyncio"}


SCREEN = """\
  Look      why (default) · ps · top · who · watch · inside PID · oom LOG
  Free      free · release PID · trim PID · park · unpark · sleep · wake ·
            kill PID · wait SIZE · borrow SIZE
  Record    run · attach · report
  Serve     serve · history · fleet · slurm
  Check     check · limit · doctor · explain
  More: vram help all
"""


@pytest.mark.parametrize("argv", [("--help",), ("-h",)])
def test_help_is_one_screen_with_the_commands_by_group(argv: tuple[str, ...]) -> None:
    """On a real terminal of 80 columns and 24 lines, with the prompt that comes after it."""
    import fcntl
    import pty
    import struct
    import termios

    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
    variables = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    variables |= {"PYTHONIOENCODING": "utf-8", "TERM": "xterm"}
    with os.fdopen(leader, "rb", buffering=0) as screen:
        done = subprocess.run([*PROGRAM, *argv], stdout=follower, env=variables, check=True)
        os.close(follower)
        shown = os.read(screen.fileno(), 1 << 16).decode().replace("\r\n", "\n")
    assert done.returncode == 0
    assert SCREEN in shown
    lines = shown.splitlines()
    assert len(lines) < 24
    assert max(map(len, lines)) <= 80


def test_help_without_unicode_is_readable() -> None:
    variables = {**os.environ, "PYTHONIOENCODING": "ascii", "COLUMNS": "80"}
    done = subprocess.run([*PROGRAM, "--help"], env=variables, capture_output=True, text=True, check=True)
    assert "\n  Check     check, limit, doctor, explain\n" in done.stdout


def test_help_imports_no_command() -> None:
    code = (
        "from vram.cli.app import main; main(['--help']);"
        "print([each for each in sys.modules if each.startswith('vram.cli.commands.')])"
    )
    assert in_a_process(code).stdout.endswith("\n[]\n")


@pytest.mark.parametrize("argv", [("help", "all")])
def test_help_all_lists_every_command_with_its_line(vram: Run, argv: tuple[str, ...]) -> None:
    answer = vram(*argv)
    assert answer.code == 0
    for name in COMMANDS:
        assert f"\n  {name} " in answer.out
    for name in ALIASES:
        assert f"\n  {name} " not in answer.out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_of_its_own(vram: Run, name: str) -> None:
    answer = vram(name, "--help")
    assert answer.code == 0
    assert f"vram {name}" in answer.out


def test_version(vram: Run) -> None:
    assert vram("--version") == (0, f"vram {package.__version__}\n", "")


def test_a_compiler_finds_the_header(vram: Run) -> None:
    answer = vram("--include")
    option = answer.out.removesuffix("\n")
    assert (answer.code, answer.err, option[:2]) == (0, "", "-I")
    assert (Path(option[2:]) / "vram.hpp").is_file()
    assert vram("--include", "why").code == 2


def test_an_unknown_command_is_a_usage_error_with_a_suggestion(vram: Run) -> None:
    answer = vram("wyh")
    assert (answer.code, answer.out) == (2, "")
    assert "no such command: 'wyh'" in answer.err
    assert "did you mean `vram why`?" in answer.err


@pytest.mark.parametrize("argv", [("why", "--nope"), ("--nope",), ("why", "--deadline"), ("snapshot",)])
def test_wrong_words_exit_with_2_and_point_to_the_help(vram: Run, argv: tuple[str, ...]) -> None:
    answer = vram(*argv)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("vram: ")
    assert "--help`" in answer.err


@pytest.mark.fault(26)
def test_complaints_about_hostile_words_are_inert(vram: Run) -> None:
    answer = vram("\x1b[2J\u202e")
    assert answer.code == 2
    assert answer.err.replace("\n", "").isprintable()


@pytest.mark.parametrize("word", ["nan", "infs", "1e9s", "-5s", "15d", "soon", "5m", "2w", "60", "0.5"])
@pytest.mark.parametrize(
    "argv",
    [
        ("kill", NOBODY, "--grace"),
        ("free", "--pid", NOBODY, "--grace"),
        ("free", "--pid", NOBODY, "--deadline"),
        ("park", NOBODY, "--lock-timeout"),
        ("unpark", NOBODY, "--wait"),
        ("trim", NOBODY, "--deadline"),
        ("why", "--deadline"),
        ("lab", "run", "--deadline"),
    ],
    ids=" ".join,
)
def test_what_is_no_duration_is_told_before_anything_is_done(
    vram: Run, argv: tuple[str, ...], word: str
) -> None:
    """Clocks and sockets count in numbers that end: what they cannot wait for is never begun."""
    answer = vram(*argv[:-1], f"{argv[-1]}={word}")
    assert answer.code == 2
    assert answer.err.startswith(f"vram: {argv[-1]}: {word!r} ")
    assert "\n  hint: " in answer.err
    if word.replace(".", "").isdigit():
        assert answer.err == f"vram: {argv[-1]}: {word!r} has no unit\n  hint: write {word}s\n"


def test_options_are_never_guessed(vram: Run) -> None:
    """An abbreviation that works today would break when an option is added."""
    assert vram("why", "--js").code == 2


def in_a_process(code: str, *argv: str) -> subprocess.CompletedProcess[str]:
    """Run *code* without site-packages' start-up hooks: they import what they like (numba-cuda's does)."""
    program = f"import sys; sys.path[:] = {sys.path!r}\n{code}"
    return subprocess.run(
        [sys.executable, "-S", "-c", program, *argv], capture_output=True, text=True, check=False
    )


def test_a_bug_is_not_mistaken_for_a_held_gpu() -> None:
    """Python's own exit code for an exception is 1, which means "held"."""
    broken = (
        "import sys, types\n"
        "broken = types.SimpleNamespace(HELP='', add_arguments=lambda p: None, run=lambda a: 1 / 0)\n"
        "sys.modules['vram.cli.commands.why'] = broken\n"
        "from vram.cli.app import entry\n"
        "entry()\n"
    )
    done = in_a_process(broken, "why")
    assert done.returncode == 70
    assert "ZeroDivisionError" in done.stderr
    assert "please report it" in done.stderr


def test_json_starts_without_anything_heavy(busy: str) -> None:
    code = (
        "import os, sys\n"
        "before = set(sys.modules)\n"  # what others install may be loaded at every start
        "from vram.cli import app\n"
        "def report(code):\n"
        "    print(*(set(filter(sys.modules.get, sys.modules)) - before), file=sys.stderr)\n"
        "    leave(code)\n"
        "leave, os._exit = os._exit, report\n"
        "app.entry()\n"
    )
    done = in_a_process(code, "why", "--json", "--from", busy)
    loaded = set(done.stderr.split())
    assert done.returncode == 0
    assert "vram.ledger.build" in loaded
    # What only these versions' own modules import: uuid, which msgspec needs, and argparse for its colours.
    unavoidable = {10: {"subprocess"}, 14: {"dataclasses", "inspect"}}.get(sys.version_info.minor, set())
    assert not HEAVY & loaded - unavoidable


def test_help_needs_nothing_heavy() -> None:
    done = in_a_process("import sys; from vram.cli.app import main; main(['--help']); print(*sys.modules)")
    loaded = set(done.stdout.split())
    assert not {"rich", "rich.console", "vram.report.text", "vram.diagnosis.engine"} & loaded


def test_a_closed_pipe_is_quiet(busy: str) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [*PROGRAM, "why", "--from", busy], stdout=write, stderr=subprocess.PIPE, check=False
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_full_disk_is_told(busy: str) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*PROGRAM, "why", "--json", "--from", busy], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert done.returncode == 3
    assert b"cannot write to standard output: No space left on device" in done.stderr


def test_a_closed_stdout_is_told(busy: str) -> None:
    done = subprocess.run(
        ["sh", "-c", '"$@" >&-', "sh", *PROGRAM, "why", "--from", busy], stderr=subprocess.PIPE, check=False
    )
    assert done.returncode == 3
    assert b"standard output is closed" in done.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_is_told_by_text_too(busy: str, unbuffered: str) -> None:
    """Containers often set PYTHONUNBUFFERED, where even writing nothing reaches the disk."""
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*PROGRAM, "why", "--from", busy], env=environment, stdout=full, stderr=subprocess.PIPE
        )
    assert (done.returncode, done.stderr.count(b"\n")) == (3, 1)
    assert b"cannot write to standard output: No space left on device" in done.stderr


@pytest.mark.parametrize("words", [["why", "--nix"], ["lab", "--nix"]], ids=["leaves at once", "shuts down"])
def test_a_complaint_that_nobody_can_read_keeps_its_exit_code(words: list[str]) -> None:
    """Python's own code for it would be 1, which means "held", or 120."""
    with open("/dev/full", "wb") as full:
        assert subprocess.run([*PROGRAM, *words], stderr=full).returncode == 2


def test_a_width_beyond_reason_is_bounded(vram: Run, busy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as for_vram_alone:  # pytest's own lines have that width, too
        for_vram_alone.setenv("COLUMNS", "99999999999")
        assert vram("why", "--from", busy).code == 0


@pytest.mark.parametrize("variable", ["VRAM_PROC_ROOT", "VRAM_SYS_ROOT"])
def test_a_root_that_is_not_there_is_told(
    vram: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, str(tmp_path / "missing"))
    answer = vram("why")
    assert answer.code == 2
    assert f"{variable} is {tmp_path}/missing, which is not a folder" in answer.err
