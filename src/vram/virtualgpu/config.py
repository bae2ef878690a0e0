"""What a virtual GPU is told about itself: the lines of its ``config`` file.

What is left unsaid is as measured on an H200 under driver 580; the defaults live with the
library that reads this file (native/virtualgpu/store/config.c).
"""

from __future__ import annotations

from vram.errors import UsageError
from vram.units import MIB, size
from vram.virtualgpu import mig

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
)
NUMBERS = (
    "remapped_correctable",
    "remapped_uncorrectable",
    "retired_pages",
    "ecc_uncorrected",
    "utilization",
    "compute_mode",
)
TEXTS = ("name", "uuid")
MIG = "mig"
OF_THE_MACHINE = ("driver_version", "cuda_version", "wddm")
COMPUTE_MODES = {"default": 0, "prohibited": 2, "exclusive_process": 3}

Setting = str | int | bool


def first_lines(gpus: int, settings: dict[str, Setting]) -> list[str]:
    """The file as it is first written: how many GPUs, and what holds for all of them."""
    if not 0 <= gpus <= MAX_GPUS:
        raise UsageError(f"{gpus} virtual GPUs cannot be made", hint=f"from 0 to {MAX_GPUS} can")
    _check_room(settings)
    return [f"gpus = {gpus}", *lines(settings)]


def lines(settings: dict[str, Setting], gpu: int | None = None, said: str = "") -> list[str]:
    """One line for each setting, of one GPU or of all; *said* is what the file holds already."""
    plain = {key: value for key, value in settings.items() if key != MIG}
    written = [line(key, value, gpu) for key, value in plain.items()]
    if MIG not in settings:
        return written
    sizes = sizes_in("\n".join((said, *written)), gpu)
    return written + _divided(str(settings[MIG]), *sizes, "" if gpu is None else f"gpu{gpu}.")


def sizes_in(said: str, gpu: int | None) -> tuple[int, int]:
    """Total and reserved bytes of a GPU, as the lines of a config file leave them."""
    values = {"total_bytes": TOTAL_BYTES, "reserved_bytes": RESERVED_BYTES}
    for each in said.splitlines():
        key, _, value = (part.strip() for part in each.partition("="))
        key = key.removeprefix(f"gpu{gpu}.")
        if key in values and value.isdigit():
            values[key] = int(value)
    return values["total_bytes"], values["reserved_bytes"]


def _divided(division: str, total: int, reserved: int, prefix: str) -> list[str]:
    """The lines that switch MIG on and make its instances."""
    made = mig.devices(division, total, reserved)
    devices = [mig.NONE, *(each.setting() for each in made)]
    return [f"{prefix}mig_enabled = 1", *(f"{prefix}mig_device = {each}" for each in devices)]


def line(key: str, value: Setting, gpu: int | None = None) -> str:
    prefix = "" if gpu is None or key in OF_THE_MACHINE else f"gpu{gpu}."
    return f"{prefix}{key} = {_written(key, value)}"


def virtual_name(name: str) -> str:
    """*name*, with the word that keeps it from being taken for a real GPU's."""
    return name if "virtual" in name.lower() else f"{name} (virtual)"


def _check_room(settings: dict[str, Setting]) -> None:
    total, reserved = settings.get("total_bytes"), settings.get("reserved_bytes", RESERVED_BYTES)
    if total is not None and int(total) <= int(reserved):
        raise UsageError(
            f"{size(int(total))} of memory is less than the {size(int(reserved))} that the driver reserves",
            hint="give the virtual GPU more memory, or set reserved_bytes",
        )


def _written(key: str, value: Setting) -> str:
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
