"""Numba: the driver call that failed, by name, and no figures."""

from __future__ import annotations

import re

from vram.model.oom import Reading, Where

NAME = "numba"
NEEDLES: tuple[bytes, ...] = (b"OF_MEMORY",)
START = re.compile(r"Call\s+to\s+(?P<call>cu\w+)\s+results\s+in\s+CUDA_ERROR_OUT_OF_MEMORY")


def read(found: re.Match[str], text: str, before: str) -> tuple[Reading, int] | None:
    call = found["call"]
    where: Where = "pinned" if "Host" in call else "device"
    signs = ("context",) if re.search(r"Ctx|cuInit|cuModule", call) else ()
    return Reading(dialect=NAME, wording=call, where=where, signs=signs), found.end()
