"""Killed at any moment, no room on the disk, damaged at any byte: what must hold."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.record import Tally
from tests.history.written import Written, at, ghost, ledger, process
from tests.needs import skip_without
from vram.cli.app import main
from vram.errors import ExitCode, VramError

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)}


@pytest.mark.fault(10)
def test_a_service_killed_at_any_moment_leaves_a_whole_history(tmp_path: Path, tally: Tally) -> None:
    """Killed while the file is made, written, committed and emptied; the next one goes on."""
    tmp_path.chmod(0o700)
    done = subprocess.run(
        [sys.executable, "-m", "tests.history.kill_at_any_moment", tmp_path, "60", "1"],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    tries, killed, readings, aside = map(int, done.stdout.split())
    tally.count(tries, landed=killed, wrong=aside)
    assert aside == 0
    assert readings > 0


# Runs with a tmpfs of its own, in a mount namespace that ends with it.
FULL = """
import os, sys
from pathlib import Path
from tests.history.written import Written, at, ledger, process
from vram.errors import HistoryUnavailable

folder = Path(sys.argv[1])
os.makedirs(folder / "state", mode=0o700)
written = Written(folder / "state")
seconds, troubles = 0.0, set()

def reads(count):
    global seconds
    recorded = 0
    for _ in range(count):
        seconds += 25
        pids = range(1000 + int(seconds), 1040 + int(seconds))
        try:
            crowd = (process(pid, command=f"{pid} {'x' * 900}") for pid in pids)
            written.reads(ledger(process(1), *crowd), at(seconds))
            recorded += written.store.is_open
        except HistoryUnavailable as error:
            troubles.add(str(error).partition(": ")[2])
    return recorded

before = reads(5)
filler = open(folder / "filler", "wb")
try:
    while True:
        filler.write(b"x" * 4096)
        filler.flush()
except OSError:
    pass
full = reads(100)
assert troubles, "the disk was full, and nobody noticed"
os.ftruncate(filler.fileno(), 0)
after = reads(20)
assert after >= 18, after
written.store.commit()
assert written.store._file.connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
assert 1 in written.pids(30) and 1 in written.pids()
assert not [name for name in os.listdir(folder / "state") if ".damaged" in name]
print(sorted(troubles))
"""


@pytest.mark.fault(21)
def test_a_full_disk_stops_the_recording_until_there_is_room(tmp_path: Path) -> None:
    """Nothing but HistoryUnavailable is raised, what was recorded stays, and recording goes on by itself."""
    script = 'mount -t tmpfs -o size=4m,mode=0700 vram-test "$1" && exec "$2" -c "$0" "$1"'
    done = subprocess.run(
        ["unshare", "--mount", "--map-root-user", "sh", "-c", script, FULL, tmp_path, sys.executable],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    if "unshare" in done.stderr or "mount:" in done.stderr:
        skip_without("mounts", "no mount namespace here")
    assert done.returncode == 0, done.stderr
    assert "no room" in done.stdout


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A history of 300 readings, as a file."""
    folder = tmp_path_factory.mktemp("sound")
    written = Written(folder)
    for number in range(300):
        entries = [process(pid, (number % 7 + 1) << 30) for pid in range(number % 5, number % 5 + 8)]
        written.reads(ledger(*entries, ghost(900, 901)), at(number * 10))
    written.store.close()
    return (folder / "history.sqlite").read_bytes()


@pytest.mark.fault(24)
def test_a_damaged_file_gives_a_sentence_to_readers(
    sound: bytes, tmp_path: Path, tally: Tally, capfd: pytest.CaptureFixture[str]
) -> None:
    """Cut short, and with bytes changed in many places: `vram history` answers, or says what is wrong."""
    tmp_path.chmod(0o700)
    choice, path = random.Random(5), tmp_path / "history.sqlite"
    refused = 0
    for number in range(60):
        data = bytearray(sound)
        if number % 2:
            del data[choice.randrange(len(data)) :]
        else:
            for _ in range(choice.randrange(1, 40)):
                data[choice.randrange(len(data))] = choice.randrange(256)
        path.write_bytes(data)
        path.chmod(0o600)
        for view in (("holders",), ("ghosts",), ("waste",), ("series",), ("search", "py")):
            code = main(["history", *view, "--file", str(path)])
            expected = (0, ExitCode.BAD_INPUT, ExitCode.NOTHING_FOUND, ExitCode.PARTIAL)
            assert code in expected, capfd.readouterr().err
            refused += code != 0
        capfd.readouterr()
    tally.count(300)
    assert refused


@pytest.mark.fault(24)
def test_a_damaged_file_never_stops_the_service(sound: bytes, tmp_path: Path, tally: Tally) -> None:
    """It is moved aside at the latest when the damage is met, and the recording goes on in a new file."""
    choice = random.Random(7)
    moved = 0
    for number in range(40):
        folder = tmp_path / str(number)
        folder.mkdir(mode=0o700)
        data = bytearray(sound)
        if number % 2:
            del data[choice.randrange(100, len(data)) :]
        else:
            for _ in range(200):
                data[choice.randrange(100, len(data))] = choice.randrange(256)
        (folder / "history.sqlite").write_bytes(data)
        written = Written(folder)
        for later in range(6):
            try:
                written.reads(ledger(process(5), process(6 + later)), at(4000 + later * 25))
            except VramError:
                moved += 1
        assert written.store.is_open
        written.store.commit()
        kept = [each for each in folder.iterdir() if ".damaged-" in each.name]
        assert all(each.stat().st_size for each in kept if not each.name.endswith(("-wal", "-shm")))
        written.store.close()
        shutil.rmtree(folder)
    tally.count(40)
