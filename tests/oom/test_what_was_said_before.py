"""What a program said at its start: cards by their name, free memory by Ollama, of this run and no other."""

from __future__ import annotations

import io

import pytest

from vram.model.cards import CARD_MIB, card_nbytes
from vram.model.oom import Case
from vram.oom.cases import cases
from vram.oom.reader import BEHIND, FAR_BEHIND, MAX_FAR_LINES, find_messages
from vram.units import GIB, MIB

FAILED = (
    "ggml_backend_cuda_buffer_type_alloc_buffer: allocating {:.2f} MiB on device 0: cudaMalloc failed: out of"
    " memory\n"
)
CARD = "  Device 0: {}, compute capability 8.9, VMM: yes\n"
BEGAN = "llama_model_load_from_file_impl: using device CUDA0 ({}) (0000:01:00.0) - {} MiB free\n"
WEIGHTS = "load_tensors:        CUDA0 model buffer size = {:.2f} MiB\n"
# The model's own description: a few hundred lines between the start and what fails.
METADATA = "llama_model_loader: - kv   1: general.name str = a model of some size\n"


def only_case(log: str) -> Case:
    found = cases(find_messages(io.BytesIO(log.encode()))).cases
    assert len(found) == 1, [each.reading for each in found]
    return found[0]


@pytest.mark.parametrize(
    ("name", "mib"),
    [
        ("NVIDIA GeForce RTX 4090", 24564),
        ("NVIDIA L40S", 46068),
        ("Tesla T4", 15360),
        ("NVIDIA A100-SXM4-80GB", 81920),
        ("NVIDIA H100 80GB HBM3", 81920),
        ("Tesla V100-PCIE-32GB", 32768),
        ("NVIDIA GeForce GTX 1060 6GB", 6144),
        ("NVIDIA RTX 6000 Ada Generation", 49140),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", 97887),
        ("NVIDIA GeForce RTX 3080", None),  # sold with 10 and with 12 GB
        ("NVIDIA GeForce RTX 4060 Laptop GPU", None),
        ("NVIDIA GeForce RTX 4090 D", None),
        ("", None),
    ],
)
def test_a_card_s_name_gives_its_size_where_it_decides_it(name: str, mib: int | None) -> None:
    assert card_nbytes(name) == (mib * MIB if mib else None)


def test_no_name_in_the_table_contradicts_the_size_that_it_says() -> None:
    for name, mib in CARD_MIB.items():
        said = card_nbytes(name)
        assert said is None or 0.95 * said <= mib * MIB <= said, name


def test_a_card_s_name_in_the_log_is_the_size_of_the_gpu() -> None:
    case = only_case(
        CARD.format("NVIDIA GeForce RTX 4090")
        + BEGAN.format("NVIDIA GeForce RTX 4090", 23081)
        + WEIGHTS.format(18000)
        + FAILED.format(9866)
    )
    assert case.reading.total is not None
    assert case.reading.total.nbytes == 24564 * MIB
    assert case.reading.total.slack > 484 * MIB  # CUDA's own total is 24080 MiB
    assert (case.judgement.kind, case.judgement.certainty) == ("too-large", "fact")
    assert not case.judgement.missing


def test_what_was_printed_goes_before_what_a_name_says() -> None:
    card = CARD.replace("VMM: yes", "VMM: yes, VRAM: 24080 MiB").format("NVIDIA GeForce RTX 4090")
    printed = only_case(card + FAILED.format(9866)).reading.total
    assert printed is not None
    assert printed.nbytes == 24080 * MIB
    breakdown = (
        "llama_memory_breakdown_print: |   - CUDA0 (GTX 1080 Ti) | 11165 = 8702 +"
        " (10001 =  9814 +     134 +      51) |\n"
    )
    printed = only_case(breakdown + FAILED.format(9866)).reading.total
    assert printed is not None
    assert printed.nbytes == 11165 * MIB


def test_the_inexact_size_of_a_name_blames_no_other_process() -> None:
    """A GPU of 24564 MiB by its name, of which 23600 were free: the rest is the driver's and a context's."""
    log = (
        CARD.format("NVIDIA GeForce RTX 4090")
        + BEGAN.format("NVIDIA GeForce RTX 4090", 22600)
        + WEIGHTS.format(22000)
        + FAILED.format(900)
    )
    assert only_case(log).judgement.kind == "too-large"


OFFLOAD = (
    "time=2025-07-12T10:00:00.000Z level=INFO source=server.go:175 msg=offload library=cuda "
    'layers.requested=2 layers.model=29 layers.offload=2 layers.split="" memory.available="[{}]"'
    ' memory.gpu_overhead="0 B"\n'
)


@pytest.mark.parametrize("lines", [0, 2 * BEHIND // len(METADATA), (FAR_BEHIND - 2048) // len(METADATA)])
def test_ollama_s_free_memory_is_found_beyond_the_model_s_description(lines: int) -> None:
    log = OFFLOAD.format("9.3 GiB 22.5 GiB") + METADATA * lines + FAILED.format(12000)
    free = only_case(log).reading.free
    assert free is not None
    assert free.nbytes == pytest.approx(9.3 * GIB, abs=1)


def test_what_is_too_far_above_is_not_this_model_s() -> None:
    log = OFFLOAD.format("9.3 GiB") + METADATA * (2 * FAR_BEHIND // len(METADATA)) + FAILED.format(12000)
    assert only_case(log).reading.free is None


def test_free_memory_of_the_start_is_not_said_to_be_of_the_failure() -> None:
    case = only_case(OFFLOAD.format("22.8 GiB") + FAILED.format(2144))
    assert case.judgement.kind == "unknown"
    assert case.judgement.cause.startswith("22.8 GiB was free before the model was loaded, and 2.1 GiB was")
    assert "Try again" not in " ".join(remedy.text for remedy in case.judgement.remedies)


def test_ollama_s_total_is_taken_where_all_gpus_have_the_same() -> None:
    gpu = 'time=T level=INFO source=types.go:131 msg="inference compute" id=GPU-{} library=cuda total="{}"\n'
    same = gpu.format(0, "23.6 GiB") + gpu.format(1, "23.6 GiB") + FAILED.format(9000)
    total = only_case(same).reading.total
    assert total is not None
    assert total.nbytes == pytest.approx(23.6 * GIB, abs=1)
    assert only_case(same.replace("23.6", "11.9", 1)).reading.total is None


def test_buffers_of_an_earlier_run_are_not_added_to_this_one_s() -> None:
    run = "ggml_cuda_init: found 1 CUDA devices:\n" + CARD.format("NVIDIA L4") + WEIGHTS.format(9000)
    live = only_case(run + METADATA + run + FAILED.format(9866)).reading.live
    assert live is not None
    assert live.nbytes == 9000 * MIB


def test_of_many_such_lines_the_last_are_read() -> None:
    log = "".join(WEIGHTS.format(10) for _ in range(2 * MAX_FAR_LINES)) + FAILED.format(9866)
    live = only_case(log).reading.live
    assert live is not None
    assert live.nbytes == MAX_FAR_LINES * 10 * MIB


def test_the_same_failure_below_another_start_is_read_anew() -> None:
    """What was recognised is remembered, but not for a GPU of another size."""
    failed = FAILED.format(9866)
    log = CARD.format("Tesla T4") + failed + METADATA * 200 + CARD.format("NVIDIA L4") + failed
    totals = [found.reading.total for found in find_messages(io.BytesIO(log.encode()))]
    assert [total and total.nbytes for total in totals] == [15360 * MIB, 23034 * MIB]


TENSOR = (
    "OOM when allocating tensor with shape[16,64,64,64] and type float on"
    " /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc\n"
)
KERNEL = (
    "2024-05-01 10:00:00.1: W tensorflow/core/framework/op_kernel.cc:1839] OP_REQUIRES failed at"
    f" conv_ops.cc:1 : RESOURCE_EXHAUSTED: {TENSOR}"
)
RAISED = (
    f"ResourceExhaustedError: 2 root error(s) found.\n  (0) {TENSOR}\t [[node a]]\n  (1) {TENSOR}\t [[node"
    " a]]\n"
)


@pytest.mark.parametrize("log", [KERNEL + RAISED, RAISED, KERNEL, KERNEL + "  a frame\n" * 100 + RAISED])
def test_one_error_of_tensorflow_is_one_case(log: str) -> None:
    assert only_case(log).count == 1


def test_two_errors_of_tensorflow_are_two() -> None:
    assert only_case((KERNEL + RAISED) * 2).count == 2


JAX = (
    "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate"
    " 7516192768 bytes.\n"
)


def test_jax_s_preallocation_is_named_and_how_to_change_it() -> None:
    judgement = only_case(JAX).judgement
    assert "preallocates 75% of the GPU" in judgement.cause
    commands = [remedy.command for remedy in judgement.remedies]
    assert "export XLA_PYTHON_CLIENT_MEM_FRACTION=0.95" in commands
    assert "export XLA_PYTHON_CLIENT_PREALLOCATE=false" in commands


def test_a_log_that_says_that_jax_does_not_preallocate_is_believed() -> None:
    judgement = only_case(f"XLA_PYTHON_CLIENT_PREALLOCATE=false\n{JAX}").judgement
    assert "told not to preallocate" in judgement.cause
    assert "75%" not in judgement.cause
    commands = [remedy.command for remedy in judgement.remedies]
    assert "export XLA_PYTHON_CLIENT_PREALLOCATE=false" not in commands


def test_the_statement_that_raised_is_not_the_error() -> None:
    words = "Not enough memory. Please try to increase --mem-fraction-static."
    source = f'    raise RuntimeError("{words}")\n'
    assert not cases(find_messages(io.BytesIO(source.encode()))).cases
    case = only_case(f"{source}RuntimeError: {words}\n")
    assert (case.count, case.first_line) == (1, 2)
