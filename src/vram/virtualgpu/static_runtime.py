"""Programs whose CUDA calls would all fail on the virtual GPU: found before they are started."""

from __future__ import annotations

import mmap
import shutil
import struct

# What NVIDIA's runtime names its shared memory by; no other part of a program has it.
_MARK = b"/cudart.shm."
_X86_64 = 62
_SYMBOL_TABLE = 2
_SECTION_BYTES = 64


def is_out_of_reach(command: str) -> bool:
    """Whether *command* has a CUDA runtime inside that native/virtualgpu/runtime/static.c cannot redirect.

    False for a file that cannot be read.
    """
    path = shutil.which(command)
    if path is None:
        return False
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return data[:5] == b"\x7fELF\x02" and data.find(_MARK) >= 0 and not _is_redirected(data)
    except (OSError, ValueError, struct.error):  # an empty file cannot be mapped
        return False


def _is_redirected(data: mmap.mmap) -> bool:
    (machine,) = struct.unpack_from("<H", data, 18)
    (sections,) = struct.unpack_from("<Q", data, 40)
    (count,) = struct.unpack_from("<H", data, 60)
    kinds = (
        struct.unpack_from("<I", data, sections + number * _SECTION_BYTES + 4)[0] for number in range(count)
    )
    return machine == _X86_64 and _SYMBOL_TABLE in kinds
