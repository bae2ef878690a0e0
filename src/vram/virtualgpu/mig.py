"""How a virtual GPU is divided by MIG: from the profiles that people name to its config lines.

    3g.71gb,2g.35gb             two GPU instances, a MIG device each
    3g.71gb,1c.2g.35gb+1c.2g.35gb   the second is shared by two compute instances
    none                        MIG is switched on, and no instance was made

A GPU has seven slices of compute and eight of memory. Which profile takes how many is as
NVIDIA documents for A100 and later; how many bytes an eighth is, is ours.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from vram.errors import UsageError
from vram.units import GIB, MIB

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

    def setting(self) -> str:
        return " ".join(map(str, self))


class _Part(NamedTuple):
    compute: int
    slices: int
    memory: int
    profile: str


def devices(spec: str, total_bytes: int, reserved_bytes: int) -> list[VirtualMigDevice]:
    """The MIG devices that *spec* asks for. Raises UsageError where no such GPU can be made."""
    if spec.strip().lower() == NONE:
        return []
    instances = [_parts(word, total_bytes) for word in spec.split(",")]
    _check(instances)
    slice_bytes = (total_bytes - reserved_bytes) // _MEMORY // _GRAIN * _GRAIN
    made: list[VirtualMigDevice] = []
    for parts, number in zip(instances, _numbers(instances), strict=True):
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


def _check(instances: list[list[_Part]]) -> None:
    compute = sum(parts[0].slices for parts in instances)
    memory = sum(parts[0].memory for parts in instances)
    if compute > _COMPUTE or memory > _MEMORY:
        raise UsageError(
            f"these instances need {compute} of {_COMPUTE} compute and {memory} of {_MEMORY} memory slices",
            hint="leave some out, or choose smaller profiles",
        )


def _numbers(instances: list[list[_Part]]) -> list[int]:
    given: list[int] = []
    for parts in instances:
        number = _FIRST_ID[parts[0].slices]
        while number in given:
            number += 1
        given.append(number)
    return given
