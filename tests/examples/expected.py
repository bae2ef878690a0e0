"""What the articles' programs do, step by step: one truth for the virtual GPU and for real ones.

The figures are MiB in use above what was in use before the program started, as an H200 with driver
580.159.04 showed them: 527 are a context with the driver's initialisation, 3 the initialisation alone, 2 the
least that an allocation takes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

# What the driver takes and releases by itself on a real GPU, while a program waits.
NOISE_MIB = 8
# A program with a context: from here to the next step nothing but its own calls changes what is in use.
CONTEXT_MIB = 500


@dataclass(frozen=True)
class Expected:
    """Steps as in the table of examples/README.md. ``undeclared`` is what a C++ compiler does not know."""

    steps: str
    output: tuple[str, ...] = ()
    undeclared: str | None = None

    def pairs(self) -> list[tuple[str, int]]:
        found = (re.fullmatch(r"(.+) (\d+)", part) for part in self.steps.split(", "))
        return [(each[1], int(each[2])) for each in found if each]


ENDED = "the threads have ended, their memory is free"
NO_CONTEXT = "5 × cuMemAlloc failed: invalid device context"
NO_MEM_FREE = "5 × module 'pycuda.driver' has no attribute 'mem_free'"
BAD_BATCH = "error: a bad batch"

EXPECTED = {
    "after-exit/1_free_as_written": Expected(
        "started 0, allocated 1551, freed 527, ended 0", ("the memory is free",)
    ),
    "after-exit/1_free_fixed": Expected(
        "started 0, allocated 1551, freed 527, ended 0", ("the memory is free",)
    ),
    "after-exit/2_reset_as_written": Expected(
        "started 0, allocated 1551, synchronized 1551, freed 527, reset 3, ended 0",
        ("the memory is free and the device is reset",),
    ),
    "after-exit/2_reset_fixed": Expected(
        "started 0, allocated 1551, freed 527, reset 3, ended 0",
        ("the memory is free and the device is reset",),
    ),
    "after-exit/3_managed_as_written": Expected(
        "started 0, allocated 527, freed 527, ended 0", ("the managed memory is free",)
    ),
    "after-exit/3_managed_fixed": Expected(
        "started 0, allocated 527, 128 MiB written by the device 655, freed 527, ended 0",
        ("the managed memory is free",),
    ),
    "no-process/1_small_as_written": Expected(
        "started 0, allocated 529, freed 527, ended 0", undeclared="cudaError_t"
    ),
    "no-process/1_small_fixed": Expected("started 0, allocated 529, freed 527, ended 0"),
    "no-process/2_small_managed_as_written": Expected(
        "started 0, allocated 527, freed 527, ended 0", undeclared="cudaError_t"
    ),
    "no-process/2_small_managed_fixed": Expected(
        "started 0, allocated 527, written by the host 527, freed 527, ended 0"
    ),
    "no-process/3_free_null_as_written": Expected(
        "started 0, cudaFree(0) 527, allocated 529, freed 527, ended 0", undeclared="cudaFree"
    ),
    "no-process/3_free_null_fixed": Expected(
        "started 0, cudaFree(0) 527, allocated 529, freed 527, reset 3, ended 0"
    ),
    "threads/1_no_free_as_written": Expected(
        "context 527, threads ended 527, ended 0",
        ("the threads have ended, their memory stays", NO_CONTEXT),
    ),
    "threads/1_no_free_entered": Expected(
        "context 527, threads hold 547, threads ended 547, ended 0",
        ("1 × device_allocation in out-of-thread context could not be cleaned up",),
    ),
    "threads/1_no_free_fixed_pycuda": Expected("context 527, threads hold 547, threads ended 527, ended 0"),
    "threads/1_no_free_fixed_cupy": Expected(
        "context 527, threads hold 547, threads ended 547, pool released 527, ended 0"
    ),
    "threads/1_no_free_fixed_numba": Expected(
        "context 527, threads hold 547, threads ended 547, pending frees made 527, ended 0"
    ),
    "threads/2_mem_free_as_written": Expected(
        "context 527, threads ended 527, ended 0",
        (ENDED, NO_CONTEXT),
    ),
    "threads/2_mem_free_fixed_pycuda": Expected("context 527, threads hold 547, threads ended 527, ended 0"),
    "threads/2_mem_free_fixed_cupy": Expected("context 527, threads hold 547, threads ended 527, ended 0"),
    "threads/2_mem_free_fixed_numba": Expected("context 527, threads hold 547, threads ended 527, ended 0"),
    "threads/3_finalizer_as_written": Expected(
        "context 527, threads ended 527, ended 0",
        (ENDED, NO_CONTEXT, NO_MEM_FREE),
    ),
    "threads/3_finalizer_fixed_pycuda": Expected(
        "context 527, threads hold 547, threads ended 547, owners dropped 527, context ended 3, ended 0"
    ),
    "threads/3_finalizer_fixed_cupy": Expected("context 527, threads hold 547, threads ended 527, ended 0"),
    "threads/3_finalizer_fixed_numba": Expected(
        "context 527, threads hold 547, threads ended 527, context ended 3, ended 0"
    ),
    "out-of-memory/1_exception_as_written": Expected(
        "started 0, allocated 1551, after the try block 1551, ended 0"
    ),
    "out-of-memory/1_exception_fixed": Expected(
        "started 0, allocated 1551, caught 527, allocated 1551, caught 527, ended 0", (BAD_BATCH, BAD_BATCH)
    ),
    "out-of-memory/2_reset_only_as_written": Expected(
        "started 0, cudaFree(nullptr) 527, reset 3, ended 0",
    ),
    "out-of-memory/2_reset_only_fixed": Expected(
        "started 0, context 527, allocated 1551, reset 3, ended 0", (BAD_BATCH,)
    ),
    "out-of-memory/3_library_as_written": Expected("started 0, used once 591, used twice 655, ended 0"),
    "out-of-memory/3_library_fixed": Expected(
        "started 0, used once 591, used twice 655, session ended 527, ended 0"
    ),
    "flush/1_free_as_written": Expected("started 0, allocated 531, freed 527, ended 0"),
    "flush/1_free_fixed": Expected("started 0, allocated 531, freed 527, ended 0"),
    "flush/2_zero_as_written": Expected("started 0, allocated 531, zeroed 531, freed 527, ended 0"),
    "flush/2_zero_fixed": Expected("started 0, allocated 531, zeroed 531, freed 527, ended 0", (BAD_BATCH,)),
    "flush/3_two_as_written": Expected(
        "started 0, first allocated 531, second allocated 535, first freed 531, second freed 527, ended 0"
    ),
    "flush/3_two_fixed": Expected(
        "started 0, first allocated 531, second allocated 535, two streams 537, both freed 529, ended 0",
        (BAD_BATCH,),
    ),
}


def differences(result: dict[str, Any], noise_mib: int = 0) -> list[str]:
    """How *result*, a program of the JSON of examples/steps.py, differs from what is expected.

    Each step may differ by *noise_mib*; what the program itself changes between two steps, by 1 MiB at most.
    """
    expected = EXPECTED[result["program"]]
    wanted = expected.pairs()
    measured = [(step["step"], step["mib"]) for step in result["steps"]]
    found = []
    if [name for name, _ in measured] != [name for name, _ in wanted]:
        found.append(f"the steps are {measured}")
    before = (0, 0)
    for (name, mib), (_, wanted_mib) in zip(measured, wanted, strict=False):
        if abs(mib - wanted_mib) > noise_mib:
            found.append(f"{name}: {mib} MiB, expected {wanted_mib}")
        change, wanted_change = mib - before[0], wanted_mib - before[1]
        if min(before[1], wanted_mib) > CONTEXT_MIB and abs(change - wanted_change) > 1:
            found.append(f"{name}: {change:+} MiB, expected {wanted_change:+}")
        before = (mib, wanted_mib)
    if result["exit_code"] != 0:
        found.append(f"exit code {result['exit_code']}")
    if tuple(result["output"]) != expected.output:
        found.append(f"it said {result['output']}")
    return found + _compilation(result, expected.undeclared)


def _compilation(result: dict[str, Any], undeclared: str | None) -> list[str]:
    """As written, the programs of one article compile as CUDA sources only."""
    error = result["compile_error"]
    if undeclared is None:
        return [f"it does not compile as C++: {error}"] if error else []
    if error is None:
        return ["it compiles as C++"]
    return [] if f"'{undeclared}'" in error else [f"it does not compile as C++ because of {error}"]
