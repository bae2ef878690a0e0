"""BAR1: the window through which the host and other devices reach a GPU's memory, when it is full."""

from __future__ import annotations

import re

from vram.model.oom import Reading

NAME = "bar1"
NEEDLES: tuple[bytes, ...] = (b"buffer object failed", b"VA space", b"t allocate memory", b"BAR1")
START = re.compile(
    r"mapping\s+of\s+buffer\s+object\s+failed"
    r"|can't\s+alloc\s+VA\s+space\s+for\s+mapping"
    r"|(?:ibv_reg_mr|ibv_reg_dmabuf_mr|nvidia_p2p_get_pages|gdr_pin_buffer|gdr_map|cuFileBufRegister)\w*"
    r"[^\n]{0,120}?(?:Cannot\s+allocate\s+memory|Out\s+of\s+memory|No\s+space|insufficient)"
    r"|BAR1[^\n]{0,60}?(?:out\s+of\s+memory|failed\s+to\s+alloc)"
)


def read(found: re.Match[str], text: str, before: str) -> tuple[Reading, int] | None:
    return Reading(dialect=NAME, wording=" ".join(found.group().split())[:60], where="bar1"), found.end()
