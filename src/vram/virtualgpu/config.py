"""What a virtual GPU is told: the lines of its ``config`` file, MIG among them, and of its ``faults`` file.

What is left unsaid is as measured on an H200 under driver 580; the defaults live with the
library that reads this file (native/virtualgpu/store/config.c).
"""

from __future__ import annotations

import re
from itertools import count
from typing import NamedTuple

from vram.errors import UsageError
from vram.units import GIB, MIB, size

MAX_GPUS = 64
TOTAL_BYTES = 143771 * MIB
RESERVED_BYTES = 615 * MIB + 64 * 1024
# What the library accepts: a folder with a larger number has no GPU.
MAX_SIZE = 2**60
MAX_COUNT = 2**31 - 1
# NVML's older calls bring a buffer of 64 bytes for the name.
MAX_NAME_LENGTH = 63

SIZES = (
    "total_bytes",
    "reserved_bytes",
    "init_bytes",
    "context_bytes",
    "context_overhead_bytes",
    "bar1_bytes",
    "bar1_base_bytes",
    "windows_bytes",
    "cpu_bytes",
    "cache_bytes",
)
SWITCHES = (
    "ecc_enabled",
    "persistence",
    "mig_enabled",
    "mig_pending",
    "mig_restricted",
    "host_pids",
    "remap_pending",
    "remap_failure",
    "retires_pages",
    "retired_pending",
    "wddm",
    "unified",
)
NUMBERS = (
    "numa_node",
    "remapped_correctable",
    "remapped_uncorrectable",
    "retired_pages",
    "ecc_uncorrected",
    "utilization",
    "virtualization",
    "recovery_action",
    "compute_mode",
)
TEXTS = ("name", "uuid")
MIG = "mig"
# A machine whose GPU has no memory of its own, idle: a DGX Spark as an owner reported it (nvitop#208).
UNIFIED: dict[str, str | int] = {
    "name": "NVIDIA GB10",
    "total_bytes": 127_600_748 * 1024,
    "cpu_bytes": 9_034_380 * 1024,
    "cache_bytes": 2 * GIB,
    "reserved_bytes": 0,
}
OF_THE_MACHINE = ("driver_version", "cuda_version", "wddm")
COMPUTE_MODES = {"default": 0, "prohibited": 2, "exclusive_process": 3}

Setting = str | int | bool


def first_lines(gpus: int, settings: dict[str, Setting]) -> list[str]:
    """The file as it is first written: how many GPUs, and what holds for all of them."""
    if not 0 <= gpus <= MAX_GPUS:
        raise UsageError(f"{gpus} virtual GPUs cannot be made", hint=f"from 0 to {MAX_GPUS} can")
    if settings.get("unified"):
        if gpus > 1:
            raise UsageError("only one virtual GPU can have the machine's memory", hint="leave out --gpus")
        settings = UNIFIED | settings
    _check_room(settings)
    return [f"gpus = {gpus}", *lines(settings)]


def lines(settings: dict[str, Setting], gpu: int | None = None, said: str = "") -> list[str]:
    """One line for each setting, of one GPU or of all; *said* is what the file holds already."""
    plain = {key: value for key, value in settings.items() if key != MIG}
    written = [line(key, value, gpu) for key, value in plain.items()]
    if MIG not in settings:
        return written
    made = mig_devices(str(settings[MIG]), *sizes_in("\n".join((said, *written)), gpu))
    prefix = "" if gpu is None else f"gpu{gpu}."
    devices = [NONE, *(" ".join(map(str, each)) for each in made)]
    return [*written, f"{prefix}mig_enabled = 1", *(f"{prefix}mig_device = {each}" for each in devices)]


def sizes_in(said: str, gpu: int | None) -> tuple[int, int]:
    """Total and reserved bytes of a GPU, as the lines of a config file leave them."""
    values = {"total_bytes": TOTAL_BYTES, "reserved_bytes": RESERVED_BYTES}
    for each in said.splitlines():
        key, _, value = (part.strip() for part in each.partition("="))
        key = key.removeprefix(f"gpu{gpu}.")
        if key in values and value.isdigit():
            values[key] = int(value)
    return values["total_bytes"], values["reserved_bytes"]


def gpu_totals(said: str) -> list[int]:
    """The memory of each GPU of a config file."""
    gpus = [int(each.partition("=")[2]) for each in said.splitlines() if each.startswith("gpus =")]
    return [sizes_in(said, index)[0] for index in range(gpus[-1] if gpus else 1)]


def line(key: str, value: Setting, gpu: int | None = None) -> str:
    prefix = "" if gpu is None or key in OF_THE_MACHINE else f"gpu{gpu}."
    return f"{prefix}{key} = {_format_value(key, value)}"


def virtual_name(name: str) -> str:
    """*name*, with the word that keeps it from being taken for a real GPU's."""
    return name if "virtual" in name.lower() else f"{name} (virtual)"


def _check_room(settings: dict[str, Setting]) -> None:
    total, reserved = settings.get("total_bytes"), settings.get("reserved_bytes", RESERVED_BYTES)
    taken = int(settings.get("cpu_bytes", 0)) + int(settings.get("cache_bytes", 0))
    if total is not None and taken and int(total) <= taken:
        raise UsageError(
            f"{size(int(total))} of memory is less than the {size(taken)} that others use there",
            hint="give the virtual GPU more memory, or set cpu_bytes and cache_bytes",
        )
    if total is not None and int(total) <= int(reserved):
        raise UsageError(
            f"{size(int(total))} of memory is less than the {size(int(reserved))} that the driver reserves",
            hint="give the virtual GPU more memory, or set reserved_bytes",
        )


def _format_value(key: str, value: Setting) -> str:
    if key in SWITCHES:
        return str(int(bool(value)))
    if key == "compute_mode" and value in COMPUTE_MODES:
        return str(COMPUTE_MODES[str(value)])
    if key in (*SIZES, *NUMBERS, "cuda_version"):
        return _number(key, value)
    if key in (*TEXTS, "driver_version"):
        return _text(key, virtual_name(_text(key, str(value))) if key == "name" else str(value))
    known = ", ".join((*OF_THE_MACHINE, *TEXTS, MIG, *SIZES, *SWITCHES, *NUMBERS))
    raise UsageError(f"a virtual GPU has no setting {key!r}", hint=f"it has {known}")


def _number(key: str, value: Setting) -> str:
    most = MAX_SIZE if key in (*SIZES, "ecc_uncorrected") else MAX_COUNT
    if isinstance(value, int) and 0 <= value <= most:
        return str(int(value))
    raise UsageError(f"{key} cannot be {value!r}", hint=f"it is a whole number, from 0 to {most}")


def _text(key: str, value: str) -> str:
    if value.strip() and value.isprintable() and len(value.encode()) <= MAX_NAME_LENGTH:
        return value
    raise UsageError(
        f"{key} cannot be {value!r}", hint=f"it is one line of text, at most {MAX_NAME_LENGTH} bytes long"
    )


# ---- how a virtual GPU is divided by MIG: from the profiles that people name to its config lines ----
#
#     3g.71gb,2g.35gb                 two GPU instances, a MIG device each
#     3g.71gb,1c.2g.35gb+1c.2g.35gb   the second is shared by two compute instances
#     none                            MIG is switched on, and no instance was made
#
# A GPU has seven slices of compute and eight of memory. Which profile takes how many is as NVIDIA documents
# for A100 and later; how many bytes an eighth is, is ours.

NONE = "none"
_COMPUTE, _MEMORY, _MAX_DEVICES = 7, 8, 7
_GRAIN = 2 * MIB
_NAME = re.compile(r"(?:([1-7])c\.)?([1-7])g\.([0-9]{1,4})gb")
# Memory slices of a profile by its compute slices; 1g comes with two slices of memory too.
_MEMORY_OF = {1: (1, 2), 2: (2,), 3: (4,), 4: (4,), 7: (8,)}
# The driver numbers GPU instances by the place they take: these are where it begins for each size.
_FIRST_ID = {7: 0, 4: 1, 3: 1, 2: 3, 1: 7}
_HINT = "name profiles like 3g.71gb,2g.35gb; parts of one like 1c.2g.35gb+1c.2g.35gb"


class VirtualMigDevice(NamedTuple):
    """One MIG device: a compute instance in a GPU instance, whose memory it may share."""

    gpu_instance: int
    compute_instance: int
    slices: int
    compute_slices: int
    nbytes: int
    profile: str


class _Part(NamedTuple):
    compute: int
    slices: int
    memory: int
    profile: str


def mig_devices(spec: str, total_bytes: int, reserved_bytes: int) -> list[VirtualMigDevice]:
    """The MIG devices that *spec* asks for. Raises UsageError where no such GPU can be made."""
    if spec.strip().lower() == NONE:
        return []
    instances = [_parts(word, total_bytes) for word in spec.split(",")]
    compute = sum(parts[0].slices for parts in instances)
    memory = sum(parts[0].memory for parts in instances)
    if compute > _COMPUTE or memory > _MEMORY:
        raise UsageError(
            f"these instances need {compute} of {_COMPUTE} compute and {memory} of {_MEMORY} memory slices",
            hint="leave some out, or choose smaller profiles",
        )
    slice_bytes = (total_bytes - reserved_bytes) // _MEMORY // _GRAIN * _GRAIN
    made: list[VirtualMigDevice] = []
    numbers: set[int] = set()
    for parts in instances:
        number = next(each for each in count(_FIRST_ID[parts[0].slices]) if each not in numbers)
        numbers.add(number)
        nbytes = parts[0].memory * slice_bytes
        made += [
            VirtualMigDevice(number, at, part.slices, part.compute, nbytes, part.profile)
            for at, part in enumerate(parts)
        ]
    if len(made) > _MAX_DEVICES:
        raise UsageError(f"{len(made)} MIG devices do not fit on a GPU", hint="it has room for seven")
    return made


def profiles(total_bytes: int) -> dict[str, int]:
    """Every profile of a GPU of that size, and how many eighths of its memory it takes."""
    largest = -(-total_bytes // GIB)
    names = {(slices, memory): largest * memory for slices, sizes in _MEMORY_OF.items() for memory in sizes}
    return {
        f"{slices}g.{(eighths * 2 + _MEMORY) // (2 * _MEMORY)}gb": memory
        for (slices, memory), eighths in names.items()
    }


def _parts(word: str, total_bytes: int) -> list[_Part]:
    """The compute instances of one GPU instance."""
    parts = [_part(name.strip(), total_bytes) for name in word.split("+")]
    if len({(part.slices, part.memory) for part in parts}) != 1:
        raise UsageError(f"{word.strip()!r} mixes GPU instances", hint=_HINT)
    if sum(part.compute for part in parts) > parts[0].slices:
        raise UsageError(f"{word.strip()!r} asks for more than the instance's compute slices", hint=_HINT)
    return parts


def _part(name: str, total_bytes: int) -> _Part:
    found = _NAME.fullmatch(name)
    if found is None:
        raise UsageError(f"{name!r} is not a MIG profile", hint=_HINT)
    known = profiles(total_bytes)
    whole = f"{found[2]}g.{found[3]}gb"
    if whole not in known:
        raise UsageError(f"this GPU has no MIG profile {whole}", hint=f"it has {', '.join(known)}")
    slices = int(found[2])
    compute = int(found[1] or slices)
    if compute > slices:
        raise UsageError(f"{name!r} asks for more than the instance's compute slices", hint=_HINT)
    return _Part(compute, slices, known[whole], whole if compute == slices else f"{compute}c.{whole}")


# ---- failures on request: the lines of the ``faults`` file ----
#
#     <function> [gpu=N] [after=N | nth=N] [error=CODE] [sticky=CODE] [hang] [slow=SECONDS] [sentinel]
#         [halfway=CODE] [value=N]
#
# <function> is a shell pattern on an exported name: ``nvmlDeviceGet*``, ``cuMemAlloc*``. CODE is a number or
# its name, with or without the prefix: 15, GPU_IS_LOST, NVML_ERROR_GPU_IS_LOST; the file holds numbers only.
# ``value`` is the state that ``cuCheckpointProcessGetState`` tells. ``step.*`` names steps inside of calls
# instead, for tests of what a call undoes when it fails late (native/virtualgpu/store/faults.c).

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


def read_fault(text: str) -> str:
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
        return f"{key}={_code(function, value)}"
    raise UsageError(
        f"{word!r} says nothing in a fault",
        hint="the words are gpu=N after=N nth=N error=CODE sticky=CODE hang slow=SECONDS sentinel"
        " halfway=CODE value=N",
    )


def _code(function: str, word: str | int) -> int:
    """The number for an error, told by the number or by its name in the function's library."""
    if isinstance(word, int) or (word.isascii() and word.isdigit()):
        return int(word)
    known = CUDA_CODES if function.startswith("cu") else NVML_CODES
    name = word.upper().removeprefix("NVML_ERROR_").removeprefix("CUDA_ERROR_")
    if name not in known:
        raise UsageError(f"there is no error {word!r}", hint="known are " + ", ".join(known))
    return known[name]
