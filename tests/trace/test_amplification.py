"""Small traces that say large things: reading and exporting them takes little time and memory.

Each was a file of some hundred kilobytes that took gigabytes, or minutes.
"""

from __future__ import annotations

import ctypes
import gzip
import io
import os
import pickle
import subprocess
import zlib
from pathlib import Path

import pytest

from tests.trace.writer import TraceFile, number, text
from tests.trace_report.training_traces import training
from vram import untrusted
from vram.errors import BadTrace
from vram.files import open_plain
from vram.model.trace import CallStack, Frame
from vram.trace import analysis, symbols
from vram.trace.exports import perfetto, torch_viewer
from vram.trace.frameworks import jax_profile, torch_history
from vram.trace.reader import Follower, Trace, open_file, open_trace
from vram.trace.symbols import SymbolBudget, function_names
from vram.trace_report import json as trace_json

pytestmark = pytest.mark.native

MIB = 1 << 20


def deep(stacks: int, nbytes: int = 512) -> TraceFile:
    """That many stacks, each of 512 frames with the longest names that the format has."""
    trace = TraceFile()
    writer = trace.section().writer()
    gpu = writer.where()
    place = writer.place("f" * 4096, "/" + "g" * 4095, 1)
    for node in range(512):
        writer.raw(b"\x05" + number(node) + number(place))
    for at in range(stacks):
        writer.raw(bytes([4, 0]) + text("leaf") + text("leaf.py") + number(at + 1))
        writer.raw(b"\x05" + number(512) + number(at + 2))
        writer.alloc(at * 1000, 0x7000000 + at * nbytes, nbytes, where=gpu, stack=513 + at)
    return trace


def opened(trace: TraceFile, tmp_path: Path) -> Trace:
    path = tmp_path / "t.vram"
    path.write_bytes(trace.bytes(cut=True))
    return open_trace([path])


class TestDeepStacksOfLongNames:
    def test_the_text_of_all_stacks_is_bounded(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(analysis, "_MAX_TEXT", 4 * MIB)
        view = opened(deep(300), tmp_path).view()
        assert len(view.allocations) == 300
        assert all(stack.frames[0].file == "leaf.py" for stack in view.stacks[1:])
        assert len(trace_json.report(view, "summary", "line", None)) < 8 * MIB

    def test_ordinary_stacks_are_whole(self, tmp_path: Path) -> None:
        trace = TraceFile()
        writer = trace.section().writer()
        frames = [(f"function_{depth}", "/home/user/project/file.py", depth) for depth in range(100)]
        for at in range(50):
            writer.alloc(at, 4096 * at, 512, stack=writer.stack((f"leaf_{at}", "leaf.py", 1), *frames))
        view = opened(trace, tmp_path).view()
        assert {len(stack.frames) for stack in view.stacks} == {0, 101}

    def test_the_viewer_of_pytorch_gets_each_frame_once(self, tmp_path: Path) -> None:
        stream = io.BytesIO()
        torch_viewer.write(opened(deep(200), tmp_path), stream)
        assert stream.tell() < MIB
        events = pickle.loads(stream.getvalue())["device_traces"][0]
        assert {len(event["frames"]) for event in events} == {512}

    def test_an_event_of_perfetto_has_a_length(self, tmp_path: Path) -> None:
        stream = io.BytesIO()
        perfetto.write(opened(deep(200, nbytes=2 * MIB), tmp_path), stream)
        assert stream.tell() < 200 * 2 * 8000


def test_segments_that_overlap_do_not_each_list_all_blocks(tmp_path: Path) -> None:
    trace = TraceFile()
    writer = trace.section().writer()
    gpu = writer.where()
    for at in range(500):
        writer.alloc(2 * at, 0x1000 + 16 * at, 1 << 36, where=gpu)
        writer.alloc(2 * at + 1, 0x1000 + 16 * at + 8, 4, where=gpu, kind="torch block")
    stream = io.BytesIO()
    torch_viewer.write(opened(trace, tmp_path), stream)
    segments = pickle.loads(stream.getvalue())["segments"]
    assert len(segments) == 500
    assert sum(len(segment["blocks"]) for segment in segments) < 2000


def test_a_context_that_ends_takes_its_memory_along_in_both_exports(tmp_path: Path) -> None:
    trace = TraceFile()
    writer = trace.section().writer()
    for context in (0xC0, 0xC1):
        here = writer.where(context)
        writer.alloc(1, context, 0, kind="context", where=here)
        writer.alloc(2, 0x7000 + context, 2 * MIB, where=here)
        writer.alloc(3, 0x900000 + context, 2 * MIB, where=here, kind="stream-ordered")
    writer.free(10, 0xC0, kind="context")
    stream = io.BytesIO()
    torch_viewer.write(opened(trace, tmp_path), stream)
    segments = pickle.loads(stream.getvalue())["segments"]
    assert [each["address"] for each in segments] == [0x70C1, 0x9000C0, 0x9000C1]
    stream = io.BytesIO()
    perfetto.write(opened(trace, tmp_path), stream)
    assert stream.getvalue().count(b'"ph":"e"') == 1


class TestLibraries:
    @pytest.fixture
    def library(self, tmp_path: Path) -> Path:
        path = tmp_path / "libplace.so"
        source = "int shown(int x) { return x * 3 + 1; }\nint other(int x) { return x * 5; }\n"
        command = ["cc", "-shared", "-fPIC", "-O1", "-x", "c", "-", "-o", str(path)]
        subprocess.run(command, input=source, text=True, check=True)
        return path

    def offset(self, library: Path) -> int:
        symbols = subprocess.run(["nm", library], capture_output=True, text=True, check=True).stdout
        (at,) = [int(line.split()[0], 16) for line in symbols.splitlines() if line.endswith(" T shown")]
        return at

    def test_one_under_many_names_is_read_once(self, library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        os.utime(library, (0, 0))  # older than the recording
        at, left = self.offset(library), SymbolBudget(1000)
        function_names(str(library), [at], left=left)
        monkeypatch.setattr(symbols, "_MAX_SYMBOLS", 1000 - left.symbols)  # enough for one reading
        detours = [f"{library.parent}/{'./' * times}{library.name}" for times in range(100)]
        frames = tuple(Frame("native", "", path, at) for path in detours)
        view = symbols.with_names(training(stacks=(CallStack(frames),)), {})
        assert {frame.function for frame in view.stacks[0].frames} == {"shown"}

    def test_symbols_of_all_are_limited(self, library: Path) -> None:
        at = self.offset(library)
        left = SymbolBudget(1000)
        assert function_names(str(library), [at], left=left) == {at: "shown"}
        assert 0 < left.symbols < 1000
        assert function_names(str(library), [at], left=SymbolBudget(1)) == {}


class TestNothingButPlainFilesIsOpened:
    def test_a_pipe(self, tmp_path: Path) -> None:
        """The kernel tells about every opening; to learn what a name stands for is none."""
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)
        libc = ctypes.CDLL(None, use_errno=True)
        told = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            assert libc.inotify_add_watch(told, os.fsencode(pipe), 0x20) >= 0  # IN_OPEN
            with pytest.raises(BadTrace, match="not a plain file"):
                open_file(pipe)
            assert function_names(str(pipe), [1]) == {}
            with pytest.raises(BlockingIOError):
                os.read(told, 4096)
            os.close(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK))
            assert os.read(told, 4096)
        finally:
            os.close(told)

    def test_a_link_where_none_is_expected(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"x")
        os.symlink("file", tmp_path / "link")
        os.close(open_plain(str(tmp_path / "link")))
        with pytest.raises(OSError, match="not a plain file"):
            open_plain(str(tmp_path / "link"), os.O_NOFOLLOW)


def test_a_growing_trace_that_consists_of_holes(tmp_path: Path) -> None:
    trace = TraceFile()
    trace.section().writer().alloc(1, 0x7000, MIB)
    path = tmp_path / "t.vram"
    path.write_bytes(trace.bytes())
    os.truncate(path, 1 << 42)
    follower = Follower(parts=[path])
    for _ in range(3):
        follower.advance(everything=True)
    assert follower.live().events == 1


class TestAccountsOfFrameworks:
    """They are packed: a few kilobytes can say a hundred megabytes."""

    def test_a_blob_that_expands_a_thousand_times_is_rejected(self) -> None:
        bomb = zlib.compress(b'{"form":1,"texts":["' + b"x" * (64 * MIB) + b'"]}', 9)
        with pytest.raises(untrusted.Rejected, match="larger than allowed"):
            torch_history.decode(bomb)
        packed = zlib.compressobj(9, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
        with pytest.raises(untrusted.Rejected, match="larger than allowed"):
            jax_profile.decode(packed.compress(b"\x32" * (32 * MIB)) + packed.flush())

    def test_a_stack_of_pytorch_has_a_depth_and_its_names_a_length(self) -> None:
        snapshot = torch_history.Snapshot(
            form=1,
            at="exit",
            wall_ns=1,
            ours=True,
            texts=["n" * 100_000],
            frames=[(0, 0, 1)],
            stacks=[[0] * 100_000],
        )
        stack = torch_history.stack_of(snapshot, 0)
        assert len(stack.frames) == 512
        assert len(stack.frames[0].function) == 1024

    def test_a_sample_of_jax_has_a_depth(self) -> None:
        def field(number: int, content: bytes) -> bytes:
            return bytes([number << 3 | 2]) + text(content)

        lines = b"".join(field(4, b"\x08\x01\x10\x05") for _ in range(2000))
        profile = (
            field(6, b"")
            + field(6, b"name")
            + field(5, b"\x08\x01\x10\x01\x20\x01")
            + field(4, b"\x08\x01" + lines)
            + field(2, field(1, b"\x01" * 100_000) + field(2, b"\x01\x10"))
        )
        (buffers,) = jax_profile.decode(gzip.compress(profile, 1))
        assert (len(buffers.stack.frames), buffers.count, buffers.nbytes) == (512, 1, 16)
