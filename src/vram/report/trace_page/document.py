"""The page: template, style, script and the trace's figures, put into one file that fetches nothing."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from hashlib import sha256
from html import escape
from pathlib import Path

from vram.model.trace import TraceView
from vram.report.escape import inert
from vram.report.trace_page.content import content

FOLDER = Path(__file__).parent
SCRIPTS = ("data.js", "state.js", "timeline.js", "flame.js", "places.js", "sections.js", "page.js")

# In JSON these can stand only inside strings, where the spelled form means the same. HTML then finds
# neither the end of the script nor the beginning of a comment in them.
_SPELLED = str.maketrans({char: f"\\u{ord(char):04x}" for char in "<>&"})


def page(view: TraceView, *, title: str) -> str:
    """Return an HTML document of *view* that works without a network.

    Names, files and commands of the trace may be hostile: they are inert text in it, and its policy
    allows no script and no style but its own, and no request at all.
    """
    style = (FOLDER / "page.css").read_text("utf-8")
    script = "(() => {\n" + "".join((FOLDER / name).read_text("utf-8") for name in SCRIPTS) + "})();\n"
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    parts = {
        "title": escape(inert(title)),
        "policy": policy,
        "style": style,
        "script": script,
        "data": data(view, title),
    }
    template = (FOLDER / "page.html").read_text("utf-8")
    # In one pass: what is put in is not searched again.
    return re.sub(r"\{\{(\w+)\}\}", lambda slot: parts[slot[1]], template)


def data(view: TraceView, title: str) -> str:
    """The figures as ASCII JSON that is inert inside HTML."""
    whole = {"title": inert(title), **content(view)}
    return json.dumps(whole, ensure_ascii=True, allow_nan=False, separators=(",", ":")).translate(_SPELLED)


def _digest(text: str) -> str:
    return "sha256-" + b64encode(sha256(text.encode()).digest()).decode()
