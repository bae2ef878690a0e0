"""`vram oom`: from files, pipes and terminals; what it finds, and how it says that there is nothing."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import pty
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from jsonschema import validate

from tests.cli.conftest import PROGRAM, Run
from tests.needs import needs
from tests.oom.conftest import Log
from tests.oom.corpus import MESSAGES
from tests.patience import PATIENCE_S
from vram.oom.cases import MAX_CASES
from vram.report import schema

OTHERS, GRAPHS, BARE = "pytorch-2.5-one-other", "pytorch-2.4-graphs", "pycuda-alloc"
PIECES = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
    "capacity of 23.64 GiB of which 1.52 GiB is free. Including non-PyTorch memory, this process has"
    " 22.11 GiB memory in use. Of the allocated memory 15.00 GiB is allocated by PyTorch, and 6.60 "
    "GiB is reserved by PyTorch but unallocated."
)


@pytest.mark.parametrize("columns", ["40", "80", "200"])
def test_the_answer_names_the_kind_shows_the_sum_and_advises(
    vram: Run, monkeypatch: pytest.MonkeyPatch, columns: str, log_of: Log
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    answer = vram("oom", log_of(OTHERS))
    assert answer.code == 0
    assert "held by another process" in answer.out
    assert "asked 1.95 − free 1.58 = missing 0.37 GiB" in " ".join(answer.out.split())
    assert "vram kill 24930" in answer.out
    assert max(map(len, answer.out.splitlines())) <= int(columns)


def test_the_balance_sums_in_the_digits_that_are_shown(vram: Run, log_of: Log) -> None:
    lines = vram("oom", log_of(OTHERS)).out.splitlines()
    rows = [line.split() for line in lines if "GiB" in line and "%" in line]
    shown = sum(float(row[0]) for row in rows)
    assert shown == pytest.approx(14.57, abs=0.03)


def test_ascii_is_ascii(vram: Run, log_of: Log) -> None:
    assert vram("oom", "--ascii", log_of(OTHERS)).out.isascii()


def test_nothing_is_taken_away_not_added(vram: Run, log_of: Log) -> None:
    log = "CUDA out of memory. Tried to allocate 978.00 MiB (GPU 0; 4.00 GiB total capacity; 1.68 GiB already"
    log += " allocated; 0 bytes free; 2.72 GiB reserved in total by PyTorch)"
    path = log_of(OTHERS)
    Path(path).write_text(log)
    assert "asked 978.00 − free 0.00 = missing 978.00 MiB" in " ".join(vram("oom", path).out.split())


def test_json_has_the_figures_in_bytes(vram: Run, log_of: Log) -> None:
    answer = vram("oom", "--json", log_of(OTHERS))
    report = json.loads(answer.out)
    (case,) = report["cases"]
    assert report["schema"] == 2
    assert report["nbytes"] == len(MESSAGES[OTHERS].log)
    assert case["judgement"]["kind"] == "other-process"
    assert case["reading"]["asked"]["nbytes"] == round(1.95 * 1024**3)
    assert case["reading"]["others"] == [
        {"pid": 24930, "nbytes": {"nbytes": round(12.02 * 1024**3), "slack": 5368710}}
    ]
    assert sum(term["nbytes"] for term in case["judgement"]["balance"]["terms"]) == pytest.approx(
        case["judgement"]["balance"]["total"], abs=case["judgement"]["balance"]["slack"]
    )


def test_json_of_logs_with_every_message_is_what_its_schema_says(vram: Run, tmp_path: Path) -> None:
    log = tmp_path / "log"
    messages = list(MESSAGES.values())
    half = MAX_CASES // 2  # of more than the most cases, the rest is only counted
    found = set()
    for begin in range(0, len(messages), half):
        log.write_bytes(b"step 1 loss 2.0\n".join(each.log for each in messages[begin : begin + half]))
        report = json.loads(vram("oom", "--json", str(log)).out)
        validate(report, json.loads(schema.shipped("oom").read_bytes()))
        found |= {(case["reading"]["dialect"], case["judgement"]["kind"]) for case in report["cases"]}
    # Some of them belong together with the one before, and become one case.
    wanted = {(message.expected["dialect"], message.expected["kind"]) for message in messages}
    assert len(found & wanted) > 0.9 * len(wanted)


def test_the_shipped_schema_is_current() -> None:
    assert schema.shipped("oom").read_bytes() == schema.rendered("oom")


def test_a_message_without_figures_says_what_is_missing(
    vram: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("log").write_bytes(MESSAGES[BARE].log)
    answer = vram("oom", "log")
    assert answer.code == 3
    assert "how much of it was free" in " ".join(answer.out.split())
    assert "vram oom --live log\n" in answer.out


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("torch-cublas-create", "A cuBLAS handle did not fit. It is allocated from the driver directly"),
        ("torch-cudnn", "A cuDNN workspace did not fit. It is allocated from the driver directly"),
        ("nccl-enqueue", "NCCL's buffers did not fit. They are allocated from the driver directly"),
        ("jax-cublas", "cuBLAS could not allocate what it needs"),
    ],
)
def test_a_library_is_told_in_whole_sentences(name: str, sentence: str) -> None:
    assert sentence in MESSAGES[name].case().judgement.cause


def test_a_log_whose_name_looks_like_an_option_can_be_pasted_all_the_same(
    vram: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("-o").write_bytes(MESSAGES[BARE].log)
    assert "vram oom --live ./-o\n" in vram("oom", "--", "-o").out


def test_several_errors_are_told_apart_and_counted(vram: Run, tmp_path: Path) -> None:
    log = tmp_path / "log"
    noise = b"step 1 loss 2.0\n" * 50
    log.write_bytes(
        (noise + MESSAGES[OTHERS].log) * 3 + noise + MESSAGES[GRAPHS].log + noise + MESSAGES[BARE].log
    )
    report = json.loads(vram("oom", "--json", str(log)).out)
    assert [(case["judgement"]["kind"], case["count"]) for case in report["cases"]] == [
        ("other-process", 3),
        ("cached", 1),
        ("unknown", 1),
    ]
    assert report["cases"][0]["first_line"] == 58
    answer = vram("oom", str(log))
    assert answer.code == 3
    assert "5 out-of-memory errors, 3 different" in answer.out
    assert "3 times" in answer.out


def test_nothing_found_has_a_status_of_its_own(vram: Run, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("all memory is well\n" * 100)
    answer = vram("oom", str(log))
    assert (answer.code, answer.out) == (9, "")
    assert "no out-of-memory message" in answer.err


def test_json_is_an_object_where_nothing_is_found(vram: Run, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    answer = vram("oom", "--json", str(log))
    assert answer.code == 9
    assert json.loads(answer.out)["cases"] == []
    assert "the input is empty" in answer.err


@pytest.mark.parametrize(
    "line",
    [
        "To avoid CUDA running out of memory, lower the batch size",
        "max memory allocated 12.3 GiB of 79.2 GiB, cached 3 GiB",
        "INFO KV cache usage: 12.3%, gpu_memory_utilization=0.9",
        "caching allocator initialised; will try to allocate lazily",
        "killed 3 stale sessions; 12 fish were Killed in the game",
    ],
)
def test_lines_that_only_sound_like_it_are_left_alone(vram: Run, tmp_path: Path, line: str) -> None:
    log = tmp_path / "log"
    log.write_text(f"{line}\n" * 3)
    assert vram("oom", str(log)).code == 9


@pytest.mark.parametrize("name", ["missing", "folder"])
def test_what_is_no_file_is_refused(vram: Run, tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    answer = vram("oom", str(tmp_path / name))
    assert (answer.code, answer.out) == (2, "")
    assert "cannot read" in answer.err
    assert "hint:" in answer.err


@needs("ordinary-user", detail="root may read everything")
def test_a_file_that_may_not_be_read_is_refused(vram: Run, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch(mode=0)
    answer = vram("oom", str(log))
    assert answer.code == 2
    assert "Permission denied" in answer.err


def test_a_compressed_log_is_read_as_it_is(vram: Run, tmp_path: Path) -> None:
    log = tmp_path / "log.gz"
    log.write_bytes(gzip.compress(b"noise\n" * 1000 + MESSAGES[GRAPHS].log))
    assert "kept by this program's own pools" in vram("oom", str(log)).out


def test_a_damaged_compressed_log_is_bad_input(vram: Run, tmp_path: Path) -> None:
    log = tmp_path / "log.gz"
    log.write_bytes(gzip.compress(os.urandom(100_000))[:50_000])
    answer = vram("oom", str(log))
    assert answer.code == 5
    assert "is truncated" in answer.err


@pytest.mark.parametrize("packed", [gzip.compress, lzma.compress, bz2.compress])
def test_compressed_logs_are_read_and_damaged_ones_told(
    vram: Run, tmp_path: Path, packed: Callable[[bytes], bytes]
) -> None:
    whole = packed(os.urandom(100_000).hex().encode() + b"\n" + MESSAGES[GRAPHS].log)
    log = tmp_path / "log"
    log.write_bytes(whole)
    assert "kept by this program's own pools" in vram("oom", str(log)).out
    for damaged in (whole[: len(whole) // 2], whole[:5000] + b"\xff" * 500 + whole[5500:]):
        log.write_bytes(damaged)
        answer = vram("oom", str(log))
        assert (answer.code, answer.out) == (5, "")
        assert str(log) in answer.err


def test_a_log_of_several_xz_parts_is_read_whole(vram: Run, tmp_path: Path) -> None:
    log = tmp_path / "log.xz"
    noise, message = b"noise\n" * 50_000, MESSAGES[GRAPHS].log
    log.write_bytes(lzma.compress(noise) + bytes(8) + lzma.compress(message))
    plain = tmp_path / "log"
    plain.write_bytes(noise + message)
    assert vram("oom", str(log)).out == vram("oom", str(plain)).out


def test_a_log_that_asks_for_gigabytes_to_be_unpacked_is_refused(vram: Run, tmp_path: Path) -> None:
    """A file of a few bytes says how large the memory for unpacking has to be."""
    greedy = [{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 30, "mode": lzma.MODE_FAST, "mf": lzma.MF_HC3}]
    log = tmp_path / "log.xz"
    log.write_bytes(lzma.compress(MESSAGES[GRAPHS].log, filters=greedy))
    answer = vram("oom", str(log))
    assert (answer.code, answer.out) == (5, "")
    assert "Memory usage limit exceeded" in answer.err


@pytest.mark.parametrize(
    ("first", "kind", "command"), [(b"PK\x03\x04", "zip", "unzip"), (b"\x28\xb5\x2f\xfd", "zstd", "zstd -dc")]
)
def test_what_is_compressed_otherwise_is_told_with_the_command_for_it(
    vram: Run, tmp_path: Path, first: bytes, kind: str, command: str
) -> None:
    log = tmp_path / "log"
    log.write_bytes(first + bytes(100))
    answer = vram("oom", str(log))
    assert answer.code == 5
    assert f"is compressed with {kind}" in answer.err
    assert command in answer.err


def test_a_file_that_is_no_text_is_called_so(vram: Run, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"\x7fELF\x02\x01\x01" + bytes(range(256)) * 1000)
    answer = vram("oom", str(program))
    assert answer.code == 9
    assert f"{program} is not text" in answer.err


def test_a_pipe_that_never_ends_is_told_and_stopped_without_loss() -> None:
    """Ctrl-C shows what came before it."""
    process = subprocess.Popen(
        [*PROGRAM, "oom", "--json"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stderr is not None
    try:
        process.stdin.write(MESSAGES[OTHERS].log)
        process.stdin.flush()
        assert b"until it ends; Ctrl-C" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        out = process.stdout.read() if process.stdout else b""
        err = process.stderr.read()
        assert process.wait(PATIENCE_S) == 0, err
    finally:
        process.kill()
        process.stdin.close()
        process.wait()
    assert json.loads(out)["cases"][0]["judgement"]["kind"] == "other-process"
    assert b"stopped before standard input ended" in err


def test_a_pipe_is_read_to_its_end() -> None:
    done = subprocess.run([*PROGRAM, "oom", "--json"], input=MESSAGES[OTHERS].log, capture_output=True)
    assert done.returncode == 0
    assert json.loads(done.stdout)["cases"][0]["judgement"]["kind"] == "other-process"


def test_a_terminal_is_told_what_to_paste() -> None:
    """And Ctrl-D ends it."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [*PROGRAM, "oom"], stdin=follower, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    os.close(follower)
    assert process.stderr is not None
    try:
        assert b"Ctrl-D" in process.stderr.readline()
        os.write(leader, MESSAGES[BARE].log + b"\x04")
        out, err = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
        os.close(leader)
    assert process.returncode == 3, err
    assert b"PyCUDA" in out


def test_kinds_are_listed_and_explained(vram: Run) -> None:
    listed = vram("oom", "--kinds")
    assert listed.code == 0
    for line in listed.out.splitlines():
        kind = line.split()[0]
        page = vram("explain", kind)
        assert page.code == 0
        assert page.out.startswith(f"{kind}: ")
        assert "How it is recognised" in page.out


def test_a_gpu_is_chosen_only_to_join_with(vram: Run, log_of: Log) -> None:
    answer = vram("oom", "--gpu", "0", log_of(OTHERS))
    assert answer.code == 2
    assert "--live" in answer.err


def test_a_log_cannot_steer_the_terminal(vram: Run, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(
        "\u202e\x1b]0;owned\x07\x9b31m CUDA out of memory. Tried to allocate 2 GiB \x1b[2J\u202e\n".encode()
    )
    out = vram("oom", str(log)).out
    assert not [char for char in out if not (char.isprintable() or char == "\n")]


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("pytorch-2.4-fragmented", "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"),
        ("pytorch-2.9-alloc-conf", "export PYTORCH_ALLOC_CONF=expandable_segments:True"),
        ("pytorch-hip-old", "export PYTORCH_HIP_ALLOC_CONF=expandable_segments:True"),
        ("pytorch-1.10-fragmented", "export PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128"),
        ("jax-pool-limit", "export XLA_PYTHON_CLIENT_MEM_FRACTION=0.83"),
        ("jax-cudnn", "export XLA_PYTHON_CLIENT_PREALLOCATE=false"),
        ("pytorch-1.13-others-large", "vram free --caches --gpu 3"),
        ("broken-pytorch-assert", "export CUDA_LAUNCH_BLOCKING=1"),
        ("xid-off-the-bus", "nvidia-smi -q -d ECC"),
    ],
)
def test_commands_are_worked_out_from_the_figures(name: str, command: str) -> None:
    assert command in [remedy.command for remedy in MESSAGES[name].case().judgement.remedies]


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("vllm-startup", "--gpu-memory-utilization 0.38"),
        ("vllm-kv-needed", "--max-model-len 36864"),
        ("vllm-kv-needed-new", "--max-model-len 802320"),
        ("tf2-pool-too-large", "89% of the batch"),
        ("sglang-static", "--mem-fraction-static 0.92"),
        ("sglang-graphs", "--cuda-graph-max-bs"),
        ("tgi-prefill", "--max-batch-prefill-tokens 2048"),
        ("tgi-total", "--max-batch-total-tokens 8000"),
        ("vllm-profile-run", "--gpu-memory-utilization"),
        ("paddle-2", "FLAGS_allocator_strategy=auto_growth"),
        ("paddle-limit", "FLAGS_gpu_memory_limit_mb"),
        ("comfyui-no-figures", "--lowvram"),
        ("sd-webui-load", "--medvram"),
        ("ollama-runner", "OLLAMA_NUM_PARALLEL=1"),
        ("ollama-layout", "Leave num_gpu out"),
        ("llama-cuda-pool", "-ngl"),
        ("numpy-by-shape", "float32"),
        ("broken-pytorch-assert", "TORCH_USE_CUDA_DSA is an option for building PyTorch"),
    ],
)
def test_advice_is_worked_out_from_the_figures(name: str, advice: str) -> None:
    texts = [remedy.text for remedy in MESSAGES[name].case().judgement.remedies]
    assert any(advice in text for text in texts), texts


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("comfyui-no-figures", "line 7 · PyTorch in ComfyUI"),
        ("ollama-runner", "line 5 · llama.cpp in Ollama · GPU 0"),
        ("llama-model", "line 1 · llama.cpp · GPU 0"),
        ("broken-numba", "line 1 · Numba"),
        ("broken-thrust", "line 1 · CUDA"),
        ("xid-page-fault", "line 2 · the driver"),
        ("paddle-1", "line 3 · PaddlePaddle · GPU 0"),
    ],
)
def test_the_heading_says_whose_message_it_is_and_in_which_program(
    vram: Run, name: str, source: str, log_of: Log
) -> None:
    assert vram("oom", log_of(name)).out.splitlines()[0] == source


def test_who_only_runs_a_program_is_not_told_to_change_its_code() -> None:
    programs = [message for message in MESSAGES.values() if "program" in message.expected]
    assert len(programs) > 20
    for message in programs:
        texts = " ".join(remedy.text for remedy in message.case().judgement.remedies)
        assert "retry_on_oom" not in texts, message.name
        assert "on_oom()" not in texts, message.name


def test_a_broken_context_is_told_apart_from_out_of_memory(vram: Run, log_of: Log) -> None:
    cause = " ".join(vram("oom", log_of("broken-pytorch-assert")).out.split())
    assert "This is not out of memory. A device-side assert (CUDA_ERROR_ASSERT, 710:" in cause
    assert '"srcIndex < srcSelectDimSize" failed' in cause
    assert (
        "every later call of the process fails, even freeing. Its memory returns when the process ends."
        in cause
    )


def test_a_command_to_paste_is_never_cut_off(
    vram: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A word longer than the line runs over its edge."""
    monkeypatch.setenv("COLUMNS", "40")
    log = tmp_path / "log"
    log.write_text(PIECES)
    assert "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n" in vram("oom", str(log)).out


def test_an_empty_name_is_told(vram: Run) -> None:
    answer = vram("oom", "")
    assert (answer.code, answer.err.splitlines()[0]) == (2, "vram: file name is empty")


def test_the_list_of_kinds_is_not_json(vram: Run) -> None:
    assert vram("oom", "--kinds", "--json").code == 2


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_a_log_that_windows_powershell_wrote(vram: Run, tmp_path: Path, encoding: str) -> None:
    """In UTF-16, longer than a portion, with the message behind many lines."""
    log = tmp_path / "log"
    log.write_bytes(("\ufeff" + "Schritt für Schritt 🙂\r\n" * 40_000 + PIECES + "\r\n").encode(encoding))
    answer = vram("oom", str(log))
    assert (answer.code, answer.out.splitlines()[0]) == (0, "line 40001 · PyTorch · GPU 0")
    assert "fragmented" in answer.out


@pytest.mark.parametrize("number", ["7", "-1"])
def test_a_gpu_that_is_not_there_is_a_wrong_call(vram: Run, busy: str, tmp_path: Path, number: str) -> None:
    log = tmp_path / "log"
    log.write_text(PIECES)
    answer = vram("oom", "--from", busy, "--gpu", number, str(log))
    assert (answer.code, answer.out) == (2, "")
    assert number in answer.err
