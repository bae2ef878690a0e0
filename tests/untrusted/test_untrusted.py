"""Limits of what is read from others: bytes, time, items, depth, integers; each with its code."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from tests.needs import needs
from tests.patience import PATIENCE_S
from vram.untrusted import Rejected, decode, read_file, receive

MIB = 1 << 20


class Variant(Struct, tag="known"):
    pass


class Sample(Struct):
    number: int = 0
    text: str = ""
    anything: Any = None
    choice: Literal["a"] = "a"
    variant: Variant | None = None


def code_of(data: bytes, **limits: int) -> str:
    with pytest.raises(Rejected) as caught:
        decode(data, Sample, **limits)
    return caught.value.code


class TestDecode:
    @pytest.mark.parametrize(
        ("data", "code"),
        [
            (b"", "cut-short"),
            (b'{"number": 1', "cut-short"),
            (b"\xef\xbb\xbf{}", "not-json"),
            (b"{}{}", "not-json"),
            (b"[]", "wrong-shape"),
            (b'{"number": "1"}', "wrong-shape"),
            (b'{"number": 1e400}', "wrong-shape"),
            (b'{"text": "\xff"}', "not-text"),
            (b'{"anything": ' + b"[" * 100_000, "too-deep"),
            (b'{"unknown": ' + b'{"a":' * 100_000, "too-deep"),
            (b'{"number": 18446744073709551616}', "number-too-large"),
            (b'{"number": -9223372036854775809}', "number-too-large"),
            (b'{"anything": [' + b"9" * 5000 + b"]}", "number-too-large"),
        ],
    )
    def test_each_fault_has_its_code(self, data: bytes, code: str) -> None:
        assert code_of(data) == code

    @pytest.mark.parametrize(
        ("data", "said"),
        [
            (b'{"choice": "hunter2"}', "Invalid enum value - at `$.choice`"),
            (b'{"choice": "hunter2 - at `$.text`"}', "Invalid enum value - at `$.choice`"),
            (b'{"choice": "hunter2\\n - at `$.text`"}', "Invalid enum value - at `$.choice`"),
            (b'{"variant": {"type": "hunter2"}}', "Invalid value - at `$.variant.type`"),
            (b'{"variant": "hunter2"}', "Expected `object | null`, got `str` - at `$.variant`"),
            (b'{"text": "ab", "anything": "\xffhunter2"}', "it is not UTF-8 at byte 28"),
            (b"hunter2", "JSON is malformed: invalid character (byte 0)"),
        ],
    )
    def test_no_message_quotes_what_was_read(self, data: bytes, said: str) -> None:
        with pytest.raises(Rejected) as caught:
            decode(data, Sample)
        assert str(caught.value) == said

    @pytest.mark.parametrize("number", [(1 << 64) - 1, -(1 << 63), 0])
    def test_integers_of_64_bits_are_read(self, number: int) -> None:
        assert decode(b'{"number": %d}' % number, Sample).number == number

    def test_long_digits_in_text_and_fractions_are_no_integers(self) -> None:
        data = b'{"text": "\\"123456789012345678901234", "anything": 0.123456789012345678901234}'
        assert decode(data, Sample).text == '"123456789012345678901234'

    def test_a_small_text_cannot_become_many_objects(self) -> None:
        assert code_of(b'{"anything": [' + b"[]," * 2_000 + b"[]]}", most_items=1_000) == "too-many"

    @pytest.mark.parametrize("unit", [b'\\"', b'"\\', b"\\", b'"'])
    def test_quotes_and_backslashes_cost_no_more_than_their_length(self, unit: bytes) -> None:
        data = b'{"text": "' + unit * (2 * MIB // len(unit)) + b"9" * 30
        began = time.process_time()
        assert code_of(data) in ("cut-short", "not-json", "number-too-large")
        assert time.process_time() - began < 5.0  # tried at each quote again, it takes hours

    @given(st.binary(max_size=200))
    def test_any_bytes_are_decoded_or_rejected(self, data: bytes) -> None:
        with suppress(Rejected):
            decode(data, Sample)


class TestReadFile:
    def code_of(self, path: Path | str, **options: Any) -> str:
        with pytest.raises(Rejected) as caught:
            read_file(str(path), **{"nbytes": 100, **options})
        return caught.value.code

    def test_a_file_up_to_the_limit_is_read_and_no_larger_one(self, tmp_path: Path) -> None:
        file = tmp_path / "file"
        file.write_bytes(b"x" * 100)
        assert read_file(str(file), nbytes=100) == b"x" * 100
        file.write_bytes(b"x" * 101)
        assert self.code_of(file) == "too-large"

    def test_an_endless_device_is_cut_at_the_limit(self) -> None:
        assert self.code_of("/dev/zero", pipes=True) == "too-large"

    def test_what_is_no_plain_file_is_refused_without_waiting(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        (tmp_path / "link").symlink_to("/etc/passwd")
        assert self.code_of(tmp_path / "pipe") == "not-a-file"
        assert self.code_of(tmp_path) == "not-a-file"
        assert self.code_of(tmp_path, pipes=True) == "not-a-file"
        assert self.code_of("/dev/zero") == "not-a-file"
        assert self.code_of(tmp_path / "link") == "unreadable"
        assert self.code_of(tmp_path / "missing") == "unreadable"
        assert self.code_of("zero\0byte") == "unreadable"

    def test_a_link_is_followed_where_that_is_asked_for(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"text")
        (tmp_path / "link").symlink_to("file")
        assert read_file(str(tmp_path / "link"), nbytes=100, follow=True) == b"text"

    def test_only_a_file_of_its_owner_alone(self, tmp_path: Path) -> None:
        file = tmp_path / "file"
        file.write_bytes(b"text")
        file.chmod(0o644)
        assert read_file(str(file), nbytes=100, owner=os.geteuid()) == b"text"
        assert self.code_of(file, owner=os.geteuid() + 1) == "not-ours"
        file.chmod(0o664)
        assert self.code_of(file, owner=os.geteuid()) == "not-ours"

    @needs("root", detail="only root can give a pipe away")
    def test_a_pipe_of_another_user_is_refused(self, tmp_path: Path) -> None:
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)
        os.chown(pipe, 65534, 65534)
        assert self.code_of(pipe, pipes=True) == "not-ours"


Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


class TestReceive:
    def code_of(self, source: int | socket.socket, seconds: float = PATIENCE_S, **options: Any) -> str:
        with pytest.raises(Rejected) as caught:
            receive(source, **{"nbytes": 100, "until": time.monotonic() + seconds, **options})
        return caught.value.code

    def test_a_line_in_pieces(self, pair: Pair) -> None:
        ours, theirs = pair
        theirs.sendall(b"one ")
        later = threading.Timer(0.05, theirs.sendall, (b"line\n",))
        later.start()
        assert receive(ours, nbytes=100, until=time.monotonic() + PATIENCE_S) == b"one line\n"
        later.join()

    def test_up_to_the_closing(self) -> None:
        ours, theirs = os.pipe()
        os.write(theirs, b"one\ntwo")
        os.close(theirs)
        assert receive(ours, nbytes=100, until=time.monotonic() + PATIENCE_S, end=None) == b"one\ntwo"
        os.close(ours)

    def test_silence_ends_at_the_deadline(self, pair: Pair) -> None:
        assert self.code_of(pair[0], seconds=0.2) == "late"

    def test_a_byte_now_and_then_extends_nothing(self, pair: Pair) -> None:
        ours, theirs = pair
        stop = threading.Event()

        def drip() -> None:
            while not stop.wait(0.01):
                theirs.send(b"x")

        thread = threading.Thread(target=drip)
        thread.start()
        assert self.code_of(ours, seconds=0.2, nbytes=1 << 20) == "late"
        stop.set()
        thread.join()

    def test_a_flood_ends_at_the_limit(self, pair: Pair) -> None:
        ours, theirs = pair
        theirs.sendall(b"x" * 1000)
        assert self.code_of(ours) == "too-large"

    def test_a_timeout_of_the_socket_does_not_count(self, pair: Pair) -> None:
        pair[0].settimeout(3600.0)
        assert self.code_of(pair[0], seconds=0.2) == "late"

    def test_hanging_up_in_the_middle(self, pair: Pair) -> None:
        ours, theirs = pair
        theirs.sendall(b"half")
        theirs.close()
        assert self.code_of(ours) == "cut-short"

    def test_the_end_of_the_process_ends_the_waiting(self, pair: Pair) -> None:
        child = subprocess.Popen([sys.executable, "-c", ""])
        pidfd = os.pidfd_open(child.pid)
        assert self.code_of(pair[0], pidfd=pidfd) == "ended"
        child.wait()
        os.close(pidfd)

    def test_descriptors_that_come_along_are_not_kept(self, pair: Pair) -> None:
        ours, theirs = pair
        reading, writing = os.pipe()
        socket.send_fds(theirs, [b"take this\n"], [reading])
        os.close(reading)
        assert receive(ours, nbytes=100, until=time.monotonic() + PATIENCE_S) == b"take this\n"
        with pytest.raises(BrokenPipeError):  # nobody has the reading end any more
            os.write(writing, b"x")
        os.close(writing)
