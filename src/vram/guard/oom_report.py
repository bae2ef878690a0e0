"""One file about one out-of-memory: the GPU's whole ledger, this process's own split, and who keeps what."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from io import BytesIO
from itertools import count
from typing import Any

from vram import __version__
from vram.errors import OutOfMemory
from vram.files import write_new
from vram.guard import footprint
from vram.guard.oom_sentence import Situation, sentence
from vram.units import size

SCHEMA = 1
SURVEY_S = 5.0
LARGEST = 12
_numbers = count(1)

# By path, because the program may have found vram in a folder that a new interpreter does not search.
_SURVEY = (
    "import sys; sys.path.insert(0, sys.argv[1]); from vram.cli.app import main; "
    "sys.exit(main(['why', '--json', '--deadline', sys.argv[2]]))"
)


def gather(error: BaseException) -> tuple[Situation, dict[str, Any]]:
    """Everything that bears on *error*, measured now, and the report; what could not be is in its "notes"."""
    notes: list[str] = []
    taken = footprint.take(thorough=True)
    lines = footprint.framework_lines(thorough=True) if footprint.driver_is_loaded() else []
    ledger = _ledger(notes)
    largest = _largest(notes)
    asked = requested(error)
    situation = Situation(os.getpid(), asked, taken, tuple(lines), ledger, tuple(largest))
    report = {
        "schema": SCHEMA,
        "program": f"vram {__version__}",
        "taken_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "pid": os.getpid(),
        "sentence": sentence(situation),
        "text": [],
        "error": {"type": _full_name(type(error)), "message": str(error)},
        "requested_bytes": asked,
        "process": {
            "charged": {str(device): nbytes for device, nbytes in taken.charged.items()},
            "in_use": taken.in_use,
            "cached": taken.cached,
            "fragmented": taken.fragmented,
            "outside": taken.outside,
        },
        "frameworks": lines,
        "largest": [{"what": each.what, "nbytes": each.nbytes, "keeper": each.keeper} for each in largest],
        "stack": list(_stack()),
        "ledger": ledger,
        "notes": notes,
    }
    report["text"] = list(_told(report))
    return situation, report


def write(report: dict[str, Any], folder: str) -> str:
    """Write *report* into a new file of *folder*, readable by this user alone; return its path."""
    stamp = report["taken_at"].replace(":", "").replace("-", "")
    contents = f"{json.dumps(report, indent=1)}\n".encode("utf-8", "backslashreplace")
    while True:
        path = os.path.abspath(os.path.join(folder, f"vram-oom-{stamp}-{os.getpid()}-{next(_numbers)}.json"))
        with suppress(FileExistsError):
            write_new(path, contents)
            return path


def requested(error: BaseException) -> int | None:
    """How much was asked for, where the error or its message tells."""
    from vram.oom.reader import find_messages

    if isinstance(error, OutOfMemory) and error.nbytes is not None:
        return error.nbytes
    for seen in find_messages(BytesIO(str(error).encode("utf-8", "replace"))):
        if seen.reading.asked is not None:
            return seen.reading.asked.nbytes
    return None


def _ledger(notes: list[str]) -> dict[str, Any] | None:
    """The whole machine's account, taken by a process of its own: this one is in trouble."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    environment = {name: value for name, value in os.environ.items() if name != "VRAM_AGENT"}
    if not sys.executable:
        notes.append("the machine's ledger was not taken: this program is no plain Python interpreter")
        return None
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _SURVEY, root, str(SURVEY_S)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=3 * SURVEY_S,
            env=environment,
        )
        ledger: dict[str, Any] = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as trouble:
        notes.append(f"the machine's ledger was not taken: {type(trouble).__name__}")
        return None
    return ledger


def _largest(notes: list[str]) -> list[Any]:
    from vram.guard.suspects import largest

    try:
        return largest(LARGEST)
    except Exception as trouble:
        notes.append(f"live arrays could not be listed: {type(trouble).__name__}: {trouble}")
        return []


def _stack() -> Iterator[str]:
    """Where the program was, innermost first, without our own steps."""
    frame = sys._getframe()
    here = os.path.dirname(os.path.abspath(__file__))
    at: Any = frame
    while at is not None:
        code = at.f_code
        if os.path.dirname(code.co_filename) != here:
            yield f"{code.co_filename}:{at.f_lineno} {code.co_qualname}"
        at = at.f_back


def _told(report: dict[str, Any]) -> Iterator[str]:
    """The same for a person who opens the file."""
    process, error = report["process"], report["error"]
    yield f"{error['type']}: {error['message'].splitlines()[0] if error['message'] else ''}"
    yield report["sentence"]
    yield from _own(process)
    if report["largest"]:
        yield "the largest arrays, and who keeps them"
    for each in report["largest"]:
        yield _row(each["nbytes"], f"{each['what']}: {each['keeper']}")
    for gpu in (report["ledger"] or {}).get("gpus", ()):
        yield f"GPU {gpu['index']} {gpu['name']}"
        for entry in gpu["entries"]:
            holder = entry.get("holder") or {}
            who = f"pid {holder['pid']} {holder.get('command') or ''}" if holder else ""
            yield _row(entry["nbytes"], f"{entry['kind']} {who}")


def _own(process: dict[str, Any]) -> Iterator[str]:
    """This process's split, without what there is none of."""
    yield f"this process: {size(sum(process['charged'].values()))} in all"
    parts = [(nbytes, f"in use by {name}") for name, nbytes in process["in_use"].items()]
    parts += [(process[state], state) for state in ("cached", "fragmented")]
    parts.append((process["outside"], "contexts, code, and arrays that their framework does not count"))
    yield from (_row(nbytes, words) for nbytes, words in parts if nbytes)


def _row(nbytes: int, words: str) -> str:
    return f"  {size(nbytes):>10}  {words}".rstrip()


def _full_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
