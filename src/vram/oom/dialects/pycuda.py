"""PyCUDA: the driver call that failed, by name, and no figures."""

from __future__ import annotations

import re

from vram.model.oom import Reading, Where

NAME = "pycuda"
NEEDLES: tuple[bytes, ...] = (b"failed: out of memory",)
START = re.compile(r"(?P<call>cu[A-Z]\w+)\s+failed:\s+out\s+of\s+memory")


def read(found: re.Match[str], text: str, before: str) -> tuple[Reading, int] | None:
    call = found["call"]
    if call.startswith(("cuda", "cublas", "cudnn")):
        return None
    where: Where = "pinned" if "Host" in call else "device"
    signs = ("context",) if re.search(r"Ctx|cuInit|cuModule|cuLaunch", call) else ()
    return Reading(dialect=NAME, wording=call, where=where, signs=signs), found.end()
