"""on_oom: one file and one sentence for every out-of-memory, caught or not; nothing before that."""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.guard.scoping import NUMBA, PREAMBLE, RAW, result, run
from tests.needs import needs
from vram import on_oom
from vram.errors import OutOfMemory, UsageError
from vram.guard.memory import Footprint
from vram.guard.oom_report import OomFigures, requested, sentence
from vram.model.leak import EqualArrays
from vram.units import GIB, MIB
from vram.virtualgpu import VirtualGpu


@needs("numba")
def test_an_error_that_is_caught_is_recorded_with_the_whole_situation(
    virtual_gpu: VirtualGpu, tmp_path: Path
) -> None:
    program = f"""
        vram.on_oom({str(tmp_path)!r})
        history = [array(60 * GIB)]

        def train():
            return array(100 * GIB)

        try:
            train()
        except Exception as error:
            tell(error.__notes__)
    """
    (note,) = result(virtual_gpu, program, NUMBA)
    (path,) = tmp_path.iterdir()
    report = json.loads(path.read_text())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert note == f"vram: {report['sentence']}. The full report is in {path}"
    assert "the GPU is out of memory" in note
    assert "history[0]" in note
    assert report["error"]["type"].endswith("CudaAPIError")
    assert report["largest"][0]["nbytes"] == 60 * GIB
    assert report["process"]["charged"]["0"] == 60 * GIB + 518 * MIB
    assert any(" train" in step for step in report["stack"])
    (gpu,) = report["ledger"]["gpus"]
    assert sum(entry["nbytes"] or 0 for entry in gpu["entries"]) == gpu["total_bytes"]
    assert any("60.0 GiB" in line for line in report["text"])


@needs("numba")
def test_equal_arrays_of_one_list_are_one_line(virtual_gpu: VirtualGpu, tmp_path: Path) -> None:
    program = f"""
        vram.on_oom({str(tmp_path)!r})
        xs = [array(9 * GIB) for _ in range(12)]
        ys = [array(1 * GIB) for _ in range(20)]
        one = array(2 * GIB)
        try:
            array(100 * GIB)
        except Exception as error:
            tell(error.__notes__)
    """
    (note,) = result(virtual_gpu, program, NUMBA)
    (path,) = tmp_path.iterdir()
    report = json.loads(path.read_text())
    assert "12 × 9.0 GiB, held by" in note
    assert "xs[0…11]" in note
    lines = [line for line in report["text"] if line.startswith("  ") and " × " in line]
    assert [line.split(",")[0].split() for line in lines[:2]] == [
        ["108.0", "GiB", "12", "×", "9.0", "GiB"],
        ["20.0", "GiB", "20", "×", "1.0", "GiB"],
    ]
    assert lines[0].endswith("xs[0…11]")
    assert lines[1].endswith("ys[0…19]")
    groups = [(each["count"], each["each_nbytes"]) for each in report["equal_arrays"]]
    assert groups == [(12, 9 * GIB), (20, GIB), (1, 2 * GIB)]
    # As before: the largest ones, each for itself.
    assert [each["nbytes"] for each in report["largest"]] == [9 * GIB] * 12


@needs("numba")
def test_other_holders_are_blamed_where_they_hold_most(virtual_gpu: VirtualGpu, tmp_path: Path) -> None:
    program = f"""
        other = held(120)
        vram.on_oom({str(tmp_path)!r})
        try:
            array(40 * GIB)
        except Exception as error:
            tell([error.__notes__[0], other.pid])
        other.communicate(b"\\n")
    """
    note, pid = result(virtual_gpu, program, NUMBA)
    assert f"pid {pid} alone 120.5 GiB" in note
    assert "`vram why`" in note


@needs("numba")
def test_an_uncaught_error_shows_the_sentence_in_its_traceback(
    virtual_gpu: VirtualGpu, tmp_path: Path
) -> None:
    done = run(virtual_gpu, f"vram.on_oom({str(tmp_path)!r})\narray(900 * GIB)\n", NUMBA)
    assert done.returncode == 1
    assert "vram: the GPU is out of memory" in done.stderr
    assert len(list(tmp_path.iterdir())) == 1


def test_errors_of_a_class_that_all_share_are_recorded_where_they_are_uncaught(
    virtual_gpu: VirtualGpu, tmp_path: Path
) -> None:
    program = f"""
        recorder = vram.on_oom({str(tmp_path)!r})

        def fails(): raise RuntimeError("CUDA error: out of memory")

        thread = threading.Thread(target=fails)
        thread.start()
        thread.join()
        tell(len(recorder.files))
    """
    assert result(virtual_gpu, program) == 1


@needs("numba")
def test_a_framework_that_is_imported_later_is_watched_too(virtual_gpu: VirtualGpu, tmp_path: Path) -> None:
    program = f"""
        recorder = vram.on_oom({str(tmp_path)!r})
        import numpy
        from numba import cuda
        try:
            cuda.device_array(900 * GIB, numpy.uint8)
        except Exception as error:
            tell([len(recorder.files), len(error.__notes__)])
    """
    assert result(virtual_gpu, program, PREAMBLE) == [1, 1]


@needs("cuda")
def test_cuda_core_and_buffers_are_watched(virtual_gpu: VirtualGpu, tmp_path: Path) -> None:
    program = f"""
        from cuda.core import Device
        device = Device()
        device.set_current()
        stream = device.create_stream()
        vram.on_oom({str(tmp_path)!r})
        notes = []
        for allocate in (lambda n: device.allocate(n, stream=stream), vram.Buffer):
            try:
                allocate(900 * GIB)
            except Exception as error:
                notes.append(any("vram: the GPU is out of memory" in note for note in error.__notes__))
        tell(notes)
    """
    assert result(virtual_gpu, program, PREAMBLE) == [True, True]


@pytest.mark.parametrize("driver", [True, False])
def test_a_class_like_jaxs_is_watched_where_there_is_a_gpu(
    virtual_gpu: VirtualGpu, tmp_path: Path, driver: bool
) -> None:
    """Its ``__init__`` is native, callable, and has no qualified name; on the host it means host memory."""
    program = f"""
        import functools, types

        class Initialises:
            def __init__(self): self.__qualname__ = None
            def __call__(self, error, *words): RuntimeError.__init__(error, *words)
            def __get__(self, error, kind=None):
                return self if error is None else functools.partial(self, error)

        class JaxRuntimeError(RuntimeError):
            __module__ = "jax.errors"
            __init__ = Initialises()

        module = sys.modules["jaxlib._jax"] = types.ModuleType("jaxlib._jax")
        module.JaxRuntimeError = JaxRuntimeError
        with vram.on_oom({str(tmp_path)!r}) as recorder:
            try:
                raise JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 70368744177664 bytes.")
            except Exception as error:
                told = [len(recorder.files), len(getattr(error, "__notes__", ()))]
        tell(told + [type(vars(JaxRuntimeError)["__init__"]).__name__])
    """
    without = "import json, sys, vram\ndef tell(value): print(json.dumps(value))\n"
    recorded = [1, 1] if driver else [0, 0]
    assert result(virtual_gpu, program, RAW if driver else without) == [*recorded, "Initialises"]


@pytest.mark.parametrize(
    "asked",
    [
        "vram.Buffer(900 * GIB)",
        "vram.Buffer.managed(900 * GIB)",
        "vram.Buffer.pitched(900 * MIB, 1024)",
        "vram.Buffer(900 * GIB, stream=0)",
    ],
)
def test_what_a_buffer_asked_for_is_told(virtual_gpu: VirtualGpu, tmp_path: Path, asked: str) -> None:
    program = f"""
        vram.on_oom({str(tmp_path)!r})
        try:
            {asked}
        except MemoryError as error:
            tell(error.nbytes)
    """
    assert result(virtual_gpu, program) == 900 * GIB
    (path,) = tmp_path.iterdir()
    report = json.loads(path.read_text())
    assert report["requested_bytes"] == 900 * GIB
    assert report["sentence"].startswith("the GPU is out of memory (requested 900.0 GiB): ")


@needs("numba")
def test_a_retry_loop_writes_one_file_for_one_event_and_never_too_many(
    virtual_gpu: VirtualGpu, tmp_path: Path
) -> None:
    program = f"""
        recorder = vram.on_oom({str(tmp_path)!r}, most_files=1)
        vram.retry_on_oom(lambda gib: array(gib * GIB), shrink="gib")(gib=4000)
        recorder._last = float("-inf")
        try:
            array(900 * GIB)
        except Exception as error:
            tell([len(recorder.files), "whole account" in error.__notes__[0]])
    """
    assert result(virtual_gpu, program, NUMBA) == [1, False]
    assert len(list(tmp_path.iterdir())) == 1


def test_each_error_of_one_event_is_told_what_it_asked_for_itself(
    virtual_gpu: VirtualGpu, tmp_path: Path
) -> None:
    program = f"""
        recorder = vram.on_oom({str(tmp_path)!r})
        notes = []
        for asked in ("900GiB", "700GiB"):
            try:
                vram.Buffer(asked)
            except vram.VramError as error:
                notes += [note for note in error.__notes__ if note.startswith("vram:")]
        tell([len(recorder.files), notes])
    """
    files, (first, second) = result(virtual_gpu, program)
    assert files == 1
    assert "(requested 900.0 GiB)" in first
    assert second == first.replace("900.0 GiB", "700.0 GiB")


def test_closed_it_is_gone_without_a_trace(tmp_path: Path) -> None:
    import sys
    import threading

    before = (sys.excepthook, threading.excepthook, list(sys.meta_path), OutOfMemory.__dict__.get("__init__"))
    recorder = on_oom(tmp_path)
    assert on_oom(tmp_path) is recorder
    assert sys.excepthook is not before[0]
    recorder.close()
    after = (sys.excepthook, threading.excepthook, list(sys.meta_path), OutOfMemory.__dict__.get("__init__"))
    assert after == before
    error = OutOfMemory("nobody listens")
    assert not hasattr(error, "__notes__")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["None", "'a word'", "types.ModuleType('another')"])
def test_what_stands_in_for_a_framework_is_left_alone(
    virtual_gpu: VirtualGpu, tmp_path: Path, name: str
) -> None:
    """Programs put None there, so that nobody imports the framework."""
    program = f"""
        import types
        sys.modules["torch"] = {name}
        with vram.on_oom({str(tmp_path)!r}) as recorder:
            try:
                vram.Buffer("1TiB")
            except vram.VramError as error:
                tell(len(recorder.files))
    """
    assert result(virtual_gpu, program, PREAMBLE) == 1


def test_a_loader_of_many_modules_goes_on_loading_the_others(virtual_gpu: VirtualGpu, tmp_path: Path) -> None:
    """As that of a zip file does."""
    program = f"""
        import zipfile
        with zipfile.ZipFile({str(tmp_path / "all.zip")!r}, "w") as archive:
            archive.writestr("torch.py", "class OutOfMemoryError(RuntimeError): pass")
            archive.writestr("beside.py", "word = 'there'")
        sys.path.insert(0, {str(tmp_path / "all.zip")!r})
        with vram.on_oom({str(tmp_path)!r}) as recorder:
            import torch, beside
            torch.OutOfMemoryError()
            tell([beside.word, len(recorder.files)])
    """
    assert result(virtual_gpu, program) == ["there", 1]


def test_a_folder_that_cannot_be_used_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for bad in (tmp_path / "file" / "inside", 5, "", "\0"):
        with pytest.raises(UsageError, match="cannot be used as a folder"):
            on_oom(bad)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="number of files"):
        on_oom(tmp_path, most_files=-1)


@pytest.mark.parametrize(("said", "folder"), [("", None), ("/tmp", "/tmp")])
def test_the_environment_may_name_the_folder(
    monkeypatch: pytest.MonkeyPatch, said: str, folder: str | None
) -> None:
    monkeypatch.setenv("VRAM_OOM_FOLDER", said)
    with on_oom() as recorder:
        assert recorder.folder == folder


def test_a_folder_may_be_named_in_bytes(tmp_path: Path) -> None:
    with on_oom(bytes(tmp_path)) as recorder:  # type: ignore[arg-type]
        assert recorder.folder == str(tmp_path)


@pytest.mark.parametrize(
    ("message", "nbytes"),
    [
        ("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total", 20 * GIB),
        ("Out of memory allocating 1,073,741,824 bytes (allocated so far: 0 bytes).", GIB),
        ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 512.00MiB.", 512 * MIB),
        ("Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY", None),
    ],
)
def test_what_was_asked_for_is_read_from_the_message(message: str, nbytes: int | None) -> None:
    assert requested(RuntimeError(message)) == nbytes


def situation(
    cached: int = 0, fragmented: int = 0, live: int = 10 * GIB, largest: tuple[EqualArrays, ...] = ()
) -> OomFigures:
    charged = {0: live + cached + fragmented + 518 * MIB}
    return OomFigures(
        1, 4 * GIB, Footprint(charged, {"PyTorch": live}, cached, fragmented), (), None, largest
    )


def test_each_cause_has_its_own_remedy() -> None:
    assert "vram.flush()" in sentence(situation(cached=8 * GIB))
    assert "expandable_segments" in sentence(situation(fragmented=8 * GIB))
    kept = EqualArrays(
        count=1, each_nbytes=9 * GIB, what="PyTorch float32 (4, 4)", holder="train.py: history[3]"
    )
    assert "held by train.py: history[3]; release it" in sentence(situation(largest=(kept,)))
    several = replace(kept, count=12, holder="train.py: history[0…11]")
    assert (
        "are PyTorch float32 (4, 4), 12 × 9.0 GiB, held by train.py: history[0…11]; release them"
        in sentence(situation(largest=(several,)))
    )
    assert "retry_on_oom" in sentence(situation())


@pytest.mark.parametrize("kind", ["free", "reserved", "unassigned", "unreported", "overhead", "preallocated"])
def test_memory_that_nobody_holds_is_blamed_on_nobody(kind: str) -> None:
    """Under MIG it said "memory that is unassigned alone 60.0 GiB": no holder, nobody to ask."""
    entries = [{"kind": kind, "nbytes": 60 * GIB, "holder": None}]
    ledger = {"gpus": [{"entries": [{"kind": "process", "nbytes": GIB, "holder": {"pid": 1}}, *entries]}]}
    assert "other holders" not in sentence(situation()._replace(ledger=ledger))


def on_gpu(free: int, *others: int, total: int = 140 * GIB, own: int = 2 * GIB) -> dict[str, Any]:
    """The ledger of one GPU as `vram why --json` has it; this process is pid 1."""
    held = [{"kind": "process", "nbytes": own, "holder": {"pid": 1}}]
    held += [{"kind": "process", "nbytes": each, "holder": {"pid": 7 + n}} for n, each in enumerate(others)]
    return {
        "gpus": [{"total_bytes": total, "entries": [*held, {"kind": "free", "nbytes": free, "holder": None}]}]
    }


SMALL = EqualArrays(count=3, each_nbytes=100 * MIB, what="PyTorch float32 (4, 4)", holder="train.py: xs[0…2]")


def test_a_request_that_no_array_is_in_the_way_of_begins_with_what_is_free() -> None:
    """100 GiB were requested where 22.7 GiB are free: three small arrays are not the cause."""
    ledger = on_gpu(int(22.7 * GIB), total=24 * GIB, own=GIB)
    now = situation(live=300 * MIB, largest=(SMALL,))._replace(requested=100 * GIB, ledger=ledger)
    words = sentence(now)
    assert words.startswith(
        "the GPU is out of memory (requested 100.0 GiB): 22.7 GiB of 24.0 GiB is free; no request of that"
    )
    assert "xs[" not in words
    # On a GPU that is large enough, too, where freeing them all would not do.
    words = sentence(now._replace(ledger=on_gpu(int(22.7 * GIB), 40 * GIB)))
    assert words.startswith("the GPU is out of memory (requested 100.0 GiB): 22.7 GiB of 140.0 GiB is free; ")
    assert "xs[" not in words
    assert "retry_on_oom" in words


def test_arrays_that_are_in_the_way_are_named_after_what_is_free() -> None:
    large = replace(SMALL, count=1, each_nbytes=60 * GIB, holder="train.py: history[0]")
    now = situation(live=60 * GIB, largest=(large,))._replace(
        requested=70 * GIB, ledger=on_gpu(20 * GIB, own=61 * GIB)
    )
    words = sentence(now)
    assert "(requested 70.0 GiB): 20.0 GiB of 140.0 GiB is free; this process itself uses 60.5 GiB" in words
    assert "held by train.py: history[0]; release it" in words


def test_what_is_free_on_a_gpu_of_others_is_no_room() -> None:
    """Of several GPUs, those count where this process is."""
    ledger = {
        "gpus": [
            *on_gpu(3 * GIB)["gpus"],
            {"total_bytes": 80 * GIB, "entries": [{"kind": "free", "nbytes": 79 * GIB, "holder": None}]},
        ]
    }
    words = sentence(situation()._replace(ledger=ledger))
    assert "(requested 4.0 GiB): 3.0 GiB of 140.0 GiB is free; " in words


def test_a_real_program_is_told_what_is_free_before_its_small_arrays(
    virtual_gpu: VirtualGpu, tmp_path: Path
) -> None:
    program = f"""
        other = held(117)
        vram.on_oom({str(tmp_path)!r})
        small = [vram.Buffer("20MiB") for _ in range(3)]
        notes = []
        for asked in ("100GiB", "200GiB"):
            try:
                vram.Buffer(asked)
            except vram.VramError as error:
                notes += [note for note in error.__notes__ if note.startswith("vram:")]
        other.communicate(b"\\n")
        tell(notes)
    """
    one, two = result(virtual_gpu, program)
    words = (
        r"vram: the GPU is out of memory \(requested (\d00)\.0 GiB\): (\d+\.\d) GiB of \d+\.\d GiB is free; "
    )
    for note, asked, cause in (
        (one, "100", "other processes hold 117."),
        (two, "200", "no request of that size"),
    ):
        begins = re.match(words, note)
        assert begins, note
        assert begins[1] == asked
        assert 20 < float(begins[2]) < 23
        assert note[begins.end() :].startswith(cause)
        assert "small[" not in note


def test_holders_of_unknown_size_are_no_figure() -> None:
    unsized = {"kind": "process", "nbytes": None, "holder": {"pid": 9}}
    assert "other holders" not in sentence(situation()._replace(ledger={"gpus": [{"entries": [unsized]}]}))
