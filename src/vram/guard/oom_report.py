"""DOC"""

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
from typing import Any, NamedTuple

from vram import __version__
from vram.errors import OutOfMemory
from vram.files import write_new
from vram.guard import footprint
from vram.guard.footprint import Footprint
from vram.model.leak import Kept
from vram.units import size

# ---- one sentence ----


BEGINNING = "the GPU is out of memory"
_NOBODYS = ("free", "reserved", "overhead")


class Situation(NamedTuple):
    """What was measured at the moment. ``ledger`` is the JSON of `vram why`, or None."""

    pid: int
    requested: int | None
    footprint: Footprint
    frameworks: tuple[dict[str, Any], ...]
    ledger: dict[str, Any] | None
    largest: tuple[Kept, ...]


def sentence(now: Situation) -> str:
    """Cause and remedy, the likeliest first."""
    asked = f"asked for {size(now.requested)}" if now.requested else "asked for more than was left"
    return f"{BEGINNING} ({asked}): {_cause(now)}"


def _cause(now: Situation) -> str:
    held, wanted = now.footprint, now.requested or 1
    others = _others(now)
    theirs = sum(nbytes for nbytes, _ in others)
    if theirs > held.total and theirs >= wanted:
        nbytes, who = max(others)
        return (
            f"other holders have {size(theirs)} of it, {who} alone {size(nbytes)}; "
            "`vram why` says who they are and how to get it back"
        )
    if held.cached >= wanted or held.cached > held.total // 3:
        return (
            f"{size(held.cached)} lie unused in this process's own caches; "
            "vram.flush() gives them back, and vram.retry_on_oom does so before it tries again"
        )
    if held.fragmented >= wanted:
        return (
            f"{size(held.fragmented)} are unused but in pieces between live arrays; PyTorch defragments with "
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
        )
    return _own_cause(now)


def _own_cause(now: Situation) -> str:
    held = now.footprint
    used = sum(held.in_use.values()) + max(0, held.outside)
    if now.largest:
        most = now.largest[0]
        keeper = f", kept by {most.keeper}" if most.keeper else ""
        return (
            f"this process itself uses {size(used)}; the largest array is {most.what}, {size(most.nbytes)}"
            f"{keeper}; let go of it, or ask for less (vram.retry_on_oom)"
        )
    if held.outside > sum(held.in_use.values()):
        return (
            f"this process has {size(held.outside)} outside every framework, its context included; look for "
            "raw allocations that nobody frees (vram.scope finds them), or ask for less"
        )
    amount = size(used) if used else "what there is"
    return f"this process itself uses {amount}; ask for less (vram.retry_on_oom shrinks by itself)"


def _others(now: Situation) -> list[tuple[int, str]]:
    """Bytes of everybody else, on the GPUs that this process uses."""
    found = []
    for gpu in (now.ledger or {}).get("gpus", ()):
        mine = any((entry.get("holder") or {}).get("pid") == now.pid for entry in gpu["entries"])
        for entry in gpu["entries"] if mine or len(now.ledger["gpus"]) == 1 else ():  # type: ignore[index]
            pid = (entry.get("holder") or {}).get("pid")
            if entry["kind"] not in _NOBODYS and pid != now.pid:
                found.append((entry["nbytes"], f"pid {pid}" if pid else f"memory that is {entry['kind']}"))
    return found


# ---- the file ----


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
    from vram.oom.reader import sightings

    if isinstance(error, OutOfMemory) and error.nbytes is not None:
        return error.nbytes
    for seen in sightings(BytesIO(str(error).encode("utf-8", "replace"))):
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
    from vram.guard.leak_check import largest

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
