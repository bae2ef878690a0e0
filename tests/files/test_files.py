"""Files that vram writes: whole or not at all, and never where somebody else's link or pipe leads."""

from __future__ import annotations

import errno
import os
import resource
import stat
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from tests.files.conftest import NOBODY, needs_root, planted_link
from tests.limited_files import NO_BYTECODE
from tests.patience import PATIENCE_S, until
from vram.errors import UsageError
from vram.files import make_folder, new_file, write_file, write_files, write_new

WORDS = b"what vram has to say\n"
PRECIOUS = b"root's own\n"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def precious(own: Path) -> Path:
    path = own / "precious"
    path.write_bytes(PRECIOUS)
    return path


class TestOwnFolder:
    """Where nobody else writes, everything is as people expect of a program that writes a file."""

    def test_the_file_is_there_and_nothing_else(self, own: Path) -> None:
        write_file(str(own / "new"), WORDS)
        assert (own / "new").read_bytes() == WORDS
        assert os.listdir(own) == ["new"]

    def test_a_path_without_a_folder_is_meant_from_here(self, own: Path, monkeypatch) -> None:
        monkeypatch.chdir(own)
        (own / "below").mkdir()
        write_file("first", WORDS)
        write_file("./below/../second", WORDS)
        assert sorted(os.listdir(own)) == ["below", "first", "second"]

    def test_a_new_file_follows_the_umask_and_a_secret_one_is_closed(self, own: Path) -> None:
        before = os.umask(0o027)
        try:
            write_file(str(own / "usual"), WORDS)
            write_file(str(own / "secret"), WORDS, secret=True)
        finally:
            os.umask(before)
        assert (mode(own / "usual"), mode(own / "secret")) == (0o640, 0o600)

    @pytest.mark.parametrize(("secret", "kept"), [(False, 0o664), (True, 0o600)])
    def test_a_file_that_is_replaced_keeps_its_mode_unless_it_is_secret(
        self, own: Path, secret: bool, kept: int
    ) -> None:
        (own / "old").write_bytes(b"old")
        (own / "old").chmod(0o664)
        write_file(str(own / "old"), WORDS, secret=secret)
        assert ((own / "old").read_bytes(), mode(own / "old")) == (WORDS, kept)

    def test_a_link_is_followed_and_stays(self, own: Path, precious: Path) -> None:
        (own / "folder").symlink_to(".")
        (own / "link").symlink_to("folder/precious")
        write_file(str(own / "folder" / "link"), WORDS)
        assert (own / "link").is_symlink()
        assert precious.read_bytes() == WORDS

    def test_a_link_to_nothing_makes_what_it_names(self, own: Path) -> None:
        (own / "link").symlink_to(own / "new")
        write_file(str(own / "link"), WORDS)
        assert (own / "new").read_bytes() == WORDS

    def test_links_in_a_circle_are_said(self, own: Path) -> None:
        (own / "link").symlink_to("link")
        with pytest.raises(UsageError, match="cannot write"):
            write_file(str(own / "link"), WORDS)

    @pytest.mark.parametrize("name", ["", ".", "..", "below", "below/", "none/file", "file/below", "x" * 300])
    def test_what_names_no_file_is_a_usage_error(self, own: Path, monkeypatch, name: str) -> None:
        monkeypatch.chdir(own)
        (own / "below").mkdir()
        (own / "file").touch()
        with pytest.raises(UsageError, match="cannot write"):
            write_file(name, WORDS)
        assert sorted(os.listdir(own)) == ["below", "file"]
        assert os.listdir(own / "below") == []

    def test_a_full_disk_leaves_the_old_file_whole(self, own: Path, precious: Path) -> None:
        code = "import sys; from vram.files import write_file; write_file(sys.argv[1], b'x' * 100000)"
        done = subprocess.run(
            [sys.executable, "-c", code, str(precious)],
            env={**os.environ, **NO_BYTECODE},
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)),
            capture_output=True,
            text=True,
        )
        assert "cannot write" in done.stderr
        assert precious.read_bytes() == PRECIOUS
        assert os.listdir(own) == ["precious"]

    def test_a_new_file_is_new(self, own: Path, precious: Path) -> None:
        (own / "link").symlink_to("nothing")
        for taken in (precious, own / "link", own):
            with pytest.raises(FileExistsError):
                write_new(str(taken), WORDS)
        write_new(str(own / "new"), WORDS)
        assert ((own / "new").read_bytes(), mode(own / "new")) == (WORDS, 0o600)
        assert (own / "new").stat().st_nlink == 1
        assert sorted(os.listdir(own)) == ["link", "new", "precious"]


class TestDevicesAndPipes:
    """They are written to, never replaced."""

    def test_a_device(self) -> None:
        write_file("/dev/null", WORDS)
        assert stat.S_ISCHR(os.stat("/dev/null").st_mode)

    @pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
    @pytest.mark.parametrize("uid", [os.geteuid(), pytest.param(NOBODY, marks=needs_root)])
    def test_what_our_caller_opened_for_us(self, name: str, uid: int) -> None:
        """A pipe of a shell that runs `sudo vram` belongs to another user."""
        code = f"from vram.files import write_file; write_file({name!r}, {WORDS!r})"
        read, write = os.pipe()
        os.fchown(write, uid, -1)
        done = subprocess.run([sys.executable, "-c", code], stdout=write, stderr=subprocess.PIPE, text=True)
        os.close(write)
        with open(read, "rb") as pipe:
            assert (pipe.read(), done.stderr) == (WORDS, "")

    def test_a_redirected_output_is_written_where_it_stands(self, own: Path) -> None:
        code = f"from vram.files import write_file; write_file('/dev/stdout', {WORDS!r})"
        with (own / "out").open("wb", buffering=0) as out:
            out.write(b"before\n")
            subprocess.run([sys.executable, "-c", code], stdout=out, check=True)
        assert (own / "out").read_bytes() == b"before\n" + WORDS

    @pytest.mark.parametrize("place", ["own", "shared"])
    def test_a_pipe_of_ours(self, request: pytest.FixtureRequest, place: str) -> None:
        path = request.getfixturevalue(place) / "pipe"
        os.mkfifo(path)
        heard: list[bytes] = []
        reader = threading.Thread(target=lambda: heard.append(path.read_bytes()))
        reader.start()
        write_file(str(path), WORDS)
        reader.join(PATIENCE_S)
        assert heard == [WORDS]
        assert stat.S_ISFIFO(path.stat().st_mode)

    @needs_root
    @pytest.mark.parametrize("name", ["pipe", "to-pipe"])
    def test_a_pipe_that_somebody_left_is_refused_at_once(self, shared: Path, own: Path, name: str) -> None:
        """Nobody reads from it: whoever opened it would wait for good."""
        os.mkfifo(shared / "pipe")
        os.chmod(shared / "pipe", 0o666)
        os.chown(shared / "pipe", NOBODY, NOBODY)
        (own / "to-pipe").symlink_to(shared / "pipe")
        with pytest.raises(UsageError, match="a pipe of nobody"):
            write_file(str((shared if name == "pipe" else own) / name), WORDS)


class TestSharedFolder:
    """In /tmp and its like, and in folders of others, nobody else decides where the bytes go."""

    def test_a_new_file_is_made_there(self, shared: Path) -> None:
        write_file(str(shared / "new"), WORDS, secret=True)
        write_file(str(shared / "new"), WORDS + WORDS, secret=True)
        assert ((shared / "new").read_bytes(), mode(shared / "new")) == (WORDS + WORDS, 0o600)
        assert os.listdir(shared) == ["new"]

    @needs_root
    @pytest.mark.parametrize("exists", [True, False])
    def test_a_planted_link_is_refused(self, shared: Path, precious: Path, exists: bool) -> None:
        if not exists:
            precious.unlink()
        planted_link(shared / "out", precious)
        with pytest.raises(UsageError, match="a link of nobody"):
            write_file(str(shared / "out"), WORDS)
        assert precious.exists() == exists
        assert not exists or precious.read_bytes() == PRECIOUS
        assert (shared / "out").is_symlink()

    def test_any_link_at_the_path_itself_is_refused(self, shared: Path, precious: Path) -> None:
        (shared / "out").symlink_to(precious)
        with pytest.raises(UsageError, match="a folder that others can write to"):
            write_file(str(shared / "out"), WORDS)
        assert precious.read_bytes() == PRECIOUS

    @needs_root
    def test_a_link_on_the_way_is_followed_only_if_ours(self, shared: Path, own: Path) -> None:
        planted_link(shared / "theirs", own)
        (shared / "ours").symlink_to(own)
        with pytest.raises(UsageError, match="a link of nobody"):
            write_file(str(shared / "theirs" / "new"), WORDS)
        with pytest.raises(UsageError, match="a link of nobody"):
            write_files(str(shared / "theirs" / "more" / "folders"), {"new": WORDS})
        assert os.listdir(own) == []
        write_file(str(shared / "ours" / "new"), WORDS)
        assert os.listdir(own) == ["new"]

    @needs_root
    def test_a_link_in_a_folder_of_somebody_else_is_refused(self, own: Path, precious: Path) -> None:
        home = own / "home"
        home.mkdir()
        (home / "out").symlink_to(precious)
        os.chown(home, NOBODY, NOBODY)
        with pytest.raises(UsageError, match="is a link of root"):
            write_file(str(home / "out"), WORDS)
        assert precious.read_bytes() == PRECIOUS

    @needs_root
    def test_somebody_elses_file_is_not_replaced(self, shared: Path) -> None:
        (shared / "theirs").write_bytes(b"theirs")
        os.chown(shared / "theirs", NOBODY, NOBODY)
        with pytest.raises(UsageError, match="a file of nobody"):
            write_file(str(shared / "theirs"), WORDS)
        assert (shared / "theirs").read_bytes() == b"theirs"

    @needs_root
    def test_root_replaces_a_users_file_in_that_users_folder(self, own: Path) -> None:
        """`sudo vram snapshot -o FILE` after the same without sudo."""
        (own / "theirs").write_bytes(b"theirs")
        for path in (own, own / "theirs"):
            os.chown(path, NOBODY, NOBODY)
        write_file(str(own / "theirs"), WORDS, secret=True)
        about = (own / "theirs").stat()
        assert (about.st_uid, stat.S_IMODE(about.st_mode)) == (0, 0o600)

    @needs_root
    def test_a_new_file_is_refused_where_a_link_waits_for_it(self, shared: Path, own: Path) -> None:
        planted_link(shared / "plan", own / "made")
        with pytest.raises(FileExistsError):
            write_new(str(shared / "plan"), WORDS)
        planted_link(shared / "folder", own)
        with pytest.raises(PermissionError):
            write_new(str(shared / "folder" / "plan"), WORDS)
        assert os.listdir(own) == []

    @needs_root
    def test_a_folder_that_its_group_writes_to_is_shared(self, own: Path, precious: Path) -> None:
        (own / "team").mkdir()
        (own / "team" / "out").symlink_to(precious)
        os.chown(own / "team", -1, NOBODY)
        (own / "team").chmod(0o770)
        with pytest.raises(UsageError, match="a folder that others can write to"):
            write_file(str(own / "team" / "out"), WORDS)

    @needs_root
    def test_a_users_own_group_is_that_user(self, own: Path, precious: Path) -> None:
        """Where each user has a group of the same name, what a user makes is writable to it."""
        (own / "link").symlink_to(precious)
        own.chmod(0o775)
        write_file(str(own / "link"), WORDS)
        assert precious.read_bytes() == WORDS


SWAPPER = """
import os, sys
os.chdir(sys.argv[1]); os.setgid(65534); os.setuid(65534)
print("ready", flush=True)
while True:
    os.symlink(sys.argv[2], "link"); os.rename("link", "out")
    os.mkfifo("pipe"); os.rename("pipe", "out")
    open("file", "x").close(); os.rename("file", "out")
"""


@needs_root
@pytest.mark.parametrize("write", [write_file, write_new])
def test_whoever_swaps_what_lies_there_gains_nothing(shared: Path, precious: Path, write) -> None:
    """Links, pipes and files come and go at the path meanwhile, in a folder without a sticky bit."""
    shared.chmod(0o777)
    argv = [sys.executable, "-c", SWAPPER, str(shared), str(precious)]
    tries, written = 300, 0
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as swapper:
        assert swapper.stdout is not None
        swapper.stdout.readline()
        try:
            for turn in range(tries):
                if turn % 2:  # on a shared core the swapper may run only while we write, and never before
                    until(lambda: (shared / "out").lstat().st_uid == NOBODY)
                with suppress(UsageError, OSError):
                    write(str(shared / "out"), WORDS)
                    written += 1
            assert swapper.poll() is None, "it swapped to the end"
        finally:
            swapper.kill()
    assert written < tries
    assert precious.read_bytes() == PRECIOUS
    assert not list(shared.glob(".vram-*"))


class TestFoldersMade:
    def test_all_that_are_missing(self, own: Path) -> None:
        make_folder(str(own / "a" / "b"), mode=0o700)
        make_folder(str(own / "a" / "b"), mode=0o700)
        assert mode(own / "a" / "b") == 0o700

    def test_a_file_on_the_way_is_said(self, own: Path, precious: Path) -> None:
        with pytest.raises(OSError, match="Not a directory") as caught:
            make_folder(str(precious / "below"))
        assert caught.value.errno == errno.ENOTDIR


# ---- written piece by piece ----


def test_a_new_file_is_there_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with new_file(str(path)) as stream:
        stream.write(b"one")
        assert not path.exists()
        stream.write(b"two")
    assert path.read_bytes() == b"onetwo"
    assert [each.name for each in tmp_path.iterdir()] == ["out"]


def test_a_new_file_replaces_nothing_unless_forced(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_bytes(b"mine")
    with pytest.raises(UsageError, match="exists"), new_file(str(path)) as stream:
        stream.write(b"other")
    assert path.read_bytes() == b"mine"
    with new_file(str(path), force=True) as stream:
        stream.write(b"other")
    assert path.read_bytes() == b"other"


def test_a_new_file_that_appears_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with pytest.raises(UsageError, match="exists"), new_file(str(path)):
        path.write_bytes(b"theirs")
    assert path.read_bytes() == b"theirs"
    assert [each.name for each in tmp_path.iterdir()] == ["out"]


def test_of_a_new_file_that_fails_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), new_file(str(tmp_path / "out")) as stream:
        stream.write(bytes(1 // 0))
    assert not list(tmp_path.iterdir())
    with pytest.raises(UsageError, match="cannot write"), new_file(str(tmp_path / "no" / "out")):
        pass


def test_a_new_file_may_be_a_device_or_a_pipe(tmp_path: Path) -> None:
    with new_file("/dev/null") as stream:
        stream.write(b"gone")
    reading, writing = os.pipe()
    with open(reading, "rb") as end:
        with new_file(f"/proc/self/fd/{writing}") as stream:
            stream.write(b"through")
        os.close(writing)
        assert end.read() == b"through"
