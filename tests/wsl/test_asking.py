"""Asking Windows: a program of its own that may be slow, hang, be absent, denied or say too much."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S, until_gone
from tests.wsl.windows import asked, encoded, install, speaking
from vram.host.local.windows import LocalWindows
from vram.host.ports import WindowsAnswer
from vram.model.observation import NO_POWERSHELL
from vram.probes.sources.windows import script

HANGS = "import signal; signal.pause()"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where powershell.exe is looked for, and nowhere else."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def ask(deadline_s: float = PATIENCE_S) -> WindowsAnswer:
    return LocalWindows(virtual=True).ask("the question", deadline_s).answer()


def until_it_ended(folder: Path) -> None:
    """Come back when the stand-in is gone; one that was ended before it noted its pid is."""
    if (folder / "asked").exists():
        until_gone(asked(folder)["pid"])


def test_what_it_prints_is_the_answer(folder: Path) -> None:
    install(folder, encoded(speaking("pl")))
    assert ask() == WindowsAnswer("ok", encoded(speaking("pl")))
    assert asked(folder)["argv"] == ["-NoLogo", "-NoProfile", "-NonInteractive", "-Command", "the question"]


def test_one_that_hangs_is_ended(folder: Path) -> None:
    install(folder, before=HANGS)
    answer = ask(1.0)
    assert answer.status == "timeout"
    until_it_ended(folder)


def test_one_that_answers_and_then_hangs_is_ended_too(folder: Path) -> None:
    """The answer is whole only when the pipe closes: until then more could come."""
    install(folder, encoded(speaking("en")), then=HANGS)
    assert ask(1.0).status == "timeout"
    until_it_ended(folder)


def test_whom_it_started_goes_with_it(folder: Path) -> None:
    install(
        folder,
        before="import signal\nchild = os.fork()\nif child == 0:\n    signal.pause()\n"
        "open(os.path.join(folder, 'child'), 'w').write(str(child))\nsignal.pause()",
    )
    assert ask(1.0).status == "timeout"
    until_it_ended(folder)
    noted = (folder / "child").read_text() if (folder / "child").exists() else ""
    if noted:
        until_gone(int(noted))


def test_closing_a_query_ends_it_unheard(folder: Path) -> None:
    os.mkfifo(folder / "ready")
    install(folder, before=f"open(os.path.join(folder, 'ready'), 'w').close()\n{HANGS}")
    query = LocalWindows(virtual=True).ask("the question", PATIENCE_S)
    (folder / "ready").read_bytes()  # it has come to the point where it hangs
    query.close()
    until_it_ended(folder)


def test_absent(folder: Path) -> None:
    answer = ask()
    assert (answer.status, answer.output) == ("unsupported", b"")
    assert answer.code == NO_POWERSHELL


def test_denied(folder: Path) -> None:
    """Executable by its bits, and not by its folder: what exec itself answers counts."""
    install(folder).write_bytes(b"#!/proc/self/mem\n")
    answer = ask()
    assert answer.status == "denied"
    assert "is not allowed to start" in (answer.message or "")


def test_without_interop_a_windows_program_is_no_program(folder: Path) -> None:
    install(folder).write_bytes(b"MZ\x90\0\x03\0\0\0\x04\0\0\0\xff\xff\0\0" * 64)
    answer = ask()
    assert answer.status == "unsupported"
    assert "interop is off" in (answer.message or "")


def test_an_answer_without_end_is_cut_off(folder: Path) -> None:
    install(folder, then="while True: sys.stdout.write('x' * 65536)")
    answer = ask()
    assert (answer.status, answer.message) == ("failed", "Windows' answer is too large")
    until_it_ended(folder)


def test_drive_c_is_looked_at_before_the_search_path(tmp_path: Path, folder: Path) -> None:
    """Whoever prepared a PATH does not choose what root runs."""
    drive = tmp_path / "mounted here" / "c"
    place = drive / "Windows/System32/WindowsPowerShell/v1.0"
    place.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    spelled = str(drive).replace(" ", r"\040")
    line = rf"C:\134 {spelled} 9p rw,noatime,aname=drvfs;path=C:\;uid=1000 0 0"
    (tmp_path / "proc/self/mounts").write_text(f"none /mnt/wsl tmpfs rw 0 0\n{line}\n")
    install(folder, b"from the PATH")
    install(place, b"from drive C")
    windows = LocalWindows(proc_root=str(tmp_path / "proc"), run=str(tmp_path / "run"))
    assert windows.ask("the question", PATIENCE_S).answer().output == b"from drive C"


def test_the_way_to_windows_is_found_where_the_environment_lost_it(tmp_path: Path, folder: Path) -> None:
    """sudo, cron and services drop the variable that WSL sets in a terminal."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run/8_interop").touch()
    install(folder, before="sys.stdout.write(os.environ.get('WSL_INTEROP', ''))")
    windows = LocalWindows(virtual=True, run=str(tmp_path / "run"))
    assert windows.ask("", PATIENCE_S).answer().output.decode() == str(tmp_path / "run/8_interop")


def test_the_question_can_pass_through_a_windows_command_line() -> None:
    text = script(4)
    assert text.isascii()
    assert text.isprintable()  # one line
    assert '"' not in text
    assert "SECONDS" not in text
    assert len(text) < 8000


def test_the_question_changes_nothing() -> None:
    """It only gets, selects and prints."""
    verbs = {
        word.split("-")[0]
        for word in script(4).replace("(", " ").replace("{", " ").split()
        if "-" in word[1:]
    }
    commands = {word for word in verbs if word[:1].isupper() and word.isalpha()}
    assert commands <= {"Get", "Select", "ForEach", "New", "ConvertTo"}
