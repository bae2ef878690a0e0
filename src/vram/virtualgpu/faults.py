"""Failures on request: the lines of a virtual GPU's ``faults`` file.

    <function> [gpu=N] [after=N | nth=N] [error=CODE] [sticky=CODE] [hang] [slow=SECONDS] [sentinel]
        [halfway=CODE] [value=N]

<function> is a shell pattern on an exported name: ``nvmlDeviceGet*``, ``cuMemAlloc*``. CODE is
the library's number or its name, with or without the prefix: 15, GPU_IS_LOST,
NVML_ERROR_GPU_IS_LOST. The file itself holds numbers only. ``value`` is the state that
``cuCheckpointProcessGetState`` tells. ``step.*`` names steps inside of calls instead, for tests of what a
call undoes when it fails late (native/virtualgpu/store/faults.c lists them).
"""

from __future__ import annotations

import re

from vram.errors import UsageError

NVML_CODES = {
    "UNINITIALIZED": 1,
    "INVALID_ARGUMENT": 2,
    "NOT_SUPPORTED": 3,
    "NO_PERMISSION": 4,
    "NOT_FOUND": 6,
    "INSUFFICIENT_SIZE": 7,
    "DRIVER_NOT_LOADED": 9,
    "TIMEOUT": 10,
    "IRQ_ISSUE": 11,
    "FUNCTION_NOT_FOUND": 13,
    "CORRUPTED_INFOROM": 14,
    "GPU_IS_LOST": 15,
    "RESET_REQUIRED": 16,
    "OPERATING_SYSTEM": 17,
    "LIB_RM_VERSION_MISMATCH": 18,
    "IN_USE": 19,
    "MEMORY": 20,
    "NO_DATA": 21,
    "UNKNOWN": 999,
}
CUDA_CODES = {
    "INVALID_VALUE": 1,
    "OUT_OF_MEMORY": 2,
    "NOT_INITIALIZED": 3,
    "DEINITIALIZED": 4,
    "NO_DEVICE": 100,
    "INVALID_DEVICE": 101,
    "INVALID_CONTEXT": 201,
    "ECC_UNCORRECTABLE": 214,
    "OPERATING_SYSTEM": 304,
    "INVALID_HANDLE": 400,
    "ILLEGAL_STATE": 401,
    "NOT_READY": 600,
    "ILLEGAL_ADDRESS": 700,
    "LAUNCH_TIMEOUT": 702,
    "ASSERT": 710,
    "HARDWARE_STACK_ERROR": 714,
    "ILLEGAL_INSTRUCTION": 715,
    "MISALIGNED_ADDRESS": 716,
    "INVALID_ADDRESS_SPACE": 717,
    "INVALID_PC": 718,
    "LAUNCH_FAILED": 719,
    "NOT_PERMITTED": 800,
    "NOT_SUPPORTED": 801,
    "SYSTEM_NOT_READY": 802,
    "UNKNOWN": 999,
}
FLAGS = ("hang", "sentinel")
COUNTS = ("gpu", "after", "nth")
CODES = ("error", "sticky", "halfway")
EFFECTS = (*FLAGS, *CODES, "slow", "value")


def read_line(text: str) -> str:
    """Check one line as a person writes it; return it as the file holds it."""
    function, *words = text.split() or [""]
    if not re.fullmatch(r"(nvml|cu|step\.)[\w*?\[\]-]*|\*", function):
        raise UsageError(
            f"{function!r} names no function of the driver",
            hint="begin with a pattern like nvmlDeviceGetMemoryInfo* or cuMemAlloc*",
        )
    read = [_read_word(function, word) for word in words]
    if not any(word.partition("=")[0] in EFFECTS for word in read):
        raise UsageError(
            f"the fault {text.strip()!r} does nothing",
            hint="add error=CODE, sticky=CODE, hang, slow=SECONDS or sentinel",
        )
    return " ".join([function, *read])


def _read_word(function: str, word: str) -> str:
    key, equals, value = word.partition("=")
    if key in FLAGS and not equals:
        return word
    if key in COUNTS and value.isascii() and value.isdigit():
        return word
    if key == "slow" and re.fullmatch(r"\d+(\.\d+)?", value, re.ASCII):
        return word
    if key == "value" and re.fullmatch(r"-?\d+", value, re.ASCII):
        return word
    if key in CODES and value:
        return f"{key}={code(function, value)}"
    raise UsageError(
        f"{word!r} says nothing in a fault",
        hint="the words are gpu=N after=N nth=N error=CODE sticky=CODE hang slow=SECONDS sentinel"
        " halfway=CODE value=N",
    )


def code(function: str, word: str | int) -> int:
    """The number for an error, told by the number or by its name in the function's library."""
    if isinstance(word, int) or (word.isascii() and word.isdigit()):
        return int(word)
    known = CUDA_CODES if function.startswith("cu") else NVML_CODES
    name = word.upper().removeprefix("NVML_ERROR_").removeprefix("CUDA_ERROR_")
    if name not in known:
        raise UsageError(f"there is no error {word!r}", hint="known are " + ", ".join(known))
    return known[name]
